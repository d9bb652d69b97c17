// Dense products in float32.
#pragma once

#include "dense.h"

// y = x weight, plus a row `bias` where there is one, plus what y holds if `accumulate`. Element (k, c) of the weight
// is at weight[k * row_stride + c * column_stride], so a transposed one is the same thing.
HPCGNN_KERNEL(dense_f32)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* weight,
                         int64_t row_stride, int64_t column_stride, const float* bias, int accumulate, float* y,
                         int threads) {
    product<Float32>({rows, depth, x, Panels(width), nullptr, bias, accumulate != 0, y}, weight, row_stride,
                     column_stride, threads);
}

// dweight (depth, width) = the transposed x (rows, depth) times dy (rows, width), and sums (width) = those of dy's
// columns, unless null. Beside them, each thread takes memory for one more of each, and 256 rows of both operands.
HPCGNN_KERNEL(dense_gradient_f32)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* dy,
                                  float* dweight, float* sums, int threads) {
    weight_gradient<Float32>(rows, depth, width, x, dy, dweight, sums, threads);
}
