// Sparse matrix times dense matrix: a CSR row gathers rows of x into registers, a tile of columns at a time.

#include "hpcgnn.h"

namespace {

constexpr int64_t kTile = 64;         // columns held in registers: 4 cache lines of a gathered float row
constexpr int64_t kRowsPerTask = 32;  // small enough to balance power-law rows, large enough to amortise scheduling

template <bool kWeighted, typename T>
void row_tile(const int64_t begin, const int64_t end, const int32_t* indices, const T* weight, const T* x,
              const int64_t width, const int64_t columns, T* out, const bool accumulate) {
    T sum[kTile];
    for (int64_t c = 0; c < columns; ++c) sum[c] = accumulate ? out[c] : T(0);
    for (int64_t e = begin; e < end; ++e) {
        const T* row = x + static_cast<int64_t>(indices[e]) * width;
        const T factor = kWeighted ? weight[e] : T(1);
        if (columns == kTile) {  // a constant trip count lets the compiler keep the tile in registers
#pragma omp simd
            for (int64_t c = 0; c < kTile; ++c) sum[c] += kWeighted ? factor * row[c] : row[c];
        } else {
#pragma omp simd
            for (int64_t c = 0; c < columns; ++c) sum[c] += kWeighted ? factor * row[c] : row[c];
        }
    }
    for (int64_t c = 0; c < columns; ++c) out[c] = sum[c];
}

template <bool kWeighted, typename T>
void spmm(const int64_t rows, const int64_t* indptr, const int32_t* indices, const T* weight, const T* x,
          const int64_t width, T* out, const bool accumulate, const int threads) {
#pragma omp parallel for schedule(dynamic, kRowsPerTask) num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) {
        if (accumulate && indptr[r] == indptr[r + 1]) continue;
        for (int64_t first = 0; first < width; first += kTile) {
            const int64_t columns = width - first < kTile ? width - first : kTile;
            row_tile<kWeighted>(indptr[r], indptr[r + 1], indices, weight, x + first, width, columns,
                                out + r * width + first, accumulate);
        }
    }
}

template <typename T>
void dispatch(const int64_t rows, const int64_t* indptr, const int32_t* indices, const T* weight, const T* x,
              const int64_t width, T* out, const int accumulate, const int threads) {
    if (weight != nullptr) {
        spmm<true>(rows, indptr, indices, weight, x, width, out, accumulate != 0, threads);
    } else {
        spmm<false>(rows, indptr, indices, weight, x, width, out, accumulate != 0, threads);
    }
}

}  // namespace

int hpcgnn_abi_version() {
    return 1;
}

void hpcgnn_spmm_f32(int64_t rows, const int64_t* indptr, const int32_t* indices, const float* weight, const float* x,
                     int64_t width, float* out, int accumulate, int threads) {
    dispatch(rows, indptr, indices, weight, x, width, out, accumulate, threads);
}

void hpcgnn_spmm_f64(int64_t rows, const int64_t* indptr, const int32_t* indices, const double* weight, const double* x,
                     int64_t width, double* out, int accumulate, int threads) {
    dispatch(rows, indptr, indices, weight, x, width, out, accumulate, threads);
}
