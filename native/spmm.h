// The product of a sparse and a dense matrix (SuperGCN §3.2): the rows of x that a row of the matrix names are summed
// in registers, one tile of columns at a time, and each sum is stored once.
//
// Its speed depends on the caches that hold these rows. Rows that many entries name (power-law graphs have them) are
// copied first, tile by tile: a tile of them is contiguous then, so the caches hold several times as many of them as if
// each were a piece of a longer row. All other rows are prefetched into the second-level cache, which can have more
// misses under way than the first level has buffers for. tasks.h divides the work.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "hpcgnn.h"
#include "simd.h"
#include "tasks.h"

namespace {

// Registers of a tile: at most half of all. 8 registers of AVX-512 hold 512 bytes of floats, which is enough; narrow
// types take twice as many, for gathered pieces of about the same size. There is code for each number of registers up
// to kAnyVectors, and for even numbers beyond; compiling it takes most of a build's time. HPCGNN_MAX_VECTORS is for
// builds whose kernels need not be fast.
constexpr int kAnyVectors = kVectorBytes == 4 ? 4 : 8;
#ifdef HPCGNN_MAX_VECTORS
template <typename Storage>
constexpr int kMaxVectors = std::min(HPCGNN_MAX_VECTORS, kAnyVectors);
#else
template <typename Storage>
constexpr int kMaxVectors = kVectorBytes == 16 || (kVectorBytes == 64 && sizeof(Storage) <= 2) ? 16 : kAnyVectors;
#endif
constexpr int kMostEntriesAhead = 64;

// kScale: a scale for each row of x, and weights if there are any. kHeads: weights of several heads in a tile, each of
// whole vectors. kNarrowHeads: weights of several heads in a vector. Those with a scale come last.
enum class Factor { kOne, kWeight, kHeads, kNarrowHeads, kScale, kScaledHeads, kScaledNarrowHeads };
constexpr bool has_scale(const Factor factor) {
    return factor >= Factor::kScale;
}
constexpr bool has_narrow_heads(const Factor factor) {
    return factor == Factor::kNarrowHeads || factor == Factor::kScaledNarrowHeads;
}
constexpr bool has_heads(const Factor factor) {
    return factor == Factor::kHeads || factor == Factor::kScaledHeads || has_narrow_heads(factor);
}
// Without weights, entries can be added in any order, see Rows.
constexpr bool has_weights(const Factor factor) {
    return factor == Factor::kWeight || has_heads(factor);
}

using bfloat16 = hpcgnn_bfloat16;

// n stored values, converted to the type in which they are added. At the end of a row only `count` of them exist.
template <typename Value, typename Storage, int n, bool kPart>
inline Lanes<Value, n> gather(const Storage* from, const int count) {
    if constexpr (std::is_same_v<Value, Storage>) {
        return kPart ? load_first<Value, n>(from, count) : load<Value, n>(from);
    } else if constexpr (std::is_same_v<Storage, bfloat16>) {
        const uint16_t* bits = &from->bits;
        return widen<n>(kPart ? load_first<uint16_t, n>(bits, count) : load<uint16_t, n>(bits));
    } else {
        return widen<n>(kPart ? load_first<int8_t, n>(from, count) : load<int8_t, n>(from));
    }
}

// The address of an entry's row of x, at the first column of a tile. `kGrouped`: entries of packed rows come first in
// each row.
template <typename Storage, typename Value, int N, bool kPacked, bool kGrouped>
struct Rows {
    const Storage *x, *packed;
    int64_t width, last_entry;
    const int32_t* indices;

    Rows(const SpmmJob<Storage, Value>& job, const Tile& tile)
        : x(job.x + tile.first_column),
          packed(kPacked ? job.packed + tile.packed_columns * job.csr->num_hot : nullptr),
          width(job.width),
          last_entry(job.last_entry),
          indices(kPacked ? job.csr->hot_indices : job.csr->indices) {}

