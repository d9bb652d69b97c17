// Products of tall, narrow matrices with small ones, and the gradients of their weights.
//
// Shapes: x (rows, depth), weight (depth, width), y (rows, width); all but the weight are row-major.
#pragma once

#include "dense_tile.h"

namespace {

constexpr int64_t kStepsAtOnce = 512;      // of a panel, and
constexpr int64_t kPanelsAtOnce = 6;       // panels of the weight, stay in the second-level cache
constexpr int64_t kRowsOfATask = 128;      // of y
constexpr int64_t kRowsOfAProduct = 1024;  // whose products are summed on their own: a rule of the result
constexpr int64_t kRowsPacked = 256;       // of a segment at a time
constexpr int64_t kColumnsPacked = 256;    // of x at a time
// From one packed tile of columns to the next; a line more than it has, or all would meet in the same set of a cache.
constexpr int64_t kPackedTile = kRowsPacked * kTileRows + 16;

struct ProductJob {
    int64_t rows, depth;
    const float* x;
    Panels panels;
    const float* packed;  // the weight: panel after panel, a row after the other
    const float* bias;    // (width), or null
    bool accumulate;
    float* y;
};

// Panel `p` of a weight whose element (k, c) is at weight[k * row_stride + c * column_stride]; padding is 0.
inline void pack_panel(const float* weight, const int64_t row_stride, const int64_t column_stride, const int64_t depth,
                       const Panels& panels, const int64_t p, float* packed) {
    const int64_t stride = panels.vectors_of(p) * kFloats;
    const float* from = weight + panels.first_column(p) * column_stride;
    float* to = packed + panels.first_column(p) * depth;
    const int64_t columns = panels.columns_of(p);
    if (column_stride == 1) {
        for (int64_t k = 0; k < depth; ++k)
            std::memcpy(to + k * stride, from + k * row_stride, static_cast<size_t>(columns) * sizeof(float));
    } else {
        for (int64_t c = 0; c < columns; ++c)
            for (int64_t k = 0; k < depth; ++k) to[k * stride + c] = from[k * row_stride + c * column_stride];
    }
    for (int64_t c = columns; c < stride; ++c)
        for (int64_t k = 0; k < depth; ++k) to[k * stride + c] = 0;
}

// Steps [first, last) of `rows` rows of y from `row` on, in one panel. Earlier steps are in y.
template <int rows, int vectors>
void product_tile(const ProductJob& job, const int64_t row, const int64_t p, const int64_t first, const int64_t last) {
    const int64_t column = job.panels.first_column(p), width = job.panels.width;
    const int tail = job.panels.columns_of(p) - (vectors - 1) * kFloats;
    const auto read = [&](const float* from, const int v) {
        return v + 1 < vectors || tail == kFloats ? load<float, kFloats>(from + v * kFloats)
                                                  : load_first<float, kFloats>(from + v * kFloats, tail);
    };
    float* y = job.y + row * width + column;
    Floats sum[rows][vectors];
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < vectors; ++v) sum[r][v] = job.accumulate || first > 0 ? read(y + r * width, v) : Floats{};
    if (job.bias != nullptr && first == 0) {
        for (int v = 0; v < vectors; ++v) {
            const Floats bias = read(job.bias + column, v);
            for (int r = 0; r < rows; ++r) sum[r][v] += bias;
        }
    }
    const StridedRows x{job.x + row * job.depth + first, job.depth};
    add_products(sum, x, job.packed + column * job.depth + first * vectors * kFloats, last - first);
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < vectors; ++v) {
            float* to = y + r * width + v * kFloats;
            if (v + 1 < vectors || tail == kFloats) {
                store<float, kFloats>(to, sum[r][v]);
            } else {
                store_first<float, kFloats>(to, sum[r][v], tail);
            }
        }
    }
}

template <int rows>
void product_row_tile(const ProductJob& job, const int64_t row, const int64_t p, const int64_t first,
                      const int64_t last) {
    switch (job.panels.vectors_of(p)) {
        case 1:
            return product_tile<rows, 1>(job, row, p, first, last);
        case 2:
            return product_tile<rows, 2>(job, row, p, first, last);
        default:
            return product_tile<rows, 3>(job, row, p, first, last);
    }
}

inline void fetch(const float* from, const float* end) {
    for (; from < end; from += 64 / sizeof(float)) __builtin_prefetch(from, 0, 2);
}

