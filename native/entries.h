// The division of the rows, and of the entries, of a sparse matrix among threads.
#pragma once

#include <algorithm>

#include "hpcgnn.h"
#include "tasks.h"

namespace {

constexpr int64_t kTasksAThread = 64;
constexpr int64_t kEntriesAhead = 8;  // prefetching distance

template <typename Each>
void in_parallel(const int64_t count, const int threads, const Each& each) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t k = 0; k < count; ++k) each(k);
}

// Calls each(first, last) for ranges of rows with about equal work.
template <typename Each>
void for_row_ranges(const hpcgnn_csr& csr, const int threads, const Each& each) {
    const int64_t work = csr.indptr[csr.rows] + kWorkOfARow * csr.rows;
    const int64_t tasks =
        std::clamp<int64_t>(threads * kTasksAThread, 1, std::max<int64_t>(1, work / kLeastWorkOfATask));
    const int64_t step = (work + tasks - 1) / tasks;
    in_parallel(tasks, threads, [&](const int64_t task) {
        each(row_at(csr, task * step), task + 1 == tasks ? csr.rows : row_at(csr, (task + 1) * step));
    });
}

// Calls each(row, begin, end) for runs of entries of one row, cut so that all tasks have equally many entries, even if
// one row has most of them.
template <typename Each>
void for_entry_ranges(const hpcgnn_csr& csr, const int threads, const Each& each) {
    const int64_t entries = csr.indptr[csr.rows];
    const int64_t tasks =
        std::clamp<int64_t>(threads * kTasksAThread, 1, std::max<int64_t>(1, entries / kLeastWorkOfATask));
    in_parallel(tasks, threads, [&](const int64_t task) {
        int64_t e = entries * task / tasks;
        const int64_t last = entries * (task + 1) / tasks;
        int64_t row = std::upper_bound(csr.indptr, csr.indptr + csr.rows + 1, e) - csr.indptr - 1;
        for (; e < last; ++row) {
            const int64_t end = std::min(csr.indptr[row + 1], last);
            if (e < end) each(row, e, end);
            e = std::max(e, end);
        }
    });
}

inline void prefetch_row(const void* row, const int64_t bytes) {
    for (int64_t b = 0; b < std::min<int64_t>(bytes, 1024); b += 64)
        __builtin_prefetch(static_cast<const char*>(row) + b);
}

}  // namespace
