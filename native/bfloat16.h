// Floats as bfloat16, the plain narrow format, and constants that the formats of quantized rows share with it.
#pragma once

#include <algorithm>

#include "hpcgnn.h"
#include "simd.h"

namespace {

constexpr float kSmallestScale = 0x1p-110F;  // its reciprocal, in the units of quantize.h, is still a float
constexpr uint16_t kNan = 0x7FC0;            // as bfloat16
constexpr int32_t kInfinity = 0x7F800000;    // as float

inline uint32_t bits_of(const float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float float_of(const uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The nearest bfloat16, ties to even; every NaN becomes kNan.
inline uint16_t to_bfloat16(const uint32_t bits) {
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>((bits & 0x7FFFFFFF) > kInfinity ? kNan : rounded);
}

}  // namespace
