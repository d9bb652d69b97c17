// Operators over the entries ("edges") of a sparse matrix: products and sums of the two rows that an entry joins,
// softmax over each row, and sums into rows.
//
// Every sum has a fixed order, so that its bits depend neither on the instruction set nor on the number of threads (see
// pack.h). A row with more entries than a segment is cut into segments, which threads share; their sums are added in
// order.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "entries.h"
#include "hpcgnn.h"
#include "pack.h"
#include "simd.h"
#include "tasks.h"

namespace {

// The rows that threads share, cut into segments. first: number of each row's first segment, and the total at the end.
struct HeavyRows {
    std::vector<Segment> segments;
    std::vector<int64_t> owner, first;  // owner: number of the heavy row to which a segment belongs

    HeavyRows(const hpcgnn_csr& csr, const int64_t size) {
        for (int64_t h = 0; h < csr.num_heavy; ++h) {
            first.push_back(static_cast<int64_t>(segments.size()));
            const int64_t end = csr.indptr[csr.heavy[h] + 1];
            for (int64_t e = csr.indptr[csr.heavy[h]]; e < end; e += size) {
                segments.push_back({e, std::min(e + size, end)});
                owner.push_back(h);
            }
        }
        first.push_back(static_cast<int64_t>(segments.size()));
    }
    int64_t size() const { return static_cast<int64_t>(segments.size()); }
};

// Combines the segments of each heavy row in `partial` (segments, width) into the first one, by sum or maximum.
template <typename T, bool kMax>
void join(const HeavyRows& heavy, const int64_t width, T* partial, const int threads) {
    in_parallel(static_cast<int64_t>(heavy.first.size()) - 1, threads, [&](const int64_t h) {
        T* into = partial + heavy.first[h] * width;
        for (int64_t s = heavy.first[h] + 1; s < heavy.first[h + 1]; ++s) {
            for (int64_t c = 0; c < width; ++c) into[c] = combine<T, kMax>(into[c], partial[s * width + c]);
        }
    });
}

// -- a value for each entry from the two rows that it joins ----------------------------------------------------------

template <typename T>
inline T dot(const T* a, const T* b, const int64_t width) {
    constexpr int n = Pack<T>::n;
    Pack<T> sum;
    int64_t c = 0;
    for (; c + 16 <= width; c += 16)
        sum.each(
            [&](const auto part, const int r) { return part + load<T, n>(a + c + r * n) * load<T, n>(b + c + r * n); });
    if (c < width) {  // a lane that does not exist adds 0, which changes no bit: sums start from +0
        const int count = static_cast<int>(width - c);
        const Pack<T> left = Pack<T>::read(a + c, count), right = Pack<T>::read(b + c, count);
        sum.each([&](const auto part, const int r) { return part + left.part[r] * right.part[r]; });
    }
    return sum_lanes(sum);
}

template <typename T>
inline void write_entry(const hpcgnn_sddmm op, const T* a, const T* b, const int64_t width, const int64_t heads,
                        T* out) {
    if (op == HPCGNN_DOT) {
        const int64_t columns = width / heads;
        for (int64_t h = 0; h < heads; ++h) out[h] = dot(a + h * columns, b + h * columns, columns);
    } else if (op == HPCGNN_ADD) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) out[c] = a[c] + b[c];
    } else {
        std::copy(a, a + width, out);
    }
}

template <typename T>
void sddmm(const hpcgnn_csr* csr, const T* a, const T* b, const int64_t width, const int op, const int64_t heads,
           T* out, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const int64_t last_entry = csr->indptr[csr->rows] - 1, row_bytes = width * sizeof(T);
    const int64_t written = op == HPCGNN_DOT ? heads : width;
    for_entry_ranges(*csr, threads, [&](const int64_t row, const int64_t begin, const int64_t end) {
        for (int64_t e = begin; e < end; ++e) {
            if (op != HPCGNN_LEFT)
                prefetch_row(b + csr->indices[std::min(e + kEntriesAhead, last_entry)] * width, row_bytes);
            const T* right = op == HPCGNN_LEFT ? nullptr : b + csr->indices[e] * width;
            write_entry(static_cast<hpcgnn_sddmm>(op), a + row * width, right, width, heads, out + e * written);
        }
    });
}

// -- softmax over the entries of each row, and sums ------------------------------------------------------------------

template <typename T>
void largest(const Strip& strip, const T* scores, const int64_t begin, const int64_t end, T* top) {
    constexpr T kLowest = -std::numeric_limits<T>::infinity();
    Pack<T> most = Pack<T>::all(kLowest);
    strip.each(begin, end, [&](const int64_t at, const int count) {
        const Pack<T> value = Pack<T>::read(scores + at, count, kLowest);
        most.each([&](const auto part, const int r) { return combine<decltype(part), true>(part, value.part[r]); });
    });
    strip.fold<true>(most, top);
}

