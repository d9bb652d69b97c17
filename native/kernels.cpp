// All kernels for one instruction set (see hpcgnn.h). HPCGNN_ISA: its name. HPCGNN_VECTOR_BYTES: size of its registers.

#include "activation.h"
#include "ceiling.h"
#include "dense.h"
#include "dropout.h"
#include "edges.h"
#include "int8.h"
#include "messages.h"
#include "quantize.h"
#include "rows.h"
#include "spmm.h"
#include "spmm_rows.h"

HPCGNN_DENSE(f32, Float32)
