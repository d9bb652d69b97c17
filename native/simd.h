// Vectors of the instruction set for which this file is compiled, as GNU vector types: arithmetic uses operators, and
// the compiler chooses the instructions. Only loads and stores of a part of a vector need intrinsics.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_SVE)
#include <arm_sve.h>
#endif

namespace {

constexpr int kVectorBytes = HPCGNN_VECTOR_BYTES;  // from build.py: 4 (scalar), 16, 32 or 64

// The number of values of T in a register.
template <typename T>
constexpr int kLanes = sizeof(T) < kVectorBytes ? kVectorBytes / sizeof(T) : 1;

// Lanes<float, n>: n floats. Unaligned<...>: the same, for memory that is not aligned to the vector's size.
template <typename T, int n>
struct VectorOf {
    typedef T type __attribute__((vector_size(n * sizeof(T))));
    typedef T unaligned __attribute__((vector_size(n * sizeof(T)), aligned(alignof(T)), may_alias));
};
template <typename T, int n>
using Lanes = typename VectorOf<T, n>::type;

template <typename T, int n>
inline Lanes<T, n> load(const T* from) {
    return *reinterpret_cast<const typename VectorOf<T, n>::unaligned*>(from);
}

template <typename T, int n>
inline void store(T* to, const Lanes<T, n> vector) {
    *reinterpret_cast<typename VectorOf<T, n>::unaligned*>(to) = vector;
}

template <typename T, int n>
inline Lanes<T, n> splat(const T value) {
    return value - Lanes<T, n>{};  // value - 0: exact, also for -0 and NaN
}

// The first `count` lanes (0 < count <= n) from memory, 0 in the others; memory beyond them is not read.
template <typename T, int n>
inline Lanes<T, n> load_first(const T* from, const int count) {
    Lanes<T, n> vector{};
    std::memcpy(&vector, from, static_cast<size_t>(count) * sizeof(T));
    return vector;
}

template <typename T, int n>
inline void store_first(T* to, const Lanes<T, n> vector, const int count) {
    std::memcpy(to, &vector, static_cast<size_t>(count) * sizeof(T));
}

#if defined(__AVX512F__)
template <>
inline Lanes<float, 16> load_first<float, 16>(const float* from, const int count) {
    return reinterpret_cast<Lanes<float, 16>>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1), from));
}
template <>
inline void store_first<float, 16>(float* to, const Lanes<float, 16> vector, const int count) {
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1U << count) - 1), reinterpret_cast<__m512>(vector));
}
template <>
inline Lanes<double, 8> load_first<double, 8>(const double* from, const int count) {
    return reinterpret_cast<Lanes<double, 8>>(_mm512_maskz_loadu_pd(static_cast<__mmask8>((1U << count) - 1), from));
}
template <>
inline void store_first<double, 8>(double* to, const Lanes<double, 8> vector, const int count) {
    _mm512_mask_storeu_pd(to, static_cast<__mmask8>((1U << count) - 1), reinterpret_cast<__m512d>(vector));
}
template <>
inline Lanes<uint16_t, 16> load_first<uint16_t, 16>(const uint16_t* from, const int count) {
    return reinterpret_cast<Lanes<uint16_t, 16>>(
        _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1U << count) - 1), from));
}
template <>
inline Lanes<int8_t, 16> load_first<int8_t, 16>(const int8_t* from, const int count) {
    return reinterpret_cast<Lanes<int8_t, 16>>(_mm_maskz_loadu_epi8(static_cast<__mmask16>((1U << count) - 1), from));
}
template <>
inline Lanes<uint8_t, 32> load_first<uint8_t, 32>(const uint8_t* from, const int count) {
    return reinterpret_cast<Lanes<uint8_t, 32>>(_mm256_maskz_loadu_epi8(~0U >> (32 - count), from));
}
template <>
inline Lanes<uint8_t, 64> load_first<uint8_t, 64>(const uint8_t* from, const int count) {
    return reinterpret_cast<Lanes<uint8_t, 64>>(_mm512_maskz_loadu_epi8(~0ULL >> (64 - count), from));
}
#elif defined(__AVX2__)
alignas(32) constexpr int32_t kAvx2Mask[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
inline __m256i first_lanes(const int count) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kAvx2Mask + 8 - count));
}
template <>
inline Lanes<float, 8> load_first<float, 8>(const float* from, const int count) {
    return reinterpret_cast<Lanes<float, 8>>(_mm256_maskload_ps(from, first_lanes(count)));
}
template <>
inline void store_first<float, 8>(float* to, const Lanes<float, 8> vector, const int count) {
    _mm256_maskstore_ps(to, first_lanes(count), reinterpret_cast<__m256>(vector));
}
template <>
inline Lanes<double, 4> load_first<double, 4>(const double* from, const int count) {
    return reinterpret_cast<Lanes<double, 4>>(_mm256_maskload_pd(from, first_lanes(2 * count)));
}
template <>
inline void store_first<double, 4>(double* to, const Lanes<double, 4> vector, const int count) {
    _mm256_maskstore_pd(to, first_lanes(2 * count), reinterpret_cast<__m256d>(vector));
}
// 1 to 8 bytes, in loads of fixed sizes that overlap: a copy of `count` bytes would be a call of a function.
inline uint64_t first_bytes(const uint8_t* from, const int count) {
    if (count >= 4) {
        uint32_t first, last;
        std::memcpy(&first, from, sizeof first);
        std::memcpy(&last, from + count - 4, sizeof last);
        return first | uint64_t{last} << (8 * (count - 4));
    }
    const int middle = count / 2, end = count - 1;
    return from[0] | uint64_t{from[middle]} << (8 * middle) | uint64_t{from[end]} << (8 * end);
}
template <>
inline Lanes<int8_t, 8> load_first<int8_t, 8>(const int8_t* from, const int count) {
    const uint64_t bytes = first_bytes(reinterpret_cast<const uint8_t*>(from), count);
    return load<int8_t, 8>(reinterpret_cast<const int8_t*>(&bytes));
}
#endif

