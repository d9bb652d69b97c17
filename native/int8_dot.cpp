// The kernels in 8-bit integers for CPUs with instructions that add products of four of them: VNNI of x86, SDOT of ARM.
// AVX2, AVX-512 and NEON do not include these instructions, so these kernels are compiled separately.

#define HPCGNN_DOT_PRODUCTS
#define HPCGNN_INT8_SUFFIX _dot
#include "int8_kernels.h"
