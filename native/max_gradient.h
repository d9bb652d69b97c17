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

// f(column, lanes, whether that is a whole register) for the columns of each head.
template <typename T, typename F>
inline void for_lanes(const int64_t first, const int64_t columns, const F& f) {
    constexpr int n = kLanes<T>;
    int64_t c = 0;
    for (; c + n <= columns; c += n) f(first + c, n, std::false_type());
    if (c < columns) f(first + c, static_cast<int>(columns - c), std::true_type());
}

template <typename T, typename Part>
inline Lanes<T, kLanes<T>> take(const T* from, const int count, Part) {
    return Part::value ? load_first<T, kLanes<T>>(from, count) : load<T, kLanes<T>>(from);
}

template <typename T, typename Part>
inline void put(T* to, const Lanes<T, kLanes<T>> vector, const int count, Part) {
    if constexpr (Part::value) {
        store_first<T, kLanes<T>>(to, vector, count);
    } else {
        store<T, kLanes<T>>(to, vector);
    }
}

template <typename T>
void max_shares(const hpcgnn_csr* csr, const T* weight, const int64_t heads, const T* x, const int64_t width,
                const T* z, const T* gradient, T* out, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    using V = Lanes<T, kLanes<T>>;
    const int64_t columns = width / heads, last_entry = csr->indptr[csr->last_row] - 1;
    for_row_ranges(*csr, threads, [&](const int64_t first, const int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const T* most = z + row * width;
            T* ties = out + row * width;
            std::fill(ties, ties + width, T(0));
            for (int64_t e = csr->indptr[row]; e < csr->indptr[row + 1]; ++e) {
                prefetch_row(x + csr->indices[std::min(e + kEntriesAhead, last_entry)] * width, width * sizeof(T));
                const T* from = x + csr->indices[e] * width;
                for (int64_t h = 0; h < heads; ++h) {
                    const T factor = weight_of(weight, e, heads, h);
                    for_lanes<T>(h * columns, columns, [&](const int64_t c, const int count, const auto part) {
                        const V attains = take(from + c, count, part) * factor == take(most + c, count, part)
                                              ? splat<T, kLanes<T>>(1)
                                              : V{};
                        put(ties + c, take(ties + c, count, part) + attains, count, part);
                    });
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
    using V = Lanes<T, kLanes<T>>;
    const int64_t columns = width / heads, last_entry = csr->indptr[csr->last_row] - 1;
    for_row_ranges(*csr, threads, [&](const int64_t first, const int64_t last) {
        for (int64_t source = first; source < last; ++source) {
            const T* from = x + source * width;
            T* to = out + source * width;
            std::fill(to, to + width, T(0));
            for (int64_t e = csr->indptr[source]; e < csr->indptr[source + 1]; ++e) {
                const int64_t later = csr->indices[std::min(e + kEntriesAhead, last_entry)] * width;
                prefetch_row(z + later, width * sizeof(T));
                prefetch_row(shares + later, width * sizeof(T));
                const int64_t row = csr->indices[e] * width;
                for (int64_t h = 0; h < heads; ++h) {
                    const T factor = weight_of(weight, e, heads, h);
                    for_lanes<T>(h * columns, columns, [&](const int64_t c, const int count, const auto part) {
                        const V share = take(shares + row + c, count, part) * factor;
                        const auto attains = take(from + c, count, part) * factor == take(z + row + c, count, part);
                        put(to + c, take(to + c, count, part) + (attains ? share : V{}), count, part);
                    });
                }
            }
        }
    });
}

template <typename T>
void max_weight_backward(const hpcgnn_csr* csr, const T* weight, const int64_t heads, const T* x, const int64_t width,
                         const T* z, const T* shares, T* out, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const int64_t columns = width / heads, last_entry = csr->indptr[csr->last_row] - 1;
    for_entry_ranges(*csr, threads, [&](const int64_t row, const int64_t begin, const int64_t end) {
        for (int64_t k = begin * heads; k < end * heads; ++k) {
            const int64_t e = k / heads, column = k % heads * columns, at = row * width + column;
            prefetch_row(x + csr->indices[std::min(e + kEntriesAhead, last_entry)] * width + column,
                         columns * sizeof(T));
            const T* from = x + csr->indices[e] * width + column;
            Pack<T> sum;
            for (int64_t c = 0; c < columns; c += 16) {
                const int count = static_cast<int>(std::min<int64_t>(columns - c, 16));
                const Pack<T> value = Pack<T>::read(from + c, count), most = Pack<T>::read(z + at + c, count),
                              share = Pack<T>::read(shares + at + c, count);
                sum.each([&](const auto part, const int r) {
                    const typename Pack<T>::V product = share.part[r] * value.part[r], none{};
                    return part + (value.part[r] * weight[k] == most.part[r] ? product : none);
                });
            }
            out[k] = sum_lanes(sum);
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
