// Dense products in bfloat16 with sums in float32, for CPUs with AVX512_BF16. Our AVX-512 does not include it, so these
// kernels are compiled separately. Operands are float32 in memory, and are rounded to the nearest, ties to even, when
// they are packed; subnormal numbers count as 0. An instruction adds two products, and the CPU decides how their sum is
// rounded, so bits depend on the CPU, but on nothing else.

#include "dense.h"

namespace {

struct Bfloat16 {
    using Number = uint32_t;  // two bfloat16, the first one in the low half
    static constexpr int64_t kTerms = 2;

    static Floats add(const Lanes<Number, kFloats> a, const Lanes<Number, kFloats> b, const Floats sum) {
        return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a),
                                                         reinterpret_cast<__m512bh>(b)));
    }

    static Number number(const float* from, const int64_t stride, const int64_t terms) {
        const __m128 both = _mm_setr_ps(from[0], terms > 1 ? from[stride] : 0, 0, 0);
        return static_cast<Number>(_mm_cvtsi128_si32(reinterpret_cast<__m128i>(_mm_cvtneps_pbh(both))));
    }

    template <int n>
    static Lanes<Number, n> numbers(const Lanes<float, n>* terms) {
        static_assert(n == 8 || n == 16);
        // Joins both registers, and then interleaves the lanes of the first and the second.
        if constexpr (n == 16) {
            const auto both = reinterpret_cast<__m512i>(
                _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(terms[1]), reinterpret_cast<__m512>(terms[0])));
            const Lanes<uint16_t, 32> turns{0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                            8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
            return reinterpret_cast<Lanes<Number, n>>(
                _mm512_maskz_permutexvar_epi16(~0U, reinterpret_cast<__m512i>(turns), both));
        } else {
            const auto both = reinterpret_cast<__m256i>(
                _mm256_cvtne2ps_pbh(reinterpret_cast<__m256>(terms[1]), reinterpret_cast<__m256>(terms[0])));
            const Lanes<uint16_t, 16> turns{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
            return reinterpret_cast<Lanes<Number, n>>(
                _mm256_maskz_permutexvar_epi16(0xFFFF, reinterpret_cast<__m256i>(turns), both));
        }
    }

    // A cache line more than the steps: otherwise rows would share few sets of the cache.
    static constexpr int64_t kRowStride = kStepsAtOnce + 16;
    static constexpr int64_t kRowsMemory = kTileRows * kRowStride;
    static int64_t row_stride(int64_t) { return kRowStride; }
    static const Number* rows(const float* x, const int64_t depth, const int64_t count, const int64_t first,
                              const int64_t last, Number* memory) {
        for (int64_t r = 0; r < count; ++r) round_row(x + r * depth + first, last - first, memory + r * kRowStride);
        return memory;
    }

private:
    // Rounds `count` floats; the rest of the last line becomes zeros.
    static void round_row(const float* from, const int64_t count, Number* to) {
        const auto both = [](const Floats first, const Floats second) {
            return reinterpret_cast<Lanes<Number, kFloats>>(
                _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(second), reinterpret_cast<__m512>(first)));
        };
        int64_t i = 0;
        for (; i + 2 * kFloats <= count; i += 2 * kFloats)
            store<Number, kFloats>(to + i / 2,
                                   both(load<float, kFloats>(from + i), load<float, kFloats>(from + i + kFloats)));
        if (i == count) return;
        const int rest = static_cast<int>(count - i);
        const Floats first = load_first<float, kFloats>(from + i, std::min(rest, kFloats));
        const Floats second =
            rest > kFloats ? load_first<float, kFloats>(from + i + kFloats, rest - kFloats) : Floats{};
        store<Number, kFloats>(to + i / 2, both(first, second));
    }
};

}  // namespace

HPCGNN_DENSE(bf16, Bfloat16)
