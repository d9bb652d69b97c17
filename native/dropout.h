// Dropout whose mask is a function of (key, original node id, column): the same for any number of ranks and threads.
// hpcgnn/kernels/keyed.py holds the same function in numpy; the two must agree bit for bit.

#pragma once

#include "hpcgnn.h"
#include "keyed.h"

namespace {

template <typename T>
void dropout_rows(const int64_t rows, const int64_t width, const int64_t* ids, const uint64_t key,
                  const uint32_t threshold, const T scale, const T* x, T* out, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) {
        const uint64_t hash = row_hash(key, ids[r]);
        const uint32_t low = static_cast<uint32_t>(hash), high = static_cast<uint32_t>(hash >> 32);
        const T* from = x + r * width;
        T* to = out + r * width;
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) {
            const uint32_t draw = draw32(low, high, static_cast<uint32_t>(c));
            to[c] = draw >= threshold ? from[c] * scale : T(0);
        }
    }
}

}  // namespace

HPCGNN_KERNEL(void, dropout_f32)(int64_t rows, int64_t width, const int64_t* ids, uint64_t key, uint32_t threshold,
                                 float scale, const float* x, float* out, int threads) {
    dropout_rows(rows, width, ids, key, threshold, scale, x, out, threads);
}

HPCGNN_KERNEL(void, dropout_f64)(int64_t rows, int64_t width, const int64_t* ids, uint64_t key, uint32_t threshold,
                                 double scale, const double* x, double* out, int threads) {
    dropout_rows(rows, width, ids, key, threshold, scale, x, out, threads);
}
