// Rows of floats in few bits a value, for the wire: stochastic rounding between a row's smallest and largest value
// (AdaQP §2.3, SuperGCN §2.4), or rounding to the centre of a value's cell. hpcgnn/kernels/messages.py defines the
// results, and computes them in numpy; the payloads must agree bit for bit.
//
// The codes of 16 * (8 / bits) columns fill 16 bytes: byte k holds columns k, 16 + k, 32 + k, ... from its low bits up,
// so that a register of codes is shifted and merged, never shuffled. A last, partial block of n columns has
// ceil(n * bits / 8) bytes, and its columns follow at this distance instead of 16.
#pragma once

#include <algorithm>
#include <type_traits>

#include "bfloat16.h"
#include "hpcgnn.h"
#include "keyed.h"
#include "simd.h"

namespace {

constexpr float kLargest = 0x1p126F;            // larger values count as this, so that no difference overflows
constexpr int kFractionBits = 17;               // bits after the point: 16 random bits, and the bit of a half
constexpr float kOne = 1 << kFractionBits;      // 1.0 in fixed point
constexpr uint32_t kGolden = 0x9E3779B9U;       // factor of draw32's counter
constexpr int kGroup = 16;                      // consecutive columns that take the same half of their draws
constexpr int64_t kStreamedBytes = 16LL << 20;  // results of at least this size do not fit in a cache anyway
constexpr int64_t kBlockBytes = 4096;           // bytes of rows that stay in the first-level cache between both passes
constexpr int64_t kMostRows = 16;               // most rows of a block

// Calls run(bits), with the bit-width of a row as a constant.
template <typename Run>
auto with_bits(const int bits, const Run& run) {
    if (bits == 1) return run(std::integral_constant<int, 1>());
    if (bits == 2) return run(std::integral_constant<int, 2>());
    if (bits == 4) return run(std::integral_constant<int, 4>());
    if (bits == 8) return run(std::integral_constant<int, 8>());
    if (bits == 16) return run(std::integral_constant<int, 16>());
    return run(std::integral_constant<int, 32>());
}

struct Range {
    float low, high;
    bool finite;
};

// The smallest value of `low` and the largest of `high`, reduced together: -high is smallest where high is largest.
template <int n>
inline Range range_of(const Lanes<float, n> low, const Lanes<float, n> high, const Lanes<int32_t, n> trouble) {
    if constexpr (n == 1) {
        return {low[0], high[0], trouble[0] == 0};
    } else {
        constexpr int h = n / 2;
        const auto lane = lane_numbers<int32_t, n>();
        const auto first = lane + ((lane >= h) & h), second = first + h;
        const Lanes<float, n> less = -high;
        auto both = smaller<n>(pick<n>(low, less, first), pick<n>(low, less, second));
        for (int step = h / 2; step > 0; step /= 2) both = smaller<n>(both, pick<n>(both, both, lane ^ step));
        return {both[0], -both[h], !any<n>(trouble)};
    }
}

inline Range range_of_row(const float* x, const int64_t width) {
    constexpr int n = kLanes<float>;
    using V = Lanes<float, n>;
    using I = Lanes<int32_t, n>;
    V low[2], high[2];
    low[0] = low[1] = high[0] = high[1] = splat<float, n>(width == 0 ? 0 : x[0]);
    I trouble{};
    const auto take = [&](const int which, const V v) __attribute__((always_inline)) {
        low[which] = smaller<n>(v, low[which]);
        high[which] = larger<n>(v, high[which]);
        trouble |= reinterpret_cast<I>(v - v);  // 0 but for NaN and infinities
    };
    int64_t c = 0;
    for (; c + 2 * n <= width; c += 2 * n) {
        take(0, load<float, n>(x + c));
        take(1, load<float, n>(x + c + n));
    }
    if (width >= n) {
        if (c + n <= width) take(0, load<float, n>(x + c));
        take(1, load<float, n>(x + width - n));  // some of them for the second time
    } else {
        for (; c < width; ++c) take(0, splat<float, n>(x[c]));
    }
    return range_of<n>(smaller<n>(low[0], low[1]), larger<n>(high[0], high[1]), trouble);
}

// kRandom: to one of the two nearest points of a grid between the row's ends, at random. kCentre: to the nearest centre
// of 2**bits cells between the ends; the outer centres lie half a cell inside, so that repeated differences shrink.
enum class Rounding { kRandom, kCentre };

// A row before it is encoded.
struct Row {
    float zero, per_step;  // per_step: kOne / scale
    uint64_t hash;
    bool finite;
};

// The conversion of one row from floats to codes.
template <int bits, Rounding rounding>
struct Encoder {
    static constexpr int n = kLanes<float>;
    static constexpr int kTop = (1 << bits) - 1;
    using F = Lanes<float, n>;
    using U = Lanes<uint32_t, n>;