// Narrow values as floats. GCC's own conversions from bytes go through memory, lane by lane. Here and below, the masks
// of AVX-512 take all lanes, because GCC 12 warns of uninitialised values in the forms without a mask.
template <int n>
inline Lanes<float, n> widen(const Lanes<int8_t, n> bytes) {
#if defined(__AVX512F__)
    if constexpr (n == 16) {
        const __m512i whole = _mm512_maskz_cvtepi8_epi32(0xFFFF, reinterpret_cast<__m128i>(bytes));
        return reinterpret_cast<Lanes<float, n>>(_mm512_maskz_cvtepi32_ps(0xFFFF, whole));
    }
#elif defined(__AVX2__)
    if constexpr (n == 8) {
        int64_t eight;
        std::memcpy(&eight, &bytes, sizeof eight);
        const __m256i whole = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(eight));
        return reinterpret_cast<Lanes<float, n>>(_mm256_cvtepi32_ps(whole));
    }
#endif
    return __builtin_convertvector(__builtin_convertvector(bytes, Lanes<int32_t, n>), Lanes<float, n>);
}

template <int n>
inline Lanes<float, n> widen(const Lanes<uint16_t, n> bfloat16) {
#if defined(__AVX512F__)
    if constexpr (n == 16) {
        const __m512i whole = _mm512_maskz_slli_epi32(
            0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, reinterpret_cast<__m256i>(bfloat16)), 16);
        return reinterpret_cast<Lanes<float, n>>(whole);
    }
#endif
    return reinterpret_cast<Lanes<float, n>>(__builtin_convertvector(bfloat16, Lanes<uint32_t, n>) << 16);
}

// a * b + c, rounded once.
inline Lanes<float, kLanes<float>> fused(const Lanes<float, kLanes<float>> a, const Lanes<float, kLanes<float>> b,
                                         const Lanes<float, kLanes<float>> c) {
#if defined(__AVX512F__)
    return reinterpret_cast<Lanes<float, kLanes<float>>>(_mm512_fmadd_ps(a, b, c));
#elif defined(__AVX2__)
    return reinterpret_cast<Lanes<float, kLanes<float>>>(_mm256_fmadd_ps(a, b, c));
#else
    Lanes<float, kLanes<float>> sum;
    for (int i = 0; i < kLanes<float>; ++i) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
#endif
}

// A store past the caches, to an aligned address; finish_streams() must be called before another thread reads it.
template <typename T, int n>
inline void stream(T* to, const Lanes<T, n> vector) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(vector));
#elif defined(__AVX2__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(vector));
#else
    store<T, n>(to, vector);
#endif
}

