// The kernels in 8-bit integers, for the instructions of the object that includes this file. HPCGNN_INT8_SUFFIX: the
// end of their names.
#pragma once

#include "dense_int8.h"
#include "multiply_ceiling.h"
#include "sddmm_int8.h"

#define HPCGNN_INT8_NAME_(name, suffix) name##suffix
#define HPCGNN_INT8_NAME(name, suffix) HPCGNN_INT8_NAME_(name, suffix)
#define HPCGNN_INT8_KERNEL(result, name) HPCGNN_KERNEL(result, HPCGNN_INT8_NAME(name, HPCGNN_INT8_SUFFIX))

HPCGNN_INT8_KERNEL(void, dense_int8)(int64_t rows, int64_t depth, int64_t width, const int8_t* codes,
                                     const float* scale, const float* weight, int64_t row_stride, int64_t column_stride,
                                     int weight_to_nearest, uint64_t weight_key, const float* bias, int accumulate,
                                     float* y, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const Keyed weight_rounding{weight_to_nearest != 0, weight_key};
    int8_product({rows, depth, codes, scale, Panels(width), nullptr, nullptr, nullptr, bias, accumulate != 0, y, false},
                 weight, row_stride, column_stride, weight_rounding, threads);
}

HPCGNN_INT8_KERNEL(void, dense_gradient_int8)(int64_t rows, int64_t depth, int64_t width, const int8_t* codes,
                                              const float* scale, const float* dy, const int8_t* dy_codes,
                                              const float* dy_scale, int to_nearest, uint64_t key, float* dweight,
                                              float* sums, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    int8_weight_gradient({rows, codes, scale, dy, dy_codes, dy_scale, {to_nearest != 0, key}}, depth, width, dweight,
                         sums, threads);
}

HPCGNN_INT8_KERNEL(void, sddmm_int8)(const hpcgnn_csr* csr, const int8_t* a, const float* a_scale, const int8_t* b,
                                     const float* b_scale, int64_t width, int64_t heads, float* out, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    sddmm_int8(csr, a, a_scale, b, b_scale, width, heads, out, threads);
}

HPCGNN_INT8_KERNEL(double, multiply_ceiling_int8)(int64_t rounds, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    using Numbers = Lanes<uint32_t, kFloats>;
    const auto add = [](const Numbers a, const Numbers b, const Ints sum) { return Int8Arithmetic::add(a, b, sum); };
    return multiply_ceiling<Numbers, Ints>(rounds, threads, kInt8Chunk, add);
}
