// The kernels in 8-bit integers for CPUs with instructions that add products of four of them: VNNI of x86, SDOT of ARM,
// which are more than AVX2, AVX-512 or NEON are here: so they are compiled on their own.

#define HPCGNN_DOT_PRODUCTS
#define HPCGNN_INT8_SUFFIX _dot
#include "int8_kernels.h"
