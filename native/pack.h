// Sixteen values at a time, independent of the size of registers, so that sums have the same order and the same result
// on every instruction set: lane j adds values j, j + 16, ..., and the lanes are added in a tree.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "simd.h"

namespace {

template <typename T>
using MaskOf = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

template <typename Int>
struct LaneNumbers {
    alignas(64) Int lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
};
template <typename Int>
constexpr LaneNumbers<Int> kLaneNumbers{};

// 16 values, in as many registers as they need.
template <typename T>
struct Pack {
    static constexpr int kSize = 16, n = kLanes<T>, kRegisters = kSize / n;
    using V = Lanes<T, n>;
    V part[kRegisters] = {};

    static Pack all(const T value) {
        Pack pack;
        for (V& part : pack.part) part = splat<T, n>(value);
        return pack;
    }
    // The first `count` values from memory, and `other` in the lanes after them.
    static Pack read(const T* from, const int count, const T other = 0) {
        Pack pack;
        if (count == kSize) {
#pragma GCC unroll 16
            for (int r = 0; r < kRegisters; ++r) pack.part[r] = load<T, n>(from + r * n);
            return pack;
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRegisters; ++r) {
            const int lanes = std::clamp(count - r * n, 0, n);
            if (lanes > 0) pack.part[r] = lanes == n ? load<T, n>(from + r * n) : load_first<T, n>(from + r * n, lanes);
        }
        if (other != 0) pack.keep(count, other);
        return pack;
    }
    void write(T* to, const int count) const {
#pragma GCC unroll 16
        for (int r = 0; r < kRegisters; ++r) {
            const int lanes = std::clamp(count - r * n, 0, n);
            if (lanes == n) {
                store<T, n>(to + r * n, part[r]);
            } else if (lanes > 0) {
                store_first<T, n>(to + r * n, part[r], lanes);
            }
        }
    }
    // Sets the lanes after the first `count` to `other`.
    void keep(const int count, const T other) {
        if (count == kSize) return;
        each([&](const V value, const int r) {
            return load<MaskOf<T>, n>(kLaneNumbers<MaskOf<T>>.lane + r * n) < count ? value : splat<T, n>(other);
        });
    }
    template <typename F>
    void each(const F& f) {
#pragma GCC unroll 16
        for (int r = 0; r < kRegisters; ++r) part[r] = f(part[r], r);
    }
};

// The sum, or the larger one, of two vectors.
template <typename V, bool kMax>
inline V combine(const V a, const V b) {
    if constexpr (kMax) {
        return ((b > a) | (b != b)) ? b : a;  // a NaN remains
    } else {
        return a + b;
    }
}

// combine() for vectors that are smaller than a register.
template <typename T, int n, bool kMax>
inline Lanes<T, n> combine_part(Lanes<T, n> a, const Lanes<T, n> b) {
#if defined(__ARM_FEATURE_SVE)
    // GCC 12 selects wrong lanes where it compares 8 floats in SVE registers of 16.
    for (int j = 0; j < n; ++j) a[j] = combine<T, kMax>(a[j], b[j]);
    return a;
#else
    return combine<Lanes<T, n>, kMax>(a, b);
#endif
}

// Lanes j and j + n / 2 are combined, and so on, until `columns` of them are left.
template <typename T, int n, bool kMax>
inline void halve(const Lanes<T, n> vector, const int columns, T* out) {
    if constexpr (n > 1) {
        if (columns < n) {
            Lanes<T, n / 2> half[2];
            std::memcpy(half, &vector, sizeof vector);
            return halve<T, n / 2, kMax>(combine_part<T, n / 2, kMax>(half[0], half[1]), columns, out);
        }
    }
    store<T, n>(out, vector);
}

// The same for a whole pack, whose lanes form groups of `columns`, a power of 2 that fits into a register.
template <typename T, bool kMax>
inline void halve_pack(Pack<T> pack, const int columns, T* out) {
#pragma GCC unroll 4
    for (int half = Pack<T>::kRegisters / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
        for (int r = 0; r < half; ++r)
            pack.part[r] = combine<typename Pack<T>::V, kMax>(pack.part[r], pack.part[r + half]);
    }
    halve<T, Pack<T>::n, kMax>(pack.part[0], columns, out);
}

// The sum of 16 lanes: j and j + 8, then j and j + 4, j + 2, j + 1.
template <typename T>
inline T sum_lanes(const Pack<T>& pack) {
    T sum;
    halve_pack<T, false>(pack, 1, &sum);
    return sum;
}

// e to the power of x, for x <= 0 or NaN; 0 below -87, where float32 loses bits. The relative error is below 2e-7.
template <int n>
inline Lanes<float, n> exp_lanes(const Lanes<float, n> x) {
    using V = Lanes<float, n>;
    using U = Lanes<uint32_t, n>;
    constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    const V shifted = x * 1.44269504088896341F + kRound;
    const V k = shifted - kRound;
    const V r = (x - k * 0.693359375F) + k * 2.12194440e-4F;  // x - k ln 2, in two steps
    V y = r * 1.9875691500e-4F + 1.3981999507e-3F;            // Cephes' polynomial
    y = y * r + 8.3334519073e-3F;
    y = y * r + 4.1665795894e-2F;
    y = y * r + 1.6666665459e-1F;
    y = y * r + 5.0000001201e-1F;
    y = y * (r * r) + r + 1.0F;
    y = reinterpret_cast<V>(reinterpret_cast<U>(y) + (reinterpret_cast<U>(shifted) << 23));  // times 2^k
    y = x < splat<float, n>(-87.0F) ? V{} : y;
    return x != x ? x : y;
}

template <int n>
inline Lanes<double, n> exp_lanes(Lanes<double, n> x) {
    for (int j = 0; j < n; ++j) x[j] = std::exp(x[j]);
    return x;
}

// Up to 16 columns of an (entries, width) array. If all columns fit, a pack takes several entries, and lane j is column
// j % columns.
struct Strip {
    int64_t width, first;
    int columns, entries;

