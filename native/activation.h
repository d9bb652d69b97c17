// The operations between two layers, y = dropout(relu(norm(x))), in one pass forward and one backward. norm is torch's
// LayerNorm, (x - mean) / sqrt(variance + eps) * gamma + beta for each row, or x + beta; both may be left out, and so
// may dropout, which is that of dropout.h.
//
// Sums over a row have the order of pack.h. The gradients of gamma and beta, and other sums of columns, are sums over
// all rows: first over the rows of a segment in order, then over the segments in order. The number of segments depends
// on the number of rows alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include "hpcgnn.h"
#include "keyed.h"
#include "pack.h"
#include "quantize.h"

namespace {

constexpr int kRowsTogether = 2;         // rows in parallel, whose sums need not wait for each other
constexpr int64_t kRowsOfASegment = 64;  // at least; more if there are kMostSegments segments
constexpr int64_t kMostSegments = 128;
constexpr int64_t kRowsAddedTogether = 16;

// Calls each(c, count) for packs of columns. A `count` of 16 is a constant, so that an inlined `each` is specialised.
template <typename Each>
inline __attribute__((always_inline)) void for_packs(const int64_t width, const Each& each) {
    int64_t c = 0;
    for (; c + 16 <= width; c += 16) each(c, 16);
    if (c < width) each(c, static_cast<int>(width - c));
}

// The bytes of one bit for each of `width` columns.
inline int64_t bytes_of_bits(const int64_t width) {
    return (width + 7) / 8;
}

// R rows from number `first` on. kNorm: whether they are normalised. kDrop: whether dropout is applied.
template <bool kNorm, bool kDrop, int R>
struct ActivatedRows {
    static constexpr int n = kLanes<float>;
    using P = Pack<float>;
    using V = Lanes<float, n>;
    using U = Lanes<uint32_t, n>;

    const hpcgnn_activation job;  // a copy: the compiler knows that stores to a matrix do not change it
    const int64_t first;
    float mean[R], per_std[R];  // per_std: 1 / sqrt(variance + eps)
    uint32_t low[R], high[R];   // of the rows' hashes

    ActivatedRows(const hpcgnn_activation& of, const int64_t from) : job(of), first(from) {
        if constexpr (kDrop) {
            for (int r = 0; r < R; ++r) {
                const uint64_t hash = row_hash(job.key, job.ids[first + r]);
                low[r] = static_cast<uint32_t>(hash);
                high[r] = static_cast<uint32_t>(hash >> 32);
            }
        }
    }

    const float* row(const float* matrix, const int r) const { return matrix + (first + r) * job.width; }

    // Prefetches the next R rows: the hardware does not predict them when several rows are read side by side.
    void fetch_after(const float* matrix, const int64_t c, const int r) const {
        __builtin_prefetch(row(matrix, R) + R * c + 16 * r);
    }

