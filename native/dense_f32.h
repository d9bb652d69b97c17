// Dense products in float32.
#pragma once

#include "dense.h"
#include "multiply_ceiling.h"

HPCGNN_KERNEL(void, dense_f32)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* weight,
                               int64_t row_stride, int64_t column_stride, const float* bias, int accumulate, float* y,
                               int threads) {
    product<Float32>({rows, depth, x, Panels(width), nullptr, bias, accumulate != 0, y}, weight, row_stride,
                     column_stride, threads);
}

HPCGNN_KERNEL(void, dense_gradient_f32)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* dy,
                                        float* dweight, float* sums, int threads) {
    weight_gradient<Float32>(rows, depth, width, x, dy, dweight, sums, threads);
}

HPCGNN_KERNEL(double, multiply_ceiling_f32)(int64_t rounds, int threads) {
    const auto add = [](const Floats a, const Floats b, const Floats sum) { return fused(a, b, sum); };
    return multiply_ceiling<Floats, Floats>(rounds, threads, kFloats, add);
}
