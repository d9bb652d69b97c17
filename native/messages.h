// Rows in a wire buffer: a run of bytes, in which the payload of row i begins at payload_at[i], and its parameters
// (zero-point and scale, 4 bytes) at params_at[i], anywhere. Payloads of 1 to 8 bits are those of quantize.h, with
// noise that depends on the row's number in its matrix, or without noise. 16 and 32 bits are plain bfloat16 and
// float32, without parameters.
#pragma once

#include <algorithm>

#include "hpcgnn.h"
#include "quantize.h"
#include "rows.h"
#include "simd.h"

namespace {

constexpr int64_t kMostBytesFetched = 1024;  // of a row; the hardware prefetches the rest

inline bool is_finite(const float value) {
    return (bits_of(value) & kInfinity) != kInfinity;
}

// GCC assumes that a function which only prefetches has no effect, and drops the call unless it must be inlined.
#define HPCGNN_FETCH __attribute__((always_inline)) inline

HPCGNN_FETCH void fetch(const void* from, const int64_t bytes) {
    const char* first = static_cast<const char*>(from);
    for (int64_t b = 0; b < std::min(bytes, kMostBytesFetched); b += 64) __builtin_prefetch(first + b, 0, 2);
}

// The places from which encode_rows() reads row i and to which it writes it; decode_rows() goes the other way.
struct MessageRows {
    const int64_t* rows;
    int64_t count, width;
    const float* x;
    uint8_t* buffer;
    const int64_t *payload_at, *params_at;

    int64_t number(const int64_t i) const { return rows[i]; }
    uint8_t* payload_of(const int64_t i) const { return buffer + payload_at[i]; }
    void* params_of(const int64_t i) const { return buffer + params_at[i]; }
    // Prefetches a row to come, unless it follows the row before it in memory: the hardware then prefetches it.
    HPCGNN_FETCH void fetch_after(const int64_t i) const {
        const int64_t later = std::min(i + kRowsAhead, count - 1);
        if (later > 0 && rows[later] != rows[later - 1] + 1) fetch(x + rows[later] * width, width * 4);
    }
};

inline bool is_finite_row(const float* x, const int64_t width) {
    constexpr int n = kLanes<float>;
    Lanes<int32_t, n> trouble{};
    for (int64_t c = 0; c < width; c += n) {
        const bool whole = width - c >= n;
        const auto v = whole ? load<float, n>(x + c) : load_first<float, n>(x + c, static_cast<int>(width - c));
        trouble |= reinterpret_cast<Lanes<int32_t, n>>(v - v);  // 0 but for NaN and infinities
    }
    return !any<n>(trouble);
}

// One row as words of a plain format; false if it is not finite. This check is a separate pass over the row, which is
// in the cache by then: with one loop for both, GCC 12 miscounts in SVE code of 256 bits.
template <int bits>
inline bool encode_words(const float* x, const int64_t width, uint8_t* to) {
    if constexpr (bits == 32) {
        // A row without columns may have a null address, which memcpy does not take.
        if (width > 0) std::memcpy(to, x, static_cast<size_t>(width) * sizeof *x);
    } else {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) {
            const uint16_t word = to_bfloat16(bits_of(x[c]));
            std::memcpy(to + c * sizeof word, &word, sizeof word);
        }
    }
    return is_finite_row(x, width);
}

template <int bits>
int64_t encode_rows(const MessageRows& places, const bool to_centres, const uint64_t key, const int threads) {
    if constexpr (bits <= 8) {
        if (to_centres)
            return quantize_rows<bits, Rounding::kCentre>(places.count, places.width, 0, places.x, places, threads);
        return quantize_rows<bits, Rounding::kRandom>(places.count, places.width, key, places.x, places, threads);
    } else {
        int64_t trouble = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : trouble)
        for (int64_t i = 0; i < places.count; ++i) {
            places.fetch_after(i);
            trouble +=
                !encode_words<bits>(places.x + places.rows[i] * places.width, places.width, places.payload_of(i));
        }
        return trouble;
    }
}

// n words from any address as floats; at the end of a row, the first `count` of them.
template <int bits, int n, bool kPart>
inline Lanes<float, n> load_words(const uint8_t* from, const int count) {
    constexpr int kBytes = n * bits / 8;
    const auto bytes = kPart ? load_first<uint8_t, kBytes>(from, count * bits / 8) : load<uint8_t, kBytes>(from);
    if constexpr (bits == 16) {
        return widen<n>(reinterpret_cast<Lanes<uint16_t, n>>(bytes));
    } else {
        return reinterpret_cast<Lanes<float, n>>(bytes);
    }
}