// Rows [begin, end) of y, steps [first, last), panels [first_panel, last_panel).
inline void product_rows(const ProductJob& job, const int64_t begin, const int64_t end, const int64_t first,
                         const int64_t last, const int64_t first_panel, const int64_t last_panel) {
    const int64_t width = job.panels.width;
    int64_t row = begin;
    for (; row + kTileRows <= end; row += kTileRows) {
        // The caches' own fetching is late where rows are short: the next ones, and where their results go.
        if (first_panel == 0) {
            const int64_t next = row + kTileRows, ahead = std::min<int64_t>(job.rows - next, kTileRows);
            for (int64_t r = next; r < next + ahead; ++r)
                fetch(job.x + r * job.depth + first, job.x + r * job.depth + last);
            fetch(job.y + next * width, job.y + (next + ahead) * width);
        }
        for (int64_t p = first_panel; p < last_panel; ++p) product_row_tile<kTileRows>(job, row, p, first, last);
    }
    for (int64_t p = first_panel; p < last_panel; ++p) {
        int64_t rest = row;
        if (kTileRows > 4 && end - rest >= 4) product_row_tile<4>(job, rest, p, first, last), rest += 4;
        for (; rest < end; ++rest) product_row_tile<1>(job, rest, p, first, last);
    }
}

inline void product(ProductJob job, const float* weight, const int64_t row_stride, const int64_t column_stride,
                    const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const Scratch packed = scratch(job.depth * job.panels.padded_width());
    job.packed = packed.get();
    const int64_t tasks = (job.rows + kRowsOfATask - 1) / kRowsOfATask;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t p = 0; p < job.panels.count; ++p)
            pack_panel(weight, row_stride, column_stride, job.depth, job.panels, p, packed.get());
#pragma omp for schedule(dynamic, 1)
        for (int64_t t = 0; t < tasks; ++t) {
            const int64_t begin = t * kRowsOfATask, end = std::min(begin + kRowsOfATask, job.rows);
            int64_t first = 0;
            do {  // once without a step: y is then plus and bias
                const int64_t last = std::min(first + kStepsAtOnce, job.depth);
                for (int64_t p = 0; p < job.panels.count; p += kPanelsAtOnce)
                    product_rows(job, begin, end, first, last, p, std::min(p + kPanelsAtOnce, job.panels.count));
                first = last;
            } while (first < job.depth);
        }
    }
}

// One thread's share of a sum over rows: the sum of a segment, as tiles of kTileRows columns of x by a panel of dy, and
// the packed operands of the rows at hand.
struct SegmentSums {
    int64_t depth;  // columns of x
    Panels panels;  // of dy
    Scratch sums, column_sums, packed_x, packed_dy;

    SegmentSums(const int64_t in_width, const int64_t out_width)
        : depth(in_width),
          panels(out_width),
          sums(scratch(padded_depth() * panels.padded_width())),
          column_sums(scratch(panels.padded_width())),
          packed_x(scratch(std::min(padded_depth(), kColumnsPacked) / kTileRows * kPackedTile)),
          packed_dy(scratch(panels.padded_width() * kRowsPacked)) {}
    int64_t padded_depth() const { return (depth + kTileRows - 1) / kTileRows * kTileRows; }
    float* tile(const int64_t column, const int64_t p) {
        return sums.get() + column * panels.padded_width() + panels.first_column(p) * kTileRows;
    }
};

// `rows` rows of dy as panels, whose sums are added to the column sums.
inline void pack_gradient(SegmentSums& own, const float* dy, const int64_t rows) {
    const Panels& panels = own.panels;
    for (int64_t p = 0; p < panels.count; ++p) {
        const int vectors = panels.vectors_of(p), columns = panels.columns_of(p);
        float* to = own.packed_dy.get() + panels.first_column(p) * kRowsPacked;
        for (int v = 0; v < vectors; ++v) {
            const int count = std::min(columns - v * kFloats, kFloats);
            const float* from = dy + panels.first_column(p) + v * kFloats;
            float* sums = own.column_sums.get() + panels.first_column(p) + v * kFloats;
            Floats sum = load<float, kFloats>(sums);
            for (int64_t i = 0; i < rows; ++i) {
                const Floats row = count == kFloats ? load<float, kFloats>(from + i * panels.width)
                                                    : load_first<float, kFloats>(from + i * panels.width, count);
                sum += row;
                store<float, kFloats>(to + (i * vectors + v) * kFloats, row);
            }
            store<float, kFloats>(sums, sum);
        }
    }
}

// `columns` columns of `rows` rows of x, kTileRows of them side by side; padding is 0.
inline void pack_columns(SegmentSums& own, const float* x, const int64_t rows, const int64_t columns) {
    const int64_t whole = columns / kTileRows * kTileRows;
    for (int64_t i = 0; i < rows; ++i) {
        const float* from = x + i * own.depth;
        float* to = own.packed_x.get() + i * kTileRows;
        for (int64_t c = 0; c < whole; c += kTileRows, to += kPackedTile)
            std::memcpy(to, from + c, kTileRows * sizeof(float));
        if (whole < columns) {
            for (int r = 0; r < kTileRows; ++r) to[r] = whole + r < columns ? from[whole + r] : 0;
        }
    }
}

