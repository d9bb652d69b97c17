// spmm with rows of a wire buffer (messages.h) in place of a matrix: they are decoded in registers, so that each entry
// reads the few bytes of its row, and no matrix of floats is written first. The sums are those of spmm with decoded
// rows, bit for bit; tasks.h divides the work of both.
#pragma once

#include <algorithm>
#include <vector>

#include "hpcgnn.h"
#include "messages.h"
#include "simd.h"
#include "tasks.h"

namespace {

constexpr int64_t kMessagesAhead = 16;  // prefetching distance
// Registers for sums (at most half of all registers), and registers for places of a row, each with its sums. There is
// code for each number of the latter, as in spmm.h.
constexpr int kMessageVectors = kVectorBytes == 4 ? 4 : kVectorBytes == 32 ? 8 : 16;
#ifdef HPCGNN_MAX_VECTORS
constexpr int kPlaceVectors = HPCGNN_MAX_VECTORS;
#else
constexpr int kPlaceVectors = 8;
#endif

// The rows that spmm_rows gathers, in place of a matrix. Columns lie in places: bytes, each with a column in every
// slot, or whole words. A row's payload is a run of places, of which a register takes kLanes<float>.
template <int bits>
struct Message {
    static constexpr int kSlots = bits < 8 ? 8 / bits : 1;
    static constexpr int kPlaceBytes = bits > 8 ? bits / 8 : 1;

    const uint8_t* buffer;
    const int64_t *payload_at, *params_at;
};

template <int bits>
constexpr int64_t places_of(const int64_t width) {
    return bits < 8 ? (width * bits + 7) / 8 : width;
}

// The conversion of one row's codes to terms of a sum. If lookup() works for as many numbers as there are codes, the
// term of each code is computed once.
template <int bits>
class Decoder {
public:
    static constexpr int n = kLanes<float>;
    static constexpr int kTop = (1 << std::min(bits, 8)) - 1;
    static constexpr bool kTable = bits < 8 && kTop < kLookupLanes;
    using F = Lanes<float, n>;
    using I = Lanes<int32_t, n>;

    Decoder(const uint8_t* params, const float factor) : factor_(factor) {
        if constexpr (bits <= 8) {
            const Params row(params);
            zero_ = row.zero;
            scale_ = row.scale;
            if constexpr (kTable) table_ = term(lane_numbers<int32_t, n>());
        }
    }

    // acc[slot] += the terms of the places from `from` on; at the end of a row, only `count` of them exist.
    template <bool kPart>
    void add(const uint8_t* from, const int count, F* acc) const {
        if constexpr (bits > 8) {
            acc[0] += load_words<bits, n, kPart>(from, count) * factor_;
        } else {
            const I codes = kPart ? load_first_bytes<n>(from, count) : load_bytes<n>(from);
#pragma GCC unroll 8
            for (int slot = 0; slot < Message<bits>::kSlots; ++slot) {
                const I shifted = codes >> (slot * bits);
                if constexpr (kTable) {
                    acc[slot] += lookup<n>(table_, shifted);
                } else {
                    acc[slot] += term(shifted);
                }
            }
        }
    }

private:
    F term(const I codes) const {
        return (zero_ + __builtin_convertvector(bits < 8 ? codes & kTop : codes, F) * scale_) * factor_;
    }