// The reverse of encode_words.
template <int bits, Write write>
inline bool decode_words(const uint8_t* from, const int64_t width, float* out) {
    constexpr int n = kLanes<float>;
    using I = Lanes<int32_t, n>;
    I trouble{};
    int64_t c = 0;
    for (; c + n <= width; c += n) {
        const auto values = load_words<bits, n, false>(from + c * (bits / 8), n);
        trouble |= reinterpret_cast<I>(values - values);  // 0 but for NaN and infinities
        put<n, write>(out + c, values);
    }
    if (c < width) {
        const int count = static_cast<int>(width - c);
        auto values = load_words<bits, n, true>(from + c * (bits / 8), count);
        trouble |= reinterpret_cast<I>(values - values);
        if (write == Write::kAdd) values = load_first<float, n>(out + c, count) + values;
        store_first<float, n>(out + c, values, count);
    }
    return !any<n>(trouble);
}

struct Params {
    float zero, scale;

    explicit Params(const uint8_t* from) {
        uint16_t both[2];
        std::memcpy(both, from, sizeof both);
        zero = float_of(uint32_t{both[0]} << 16);
        scale = float_of(uint32_t{both[1]} << 16);
    }
};

// The reverse of encode_rows: writes row i of the buffer to row rows[i] of out, or adds it.
template <int bits, Write write>
int64_t decode_rows(const MessageRows& places, float* out, const int threads) {
    const int64_t width = places.width, last = places.count - 1;
    const int64_t bytes = (width * bits + 7) / 8;
    int64_t trouble = 0;
#pragma omp parallel num_threads(threads) reduction(+ : trouble)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < places.count; ++i) {
            const int64_t later = std::min(i + kRowsAhead, last);
            fetch(places.payload_of(later), bytes);
            if (write == Write::kAdd) fetch(out + places.rows[later] * width, width * 4);
            float* to = out + places.rows[i] * width;
            if constexpr (bits > 8) {
                trouble += !decode_words<bits, write>(places.payload_of(i), width, to);
            } else {
                __builtin_prefetch(places.params_of(later));
                const Params params(static_cast<const uint8_t*>(places.params_of(i)));
                dequantize_row<bits, write>(places.payload_of(i), params.zero, params.scale, width, to);
                trouble += !is_finite(params.zero) || !is_finite(params.scale);
            }
        }
        if (write == Write::kStream) finish_streams();
    }
    return trouble;
}

template <int bits>
int64_t decode_rows(const MessageRows& places, float* out, const bool accumulate, const int threads) {
    if (accumulate) return decode_rows<bits, Write::kAdd>(places, out, threads);
    if (goes_past_caches(places.count, places.width, out))
        return decode_rows<bits, Write::kStream>(places, out, threads);
    return decode_rows<bits, Write::kStore>(places, out, threads);
}

}  // namespace

HPCGNN_KERNEL(int64_t, encode_rows)(int64_t count, const int64_t* rows, int64_t width, int bits, int to_centres,
                                    uint64_t key, const float* x, uint8_t* buffer, const int64_t* payload_at,
                                    const int64_t* params_at, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const MessageRows places{rows, count, width, x, buffer, payload_at, params_at};
    return with_bits(bits,
                     [&](const auto constant) { return encode_rows<constant>(places, to_centres != 0, key, threads); });
}

HPCGNN_KERNEL(int64_t, decode_rows)(int64_t count, const int64_t* rows, int64_t width, int bits, const uint8_t* buffer,
                                    const int64_t* payload_at, const int64_t* params_at, float* out, int accumulate,
                                    int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const MessageRows places{rows, count, width, nullptr, const_cast<uint8_t*>(buffer), payload_at, params_at};
    return with_bits(bits,
                     [&](const auto constant) { return decode_rows<constant>(places, out, accumulate != 0, threads); });
}

HPCGNN_KERNEL(void, pack_bf16)(int64_t rows, int64_t width, const float* x, const float* factor, hpcgnn_bfloat16* out,
                               int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) {
        const float* from = x + r * width;
        hpcgnn_bfloat16* to = out + r * width;
        const float times = factor == nullptr ? 1 : factor[r];  // 1 * x is x, and any NaN is stored as the same one
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) to[c].bits = to_bfloat16(bits_of(from[c] * times));
    }
}

HPCGNN_KERNEL(void, unpack_bf16)(int64_t count, const hpcgnn_bfloat16* x, float* out, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) out[i] = float_of(uint32_t{x[i].bits} << 16);
}
