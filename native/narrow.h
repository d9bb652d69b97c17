// Conversion of float32 values to bfloat16 and back.
#pragma once

#include "bfloat16.h"
#include "hpcgnn.h"

HPCGNN_KERNEL(void, pack_bf16)(int64_t count, const float* x, hpcgnn_bfloat16* out, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) out[i].bits = to_bfloat16(bits_of(x[i]));
}

HPCGNN_KERNEL(void, unpack_bf16)(int64_t count, const hpcgnn_bfloat16* x, float* out, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) out[i] = float_of(uint32_t{x[i].bits} << 16);
}