    const Storage* at(const int64_t entry) const {
        const int64_t index = indices[entry];
        if constexpr (!kPacked) return x + index * width;
        if constexpr (kGrouped) return index < 0 ? packed + ~index * (N * kLanes<Value>) : x + index * width;
        // In any other order, the CPU cannot predict which of both it is: a branch would cost more than this.
        const intptr_t copied = index >> 63;  // all ones, or zero
        return reinterpret_cast<const Storage*>(
            (reinterpret_cast<intptr_t>(packed + ~index * (N * kLanes<Value>)) & copied) |
            (reinterpret_cast<intptr_t>(x + index * width) & ~copied));
    }
};

// acc[0..N) += entries [begin, end), with columns of `tile`.
template <typename Storage, typename Value, Factor kFactor, int N, bool kPart, typename Rows, typename V>
inline void add_entries(const SpmmJob<Storage, Value>& job, const Tile& tile, const Rows& rows, const int64_t begin,
                        const int64_t end, V (&acc)[N]) {
    constexpr int n = kLanes<Value>;
    constexpr int kLine = 64 / sizeof(Storage);
    constexpr int kTileBytes = N * n * sizeof(Storage);
    const int64_t last_entry = rows.last_entry;
    const int64_t ahead = std::min<int64_t>(job.tuning.prefetch_bytes / kTileBytes, kMostEntriesAhead);
    // The head of each vector's first column, counted from the tile's head, and of each lane, counted from its
    // vector's.
    [[maybe_unused]] int head_of[N], heads_a_vector = 1;
    [[maybe_unused]] Places<Value> head_of_lane{};
    if constexpr (has_narrow_heads(kFactor)) {
        const int shift = __builtin_ctz(static_cast<unsigned>(tile.head_columns));  // they divide a vector's lanes
        heads_a_vector = n >> shift;
        head_of_lane = lane_numbers<PlaceOf<Value>, n>() >> shift;
        for (int v = 0; v < N; ++v) head_of[v] = v * heads_a_vector;
    } else if constexpr (has_heads(kFactor)) {
        for (int v = 0; v < N; ++v)
            head_of[v] = static_cast<int>((tile.first_column + v * n) / tile.head_columns - tile.head);
    }
    for (int64_t e = begin; e < end; ++e) {
        if (ahead > 0) {
            const int64_t later_entry = std::min(e + ahead, last_entry);
            const Storage* later = rows.at(later_entry);
            if constexpr (has_scale(kFactor)) __builtin_prefetch(job.scale + rows.indices[later_entry], 0, 3);
#pragma GCC unroll 16
            for (int c = 0; c < N * n; c += kLine) __builtin_prefetch(later + c, 0, 2);
        }
        const Storage* row = rows.at(e);
        [[maybe_unused]] std::conditional_t<has_narrow_heads(kFactor), V, Value> factor{}, of_vector[N];
        if constexpr (kFactor == Factor::kWeight) factor = job.weight[e * job.heads + tile.head];
        if constexpr (kFactor == Factor::kScale) {
            factor = job.scale[rows.indices[e]];
            if (job.weight != nullptr) factor *= job.weight[e * job.heads + tile.head];
        }
        if constexpr (has_heads(kFactor)) {
            const Value* weights = job.weight + e * job.heads + tile.head;
            for (int v = 0; v < N; ++v) {
                if constexpr (has_narrow_heads(kFactor)) {
                    const V of_heads = load_first<Value, n>(weights + head_of[v], heads_a_vector);
                    of_vector[v] = pick<n>(of_heads, of_heads, head_of_lane);
                } else {
                    of_vector[v] = weights[head_of[v]];
                }
            }
            if constexpr (has_scale(kFactor)) {
                const Value scale = job.scale[rows.indices[e]];
                for (int v = 0; v < N; ++v) of_vector[v] *= scale;
            }
        }
#pragma GCC unroll 16
        for (int v = 0; v < N; ++v) {
            V value = kPart && v == N - 1 ? gather<Value, Storage, n, true>(row + v * n, tile.last_lanes)
                                          : gather<Value, Storage, n, false>(row + v * n, n);
            if constexpr (has_heads(kFactor)) factor = of_vector[v];
            if constexpr (has_scale(kFactor)) {
                acc[v] = fused(value, factor - V{}, acc[v]);  // x - 0: a vector of x, exact, also for -0 and NaN
            } else {
                if constexpr (kFactor != Factor::kOne) value *= factor;
                acc[v] += value;
            }
        }
    }
}

// out[0..N vectors) = acc.
template <typename Storage, typename Value, int N, bool kPart, typename V>
inline void finish(const SpmmJob<Storage, Value>& job, const Tile& tile, const V (&acc)[N], Value* out) {
    constexpr int n = kLanes<Value>;
    const bool past_caches = job.tuning.streaming && reinterpret_cast<uintptr_t>(out) % kVectorBytes == 0;
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) {
        if (kPart && v == N - 1) {
            store_first<Value, n>(out + v * n, acc[v], tile.last_lanes);
        } else if (past_caches) {
            stream<Value, n>(out + v * n, acc[v]);
        } else {
            store<Value, n>(out + v * n, acc[v]);
        }
    }
}

// acc = the initial value of sums: `out` if results are added to it, else 0.
template <typename Storage, typename Value, int N, bool kPart, typename V>
inline void start(const SpmmJob<Storage, Value>& job, const Tile& tile, const Value* out, V (&acc)[N]) {
    constexpr int n = kLanes<Value>;
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) {
        if (job.accumulate) {
            acc[v] =
                kPart && v == N - 1 ? load_first<Value, n>(out + v * n, tile.last_lanes) : load<Value, n>(out + v * n);
        } else {
            acc[v] = V{};
        }
    }
}