// values = e^(scores - top), and their sum. A row of nothing but -inf has a sum of 0.
template <typename T>
void exponentials(const Strip& strip, const T* scores, const int64_t begin, const int64_t end, const T* top, T* values,
                  T* sum) {
    T finite[16];
    for (int h = 0; h < strip.columns; ++h) finite[h] = top[h] == -std::numeric_limits<T>::infinity() ? 0 : top[h];
    const Pack<T> shift = strip.spread(finite);
    Pack<T> total;
    strip.each(begin, end, [&](const int64_t at, const int count) {
        Pack<T> value = Pack<T>::read(scores + at, count);
        value.each([&](const auto part, const int r) { return exp_lanes<Pack<T>::n>(part - shift.part[r]); });
        value.keep(count, 0);
        value.write(values + at, count);
        total.each([&](const auto part, const int r) { return part + value.part[r]; });
    });
    strip.fold<false>(total, sum);
}

template <typename T>
void divide(const Strip& strip, T* values, const int64_t begin, const int64_t end, const T* sum) {
    T divisor[16];
    for (int h = 0; h < strip.columns; ++h) divisor[h] = sum[h] == 0 ? 1 : sum[h];
    const Pack<T> spread = strip.spread(divisor);
    strip.each(begin, end, [&](const int64_t at, const int count) {
        Pack<T> value = Pack<T>::read(values + at, count);
        value.each([&](const auto part, const int r) { return part / spread.part[r]; });
        value.write(values + at, count);
    });
}

// sum of alpha * gradient, or of alpha alone if there is no gradient.
template <typename T>
void products(const Strip& strip, const T* alpha, const T* gradient, const int64_t begin, const int64_t end, T* sum) {
    Pack<T> total;
    strip.each(begin, end, [&](const int64_t at, const int count) {
        Pack<T> value = Pack<T>::read(alpha + at, count);
        if (gradient != nullptr) {
            const Pack<T> factor = Pack<T>::read(gradient + at, count);
            value.each([&](const auto part, const int r) { return part * factor.part[r]; });
        }
        total.each([&](const auto part, const int r) { return part + value.part[r]; });
    });
    strip.fold<false>(total, sum);
}

template <typename T>
void less_the_sum(const Strip& strip, const T* alpha, const T* gradient, const int64_t begin, const int64_t end,
                  const T* sum, T* out) {
    const Pack<T> shift = strip.spread(sum);
    strip.each(begin, end, [&](const int64_t at, const int count) {
        const Pack<T> value = Pack<T>::read(alpha + at, count);
        Pack<T> result = Pack<T>::read(gradient + at, count);
        result.each([&](const auto part, const int r) { return value.part[r] * (part - shift.part[r]); });
        result.write(out + at, count);
    });
}

// Calls light(strip, row, begin, end) for each row that is not heavy, and each strip of columns.
template <typename Light>
void for_light_rows(const hpcgnn_csr& csr, const std::vector<Strip>& strips, const int threads, const Light& light) {
    const int64_t most = hpcgnn_segment_entries();
    for_row_ranges(csr, threads, [&](const int64_t first, const int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const int64_t begin = csr.indptr[row], end = csr.indptr[row + 1];
            if (end - begin > most) continue;
            for (const Strip& strip : strips) light(strip, row, begin, end);
        }
    });
}

template <typename T>
void edge_softmax(const hpcgnn_csr* csr, const T* scores, const int64_t width, T* out, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const std::vector<Strip> strips = Strip::cut(width);
    for_light_rows(*csr, strips, threads, [&](const Strip& strip, int64_t, const int64_t begin, const int64_t end) {
        T top[16], sum[16];
        largest(strip, scores, begin, end, top);
        exponentials(strip, scores, begin, end, top, out, sum);
        divide(strip, out, begin, end, sum);
    });
    const HeavyRows heavy(*csr, hpcgnn_segment_entries());
    std::vector<T> top(heavy.size() * width), sum(heavy.size() * width);
    const auto segments = [&](const auto& each) {
        in_parallel(heavy.size(), threads, [&](const int64_t s) {
            const int64_t whole = heavy.first[heavy.owner[s]] * width;  // offset of the row's values
            for (const Strip& strip : strips)
                each(strip, heavy.segments[s], s * width + strip.first, whole + strip.first);
        });
    };
    segments([&](const Strip& strip, const Segment& segment, const int64_t own, int64_t) {
        largest(strip, scores, segment.begin, segment.end, top.data() + own);
    });
    join<T, true>(heavy, width, top.data(), threads);
    segments([&](const Strip& strip, const Segment& segment, const int64_t own, const int64_t whole) {
        exponentials(strip, scores, segment.begin, segment.end, top.data() + whole, out, sum.data() + own);
    });
    join<T, false>(heavy, width, sum.data(), threads);
    segments([&](const Strip& strip, const Segment& segment, int64_t, const int64_t whole) {
        divide(strip, out, segment.begin, segment.end, sum.data() + whole);
    });
}