    F table_{};  // the terms of codes 0, 1, ..., repeated
    float zero_ = 0, scale_ = 0, factor_;
};

// The columns in one slot of the n places from `place` on: `count` columns from `first` on.
struct Columns {
    int64_t first;
    int count;
};

template <int bits, bool kPart>
inline Columns columns_of(const int64_t place, const int slot, const int64_t width) {
    constexpr int n = kLanes<float>, kSlots = Message<bits>::kSlots, kBlock = kSlots * kGroup;
    if constexpr (bits >= 8) {
        return {place, static_cast<int>(kPart ? std::min<int64_t>(n, width - place) : n)};
    } else {
        const int64_t start = place / kGroup * kBlock;
        if (!kPart || start + kBlock <= width) return {start + slot * kGroup + place % kGroup, n};
        const int64_t stride = (width - start + kSlots - 1) / kSlots;
        const int64_t first = start + slot * stride + place % kGroup;
        const int64_t end = std::min(start + (slot + 1) * stride, width);
        return {first, static_cast<int>(std::clamp<int64_t>(end - first, 0, n))};
    }
}

// acc = a tile of a row of the result, and the reverse.
template <int bits, int N, bool kPart, typename Acc>
inline void load_tile(const float* out, const Tile& tile, const int64_t width, Acc& acc) {
    constexpr int n = kLanes<float>, kSlots = Message<bits>::kSlots;
#pragma GCC unroll 16
    for (int k = 0; k < N * kSlots; ++k) {
        const Columns columns = columns_of<bits, kPart>(tile.first_column + k / kSlots * n, k % kSlots, width);
        if (columns.count == n) {
            acc[k] = load<float, n>(out + columns.first);
        } else {
            acc[k] = n > 1 && columns.count > 0 ? load_first<float, n>(out + columns.first, columns.count)
                                                : Lanes<float, n>{};
        }
    }
}

template <int bits, int N, bool kPart, typename Acc>
inline void store_tile(const Acc& acc, const Tile& tile, const int64_t width, float* out) {
    constexpr int n = kLanes<float>, kSlots = Message<bits>::kSlots;
#pragma GCC unroll 16
    for (int k = 0; k < N * kSlots; ++k) {
        const Columns columns = columns_of<bits, kPart>(tile.first_column + k / kSlots * n, k % kSlots, width);
        if (columns.count == n) {
            store<float, n>(out + columns.first, acc[k]);
        } else if (n > 1 && columns.count > 0) {
            store_first<float, n>(out + columns.first, acc[k], columns.count);
        }
    }
}

// Prefetches the bytes of a coming entry in two steps, because the address of its row is itself read from memory.
template <int bits, int kBytes>
HPCGNN_FETCH void fetch_entry(const Message<bits>& message, const int64_t first_byte, const int64_t soon,
                              const int64_t later) {
    __builtin_prefetch(message.payload_at + later);
    const uint8_t* from = message.buffer + message.payload_at[soon] + first_byte;
#pragma GCC unroll 16
    for (int b = 0; b < kBytes; b += 64) __builtin_prefetch(from + b);
    __builtin_prefetch(from + kBytes - 1);
    if constexpr (bits <= 8) {
        __builtin_prefetch(message.params_at + later);
        __builtin_prefetch(message.buffer + message.params_at[soon]);
    }
}

// One task for sums of decoded rows, as do_rows() in spmm.h: N registers of places.
template <int bits, int N, bool kPart>
void do_messages(const SpmmJob<Message<bits>, float>& shared_job, const Tile& shared_tile, const int64_t first,
                 const int64_t last) {
    constexpr int n = kLanes<float>, kSlots = Message<bits>::kSlots, kPlaceBytes = Message<bits>::kPlaceBytes;
    const SpmmJob<Message<bits>, float> job = shared_job;
    const Tile tile = shared_tile;
    const Message<bits> message = *job.x;
    const int32_t* indices = job.csr->indices;
    const int64_t first_byte = tile.first_column * kPlaceBytes;
    Lanes<float, n> acc[N * kSlots];
    for (int64_t r = first; r < last; ++r) {
        const int64_t begin = job.indptr[r], end = job.indptr[r + 1];
        if (end - begin > job.segment || begin == end) continue;
        float* out = job.out + r * job.width;
        if (job.accumulate) {
            load_tile<bits, N, kPart>(out, tile, job.width, acc);
        } else {
            for (auto& sum : acc) sum = Lanes<float, n>{};
        }
        for (int64_t e = begin; e < end; ++e) {
            fetch_entry<bits, N * n * kPlaceBytes>(message, first_byte,
                                                   indices[std::min(e + kMessagesAhead, job.last_entry)],
                                                   indices[std::min(e + 2 * kMessagesAhead, job.last_entry)]);
            const int64_t row = indices[e];
            const uint8_t* params = bits <= 8 ? message.buffer + message.params_at[row] : nullptr;
            const Decoder<bits> decoder(params, job.weight == nullptr ? 1 : job.weight[e]);
            const uint8_t* from = message.buffer + message.payload_at[row] + first_byte;
#pragma GCC unroll 16
            for (int k = 0; k + 1 < N; ++k)
                decoder.template add<false>(from + k * n * kPlaceBytes, n, acc + k * kSlots);
            decoder.template add<kPart>(from + (N - 1) * n * kPlaceBytes, tile.last_lanes, acc + (N - 1) * kSlots);
        }
        store_tile<bits, N, kPart>(acc, tile, job.width, out);
    }
}

template <int bits>
constexpr int kMostRegisters = std::clamp(kMessageVectors / Message<bits>::kSlots, 1, kPlaceVectors);  // for places

template <int bits, bool kPart, int N = 1>
TileKernel<Message<bits>, float> message_kernel(const int registers) {
    if constexpr (N < kMostRegisters<bits>) {
        if (registers != N) return message_kernel<bits, kPart, N + 1>(registers);
    }
    return do_messages<bits, N, kPart>;
}

template <int bits>
void spmm_rows(const hpcgnn_csr* csr, const float* weight, const uint8_t* buffer, const int64_t* payload_at,
               const int64_t* params_at, const int64_t width, float* out, const hpcgnn_tuning* tuning,
               const int threads) {
    constexpr int n = kLanes<float>;
    if (csr->rows == 0 || width == 0) return;
    const Message<bits> message{buffer, payload_at, params_at};
    const SpmmJob<Message<bits>, float> job{csr, weight, 1, &message, nullptr, width, out, true, *tuning, nullptr};
    // Places of whole blocks, where every lane is a column.
    const int64_t whole = bits < 8 ? width / (Message<bits>::kSlots * kGroup) * kGroup : width / n * n;
    const int64_t places = places_of<bits>(width), registers = (places + n - 1) / n;
    const int64_t num_tiles = (registers + kMostRegisters<bits> - 1) / kMostRegisters<bits>;
    std::vector<Tile> tiles;
    std::vector<TileKernel<Message<bits>, float>> kernels;
    for (int64_t t = 0; t < num_tiles; ++t) {
        const int64_t first = t * registers / num_tiles, last = (t + 1) * registers / num_tiles;
        const int count = static_cast<int>(last - first);
        const int lanes = static_cast<int>(std::min<int64_t>(n, places - (last - 1) * n));
        tiles.push_back({first * n, 0, 0, count, lanes, 0});
        kernels.push_back(last * n > whole ? message_kernel<bits, true>(count) : message_kernel<bits, false>(count));
    }
    run_tiles<Message<bits>, float>(job, tiles, kernels, threads);
}

}  // namespace

HPCGNN_KERNEL(void, spmm_rows)(const hpcgnn_csr* csr, const float* weight, const uint8_t* buffer,
                               const int64_t* payload_at, const int64_t* params_at, int bits, int64_t width, float* out,
                               const hpcgnn_tuning* tuning, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    return with_bits(bits, [&](const auto constant) {
        return spmm_rows<constant>(csr, weight, buffer, payload_at, params_at, width, out, tuning, threads);
    });
}