// One task: the rows [first, last) of one tile, except heavy ones.
template <typename Storage, typename Value, Factor kFactor, int N, bool kPart, bool kPacked>
void do_rows(const SpmmJob<Storage, Value>& shared_job, const Tile& shared_tile, const int64_t first,
             const int64_t last) {
    const SpmmJob<Storage, Value> job = shared_job;  // copies, which stores to `out` cannot change
    const Tile tile = shared_tile;
    const int64_t* indptr = job.indptr;
    const Rows<Storage, Value, N, kPacked, !has_weights(kFactor)> rows(job, tile);
    Lanes<Value, kLanes<Value>> acc[N];
    for (int64_t r = first; r < last; ++r) {
        const int64_t begin = indptr[r], end = indptr[r + 1];
        if (end - begin > job.segment || (job.accumulate && begin == end)) continue;
        Value* out = job.out + r * job.width + tile.first_column;
        start<Storage, Value, N, kPart>(job, tile, out, acc);
        add_entries<Storage, Value, kFactor, N, kPart>(job, tile, rows, begin, end, acc);
        finish<Storage, Value, N, kPart>(job, tile, acc, out);
    }
}

// The task above, for each number of vectors in a tile.
template <typename Storage, typename Value, Factor kFactor, bool kPart, bool kPacked, int N = 1>
TileKernel<Storage, Value> kernel_for(const int vectors) {
    if constexpr (N < kMaxVectors<Storage>) {
        constexpr int kNext = N < kAnyVectors ? N + 1 : N + 2;
        if (vectors != N) return kernel_for<Storage, Value, kFactor, kPart, kPacked, kNext>(vectors);
    }
    return do_rows<Storage, Value, kFactor, N, kPart, kPacked>;
}

template <typename Storage, typename Value, Factor kFactor, bool kPart>
TileKernel<Storage, Value> kernel_for(const int vectors, const bool packed) {
    return packed ? kernel_for<Storage, Value, kFactor, kPart, true>(vectors)
                  : kernel_for<Storage, Value, kFactor, kPart, false>(vectors);
}

template <typename Storage, typename Value, Factor kFactor>
TileKernel<Storage, Value> kernel_for(const Tile& tile, const bool packed) {
    if constexpr (has_heads(kFactor)) return kernel_for<Storage, Value, kFactor, false, false>(tile.vectors);
    if constexpr (kLanes<Value> > 1) {
        if (tile.last_lanes < kLanes<Value>) return kernel_for<Storage, Value, kFactor, true>(tile.vectors, packed);
    }
    return kernel_for<Storage, Value, kFactor, false>(tile.vectors, packed);
}

template <typename Storage, typename Value>
std::vector<Tile> cut_columns(const int64_t width, const int64_t heads, const int tile_bytes) {
    constexpr int n = kLanes<Value>;
    const int64_t columns = width / heads;
    const int64_t vectors = (columns + n - 1) / n;
    int64_t most = std::clamp(tile_bytes / (n * int{sizeof(Storage)}), 1, kMaxVectors<Storage>);
    if (vectors % 2 != 0) most = std::min<int64_t>(most, kAnyVectors);
    const int64_t together = most > kAnyVectors ? 2 : 1;  // vectors that are not divided among tiles
    const int64_t pieces = vectors / together, most_pieces = most / together;
    const int64_t tiles = (pieces + most_pieces - 1) / most_pieces;
    std::vector<Tile> result;
    int64_t packed_columns = 0;
    for (int64_t head = 0; head < heads; ++head) {
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t first = t * pieces / tiles * together, last = (t + 1) * pieces / tiles * together;
            const int64_t lanes = std::min<int64_t>(columns - (last - 1) * n, n);
            result.push_back({head * columns + first * n, head, packed_columns, static_cast<int>(last - first),
                              static_cast<int>(lanes), 0});
            packed_columns += (last - first) * n;
        }
    }
    return result;
}

// Copies rows of x, contiguous for each tile: packed[tile][row][column in the tile, padded to whole vectors].
template <typename Storage, typename Value>
void pack_rows(const int32_t* hot_rows, const int64_t num_hot, const Storage* x, const int64_t width,
               const int tile_bytes, Storage* packed, const int threads) {
    constexpr int n = kLanes<Value>;
    const std::vector<Tile> tiles = cut_columns<Storage, Value>(width, 1, tile_bytes);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t h = 0; h < num_hot; ++h) {
        const Storage* row = x + hot_rows[h] * width;
        for (const Tile& tile : tiles) {
            Storage* to = packed + tile.packed_columns * num_hot + h * tile.vectors * n;
            std::memcpy(to, row + tile.first_column, ((tile.vectors - 1) * n + tile.last_lanes) * sizeof(Storage));
        }
    }
}

