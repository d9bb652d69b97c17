// Rows of floats as rows of 8-bit integers and a scale (Tango §3.2). hpcgnn/kernels/int8.py defines the results, and
// computes them in numpy, with the same bits.
#pragma once

#include <algorithm>

#include "bfloat16.h"
#include "hpcgnn.h"
#include "keyed.h"
#include "quantize.h"
#include "simd.h"

namespace {

constexpr float kMostCode = 127;
constexpr uint32_t kMagnitude = 0x7FFFFFFF;  // the bits of a float without its sign

// Magnitudes are compared as integers: their order is the same, and a NaN is larger than infinity, so it remains.
template <int n>
inline Lanes<int32_t, n> larger_magnitude(const Lanes<int32_t, n> most, const Lanes<float, n> value) {
    const auto magnitude = reinterpret_cast<Lanes<int32_t, n>>(value) & static_cast<int32_t>(kMagnitude);
    return magnitude > most ? magnitude : most;
}

// The smallest bfloat16 of which 127 steps reach the largest magnitude, at least kSmallestScale; NaN if it is not
// finite.
inline float int8_scale(const int32_t largest) {
    if (largest >= kInfinity) return float_of(uint32_t{kNan} << 16);
    if (largest == 0) return 0;
    const float wanted =
        std::max(std::min(float_of(static_cast<uint32_t>(largest)), kLargest) / kMostCode, kSmallestScale);
    return float_of((bits_of(wanted) + 0xFFFF) & 0xFFFF0000);
}

// The factor from values to codes in fixed point; 0 if all codes are 0.
inline float int8_per_step(const float scale) {
    return scale > 0 ? kOne / scale : 0;  // false for NaN
}

template <int n>
inline Lanes<uint32_t, n> int8_codes(const Lanes<float, n> steps, const Lanes<uint32_t, n> noise) {
    const auto most = splat<float, n>(kMostCode * kOne);
    const auto kept = smaller<n>(larger<n>(steps, -most), most);
    const auto fixed = __builtin_convertvector(kept, Lanes<int32_t, n>) + reinterpret_cast<Lanes<int32_t, n>>(noise);
    return reinterpret_cast<Lanes<uint32_t, n>>(fixed >> kFractionBits);
}

// The codes of one row. steps(c, count): kLanes<float> values from column c on, or `count` of them, in fixed point.
template <Rounding rounding, typename Steps>
inline void int8_row(const Steps& steps, const int64_t width, const uint64_t hash, int8_t* codes) {
    constexpr int n = kLanes<float>;
    using Draws = Encoder<8, rounding>;
    const Draws draws(Row{0, 0, hash, true});
    auto* to = reinterpret_cast<uint8_t*>(codes);
    int64_t c = 0;
    for (; c + 2 * kGroup <= width; c += 2 * kGroup) {
        for (int k = 0; k < kGroup; k += n) {
            const auto random = draws.draw(c + k);
            store_bytes<n>(to + c + k, int8_codes<n>(steps(c + k, n), Draws::low_noise(random)));
            store_bytes<n>(to + c + k + kGroup, int8_codes<n>(steps(c + k + kGroup, n), Draws::high_noise(random)));
        }
    }
    for (; c < width; c += n) {
        const int count = static_cast<int>(std::min<int64_t>(width - c, n));
        const auto random = draws.draw(c);
        const auto noise = c / kGroup % 2 ? Draws::high_noise(random) : Draws::low_noise(random);
        alignas(64) uint8_t bytes[n];
        store_bytes<n>(bytes, int8_codes<n>(steps(c, count), noise));
        std::memcpy(to + c, bytes, static_cast<size_t>(count));
    }
}

template <int n>
inline Lanes<float, n> load_some(const float* from, const int count) {
    return count == n ? load<float, n>(from) : load_first<float, n>(from, count);
}

// The largest magnitude in a row, times a factor.
inline int32_t largest_of_row(const float* x, const int64_t width, const float factor) {
    constexpr int n = kLanes<float>;
    using I = Lanes<int32_t, n>;
    I most[2] = {};
    int64_t c = 0;
    for (; c + 2 * n <= width; c += 2 * n) {
        most[0] = larger_magnitude<n>(most[0], load<float, n>(x + c) * factor);
        most[1] = larger_magnitude<n>(most[1], load<float, n>(x + c + n) * factor);
    }
    for (; c < width; c += n)
        most[0] = larger_magnitude<n>(most[0],
                                      load_some<n>(x + c, static_cast<int>(std::min<int64_t>(width - c, n))) * factor);
    const I both = most[0] > most[1] ? most[0] : most[1];
    int32_t lanes[n], largest = 0;
    std::memcpy(lanes, &both, sizeof lanes);
    for (int i = 0; i < n; ++i) largest = std::max(largest, lanes[i]);
    return largest;
}

// Quantizes one row, times a factor; returns its scale.
template <Rounding rounding>
inline float quantize_row(const float* x, const int64_t width, const float factor, const uint64_t hash, int8_t* codes) {
    constexpr int n = kLanes<float>;
    const float scale = int8_scale(largest_of_row(x, width, factor)), per_step = int8_per_step(scale);
    if (per_step == 0) {
        std::fill_n(codes, width, int8_t{0});
        return scale;
    }
    const auto steps = [=](const int64_t c, const int count) { return load_some<n>(x + c, count) * factor * per_step; };
    int8_row<rounding>(steps, width, hash, codes);
    return scale;
}

// The rounding of values: with the noise of a key, or to the nearest.
struct Keyed {
    bool to_nearest;
    uint64_t key;

    float row(const float* x, const int64_t width, const float factor, const int64_t number, int8_t* codes) const {
        if (to_nearest) return quantize_row<Rounding::kCentre>(x, width, factor, 0, codes);
        return quantize_row<Rounding::kRandom>(x, width, factor, row_hash(key, number), codes);
    }
};

}  // namespace
