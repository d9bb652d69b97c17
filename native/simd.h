// Vectors of the instruction set that this file is compiled for, as GNU vector types: arithmetic is written with
// operators and the compiler picks the instructions. Only loads and stores of part of a vector need intrinsics.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_SVE)
#include <arm_sve.h>
#endif

namespace {

constexpr int kVectorBytes = HPCGNN_VECTOR_BYTES;  // from build.py: 4 (scalar), 16, 32 or 64

// How many values of T a register holds.
template <typename T>
constexpr int kLanes = sizeof(T) < kVectorBytes ? kVectorBytes / sizeof(T) : 1;

// Lanes<float, n>: n floats. Unaligned<...>: the same, where memory need not be aligned to the vector's size.
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

// The first `count` lanes (0 < count <= n) from memory, 0 in the others; nothing beyond them is touched.
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
#endif

}  // namespace