    const float zero, per_step;
    const uint32_t low, high;  // of the row's hash

    explicit Encoder(const Row& row)
        : zero(row.zero),
          per_step(row.per_step),
          low(static_cast<uint32_t>(row.hash)),
          high(static_cast<uint32_t>(row.hash >> 32)) {}

    // Random bits for columns c, c + 1, ...: the low halves for the first 16 of every 32 columns, the high halves for
    // the others.
    U draw(const int64_t c) const {
        if constexpr (rounding == Rounding::kCentre) return U{};  // not used
        const U lane = lane_numbers<uint32_t, n>();
        const uint32_t first = static_cast<uint32_t>(c / (2 * kGroup) * kGroup + c % kGroup);
        return mix32(lane * kGolden + (low + first * kGolden)) ^ high;  // draw32(low, high, first + lane)
    }

    // Codes in fixed point.
    U code(const F x, const U noise) const {
        const F steps = smaller<n>(larger<n>((x - zero) * per_step, F{}), splat<float, n>(kTop * kOne));
        const auto fixed = __builtin_convertvector(steps, Lanes<int32_t, n>);
        return reinterpret_cast<U>(fixed) + noise;
    }

    // The noise of a code: 16 random bits and a half, or always one half of a step.
    static U low_noise(const U draw) {
        if constexpr (rounding == Rounding::kCentre) return splat<uint32_t, n>(1U << (kFractionBits - 1));
        return (draw << 1 & 0x1FFFF) | 1;
    }
    static U high_noise(const U draw) {
        if constexpr (rounding == Rounding::kCentre) return low_noise(draw);
        return draw >> (kFractionBits - 2) | 1;
    }

    void row(const float* x, const int64_t width, uint8_t* to) const {
        constexpr int kUnit = std::max(8 / bits, 2) * kGroup;  // columns
        int64_t c = 0;
        for (; c + kUnit <= width; c += kUnit) {
            for (int k = 0; k < kGroup; k += n) {
                U merged{};
#pragma GCC unroll 4
                for (int slot = 0; slot < kUnit / kGroup; slot += 2) {
                    const float* from = x + c + slot * kGroup + k;
                    const U random = draw(c + slot * kGroup + k);
                    const U first = code(load<float, n>(from), low_noise(random));
                    const U second = code(load<float, n>(from + kGroup), high_noise(random));
                    if constexpr (bits == 8) {
                        store_bytes<n>(to + c + k, first >> kFractionBits);
                        store_bytes<n>(to + c + k + kGroup, second >> kFractionBits);
                    } else {
                        merged |= first >> (kFractionBits - slot * bits) & kTop << slot * bits;
                        merged |= second >> (kFractionBits - (slot + 1) * bits) & kTop << (slot + 1) * bits;
                    }
                }
                if constexpr (bits != 8) store_bytes<n>(to + c * bits / 8 + k, merged);
            }
        }
        if (c < width) rest(x, c, width, to + c * bits / 8);
    }

