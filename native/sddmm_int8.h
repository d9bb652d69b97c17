// Products of the two rows of 8-bit integers that each entry joins (Tango §3.3), added as integers.
#pragma once

#include <algorithm>

#include "entries.h"
#include "hpcgnn.h"
#include "int8_arithmetic.h"

namespace {

// Number of codes that an instruction takes at a time: kTermsOfInt8 for each lane of a sum.
constexpr int kInt8Chunk = kTermsOfInt8 * kFloats;

// A chunk of codes as numbers; kWithOffset: the codes of `b`, to which kOffset is added.
template <bool kWithOffset>
inline Lanes<uint32_t, kFloats> load_int8_chunk(const int8_t* from) {
#if defined(__AVX512BW__)
    if constexpr (kTermsOfInt8 == 2)
        return reinterpret_cast<Lanes<uint32_t, kFloats>>(
            _mm512_maskz_cvtepi8_epi16(~0U, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__)
    if constexpr (kTermsOfInt8 == 2)
        return reinterpret_cast<Lanes<uint32_t, kFloats>>(
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#endif
    if constexpr (kTermsOfInt8 == 4) {
        constexpr uint32_t kAdded = kWithOffset && Int8Arithmetic::kOffset == 128 ? 0x80808080U : 0;  // no carry: a bit
        Lanes<uint32_t, kFloats> bytes;
        std::memcpy(&bytes, from, sizeof bytes);
        return bytes ^ kAdded;
    } else {
        alignas(64) uint32_t numbers[kFloats];
        Int8Arithmetic::row<kWithOffset>(from, kInt8Chunk, numbers);
        return load<uint32_t, kFloats>(numbers);
    }
}

// The position of heads in chunks.
enum class HeadShape {
    kChunks,   // a head consists of whole chunks
    kLanes,    // a chunk consists of whole heads, each a power of 2 lanes
    kUnknown,  // neither
};

struct HeadLayout {
    int64_t heads, columns;  // columns: of a head
    HeadShape shape;
    int64_t chunks;  // of a row
    int lanes;       // of a head, with kLanes

    HeadLayout(const int64_t width, const int64_t number)
        : heads(number), columns(width / number), shape(HeadShape::kUnknown), chunks(width / kInt8Chunk), lanes(0) {
        if (columns == 0) return;
        if (columns % kInt8Chunk == 0) shape = HeadShape::kChunks;
        const int64_t own = columns / kTermsOfInt8;
        if (shape == HeadShape::kUnknown && width % kInt8Chunk == 0 && columns % kTermsOfInt8 == 0 &&
            (own & (own - 1)) == 0) {
            shape = HeadShape::kLanes;
            lanes = static_cast<int>(own);
        }
    }
};

// Each lane becomes the sum of its group of `lanes` lanes.
inline Ints sum_groups(Ints sum, const int lanes) {
    const auto lane = lane_numbers<int32_t, kFloats>();
    for (int step = lanes / 2; step > 0; step /= 2) {
        const auto other = pick<kFloats>(reinterpret_cast<Floats>(sum), reinterpret_cast<Floats>(sum), lane ^ step);
        sum += reinterpret_cast<Ints>(other);
    }
    return sum;
}

// The products of one row a with several rows b. The numbers of a, and the contribution of kOffset to their sums, are
// computed once.
struct Int8Row {
    static constexpr int64_t kMostChunks = 64;
    const HeadLayout& layout;
    const int8_t* codes = nullptr;
    Lanes<uint32_t, kFloats> numbers[kMostChunks];
    Ints start[kMostChunks];

    explicit Int8Row(const HeadLayout& heads) : layout(heads) {}
    bool is_simple() const { return layout.shape == HeadShape::kUnknown || layout.chunks > kMostChunks; }

    void take(const int8_t* a) {
        codes = a;
        if (is_simple()) return;
        for (int64_t k = 0; k < layout.chunks; ++k) {
            numbers[k] = load_int8_chunk<false>(a + k * kInt8Chunk);
            start[k] = Ints{};
            if constexpr (Int8Arithmetic::kOffset != 0)
                start[k] = -Int8Arithmetic::add(splat<uint32_t, kFloats>(0x80808080U), numbers[k], Ints{});
        }
    }

    Ints products(const int8_t* b, const int64_t k, const Ints sum) const {
        return Int8Arithmetic::add(load_int8_chunk<true>(b + k * kInt8Chunk), numbers[k], sum);
    }

    void dot(const int8_t* b, const float scale, float* out) const {
        if (is_simple()) return dot_simply(b, scale, out);
        if (layout.shape == HeadShape::kChunks) {
            const int64_t chunks = layout.columns / kInt8Chunk;
            for (int64_t h = 0; h < layout.heads; ++h) {
                Ints sum{};
                for (int64_t k = h * chunks; k < (h + 1) * chunks; ++k) sum = products(b, k, sum + start[k]);
                out[h] = static_cast<float>(sum_groups(sum, kFloats)[0]) * scale;
            }
            return;
        }
        int64_t h = 0;
        for (int64_t k = 0; k < layout.chunks; ++k) {
            const Ints sum = sum_groups(products(b, k, start[k]), layout.lanes);
            for (int lane = 0; lane < kFloats; lane += layout.lanes) out[h++] = static_cast<float>(sum[lane]) * scale;
        }
    }

    void dot_simply(const int8_t* b, const float scale, float* out) const {
        for (int64_t h = 0; h < layout.heads; ++h) {
            const int8_t *left = codes + h * layout.columns, *right = b + h * layout.columns;
            int32_t sum = 0;  // without "omp simd reduction", which GCC 12 compiles to wrong code for SVE
            for (int64_t c = 0; c < layout.columns; ++c) sum += left[c] * right[c];
            out[h] = static_cast<float>(sum) * scale;
        }
    }
};

inline void sddmm_int8(const hpcgnn_csr* csr, const int8_t* a, const float* a_scale, const int8_t* b,
                       const float* b_scale, const int64_t width, const int64_t heads, float* out, const int threads) {
    const int64_t last_entry = csr->indptr[csr->rows] - 1;
    const HeadLayout layout(width, heads);
    for_entry_ranges(*csr, threads, [&](const int64_t row, const int64_t begin, const int64_t end) {
        Int8Row left(layout);
        left.take(a + row * width);
        for (int64_t e = begin; e < end; ++e) {
            const int64_t later = csr->indices[std::min(e + kEntriesAhead, last_entry)], column = csr->indices[e];
            prefetch_row(b + later * width, width);
            __builtin_prefetch(b_scale + later);
            left.dot(b + column * width, a_scale[row] * b_scale[column], out + e * heads);
        }
    });
}

}  // namespace
