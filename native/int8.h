// Rows as 8-bit integers, and what is done with them by the instructions that each CPU of an instruction set has.
#pragma once

#include "int8_rows.h"

#define HPCGNN_INT8_SUFFIX
#include "int8_kernels.h"

HPCGNN_KERNEL(void, quantize_int8)(int64_t rows, int64_t width, const float* x, const float* factor, int to_nearest,
                                   uint64_t key, int8_t* codes, float* scale, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const Keyed rounding{to_nearest != 0, key};
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t r = 0; r < rows; ++r)
        scale[r] = rounding.row(x + r * width, width, factor == nullptr ? 1 : factor[r], r, codes + r * width);
}
