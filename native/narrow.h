// Floats as bfloat16, the plain narrow format, and what the wire formats share with it.
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

// To the nearest, ties to even; every NaN becomes the same one.
inline uint16_t to_bfloat16(const uint32_t bits) {
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>((bits & 0x7FFFFFFF) > kInfinity ? kNan : rounded);
}

}  // namespace

HPCGNN_KERNEL(void, pack_bf16)(int64_t count, const float* x, hpcgnn_bfloat16* out, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) out[i].bits = to_bfloat16(bits_of(x[i]));
}

HPCGNN_KERNEL(void, unpack_bf16)(int64_t count, const hpcgnn_bfloat16* x, float* out, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) out[i] = float_of(uint32_t{x[i].bits} << 16);
}