    static std::vector<Strip> cut(const int64_t width) {
        std::vector<Strip> strips;
        for (int64_t c = 0; c < width; c += 16)
            strips.push_back({width, c, static_cast<int>(std::min<int64_t>(16, width - c)),
                              width <= 16 ? static_cast<int>(16 / width) : 1});
        return strips;
    }
    // Calls f(offset of a pack, its lanes) for the entries [begin, end).
    template <typename F>
    void each(const int64_t begin, const int64_t end, const F& f) const {
        for (int64_t e = begin; e < end; e += entries)
            f(e * width + first, columns * static_cast<int>(std::min<int64_t>(entries, end - e)));
    }
    // A value for each column, in all lanes of that column.
    template <typename T>
    Pack<T> spread(const T* values) const {
        if (columns == 1) return Pack<T>::all(values[0]);
        alignas(64) T lanes[16] = {};
        for (int j = 0; j < columns * entries; j += columns) std::copy(values, values + columns, lanes + j);
        return Pack<T>::read(lanes, 16);
    }
    // The reverse: combines the lanes of each column, first those of the pack's halves.
    template <bool kMax, typename T>
    void fold(const Pack<T>& pack, T* values) const {
        if (columns <= Pack<T>::n && (columns & (columns - 1)) == 0) return halve_pack<T, kMax>(pack, columns, values);
        alignas(64) T lanes[16];
        pack.write(lanes, 16);
        for (int left = entries; left > 1; left = (left + 1) / 2) {
            const int half = (left + 1) / 2;
            for (int j = half * columns; j < left * columns; ++j)
                lanes[j - half * columns] = combine<T, kMax>(lanes[j - half * columns], lanes[j]);
        }
        std::copy(lanes, lanes + columns, values);
    }
};

}  // namespace
