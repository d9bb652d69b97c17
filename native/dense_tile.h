// The inner loop of dense products: a tile of the result stays in registers while each step of the sum multiplies a
// column of one operand by a row of the other; and the packing of the operand whose rows are read into registers.
//
// Each element of a float32 result is one chain of fused multiply-adds, in ascending order of the sum on every
// instruction set, so that all have the same bits. Sparse products do not fuse, because memory limits them; arithmetic
// limits dense ones.
#pragma once

#include <algorithm>
#include <memory>
#include <new>

#include "hpcgnn.h"
#include "simd.h"

namespace {

// A tile is at most kTileRows x kTileVectors registers, which leaves room for a step's vectors and a broadcast number.
constexpr int kTileRows = kVectorBytes == 64 || kVectorBytes == 16 ? 8 : 4;
constexpr int kTileVectors = 3;
constexpr int kFloats = kLanes<float>;

using Floats = Lanes<float, kFloats>;

// An arithmetic: the numbers that a step of a sum takes, one of each row and one of each column, and their conversion.
// A step of float32 adds one product.
struct Float32 {
    using Number = float;
    static constexpr int64_t kTerms = 1;  // products that a step adds

    static Floats add(const Floats a, const Floats b, const Floats sum) { return fused(a, b, sum); }

    // The number made of `terms` values (at most kTerms; missing ones count as 0) at `from`, which are `stride` apart.
    static float number(const float* from, int64_t, int64_t) { return *from; }

    // The numbers made of the values in kTerms registers, lane by lane.
    template <int n>
    static Lanes<float, n> numbers(const Lanes<float, n>* terms) {
        return terms[0];
    }

    // The numbers of columns [first, last) of up to kTileRows rows of x: in place, or in `memory`, which has room for
    // kRowsMemory of them.
    static constexpr int64_t kRowsMemory = 1;
    static const float* rows(const float* x, int64_t, int64_t, int64_t first, int64_t, float*) { return x + first; }
    static int64_t row_stride(const int64_t depth) { return depth; }
};

// Rows of a row-major matrix, and packed rows: kTileRows numbers, one of each row, for each step.
template <typename Number>
struct StridedRows {
    const Number* first;
    int64_t stride;
    Number at(const int64_t row, const int64_t step) const { return first[row * stride + step]; }
    StridedRows from(const int64_t row) const { return {first + row * stride, stride}; }
};
template <typename Number>
struct PackedRows {
    const Number* first;
    Number at(const int64_t row, const int64_t step) const { return first[step * kTileRows + row]; }
};

// Adds to `sum`, in each of `steps` steps, the products of a number of each row of `a` and `vectors` registers of
// `columns`.
template <typename Arithmetic, int rows, int vectors, typename Rows>
inline __attribute__((always_inline)) void add_products(Floats (&sum)[rows][vectors], const Rows a,
                                                        const typename Arithmetic::Number* columns,
                                                        const int64_t steps) {
    using Number = typename Arithmetic::Number;
    for (int64_t k = 0; k < steps; ++k) {
        Lanes<Number, kFloats> b[vectors];
        for (int v = 0; v < vectors; ++v) b[v] = load<Number, kFloats>(columns + (k * vectors + v) * kFloats);
        for (int r = 0; r < rows; ++r) {
            const Lanes<Number, kFloats> number = splat<Number, kFloats>(a.at(r, k));
            for (int v = 0; v < vectors; ++v) sum[r][v] = Arithmetic::add(number, b[v], sum[r][v]);
        }
    }
}

// The columns of a matrix as panels of up to kTileVectors registers, whose numbers differ by at most one.
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
    // Number of columns that are not padding.
    int columns_of(const int64_t panel) const {
        return static_cast<int>(std::min(first_column(panel + 1), width) - first_column(panel));
    }
    int64_t padded_width() const { return vectors * kFloats; }
};

struct Aligned {
    void operator()(void* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
};
template <typename T>
using Scratch = std::unique_ptr<T[], Aligned>;

template <typename T>
inline Scratch<T> scratch(const int64_t count) {
    return Scratch<T>(new (std::align_val_t(64)) T[std::max<int64_t>(count, 1)]);
}

}  // namespace