    // The columns [first, width), fewer than a unit: first one byte for each code, then the layout of a last block.
    void rest(const float* x, const int64_t first, const int64_t width, uint8_t* to) const {
        constexpr int kSlots = 8 / bits;
        alignas(64) uint8_t codes[(std::max(kSlots, 2) + 1) * kGroup] = {};
        const int count = static_cast<int>(width - first);
        for (int c = 0; c < count; c += n) {
            const F values =
                count - c < n ? load_first<float, n>(x + first + c, count - c) : load<float, n>(x + first + c);
            const U random = draw(first + c);
            store_bytes<n>(codes + c,
                           code(values, c / kGroup % 2 ? high_noise(random) : low_noise(random)) >> kFractionBits);
        }
        std::memset(codes + count, 0, n);
        const int stride = (count + kSlots - 1) / kSlots;
        for (int k = 0; k < stride; ++k) {
            unsigned merged = 0;
            for (int slot = 0; slot < kSlots; ++slot) merged |= unsigned{codes[slot * stride + k]} << (slot * bits);
            to[k] = static_cast<uint8_t>(merged);
        }
    }
};

// Stores a row's parameters at any address.
inline void store_params(void* to, const uint16_t zero, const uint16_t scale) {
    const uint16_t both[2] = {zero, scale};
    std::memcpy(to, both, sizeof both);
}

// The smallest bfloat16 of which `steps` steps reach from low to high, at least kSmallestScale; 0 unless high > low.
inline float scale_of(const float low, const float high, const int steps) {
    if (!(high > low)) return 0;
    return float_of((bits_of(std::max((high - low) / steps, kSmallestScale)) + 0xFFFF) & 0xFFFF0000);
}

struct Grid {
    float zero, scale;  // numbers that bfloat16 can hold
};

template <int bits, Rounding rounding>
inline Grid grid_of(const Range& range) {
    const float low = std::clamp(range.low, -kLargest, kLargest) + 0.0F;  // -0 becomes 0
    const float high = std::clamp(range.high, -kLargest, kLargest);
    if constexpr (rounding == Rounding::kCentre) {
        const float scale = scale_of(low, high, 1 << bits);
        return {float_of(uint32_t{to_bfloat16(bits_of(low + scale / 2))} << 16), scale};
    }
    const uint32_t pattern = bits_of(low);
    const float zero = float_of((pattern >> 31 ? pattern + 0xFFFF : pattern) & 0xFFFF0000);  // towards -infinity
    return {zero, scale_of(zero, high, (1 << bits) - 1)};
}

// Finds a row's zero-point and scale, and writes them to `params`.
template <int bits, Rounding rounding>
inline Row measure_row(const float* x, const int64_t width, const uint64_t hash, void* params) {
    const Range range = range_of_row(x, width);
    if (!range.finite) {
        store_params(params, kNan, kNan);
        return {0, 0, 0, false};
    }
    const Grid grid = grid_of<bits, rounding>(range);
    store_params(params, static_cast<uint16_t>(bits_of(grid.zero) >> 16),
                 static_cast<uint16_t>(bits_of(grid.scale) >> 16));
    return {grid.zero, grid.scale == 0 ? 0 : kOne / grid.scale, hash, true};
}

// Encodes `rows` rows of x; returns how many of them are not finite. Rounding to centres ignores `key`.
template <int bits, Rounding rounding, typename Places>
int64_t quantize_rows(const int64_t rows, const int64_t width, const uint64_t key, const float* x, const Places& places,
                      const int threads) {
    const int64_t bytes = (width * bits + 7) / 8;
    const int64_t a_block = std::clamp<int64_t>(kBlockBytes / std::max<int64_t>(width * 4, 1), 1, kMostRows);
    int64_t trouble = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : trouble)
    for (int64_t first = 0; first < rows; first += a_block) {
        Row block[kMostRows];
        const int64_t last = std::min(first + a_block, rows);
        for (int64_t r = first; r < last; ++r) {
            const int64_t number = places.number(r);
            places.fetch_after(r);
            block[r - first] =
                measure_row<bits, rounding>(x + number * width, width, row_hash(key, number), places.params_of(r));
        }
        for (int64_t r = first; r < last; ++r) {
            const Row row = block[r - first];
            if (row.finite) {
                Encoder<bits, rounding>(row).row(x + places.number(r) * width, width, places.payload_of(r));
            } else {
                std::memset(places.payload_of(r), 0, static_cast<size_t>(bytes));
                ++trouble;
            }
        }
    }
    return trouble;
}

// The way in which a decoded row is written to `out`.
enum class Write { kStore, kStream, kAdd };

template <int n, Write write>
inline void put(float* to, const Lanes<float, n> values) {
    if constexpr (write == Write::kStream) {
        stream<float, n>(to, values);
    } else if constexpr (write == Write::kAdd) {
        store<float, n>(to, load<float, n>(to) + values);
    } else {
        store<float, n>(to, values);
    }
}

template <int bits, Write write>
inline void dequantize_row(const uint8_t* from, const float zero, const float scale, const int64_t width, float* out) {
    constexpr int n = kLanes<float>;
    constexpr int kSlots = 8 / bits, kBlock = kSlots * kGroup, kTop = (1 << bits) - 1;
    int64_t c = 0;
    for (; c + kBlock <= width; c += kBlock, from += kGroup) {
        for (int k = 0; k < kGroup; k += n) {
            const auto bytes = load_bytes<n>(from + k);
#pragma GCC unroll 8
            for (int slot = 0; slot < kSlots; ++slot) {
                const auto code = __builtin_convertvector(bytes >> (slot * bits) & kTop, Lanes<float, n>);
                put<n, write>(out + c + slot * kGroup + k, zero + code * scale);
            }
        }
    }
    if (c == width) return;
    const int64_t stride = (width - c + kSlots - 1) / kSlots;
    for (int slot = 0; slot < kSlots; ++slot) {
        const int64_t count = std::min(stride, width - c);
#pragma omp simd
        for (int64_t k = 0; k < count; ++k) {
            const float value = zero + static_cast<float>(from[k] >> (slot * bits) & kTop) * scale;
            out[c + k] = write == Write::kAdd ? out[c + k] + value : value;
        }
        c += std::max<int64_t>(count, 0);
    }
}

// Whether streaming stores to `rows` rows of `out` are possible and faster.
inline bool goes_past_caches(const int64_t rows, const int64_t width, const float* out) {
    const bool aligned = (reinterpret_cast<uintptr_t>(out) | static_cast<uintptr_t>(width * 4)) % kVectorBytes == 0;
    return aligned && rows * width * 4 >= kStreamedBytes;
}

}  // namespace
