// The machine's limit of gathering rows: the rows that a stream of indices names are read and summed in registers.
// Nothing else is done: no row of a matrix begins or ends, and nothing is written. An aggregation that reads rows in
// place, in the order of the indices, cannot be faster; `hpcgnn bench aggregate` compares it with this limit.
#pragma once

#include <algorithm>

#include "hpcgnn.h"
#include "simd.h"

namespace {

constexpr int kCeilingVectors = kVectorBytes == 32 ? 8 : 16;  // registers for a tile of columns
constexpr int64_t kCeilingChunk = 2048;                       // entries that a thread takes at a time

struct GatherJob {
    const float* x;
    int64_t width;
    const int32_t* indices;
    int64_t entries, ahead;
};

// The sum of the rows [begin, end) of the stream, for N vectors of columns from `column` on.
template <int N>
float gather_tile(const GatherJob& job, const int64_t column, const int64_t begin, const int64_t end) {
    constexpr int n = kLanes<float>;
    const float* x = job.x + column;
    Lanes<float, n> sum[N] = {};
    for (int64_t e = begin; e < end; ++e) {
        if (job.ahead > 0) {
            const float* later = x + job.indices[std::min(e + job.ahead, job.entries - 1)] * job.width;
#pragma GCC unroll 16
            for (int c = 0; c < N * n; c += 16) __builtin_prefetch(later + c, 0, 2);
        }
        const float* row = x + job.indices[e] * job.width;
#pragma GCC unroll 16
        for (int v = 0; v < N; ++v) sum[v] += load<float, n>(row + v * n);
    }
    for (int v = 1; v < N; ++v) sum[0] += sum[v];
    float lanes[n], total = 0;
    store<float, n>(lanes, sum[0]);
    for (int k = 0; k < n; ++k) total += lanes[k];
    return total;
}

using GatherTile = float (*)(const GatherJob&, int64_t, int64_t, int64_t);

template <int N = 1>
GatherTile gather_tile_of(const int64_t vectors) {
    if constexpr (N < kCeilingVectors) {
        if (vectors != N) return gather_tile_of<N + 1>(vectors);
    }
    return gather_tile<N>;
}

}  // namespace

HPCGNN_KERNEL(double, gather_ceiling_f32)(int64_t entries, const int32_t* indices, const float* x, int64_t width,
                                          int64_t ahead, int threads) {
    constexpr int64_t n = kLanes<float>;
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const GatherJob job{x, width, indices, entries, ahead};
    const int64_t vectors = width / n;
    const int64_t tiles = (vectors + kCeilingVectors - 1) / kCeilingVectors;
    double total = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) reduction(+ : total)
    for (int64_t first = 0; first < entries; first += kCeilingChunk) {
        const int64_t last = std::min(first + kCeilingChunk, entries);
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t begin = t * vectors / tiles, end = (t + 1) * vectors / tiles;
            total += gather_tile_of(end - begin)(job, begin * n, first, last);
        }
    }
    return total;
}