template <typename T>
void edge_softmax_backward(const hpcgnn_csr* csr, const T* alpha, const T* gradient, const int64_t width, T* out,
                           const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const std::vector<Strip> strips = Strip::cut(width);
    for_light_rows(*csr, strips, threads, [&](const Strip& strip, int64_t, const int64_t begin, const int64_t end) {
        T sum[16];
        products(strip, alpha, gradient, begin, end, sum);
        less_the_sum(strip, alpha, gradient, begin, end, sum, out);
    });
    const HeavyRows heavy(*csr, hpcgnn_segment_entries());
    std::vector<T> sum(heavy.size() * width);
    in_parallel(heavy.size(), threads, [&](const int64_t s) {
        for (const Strip& strip : strips)
            products(strip, alpha, gradient, heavy.segments[s].begin, heavy.segments[s].end,
                     sum.data() + s * width + strip.first);
    });
    join<T, false>(heavy, width, sum.data(), threads);
    in_parallel(heavy.size(), threads, [&](const int64_t s) {
        for (const Strip& strip : strips)
            less_the_sum(strip, alpha, gradient, heavy.segments[s].begin, heavy.segments[s].end,
                         sum.data() + heavy.first[heavy.owner[s]] * width + strip.first, out);
    });
}

// out = the sum of the entries [begin, end) of values (entries, width); wide values are read entry by entry, in order
// of memory.
template <typename T>
void sum_entries(const std::vector<Strip>& strips, const T* values, const int64_t width, const int64_t begin,
                 const int64_t end, T* out) {
    if (width <= 16) {
        for (const Strip& strip : strips) products<T>(strip, values, nullptr, begin, end, out);
        return;
    }
    std::fill(out, out + width, T(0));
    for (int64_t e = begin; e < end; ++e) {
        const T* from = values + e * width;
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) out[c] += from[c];
    }
}

template <typename T>
void edge_sum(const hpcgnn_csr* csr, const T* values, const int64_t width, T* out, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const std::vector<Strip> strips = Strip::cut(width), whole = {{width, 0, 0, 1}};
    for_light_rows(*csr, whole, threads, [&](const Strip&, const int64_t row, const int64_t begin, const int64_t end) {
        sum_entries(strips, values, width, begin, end, out + row * width);
    });
    const HeavyRows heavy(*csr, hpcgnn_segment_entries());
    std::vector<T> sum(heavy.size() * width);
    in_parallel(heavy.size(), threads, [&](const int64_t s) {
        sum_entries(strips, values, width, heavy.segments[s].begin, heavy.segments[s].end, sum.data() + s * width);
    });
    join<T, false>(heavy, width, sum.data(), threads);
    for (int64_t h = 0; h < csr->num_heavy; ++h)
        std::copy_n(sum.data() + heavy.first[h] * width, width, out + csr->heavy[h] * width);
}

}  // namespace

#define HPCGNN_EDGES(suffix, T)                                                                                   \
    HPCGNN_KERNEL(void, sddmm_##suffix)(const hpcgnn_csr* csr, const T* a, const T* b, int64_t width, int op,     \
                                        int64_t heads, T* out, int threads) {                                     \
        sddmm<T>(csr, a, b, width, op, heads, out, threads);                                                      \
    }                                                                                                             \
    HPCGNN_KERNEL(void, edge_softmax_##suffix)(const hpcgnn_csr* csr, const T* scores, int64_t width, T* out,     \
                                               int threads) {                                                     \
        edge_softmax<T>(csr, scores, width, out, threads);                                                        \
    }                                                                                                             \
    HPCGNN_KERNEL(void, edge_softmax_backward_##suffix)(const hpcgnn_csr* csr, const T* alpha, const T* gradient, \
                                                        int64_t width, T* out, int threads) {                     \
        edge_softmax_backward<T>(csr, alpha, gradient, width, out, threads);                                      \
    }                                                                                                             \
    HPCGNN_KERNEL(void, edge_sum_##suffix)(const hpcgnn_csr* csr, const T* values, int64_t width, T* out,         \
                                           int threads) {                                                         \
        edge_sum<T>(csr, values, width, out, threads);                                                            \
    }

HPCGNN_EDGES(f32, float)
HPCGNN_EDGES(f64, double)
