// The division into tasks of the work of products with a sparse matrix.
//
// Scheduling is two-dimensional: a task is a run of rows, cut so that all tasks have about the same work, for one tile
// of columns. A free thread takes the next task. Rows with more entries than a segment (power-law graphs have them) are
// cut into segments, which are tasks, too. The sums of segments are added in order afterwards, so no two threads write
// to the same row.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "hpcgnn.h"
#include "simd.h"

namespace {

constexpr int64_t kWorkOfARow = 4;           // work of a row beside that of its entries, in entries
constexpr int64_t kLeastWorkOfATask = 1024;  // entries

template <typename Storage, typename Value>
struct SpmmJob {
    const hpcgnn_csr* csr;
    const Value* weight;  // (entries, heads), or null
    int64_t heads;        // the columns form this many equal groups, with a weight each
    const Storage* x;
    const float* scale;  // (rows of x), or null
    int64_t width;
    Value* out;
    bool accumulate;
    hpcgnn_tuning tuning;
    const Storage* packed;                       // the hot rows of x, tile by tile (see pack_rows), or null
    int64_t segment = hpcgnn_segment_entries();  // rows with more entries are heavy
    const int64_t* indptr = csr->indptr;         // of the rows of `out`
    int64_t last_entry = csr->indptr[csr->rows] - 1;
};

// A tile of columns: `vectors` vectors from `first_column` on, of which the last has `last_lanes` lanes. Tiles of
// packed rows are contiguous; the tiles before this one have `packed_columns` columns of each row, padding included.
// The tile's columns belong to `head`, or to several heads of `head_columns` columns from there on.
struct Tile {
    int64_t first_column, head, packed_columns;
    int vectors, last_lanes, head_columns;
};

// One task: the rows [first, last) of one tile, except heavy ones.
template <typename Storage, typename Value>
using TileKernel = void (*)(const SpmmJob<Storage, Value>&, const Tile&, int64_t, int64_t);

struct Segment {
    int64_t begin, end;
};

// One task: a segment of a heavy row, which is summed as a matrix of one row into `partial`, a row of scratch memory.
template <typename Storage, typename Value>
void do_segment(const TileKernel<Storage, Value> kernel, SpmmJob<Storage, Value> job, const Tile& tile,
                const Segment& segment, Value* partial) {
    const int64_t indptr[2] = {segment.begin, segment.end};
    job.indptr = indptr;
    job.out = partial;
    job.accumulate = false;
    job.tuning.streaming = 0;
    kernel(job, tile, 0, 1);
}

// The first row of `csr` before which there is at least `work`.
inline int64_t row_at(const hpcgnn_csr& csr, const int64_t work) {
    int64_t low = 0, high = csr.rows;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const int64_t done = csr.indptr[middle] + kWorkOfARow * middle;
        if (done < work) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Adds the sums of heavy rows' segments in order. `partial` has a row of `width` values for each segment.
template <typename Storage, typename Value>
void join_segments(const SpmmJob<Storage, Value>& job, const int64_t row, const Value* partial) {
    const int64_t entries = job.csr->indptr[row + 1] - job.csr->indptr[row];
    const int64_t segments = (entries + job.segment - 1) / job.segment;
    Value* out = job.out + row * job.width;
    for (int64_t c = 0; c < job.width; ++c) {
        Value sum = job.accumulate ? out[c] + partial[c] : partial[c];
        for (int64_t s = 1; s < segments; ++s) sum += partial[s * job.width + c];
        out[c] = sum;
    }
}

// Computes all rows of job.csr, with a kernel for each tile.
template <typename Storage, typename Value>
void run_tiles(const SpmmJob<Storage, Value>& job, const std::vector<Tile>& tiles,
               const std::vector<TileKernel<Storage, Value>>& kernels, const int threads) {
    const hpcgnn_csr& csr = *job.csr;
    const int64_t num_tiles = static_cast<int64_t>(tiles.size());
    std::vector<Segment> segments;
    std::vector<int64_t> first_segment;  // of each heavy row
    for (int64_t h = 0; h < csr.num_heavy; ++h) {
        const int64_t row = csr.heavy[h];
        first_segment.push_back(static_cast<int64_t>(segments.size()));
        for (int64_t e = csr.indptr[row]; e < csr.indptr[row + 1]; e += job.segment)
            segments.push_back({e, std::min(e + job.segment, csr.indptr[row + 1])});
    }
    const int64_t num_segments = static_cast<int64_t>(segments.size());
    const int64_t shares = job.tuning.split_rows ? num_segments : std::min<int64_t>(1, num_segments);
    const std::unique_ptr<Value[]> partial(num_segments ? new Value[num_segments * job.width] : nullptr);

    const int64_t work = csr.indptr[csr.rows] + kWorkOfARow * csr.rows;
    const int64_t tasks = std::clamp<int64_t>(static_cast<int64_t>(threads) * job.tuning.tasks_a_thread, 1,
                                              std::max<int64_t>(1, work / kLeastWorkOfATask));
    const int64_t step = (work + tasks - 1) / tasks;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t k = 0; k < shares * num_tiles; ++k) {
            const int64_t t = k / shares;
            for (int64_t s = k % shares; s < num_segments; s += shares)
                do_segment(kernels[t], job, tiles[t], segments[s], partial.get() + s * job.width);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t k = 0; k < tasks * num_tiles; ++k) {
            const int64_t t = k / tasks, task = k % tasks;
            const int64_t last = task + 1 == tasks ? csr.rows : row_at(csr, (task + 1) * step);
            kernels[t](job, tiles[t], row_at(csr, task * step), last);
        }
#pragma omp for schedule(static)
        for (int64_t h = 0; h < csr.num_heavy; ++h)
            join_segments<Storage, Value>(job, csr.heavy[h], partial.get() + first_segment[h] * job.width);
        finish_streams();
    }
}

}  // namespace
