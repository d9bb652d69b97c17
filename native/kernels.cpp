// All kernels for one instruction set (see hpcgnn.h). HPCGNN_ISA: its name. HPCGNN_VECTOR_BYTES: size of its registers.

#include "activation.h"
#include "ceiling.h"
#include "dense.h"
#include "dropout.h"
#include "edges.h"
#include "int8.h"
#include "messages.h"
#include "multiply_ceiling.h"
#include "quantize.h"
#include "rows.h"
#include "spmm.h"
#include "spmm_rows.h"

HPCGNN_DENSE(f32, Float32)

HPCGNN_KERNEL(double, multiply_ceiling_f32)(int64_t rounds, int threads) {
    const auto add = [](const Floats a, const Floats b, const Floats sum) { return fused(a, b, sum); };
    return multiply_ceiling<Floats, Floats>(rounds, threads, kFloats, add);
}
