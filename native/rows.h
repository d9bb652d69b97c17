// Gathering of the rows that an index names, and the order that sorts the index.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "hpcgnn.h"

namespace {

constexpr int64_t kRowsAhead = 16;  // prefetching distance

// Rows of one value: a plain load and store instead of a copy of variable length.
template <typename Value, typename Index>
void gather_values(const void* x, const Index* index, const int64_t count, void* out, const int threads) {
    const Value* from = static_cast<const Value*>(x);
    Value* to = static_cast<Value*>(out);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t k = 0; k < count; ++k) to[k] = index[k] < 0 ? Value(0) : from[index[k]];
}

template <typename Index>
void gather_rows(const uint8_t* x, const int64_t row_bytes, const Index* index, const int64_t count, uint8_t* out,
                 const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    if (row_bytes == 1) return gather_values<uint8_t>(x, index, count, out, threads);
    if (row_bytes == 2) return gather_values<uint16_t>(x, index, count, out, threads);
    if (row_bytes == 4) return gather_values<uint32_t>(x, index, count, out, threads);
    if (row_bytes == 8) return gather_values<uint64_t>(x, index, count, out, threads);
    const int64_t fetched = std::min<int64_t>(row_bytes, 1024);  // the hardware prefetches the rest
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t k = 0; k < count; ++k) {
        const Index later = index[std::min(k + kRowsAhead, count - 1)];
        for (int64_t b = 0; later >= 0 && b < fetched; b += 64) __builtin_prefetch(x + later * row_bytes + b);
        uint8_t* to = out + k * row_bytes;
        if (index[k] < 0) {
            std::memset(to, 0, row_bytes);
        } else {
            std::memcpy(to, x + index[k] * row_bytes, row_bytes);
        }
    }
}

// indptr and order of an ascending index, which needs no sorting.
template <typename Index>
void cluster_sorted(const Index* index, const int64_t count, const int64_t rows, int64_t* indptr, int32_t* order,
                    const int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t k = 0; k < count; ++k) {
        order[k] = static_cast<int32_t>(k);
        for (int64_t row = k == 0 ? 0 : index[k - 1] + 1; row <= index[k]; ++row) indptr[row] = k;
    }
    std::fill(indptr + (count == 0 ? 0 : index[count - 1] + 1), indptr + rows + 1, count);
}

// A stable counting sort. One thread counts and places each share of the index, after the positions of earlier shares.
template <typename Index>
void cluster(const Index* index, const int64_t count, const int64_t rows, int64_t* indptr, int32_t* order,
             const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    bool sorted = true;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(&& : sorted)
    for (int64_t k = 1; k < count; ++k) sorted = sorted && index[k - 1] <= index[k];
    if (sorted) return cluster_sorted(index, count, rows, indptr, order, threads);

    // The counters of all shares take at most twice the memory of `order`, or of one share's counters if that is more.
    const int64_t shares = std::clamp<int64_t>(2 * std::max(count, rows) / rows, 1, threads);
    const std::unique_ptr<uint32_t[]> counters(new uint32_t[shares * rows]);
    std::vector<int64_t> before(shares + 1);  // entries before each block of rows
#pragma omp parallel num_threads(static_cast<int>(shares))
    {
#pragma omp for schedule(static, 1)
        for (int64_t t = 0; t < shares; ++t) {
            uint32_t* own = counters.get() + t * rows;
            std::fill(own, own + rows, 0U);
            for (int64_t k = t * count / shares; k < (t + 1) * count / shares; ++k) ++own[index[k]];
        }
#pragma omp for schedule(static, 1)
        for (int64_t block = 0; block < shares; ++block) {
            int64_t sum = 0;
            for (int64_t t = 0; t < shares; ++t)
                for (int64_t row = block * rows / shares; row < (block + 1) * rows / shares; ++row)
                    sum += counters[t * rows + row];
            before[block + 1] = sum;
        }
#pragma omp single
        for (int64_t block = 0; block < shares; ++block) before[block + 1] += before[block];
#pragma omp for schedule(static, 1)
        for (int64_t block = 0; block < shares; ++block) {
            int64_t place = before[block];
            for (int64_t row = block * rows / shares; row < (block + 1) * rows / shares; ++row) {
                indptr[row] = place;
                for (int64_t t = 0; t < shares; ++t) {
                    const uint32_t entries = counters[t * rows + row];
                    counters[t * rows + row] = static_cast<uint32_t>(place);
                    place += entries;
                }
            }
        }
#pragma omp for schedule(static, 1)
        for (int64_t t = 0; t < shares; ++t) {
            uint32_t* own = counters.get() + t * rows;
            for (int64_t k = t * count / shares; k < (t + 1) * count / shares; ++k)
                order[own[index[k]]++] = static_cast<int32_t>(k);
        }
    }
    indptr[rows] = count;
}

}  // namespace

#define HPCGNN_ROWS(suffix, Index)                                                                                    \
    HPCGNN_KERNEL(void, gather_rows_##suffix)(const uint8_t* x, int64_t row_bytes, const Index* index, int64_t count, \
                                              uint8_t* out, int threads) {                                            \
        gather_rows<Index>(x, row_bytes, index, count, out, threads);                                                 \
    }                                                                                                                 \
    HPCGNN_KERNEL(void, cluster_##suffix)(const Index* index, int64_t count, int64_t rows, int64_t* indptr,           \
                                          int32_t* order, int threads) {                                              \
        cluster<Index>(index, count, rows, indptr, order, threads);                                                   \
    }

HPCGNN_ROWS(i32, int32_t)
HPCGNN_ROWS(i64, int64_t)
