// The inner loop of dense products: a tile of the result stays in registers while a column of one operand meets a row
// of the other, for each step of the sum; and the packing of the operand whose rows lie in registers.
//
// Each element of a result is one chain of fused multiply-adds in ascending order of the sum, whatever the instruction
// set, so that all have the same bits. Fused, unlike in sparse products: those are bound by memory, these by
// arithmetic.
#pragma once

#include <algorithm>
#include <memory>
#include <new>

#include "hpcgnn.h"
#include "simd.h"

namespace {

// A tile is at most kTileRows x kTileVectors registers, beside which the vectors of a step and a broadcast number fit.
constexpr int kTileRows = kVectorBytes == 64 || kVectorBytes == 16 ? 8 : 4;
constexpr int kTileVectors = 3;
constexpr int kFloats = kLanes<float>;

using Floats = Lanes<float, kFloats>;

// a * b + c, rounded once.
inline Floats fused(const Floats a, const Floats b, const Floats c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    Floats sum;
    for (int i = 0; i < kFloats; ++i) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
#endif
}

// Rows of a row-major matrix, and rows that were packed: kTileRows numbers, one of each row, for each step.
struct StridedRows {
    const float* first;
    int64_t stride;
    float at(const int row, const int64_t step) const { return first[row * stride + step]; }
};
struct PackedRows {
    const float* first;
    float at(const int row, const int64_t step) const { return first[step * kTileRows + row]; }
};

// Adds to `sum`, for each of `steps`, the products of a number of each row of `a` with `vectors` registers of
// `columns`.
template <int rows, int vectors, typename Rows>
inline __attribute__((always_inline)) void add_products(Floats (&sum)[rows][vectors], const Rows a,
                                                        const float* columns, const int64_t steps) {
    for (int64_t k = 0; k < steps; ++k) {
        Floats b[vectors];
        for (int v = 0; v < vectors; ++v) b[v] = load<float, kFloats>(columns + (k * vectors + v) * kFloats);
        for (int r = 0; r < rows; ++r) {
            const Floats number = splat<float, kFloats>(a.at(r, k));
            for (int v = 0; v < vectors; ++v) sum[r][v] = fused(number, b[v], sum[r][v]);
        }
    }
}

// The columns of a matrix as panels of up to kTileVectors registers, which differ by at most one.
struct Panels {
    int64_t width, vectors, count;

    explicit Panels(const int64_t columns)
        : width(columns),
          vectors((columns + kFloats - 1) / kFloats),
          count((vectors + kTileVectors - 1) / kTileVectors) {}
    int64_t first_vector(const int64_t panel) const { return panel * vectors / count; }
    int vectors_of(const int64_t panel) const {
        return static_cast<int>(first_vector(panel + 1) - first_vector(panel));
    }
    int64_t first_column(const int64_t panel) const { return first_vector(panel) * kFloats; }
    // Columns that are not padding.
    int columns_of(const int64_t panel) const {
        return static_cast<int>(std::min(first_column(panel + 1), width) - first_column(panel));
    }
    int64_t padded_width() const { return vectors * kFloats; }
};

struct Aligned {
    void operator()(float* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
};
using Scratch = std::unique_ptr<float[], Aligned>;

inline Scratch scratch(const int64_t count) {
    return Scratch(new (std::align_val_t(64)) float[std::max<int64_t>(count, 1)]);
}

}  // namespace