// Adds `rows` packed rows to one tile of the sums.
template <int vectors>
void gradient_tile(SegmentSums& own, const float* packed_x, const int64_t rows, const int64_t column, const int64_t p) {
    float* at = own.tile(column, p);
    Floats sum[kTileRows][vectors];
    for (int r = 0; r < kTileRows; ++r)
        for (int v = 0; v < vectors; ++v) sum[r][v] = load<float, kFloats>(at + (r * vectors + v) * kFloats);
    const float* dy = own.packed_dy.get() + own.panels.first_column(p) * kRowsPacked;
    add_products(sum, PackedRows{packed_x}, dy, rows);
    for (int r = 0; r < kTileRows; ++r)
        for (int v = 0; v < vectors; ++v) store<float, kFloats>(at + (r * vectors + v) * kFloats, sum[r][v]);
}

// The sums of rows [begin, end), which are a segment.
inline void sum_segment(SegmentSums& own, const float* x, const float* dy, const int64_t begin, const int64_t end) {
    std::fill_n(own.sums.get(), own.padded_depth() * own.panels.padded_width(), 0.0F);
    std::fill_n(own.column_sums.get(), own.panels.padded_width(), 0.0F);
    for (int64_t row = begin; row < end; row += kRowsPacked) {
        const int64_t rows = std::min(end - row, kRowsPacked);
        pack_gradient(own, dy + row * own.panels.width, rows);
        for (int64_t first = 0; first < own.depth; first += kColumnsPacked) {
            const int64_t columns = std::min(own.depth - first, kColumnsPacked);
            pack_columns(own, x + row * own.depth + first, rows, columns);
            for (int64_t c = 0; c < columns; c += kTileRows) {
                const float* packed_x = own.packed_x.get() + c / kTileRows * kPackedTile;
                for (int64_t p = 0; p < own.panels.count; ++p) {
                    const int vectors = own.panels.vectors_of(p);
                    if (vectors == 1) gradient_tile<1>(own, packed_x, rows, first + c, p);
                    if (vectors == 2) gradient_tile<2>(own, packed_x, rows, first + c, p);
                    if (vectors == 3) gradient_tile<3>(own, packed_x, rows, first + c, p);
                }
            }
        }
    }
}

inline void add_segment(SegmentSums& own, float* dweight, float* sums) {
    const int64_t width = own.panels.width;
    for (int64_t p = 0; p < own.panels.count; ++p) {
        const int64_t stride = own.panels.vectors_of(p) * kFloats, columns = own.panels.columns_of(p);
        for (int64_t k = 0; k < own.depth; ++k) {
            const float* from = own.tile(k / kTileRows * kTileRows, p) + k % kTileRows * stride;
            float* to = dweight + k * width + own.panels.first_column(p);
            for (int64_t c = 0; c < columns; ++c) to[c] += from[c];
        }
    }
    if (sums != nullptr)
        for (int64_t c = 0; c < width; ++c) sums[c] += own.column_sums[c];
}

// Segments are summed by whichever thread is free, and added in order: each thread holds one at a time.
inline void weight_gradient(const int64_t rows, const int64_t depth, const int64_t width, const float* x,
                            const float* dy, float* dweight, float* sums, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    std::fill_n(dweight, depth * width, 0.0F);
    if (sums != nullptr) std::fill_n(sums, width, 0.0F);
    const int64_t segments = (rows + kRowsOfAProduct - 1) / kRowsOfAProduct;
#pragma omp parallel num_threads(static_cast<int>(std::clamp<int64_t>(segments, 1, threads)))
    {
        SegmentSums own(depth, width);
#pragma omp for ordered schedule(dynamic, 1)
        for (int64_t s = 0; s < segments; ++s) {
            sum_segment(own, x, dy, s * kRowsOfAProduct, std::min((s + 1) * kRowsOfAProduct, rows));
#pragma omp ordered
            add_segment(own, dweight, sums);
        }
    }
}

}  // namespace

// y = x weight, plus a row `bias` where there is one, plus what y holds if `accumulate`. Element (k, c) of the weight
// is at weight[k * row_stride + c * column_stride], so a transposed one is the same thing.
HPCGNN_KERNEL(dense_f32)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* weight,
                         int64_t row_stride, int64_t column_stride, const float* bias, int accumulate, float* y,
                         int threads) {
    product({rows, depth, x, Panels(width), nullptr, bias, accumulate != 0, y}, weight, row_stride, column_stride,
            threads);
}

// dweight (depth, width) = the transposed x (rows, depth) times dy (rows, width), and sums (width) = those of dy's
// columns, unless null. Beside them, each thread takes memory for one more of each, and 256 rows of both operands.
HPCGNN_KERNEL(dense_gradient_f32)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* dy,
                                  float* dweight, float* sums, int threads) {
    weight_gradient(rows, depth, width, x, dy, dweight, sums, threads);
}