    // The mean is the first value plus the mean distance to it, so that the variance of equal values is exactly 0.
    void measure() {
        P sum[R], squares[R];
        for_packs(job.width, [&](const int64_t c, const int count) __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const float start = *row(job.x, r);
                fetch_after(job.x, c, r);
                const P x = P::read(row(job.x, r) + c, count, start);
                sum[r].each([&](const V part, const int k) { return part + (x.part[k] - start); });
            }
        });
        const float width = static_cast<float>(job.width);
        for (int r = 0; r < R; ++r) mean[r] = *row(job.x, r) + sum_lanes(sum[r]) / width;
        for_packs(job.width, [&](const int64_t c, const int count) __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const P x = P::read(row(job.x, r) + c, count, mean[r]);
                squares[r].each([&](const V part, const int k) {
                    const V distance = x.part[k] - mean[r];
                    return part + distance * distance;
                });
            }
        });
        for (int r = 0; r < R; ++r) {
            per_std[r] = 1 / std::sqrt(sum_lanes(squares[r]) / width + job.eps);
            job.statistics[2 * (first + r)] = mean[r];
            job.statistics[2 * (first + r) + 1] = per_std[r];
        }
    }

    // Reads the results of measure() in the forward pass.
    void remember() {
        for (int r = 0; r < R; ++r) {
            mean[r] = job.statistics[2 * (first + r)];
            per_std[r] = job.statistics[2 * (first + r) + 1];
        }
    }

    V normalised(const V x, const int r) const {
        if constexpr (kNorm) return (x - mean[r]) * per_std[r];
        return x;
    }

    // `values` from column c on, times the scale of dropout; 0 where they are dropped, and where `before`, the operand
    // of ReLU, is at most 0. Where `before` is NaN, values are kept.
    V masked(const V values, const V before, const int64_t c, const int r) const {
        V kept = values;
        if constexpr (kDrop) kept = values * job.scale;
        kept = before <= V{} ? V{} : kept;
        if constexpr (kDrop) {
            const U lane = lane_numbers<uint32_t, n>();
            // draw32(low, high, c + lane)
            const U draw = mix32(lane * kGolden + (low[r] + static_cast<uint32_t>(c) * kGolden)) ^ high[r];
            kept = draw < job.threshold ? V{} : kept;
        }
        return kept;
    }

    void forward(float* out, const bool past_caches) {
        if constexpr (kNorm) measure();
        for_packs(job.width, [&](const int64_t c, const int count) __attribute__((always_inline)) {
            P gamma, beta;
            if constexpr (kNorm) gamma = P::read(job.gamma + c, count);
            if (job.beta != nullptr) beta = P::read(job.beta + c, count);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                if constexpr (!kNorm) fetch_after(job.x, c, r);
                P y = P::read(row(job.x, r) + c, count);
                y.each([&](const V x, const int k) {
                    V before = normalised(x, r);
                    if constexpr (kNorm) before = before * gamma.part[k];
                    before += beta.part[k];
                    return masked(before, before, c + k * n, r);
                });
                if constexpr (!kNorm) put_bits(y, c, count, r);
                put_pack(y, out + (first + r) * job.width + c, count, past_caches);
            }
        });
    }

    // Adds these rows to the gradients of gamma and beta. `scratch`: R rows.
    void backward(const float* dy, float* dx, float* dgamma, float* dbeta, float* scratch, const bool past_caches) {
        remember();
        P sum[R], product[R];  // of the gradients of the normalised rows; and of those times the rows
        for_packs(job.width, [&](const int64_t c, const int count) __attribute__((always_inline)) {
            const P gamma = P::read(job.gamma + c, count), beta = P::read(job.beta + c, count);
            P to_gamma = P::read(dgamma + c, count), to_beta = P::read(dbeta + c, count);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                fetch_after(job.x, c, r);
                fetch_after(dy, c, r);
                const P x = P::read(row(job.x, r) + c, count);
                P gradient = P::read(row(dy, r) + c, count);
                gradient.each([&](const V given, const int k) {
                    const V u = normalised(x.part[k], r);
                    const V after = masked(given, u * gamma.part[k] + beta.part[k], c + k * n, r);
                    to_gamma.part[k] += after * u;
                    to_beta.part[k] += after;
                    const V du = after * gamma.part[k];
                    sum[r].part[k] += du;
                    product[r].part[k] += du * u;
                    return du;
                });
                gradient.write(scratch + r * job.width + c, count);
            }
            to_gamma.write(dgamma + c, count);
            to_beta.write(dbeta + c, count);
        });
        float mean_du[R], mean_product[R];
        for (int r = 0; r < R; ++r) {
            mean_du[r] = sum_lanes(sum[r]) / static_cast<float>(job.width);
            mean_product[r] = sum_lanes(product[r]) / static_cast<float>(job.width);
        }
        for_packs(job.width, [&](const int64_t c, const int count) __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const P x = P::read(row(job.x, r) + c, count);
                P gradient = P::read(scratch + r * job.width + c, count);
                gradient.each([&](const V du, const int k) {
                    return ((du - mean_du[r]) - normalised(x.part[k], r) * mean_product[r]) * per_std[r];
                });
                put_pack(gradient, dx + (first + r) * job.width + c, count, past_caches);
            }
        });
    }

    // Writes the bits of `values`, from column c on, of which no byte has columns of another pack.
    void put_bits(const P& values, const int64_t c, const int count, const int r) const {
        if (job.positive == nullptr) return;
        uint32_t bits = 0;
#pragma GCC unroll 16
        for (int k = 0; k < P::kRegisters; ++k) bits |= positive_bits<n>(values.part[k]) << (k * n);
        uint8_t* to = job.positive + (first + r) * bytes_of_bits(job.width) + c / 8;
        to[0] = static_cast<uint8_t>(bits);
        if (count > 8) to[1] = static_cast<uint8_t>(bits >> 8);
    }

    static void put_pack(const P& values, float* to, const int count, const bool past_caches) {
        if (!past_caches) return values.write(to, count);
#pragma GCC unroll 16
        for (int k = 0; k < P::kRegisters; ++k)
            if (k * n < count) stream<float, n>(to + k * n, values.part[k]);
    }
};

