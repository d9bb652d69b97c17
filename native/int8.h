// Rows as 8-bit integers, and the kernels with them that need no more than the instruction set.
#pragma once

#include "int8_rows.h"
#include "messages.h"

#define HPCGNN_INT8_SUFFIX
#include "int8_kernels.h"

namespace {

constexpr float kMiddle = 128;  // the number that is added to a code that travels

// Bytes with their highest bit flipped: this adds 128 to signed codes, or subtracts it again.
inline void move_codes(const uint8_t* from, const int64_t width, uint8_t* to) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) to[c] = from[c] ^ 0x80;
}

}  // namespace

HPCGNN_KERNEL(int64_t, encode_int8)(int64_t count, const int64_t* rows, int64_t width, const int8_t* codes,
                                    const float* scale, uint8_t* buffer, const int64_t* payload_at,
                                    const int64_t* params_at, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    int64_t trouble = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : trouble)
    for (int64_t i = 0; i < count; ++i) {
        const float own = scale[rows[i]];
        move_codes(reinterpret_cast<const uint8_t*>(codes + rows[i] * width), width, buffer + payload_at[i]);
        store_params(buffer + params_at[i], to_bfloat16(bits_of(-kMiddle * own)), to_bfloat16(bits_of(own)));
        trouble += own != own;
    }
    return trouble;
}

HPCGNN_KERNEL(int64_t, decode_int8)(int64_t count, const int64_t* rows, int64_t width, const uint8_t* buffer,
                                    const int64_t* payload_at, const int64_t* params_at, int8_t* codes, float* scale,
                                    int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    int64_t others = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : others)
    for (int64_t i = 0; i < count; ++i) {
        const Params params(buffer + params_at[i]);
        move_codes(buffer + payload_at[i], width, reinterpret_cast<uint8_t*>(codes + rows[i] * width));
        scale[rows[i]] = params.scale;
        others += params.scale == params.scale && params.zero != -kMiddle * params.scale;
    }
    return others;
}

HPCGNN_KERNEL(void, quantize_int8)(int64_t rows, int64_t width, const float* x, const float* factor, int to_nearest,
                                   uint64_t key, int8_t* codes, float* scale, int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const Keyed rounding{to_nearest != 0, key};
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t r = 0; r < rows; ++r)
        scale[r] = rounding.row(x + r * width, width, factor == nullptr ? 1 : factor[r], r, codes + r * width);
}