inline void finish_streams() {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

template <typename T, int... i>
inline Lanes<T, sizeof...(i)> lane_numbers_of(std::integer_sequence<int, i...>) {
    return Lanes<T, sizeof...(i)>{i...};
}

// 0, 1, 2, ...
template <typename T, int n>
inline Lanes<T, n> lane_numbers() {
    return lane_numbers_of<T>(std::make_integer_sequence<int, n>());
}

// Lane by lane. If both are 0, or one is NaN, either of them may be the result.
template <int n>
inline Lanes<float, n> smaller(const Lanes<float, n> a, const Lanes<float, n> b) {
    return a < b ? a : b;
}

template <int n>
inline Lanes<float, n> larger(const Lanes<float, n> a, const Lanes<float, n> b) {
    return a > b ? a : b;
}

// Numbers of lanes, of the size of a value: what pick() takes.
template <typename Value>
using PlaceOf = std::conditional_t<sizeof(Value) == 8, int64_t, int32_t>;
template <typename Value>
using Places = Lanes<PlaceOf<Value>, kLanes<Value>>;

// The lanes of a (0 to n - 1) and b (from n) that `which` names.
template <int n, typename V, typename Which>
inline V pick(const V a, const V b, const Which which) {
#if defined(__clang__)  // clang compiles this to shuffles, and offers no other way
    V lanes;
    for (int i = 0; i < n; ++i) lanes[i] = which[i] < n ? a[which[i] % n] : b[which[i] % n];
    return lanes;
#else
    return __builtin_shuffle(a, b, which);
#endif
}

// Whether any lane is not 0.
template <int n>
inline bool any(const Lanes<int32_t, n> v) {
    int32_t bits = 0;
    for (int i = 0; i < n; ++i) bits |= v[i];
    return bits != 0;
}

// The low byte of each lane.
template <int n>
inline void store_bytes(uint8_t* to, const Lanes<uint32_t, n> v) {
    for (int i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(v[i]);
}

template <int n>
inline Lanes<int32_t, n> load_bytes(const uint8_t* from) {
    Lanes<int32_t, n> v;
    for (int i = 0; i < n; ++i) v[i] = from[i];
    return v;
}

// The first `count` of them, 0 in the other lanes; memory beyond them is not read.
template <int n>
inline Lanes<int32_t, n> load_first_bytes(const uint8_t* from, const int count) {
    const auto bytes = load_first<int8_t, n>(reinterpret_cast<const int8_t*>(from), count);
    return load_bytes<n>(reinterpret_cast<const uint8_t*>(&bytes));
}

// One bit a lane, the first lane's lowest: whether it is positive or NaN.
template <int n>
inline uint32_t positive_bits(const Lanes<float, n> v) {
    uint32_t bits = 0;
    for (int i = 0; i < n; ++i) bits |= static_cast<uint32_t>(!(v[i] <= 0)) << i;
    return bits;
}

// GCC compiles these conversions element by element, and a minimum to a comparison and a blend.
#if defined(__AVX2__)
template <>
inline Lanes<int32_t, 8> load_bytes<8>(const uint8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return reinterpret_cast<Lanes<int32_t, 8>>(_mm256_cvtepu8_epi32(bytes));
}
#endif
#if defined(__AVX512F__)
template <>
inline bool any<16>(const Lanes<int32_t, 16> v) {
    return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(v), reinterpret_cast<__m512i>(v)) != 0;
}
template <>
inline uint32_t positive_bits<16>(const Lanes<float, 16> v) {
    return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(v), __m512{}, _CMP_NLE_UQ);
}
template <>
inline Lanes<float, 16> smaller<16>(const Lanes<float, 16> a, const Lanes<float, 16> b) {
    return _mm512_maskz_min_ps(0xFFFF, a, b);
}
template <>
inline Lanes<float, 16> larger<16>(const Lanes<float, 16> a, const Lanes<float, 16> b) {
    return _mm512_maskz_max_ps(0xFFFF, a, b);
}
template <>
inline void store_bytes<16>(uint8_t* to, const Lanes<uint32_t, 16> v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(0xFFFF, reinterpret_cast<__m512i>(v)));
}
template <>
inline Lanes<int32_t, 16> load_bytes<16>(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return reinterpret_cast<Lanes<int32_t, 16>>(_mm512_maskz_cvtepu8_epi32(0xFFFF, bytes));
}
#elif defined(__AVX2__)
template <>
inline bool any<8>(const Lanes<int32_t, 8> v) {
    return !_mm256_testz_si256(reinterpret_cast<__m256i>(v), reinterpret_cast<__m256i>(v));
}
template <>
inline uint32_t positive_bits<8>(const Lanes<float, 8> v) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(reinterpret_cast<__m256>(v), __m256{}, _CMP_NLE_UQ)));
}
template <>
inline Lanes<float, 8> smaller<8>(const Lanes<float, 8> a, const Lanes<float, 8> b) {
    return _mm256_min_ps(a, b);
}
template <>
inline Lanes<float, 8> larger<8>(const Lanes<float, 8> a, const Lanes<float, 8> b) {
    return _mm256_max_ps(a, b);
}
template <>
inline void store_bytes<8>(uint8_t* to, const Lanes<uint32_t, 8> v) {
    const __m256i low_bytes = _mm256_set1_epi32(0x0C080400);
    const __m256i bytes = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(v), low_bytes);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to),
                     _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}
#endif

// kLookupLanes: the size of the table in which lookup() finds the value for each lane's low bits; 0: no instruction.
#if defined(__AVX512F__)
constexpr int kLookupLanes = 16;
template <int n>
inline Lanes<float, n> lookup(const Lanes<float, n> table, const Lanes<int32_t, n> which) {
    return reinterpret_cast<Lanes<float, n>>(
        _mm512_maskz_permutexvar_ps(0xFFFF, reinterpret_cast<__m512i>(which), reinterpret_cast<__m512>(table)));
}
#elif defined(__AVX2__)
constexpr int kLookupLanes = 8;
template <int n>
inline Lanes<float, n> lookup(const Lanes<float, n> table, const Lanes<int32_t, n> which) {
    return reinterpret_cast<Lanes<float, n>>(
        _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(table), reinterpret_cast<__m256i>(which)));
}
#else
constexpr int kLookupLanes = 0;
template <int n>
inline Lanes<float, n> lookup(const Lanes<float, n> table, const Lanes<int32_t, n>) {
    return table;  // never called
}
#endif

}  // namespace