// Calls each(rows) for ActivatedRows from `begin` to `end`, several at a time.
template <bool kNorm, bool kDrop, typename Each>
inline void for_rows(const hpcgnn_activation& job, int64_t begin, const int64_t end, const Each& each) {
    for (; begin + kRowsTogether <= end; begin += kRowsTogether)
        each(ActivatedRows<kNorm, kDrop, kRowsTogether>(job, begin));
    for (; begin < end; ++begin) each(ActivatedRows<kNorm, kDrop, 1>(job, begin));
}

inline int64_t num_segments(const int64_t rows) {
    return std::clamp<int64_t>(rows / kRowsOfASegment, 1, kMostSegments);
}

// Calls each(rows) for all rows, on threads; for operations whose results for a row do not depend on others.
template <bool kNorm, bool kDrop, typename Each>
void for_all_rows(const hpcgnn_activation& job, const int threads, const Each& each) {
    const int64_t segments = num_segments(job.rows);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t s = 0; s < segments; ++s)
            for_rows<kNorm, kDrop>(job, job.rows * s / segments, job.rows * (s + 1) / segments, each);
        finish_streams();
    }
}

template <bool kNorm, bool kDrop>
void activate(const hpcgnn_activation& job, float* out, const int threads) {
    const bool past_caches = goes_past_caches(job.rows, job.width, out);
    for_all_rows<kNorm, kDrop>(job, threads, [&](auto&& rows) { rows.forward(out, past_caches); });
}

template <bool kDrop>
void activate_backward(const hpcgnn_activation& job, const float* dy, float* dx, float* dgamma, float* dbeta,
                       const int threads) {
    const bool past_caches = goes_past_caches(job.rows, job.width, dx);
    const int64_t segments = num_segments(job.rows), width = job.width;
    const std::unique_ptr<float[]> partial(new float[2 * segments * width]());  // dgamma and dbeta of each segment
#pragma omp parallel num_threads(threads)
    {
        const std::unique_ptr<float[]> scratch(new float[kRowsTogether * width]);
#pragma omp for schedule(static)
        for (int64_t s = 0; s < segments; ++s) {
            float* own = partial.get() + 2 * s * width;
            for_rows<true, kDrop>(job, job.rows * s / segments, job.rows * (s + 1) / segments, [&](auto&& rows) {
                rows.backward(dy, dx, own, own + width, scratch.get(), past_caches);
            });
        }
        finish_streams();
    }
    std::copy_n(partial.get(), width, dgamma);
    std::copy_n(partial.get() + width, width, dbeta);
    for (int64_t s = 1; s < segments; ++s) {
        const float* own = partial.get() + 2 * s * width;
        for (int64_t c = 0; c < width; ++c) dgamma[c] += own[c];
        for (int64_t c = 0; c < width; ++c) dbeta[c] += own[width + c];
    }
}

