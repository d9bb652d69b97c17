// Sums of products of 8-bit integers, for the instructions for which an object is compiled. All are exact; they differ
// in the number of products that an instruction adds, and in the form of its operands.
//
// One number of a row and one of a column hold the operands of kTerms products. kOffset is added to the codes of rows,
// for instructions that take one unsigned operand; its contribution to a sum follows from the column alone.
#pragma once

#include "dense_tile.h"
#include "simd.h"

#if defined(HPCGNN_DOT_PRODUCTS) && defined(__aarch64__) && !defined(__ARM_FEATURE_SVE)
#include <arm_neon.h>
#endif

namespace {

using Ints = Lanes<int32_t, kFloats>;

struct Int8Arithmetic {
#if defined(HPCGNN_DOT_PRODUCTS) && defined(__AVX2__)
    static constexpr int kTerms = 4, kOffset = 128;  // VNNI: an unsigned operand times a signed one
    static Ints add(const Lanes<uint32_t, kFloats> row, const Lanes<uint32_t, kFloats> column, const Ints sum) {
#if defined(__AVX512F__)
        return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(
            reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(row), reinterpret_cast<__m512i>(column)));
#else
        return reinterpret_cast<Ints>(_mm256_dpbusd_avx_epi32(
            reinterpret_cast<__m256i>(sum), reinterpret_cast<__m256i>(row), reinterpret_cast<__m256i>(column)));
#endif
    }
#elif defined(HPCGNN_DOT_PRODUCTS)
    static constexpr int kTerms = 4, kOffset = 0;  // SDOT
    static Ints add(const Lanes<uint32_t, kFloats> row, const Lanes<uint32_t, kFloats> column, const Ints sum) {
#if defined(__ARM_FEATURE_SVE)
        return svdot_s32(sum, reinterpret_cast<Lanes<int8_t, 4 * kFloats>>(row),
                         reinterpret_cast<Lanes<int8_t, 4 * kFloats>>(column));
#else
        return reinterpret_cast<Ints>(vdotq_s32(reinterpret_cast<int32x4_t>(sum), reinterpret_cast<int8x16_t>(row),
                                                reinterpret_cast<int8x16_t>(column)));
#endif
    }
#elif defined(__AVX2__)
    static constexpr int kTerms = 2, kOffset = 0;  // two products of 16 bits
    static Ints add(const Lanes<uint32_t, kFloats> row, const Lanes<uint32_t, kFloats> column, const Ints sum) {
#if defined(__AVX512BW__)
        return sum + reinterpret_cast<Ints>(_mm512_maskz_madd_epi16(0xFFFF, reinterpret_cast<__m512i>(row),
                                                                    reinterpret_cast<__m512i>(column)));
#else
        return sum + reinterpret_cast<Ints>(
                         _mm256_madd_epi16(reinterpret_cast<__m256i>(row), reinterpret_cast<__m256i>(column)));
#endif
    }
#else
    static constexpr int kTerms = 1, kOffset = 0;
    static Ints add(const Lanes<uint32_t, kFloats> row, const Lanes<uint32_t, kFloats> column, const Ints sum) {
        return sum + reinterpret_cast<Ints>(row) * reinterpret_cast<Ints>(column);
    }
#endif

    using Number = uint32_t;
    static constexpr int kBits = 32 / kTerms;                                      // bits of a code in a number
    static constexpr uint32_t kMask = kTerms == 1 ? ~0U : (1U << kBits % 32) - 1;  // of them

    // The code of term t as part of a number.
    static Number part(const int code, const int t) { return (static_cast<Number>(code) & kMask) << (t * kBits); }

    // The numbers of `count` codes of a row; missing codes of the last number are zeros.
    template <bool kWithOffset>
    static void row(const int8_t* codes, const int64_t count, Number* to) {
        constexpr int kAdded = kWithOffset ? kOffset : 0;
        const int64_t whole = count / kTerms;
        if constexpr (kTerms == 4) {
            auto* bytes = reinterpret_cast<uint8_t*>(to);
#pragma omp simd
            for (int64_t i = 0; i < whole * kTerms; ++i) bytes[i] = static_cast<uint8_t>(codes[i] + kAdded);
        } else if constexpr (kTerms == 2) {
            auto* words = reinterpret_cast<int16_t*>(to);
#pragma omp simd
            for (int64_t i = 0; i < whole * kTerms; ++i) words[i] = codes[i];
        } else {
#pragma omp simd
            for (int64_t i = 0; i < whole; ++i) to[i] = static_cast<Number>(int32_t{codes[i]});
        }
        if (whole * kTerms < count) {
            Number last = 0;
            for (int t = 0; whole * kTerms + t < count; ++t) last |= part(codes[whole * kTerms + t] + kAdded, t);
            to[whole] = last;
        }
    }

    // n numbers of four terms each, of the columns from i on.
    template <int n, int kAdded>
    static void four(const int8_t* const* rows, const int64_t i, Number* to) {
        const auto of = [&](const int t) {
            return reinterpret_cast<Lanes<Number, n>>(load_bytes<n>(reinterpret_cast<const uint8_t*>(rows[t]) + i));
        };
        const auto numbers = (of(0) | of(1) << 8) | (of(2) << 16 | of(3) << 24);
        store<Number, n>(to, numbers ^ splat<Number, n>(static_cast<Number>(kAdded) * 0x01010101U));
    }

    // `columns` numbers, whose term t is rows[t][column]; null rows are zeros.
    template <bool kWithOffset>
    static void columns(const int8_t* const* rows, const int64_t columns, Number* to) {
        constexpr int kAdded = kWithOffset ? kOffset : 0;
        if constexpr (kTerms == 4) {
            const int8_t *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
            int64_t first = 0;
#if defined(__AVX2__)  // which GCC divides into larger and smaller vectors, and single columns at the end
            for (; first + kFloats <= columns; first += kFloats) four<kFloats, kAdded>(rows, first, to + first);
            for (; first + 8 <= columns; first += 8) four<8, kAdded>(rows, first, to + first);
#endif
#pragma omp simd
            for (int64_t i = first; i < columns; ++i)
                to[i] =
                    part(a[i] + kAdded, 0) | part(b[i] + kAdded, 1) | part(c[i] + kAdded, 2) | part(d[i] + kAdded, 3);
        } else if constexpr (kTerms == 2) {
            const int8_t *a = rows[0], *b = rows[1];
#pragma omp simd
            for (int64_t i = 0; i < columns; ++i) to[i] = part(a[i], 0) | part(b[i], 1);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < columns; ++i) to[i] = static_cast<Number>(int32_t{rows[0][i]});
        }
    }
};

inline constexpr int kTermsOfInt8 = Int8Arithmetic::kTerms;

// Adds `steps` products of a number of each row of `a` and `vectors` registers of `columns`.
template <int rows, int vectors, typename Rows>
inline __attribute__((always_inline)) void add_int8_products(Ints (&sum)[rows][vectors], const Rows a,
                                                             const uint32_t* columns, const int64_t steps) {
    for (int64_t k = 0; k < steps; ++k) {
        Lanes<uint32_t, kFloats> b[vectors];
        for (int v = 0; v < vectors; ++v) b[v] = load<uint32_t, kFloats>(columns + (k * vectors + v) * kFloats);
        for (int r = 0; r < rows; ++r) {
            const auto number = splat<uint32_t, kFloats>(a.at(r, k));
            for (int v = 0; v < vectors; ++v) sum[r][v] = Int8Arithmetic::add(number, b[v], sum[r][v]);
        }
    }
}

}  // namespace
