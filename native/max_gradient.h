// The gradient of spmm's maximum: it goes to the entries that attain the maximum, in equal shares.
//
// z (rows, width) is the result. Whether an entry attains it is found by computing its product again, which gives the
// same bits. Rows are whole here: counting and adding in entry order costs little beside the forward pass.
#pragma once

#include "edges.h"
#include "hpcgnn.h"

namespace {

// weight: (entries, heads) or null.
template <typename T>
inline T weight_of(const T* weight, const int64_t entry, const int64_t heads, const int64_t head) {
    return weight == nullptr ? T(1) : weight[entry * heads + head];
}

template <typename T>
void max_shares(const hpcgnn_csr* csr, const T* weight, const int64_t heads, const T* x, const int64_t width,
                const T* z, const T* gradient, T* out, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const int64_t columns = width / heads;
    for_row_ranges(*csr, threads, [&](const int64_t first, const int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            T* ties = out + row * width;
            std::fill(ties, ties + width, T(0));
            for (int64_t e = csr->indptr[row]; e < csr->indptr[row + 1]; ++e) {
                for (int64_t h = 0; h < heads; ++h) {
                    const T factor = weight_of(weight, e, heads, h);
                    const T* from = x + csr->indices[e] * width;
#pragma omp simd
                    for (int64_t c = h * columns; c < (h + 1) * columns; ++c)
                        ties[c] += factor * from[c] == z[row * width + c] ? T(1) : T(0);
                }
            }
            for (int64_t c = 0; c < width; ++c) ties[c] = ties[c] > 0 ? gradient[row * width + c] / ties[c] : T(0);
        }
    });
}

// `csr` is the transpose, `weight` in its order: row s of it is row s of x, its columns are rows of z.
template <typename T>
void max_backward(const hpcgnn_csr* csr, const T* weight, const int64_t heads, const T* x, const int64_t width,
                  const T* z, const T* shares, T* out, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const int64_t columns = width / heads;
    for_row_ranges(*csr, threads, [&](const int64_t first, const int64_t last) {
        for (int64_t source = first; source < last; ++source) {
            const T* from = x + source * width;
            T* to = out + source * width;
            std::fill(to, to + width, T(0));
            for (int64_t e = csr->indptr[source]; e < csr->indptr[source + 1]; ++e) {
                const int64_t row = csr->indices[e] * width;
                for (int64_t h = 0; h < heads; ++h) {
                    const T factor = weight_of(weight, e, heads, h);
#pragma omp simd
                    for (int64_t c = h * columns; c < (h + 1) * columns; ++c)
                        to[c] += factor * from[c] == z[row + c] ? factor * shares[row + c] : T(0);
                }
            }
        }
    });
}

template <typename T>
void max_weight_backward(const hpcgnn_csr* csr, const T* weight, const int64_t heads, const T* x, const int64_t width,
                         const T* z, const T* shares, T* out, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const int64_t columns = width / heads;
    for_entry_ranges(*csr, threads, [&](const int64_t row, const int64_t begin, const int64_t end) {
        for (int64_t k = begin * heads; k < end * heads; ++k) {
            const int64_t e = k / heads, column = k % heads * columns;
            const T* from = x + csr->indices[e] * width + column;
            const int64_t at = row * width + column;
            T sum = 0;
            for (int64_t c = 0; c < columns; ++c)
                sum += weight[k] * from[c] == z[at + c] ? shares[at + c] * from[c] : T(0);
            out[k] = sum;
        }
    });
}

}  // namespace

// max_shares: out (rows, width) = gradient / how many entries of the row attain z. max_backward: out (rows of x,
// width) = the gradient of x; takes the transpose. max_weight_backward: out (entries, heads) = that of weight.
#define HPCGNN_MAX_GRADIENT(name, T)                                                                                  \
    HPCGNN_KERNEL(name)(const hpcgnn_csr* csr, const T* weight, int64_t heads, const T* x, int64_t width, const T* z, \
                        const T* gradient, T* out, int threads)

HPCGNN_MAX_GRADIENT(max_shares_f32, float) {
    max_shares<float>(csr, weight, heads, x, width, z, gradient, out, threads);
}
HPCGNN_MAX_GRADIENT(max_shares_f64, double) {
    max_shares<double>(csr, weight, heads, x, width, z, gradient, out, threads);
}
HPCGNN_MAX_GRADIENT(max_backward_f32, float) {
    max_backward<float>(csr, weight, heads, x, width, z, gradient, out, threads);
}
HPCGNN_MAX_GRADIENT(max_backward_f64, double) {
    max_backward<double>(csr, weight, heads, x, width, z, gradient, out, threads);
}
HPCGNN_MAX_GRADIENT(max_weight_backward_f32, float) {
    max_weight_backward<float>(csr, weight, heads, x, width, z, gradient, out, threads);
}
HPCGNN_MAX_GRADIENT(max_weight_backward_f64, double) {
    max_weight_backward<double>(csr, weight, heads, x, width, z, gradient, out, threads);
}