// Adds the rows [begin, end) of a matrix of `width` columns to `sums`, four at a time.
inline void add_rows_to(double* sums, const float* matrix, const int64_t width, int64_t begin, const int64_t end) {
    for (; begin + 4 <= end; begin += 4) {
        const float *a = matrix + begin * width, *b = a + width, *c = b + width, *d = c + width;
        for (int64_t i = 0; i < width; ++i)
            sums[i] += (static_cast<double>(a[i]) + b[i]) + (static_cast<double>(c[i]) + d[i]);
    }
    for (; begin < end; ++begin)
        for (int64_t i = 0; i < width; ++i) sums[i] += matrix[begin * width + i];
}

// dx = dy * scale where the bit of a column is set, else 0; dx may be dy.
inline void relu_backward_row(const int64_t width, const uint8_t* positive, const float* dy, const float scale,
                              float* dx) {
    constexpr int n = kLanes<float>;
    using V = Lanes<float, n>;
    const Lanes<uint32_t, n> lane_bit = 1U << lane_numbers<uint32_t, n>();
    for_packs(width, [&](const int64_t c, const int count) __attribute__((always_inline)) {
        const uint32_t bits = positive[c / 8] | (count > 8 ? positive[c / 8 + 1] << 8 : 0);
        Pack<float> gradient = Pack<float>::read(dy + c, count);
        gradient.each(
            [&](const V given, const int k) { return (lane_bit & (bits >> (k * n))) != 0 ? given * scale : V{}; });
        gradient.write(dx + c, count);
    });
}

// Calls each(begin, end) for segments of rows, on threads, and writes to `sums`, unless null, the sums of the columns
// of `matrix`, whose rows `each` has written.
template <typename Each>
void for_segments(const int64_t rows, const int64_t width, const float* matrix, double* sums, const int threads,
                  const Each& each) {
    const int64_t segments = num_segments(rows), columns = sums == nullptr ? 0 : width;
    const std::unique_ptr<double[]> partial(new double[segments * columns]());
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t s = 0; s < segments; ++s) {
        // as few rows as the caches hold, so that they are still there when they are added up
        const int64_t last = rows * (s + 1) / segments;
        for (int64_t begin = rows * s / segments; begin < last; begin += kRowsAddedTogether) {
            const int64_t end = std::min(begin + kRowsAddedTogether, last);
            each(begin, end);
            if (sums != nullptr) add_rows_to(partial.get() + s * width, matrix, width, begin, end);
        }
    }
    std::fill_n(sums, columns, 0);
    for (int64_t s = 0; s < segments; ++s)
        for (int64_t c = 0; c < columns; ++c) sums[c] += partial[s * width + c];
}

}  // namespace

HPCGNN_KERNEL(void, activate)(const hpcgnn_activation* job, float* out, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    if (job->width == 0) return;
    const auto run = job->gamma ? (job->ids ? activate<true, true> : activate<true, false>)
                                : (job->ids ? activate<false, true> : activate<false, false>);
    run(*job, out, threads);
}

HPCGNN_KERNEL(void, activate_backward)(const hpcgnn_activation* job, const float* dy, float* dx, float* dgamma,
                                       float* dbeta, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    (job->ids ? activate_backward<true> : activate_backward<false>)(*job, dy, dx, dgamma, dbeta, threads);
}

HPCGNN_KERNEL(void, relu_backward)(int64_t rows, int64_t width, const uint8_t* positive, const float* dy, float scale,
                                   float* dx, double* sums, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    for_segments(rows, width, dx, sums, threads, [&](const int64_t begin, const int64_t end) {
        for (int64_t r = begin; r < end; ++r)
            relu_backward_row(width, positive + r * bytes_of_bits(width), dy + r * width, scale, dx + r * width);
    });
}

HPCGNN_KERNEL(void, column_sums)(int64_t rows, int64_t width, const float* x, double* sums, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    for_segments(rows, width, x, sums, threads, [](int64_t, int64_t) {});
}