// Tiles with columns of several heads: one pass over the entries computes all these heads.
template <typename Storage, typename Value>
std::vector<Tile> cut_heads(const int64_t width, const int64_t heads, const int tile_bytes) {
    std::vector<Tile> tiles = cut_columns<Storage, Value>(width, 1, tile_bytes);
    for (Tile& tile : tiles) {
        tile.head_columns = static_cast<int>(width / heads);
        tile.head = tile.first_column / tile.head_columns;
    }
    return tiles;
}

template <typename Storage, typename Value, Factor kFactor>
void run_spmm(SpmmJob<Storage, Value> job, const int threads) {
    if (job.csr->rows == 0 || job.width == 0) return;
    const auto cut = has_heads(kFactor) ? cut_heads<Storage, Value> : cut_columns<Storage, Value>;
    const std::vector<Tile> tiles = cut(job.width, job.heads, job.tuning.tile_bytes);
    std::vector<TileKernel<Storage, Value>> kernels;
    for (const Tile& tile : tiles) kernels.push_back(kernel_for<Storage, Value, kFactor>(tile, job.packed != nullptr));
    run_tiles<Storage, Value>(job, tiles, kernels, threads);
}

template <typename Storage, typename Value>
void spmm(const hpcgnn_csr* csr, const Value* weight, const int64_t heads, const Storage* x, const Storage* packed,
          const float* scale, const int64_t width, Value* out, const int accumulate, const hpcgnn_tuning* tuning,
          const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const SpmmJob<Storage, Value> job{csr, weight, heads, x, scale, width, out, accumulate != 0, *tuning, packed};
    constexpr bool kScaled = std::is_same_v<Storage, int8_t>;
    constexpr int n = kLanes<Value>;
    if (weight != nullptr && heads > 1 && width > 0) {
        const int64_t columns = width / heads;
        if (columns % n == 0)
            return run_spmm<Storage, Value, kScaled ? Factor::kScaledHeads : Factor::kHeads>(job, threads);
        if constexpr (n > 1) {
            if (width % n == 0 && n % columns == 0)
                return run_spmm<Storage, Value, kScaled ? Factor::kScaledNarrowHeads : Factor::kNarrowHeads>(job,
                                                                                                             threads);
        }
    }
    if constexpr (kScaled) {  // also without a row of x, whose scales have no address
        run_spmm<Storage, Value, Factor::kScale>(job, threads);
        return;
    } else {
        if constexpr (std::is_same_v<Storage, float>) {
            if (scale != nullptr) return run_spmm<Storage, Value, Factor::kScale>(job, threads);
        }
        if (weight != nullptr) {
            run_spmm<Storage, Value, Factor::kWeight>(job, threads);
        } else {
            run_spmm<Storage, Value, Factor::kOne>(job, threads);
        }
    }
}

}  // namespace

#define HPCGNN_SPMM(name, Storage, Value)                                                                            \
    HPCGNN_KERNEL(void, spmm_##name)(const hpcgnn_csr* csr, const Value* weight, int64_t heads, const Storage* x,    \
                                     const Storage* packed, const float* scale, int64_t width, Value* out,           \
                                     int accumulate, const hpcgnn_tuning* tuning, int threads) {                     \
        spmm<Storage, Value>(csr, weight, heads, x, packed, scale, width, out, accumulate, tuning, threads);         \
    }                                                                                                                \
    HPCGNN_KERNEL(void, spmm_pack_##name)(const int32_t* hot_rows, int64_t num_hot, const Storage* x, int64_t width, \
                                          const hpcgnn_tuning* tuning, Storage* packed, int threads) {               \
        pack_rows<Storage, Value>(hot_rows, num_hot, x, width, tuning->tile_bytes, packed, threads);                 \
    }                                                                                                                \
    HPCGNN_KERNEL(int64_t, spmm_packed_columns_##name)(int64_t width, const hpcgnn_tuning* tuning) {                 \
        int64_t columns = 0;                                                                                         \
        for (const Tile& tile : cut_columns<Storage, Value>(width, 1, tuning->tile_bytes))                           \
            columns += tile.vectors * kLanes<Value>;                                                                 \
        return columns;                                                                                              \
    }

HPCGNN_SPMM(f32, float, float)
HPCGNN_SPMM(f64, double, double)
HPCGNN_SPMM(bf16, bfloat16, float)
HPCGNN_SPMM(i8, int8_t, float)
