// The C ABI of hpcgnn's native kernels. Python checks every argument before it calls; nothing is checked again here.
//
// Matrices are row-major and contiguous. `threads` is the number of OpenMP threads to use. Each output row is computed
// by one thread in edge order, so that results do not depend on the number of threads.
#pragma once

#include <cstdint>

#define HPCGNN_API extern "C" __attribute__((visibility("default")))

// Layout version of this interface; the loader refuses a library that answers another number.
HPCGNN_API int hpcgnn_abi_version();

// out[r, :] (+)= sum over e in [indptr[r], indptr[r+1]) of weight[e] * x[indices[e], :]; weight may be null (all ones).
HPCGNN_API void hpcgnn_spmm_f32(int64_t rows, const int64_t* indptr, const int32_t* indices, const float* weight,
                                const float* x, int64_t width, float* out, int accumulate, int threads);
HPCGNN_API void hpcgnn_spmm_f64(int64_t rows, const int64_t* indptr, const int32_t* indices, const double* weight,
                                const double* x, int64_t width, double* out, int accumulate, int threads);

// out[r, c] = keep(key, ids[r], c) ? x[r, c] * scale : 0, with keep's probability 1 - threshold / 2**32.
HPCGNN_API void hpcgnn_dropout_f32(int64_t rows, int64_t width, const int64_t* ids, uint64_t key, uint32_t threshold,
                                   float scale, const float* x, float* out, int threads);
HPCGNN_API void hpcgnn_dropout_f64(int64_t rows, int64_t width, const int64_t* ids, uint64_t key, uint32_t threshold,
                                   double scale, const double* x, double* out, int threads);
