// What the tests of the wire formats know of them: where codes lie, and rows to try them on.
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

// Where the code of a column lies: in a block of 16 bytes, or of fewer at the end, byte k holds columns k, k + that
// number, ...
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
