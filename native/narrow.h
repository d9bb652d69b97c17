// Floats as bfloat16 and int8, the plain narrow formats: what spmm reads, and what the wire formats are made of.
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

inline void pack_int8_row(const float* x, const int64_t width, uint8_t* to, float* scale) {
    constexpr int n = kLanes<float>;
    using I = Lanes<int32_t, n>;
    I most{};  // magnitudes of floats are ordered as their bits are
    const auto magnitude = [](const Lanes<float, n> v) { return reinterpret_cast<I>(v) & 0x7FFFFFFF; };
    const auto part = [&](const int64_t c) {
        return width - c < n ? load_first<float, n>(x + c, static_cast<int>(width - c)) : load<float, n>(x + c);
    };
    for (int64_t c = 0; c < width; c += n) {
        const I v = magnitude(part(c));
        most = v > most ? v : most;
    }
    int32_t largest_bits = 0;
    for (int i = 0; i < n; ++i) largest_bits = std::max(largest_bits, most[i]);
    if (largest_bits == 0 || largest_bits >= kInfinity) {
        *scale = largest_bits == 0 ? 0 : float_of(uint32_t{kNan} << 16);
        std::memset(to, 0, static_cast<size_t>(width));
        return;
    }
    const float largest = std::max(float_of(largest_bits), kSmallestScale);
    *scale = largest / 127;
    const float factor = 127 / largest;
    constexpr float kRound = 0x1.8p23F;  // a float this large has no fraction, and the integer added is its low byte
    for (int64_t c = 0; c < width; c += n) {
        const auto bytes = reinterpret_cast<Lanes<uint32_t, n>>(part(c) * factor + kRound);
        if (width - c >= n) {
            store_bytes<n>(to + c, bytes);
        } else {
            for (int i = 0; i < width - c; ++i) to[c + i] = static_cast<uint8_t>(bytes[i]);
        }
    }
}

}  // namespace

HPCGNN_KERNEL(pack_bf16)(int64_t count, const uint32_t* x, uint16_t* out, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) out[i] = to_bfloat16(x[i]);
}

HPCGNN_KERNEL(unpack_bf16)(int64_t count, const uint16_t* x, uint32_t* out, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) out[i] = uint32_t{x[i]} << 16;
}

// out (rows, width) * scale (rows) is x to the nearest; a row's largest magnitude becomes 127.
HPCGNN_KERNEL(pack_int8)(int64_t rows, int64_t width, const float* x, uint8_t* out, float* scale, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) pack_int8_row(x + r * width, width, out + r * width, scale + r);
}
