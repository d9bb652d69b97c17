// The wire formats for their tests: the places of codes, and rows to encode.
#pragma once

#include <algorithm>

#include "check.h"

constexpr uint64_t kKey = 0xFEDCBA9876543210ULL;

inline float from_bfloat16(const uint16_t bits) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

// The place of a column's code: in a block of n bytes (16, or fewer at the end), byte k holds columns k, k + n, ...
struct Place {
    int64_t byte, shift;

    Place(const int64_t column, const int64_t width, const int bits) {
        const int64_t block = 16 * (8 / bits), first = column / block * block;
        const int64_t bytes = (std::min(block, width - first) * bits + 7) / 8;
        byte = first * bits / 8 + (column - first) % bytes;
        shift = (column - first) / bytes * bits;
    }
};

inline unsigned code_at(const uint8_t* row, const int64_t column, const int64_t width, const int bits) {
    const Place place(column, width, bits);
    return (row[place.byte] >> place.shift) & ((1U << bits) - 1);
}

inline std::vector<float> make_rows(const int64_t rows, const int64_t width, Random& random) {
    std::vector<float> x(static_cast<size_t>(rows * width));
    for (int64_t r = 0; r < rows; ++r) {
        const float factor = std::ldexp(1.0F, static_cast<int>(random.below(60)) - 30);
        for (int64_t c = 0; c < width; ++c)
            x[r * width + c] = r % 5 == 1 ? factor : random.real() * factor;  // r = 1: constant
    }
    const float special[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::max(), 1e-42F, -0.0F};
    for (int k = 0; k < 5 && width > 0 && rows > 10; ++k) x[(5 + k) * width + random.below(width)] = special[k];
    return x;
}

inline uint32_t pattern_of(const float value) {
    uint32_t pattern;
    std::memcpy(&pattern, &value, sizeof pattern);
    return pattern;
}

// The nearer of the two bfloat16 numbers around a finite value; at a tie, the even one.
inline uint16_t nearest_bfloat16(const float value) {
    const uint16_t inner = static_cast<uint16_t>(pattern_of(value) >> 16), outer = static_cast<uint16_t>(inner + 1);
    const double to_inner = std::abs(static_cast<double>(value) - from_bfloat16(inner));
    const double to_outer = std::abs(static_cast<double>(value) - from_bfloat16(outer));
    return to_inner < to_outer || (to_inner == to_outer && inner % 2 == 0) ? inner : outer;
}

// The largest bfloat16 number that is at most a finite value.
inline uint16_t bfloat16_below(const float value) {
    const uint16_t inner = static_cast<uint16_t>(pattern_of(value) >> 16);
    return static_cast<uint16_t>(inner + (from_bfloat16(inner) > value));
}

// 16 random bits and a half, in fixed point: one draw serves columns c and c + 16.
inline int32_t noise_of(const uint64_t key, const int64_t number, const int64_t c) {
    const uint64_t hash = row_hash(key, number);
    const uint32_t draw = draw32(static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32),
                                 static_cast<uint32_t>(c / 32 * 16 + c % 16));
    return static_cast<int32_t>(2 * (c / 16 % 2 == 1 ? draw >> 16 : draw & 0xFFFFU) + 1);
}

// Row `number` of a matrix, rounded with the noise of `key`, or without one to the nearest centre of 2**bits cells.
inline void encode_plainly(const float* x, const int64_t width, const int bits, const uint64_t* key,
                           const int64_t number, uint8_t* payload, uint16_t* params) {
    std::fill(payload, payload + (width * bits + 7) / 8, uint8_t{0});
    params[0] = params[1] = 0x7FC0;  // NaN
    float low = width == 0 ? 0 : x[0], high = low;
    for (int64_t c = 0; c < width; ++c) {
        if (!std::isfinite(x[c])) return;
        low = std::min(low, x[c]);
        high = std::max(high, x[c]);
    }
    low = std::max(std::min(low, 0x1p126F), -0x1p126F) + 0.0F;
    high = std::max(std::min(high, 0x1p126F), -0x1p126F);
    if (key != nullptr) {
        params[0] = bfloat16_below(low);
        low = from_bfloat16(params[0]);
    }
    params[1] = 0;
    const int steps_between = key == nullptr ? 1 << bits : (1 << bits) - 1;
    if (high > low) {
        const float exact = std::max((high - low) / static_cast<float>(steps_between), 0x1p-110F);
        params[1] = static_cast<uint16_t>(pattern_of(exact) >> 16);
        params[1] = static_cast<uint16_t>(params[1] + (from_bfloat16(params[1]) < exact));
    }
    const float scale = from_bfloat16(params[1]);
    if (key == nullptr) params[0] = nearest_bfloat16(low + scale / 2);
    const float zero = from_bfloat16(params[0]), per_step = scale == 0 ? 0 : 0x1p17F / scale;
    const float top = static_cast<float>((1 << bits) - 1) * 0x1p17F;
    for (int64_t c = 0; c < width; ++c) {
        const float steps = std::min(std::max((x[c] - zero) * per_step, 0.0F), top);
        const int32_t noise = key == nullptr ? 1 << 16 : noise_of(*key, number, c);
        const int32_t code = (static_cast<int32_t>(steps) + noise) >> 17;
        const Place place(c, width, bits);
        payload[place.byte] = static_cast<uint8_t>(payload[place.byte] | code << place.shift);
    }
}
