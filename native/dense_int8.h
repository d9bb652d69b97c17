// Products of tall, narrow matrices with small ones in 8-bit integers (Tango §3.3), and the gradients of their weights,
// with sums in int32. hpcgnn/kernels/int8.py defines the results.
//
// Shapes: x (rows, depth), weight (depth, width), y (rows, width), dy (rows, width).
#pragma once

#include <algorithm>

#include "dense.h"
#include "int8_arithmetic.h"
#include "int8_rows.h"

namespace {

constexpr int64_t kInt8RowsAtOnce = 32;  // rows of x that fit beside a panel of the weight in the first-level cache

struct Int8Product {
    int64_t rows, depth;
    const int8_t* codes;  // x is codes (rows, depth) times
    const float* scale;   // (rows)
    Panels panels;
    const uint32_t* packed;     // the weight: panel after panel, and step after step in a panel
    const int32_t* correction;  // (padded width) minus the contribution of kOffset to the sums
    const float* column_scale;  // (padded width)
    const float* bias;          // (width), or null
    bool accumulate;
    float* y;
    bool past_caches;  // stores of whole vectors
};

// Column c of the weight as a row of codes, (width, depth), and its scale. column: memory for its values.
inline void quantize_column(const float* weight, const int64_t row_stride, const int64_t column_stride,
                            const int64_t depth, const int64_t c, const Keyed& rounding, float* column, int8_t* codes,
                            float* scale) {
    for (int64_t k = 0; k < depth; ++k) column[k] = weight[k * row_stride + c * column_stride];
    scale[c] = rounding.row(column, depth, 1, c, codes + c * depth);
}

// Packs one panel of the weight from the codes of its columns; padding is 0.
inline void pack_int8_panel(const int8_t* codes, const int64_t depth, const Panels& panels, const int64_t p,
                            uint32_t* packed, int32_t* correction) {
    const int64_t steps = steps_of<Int8Arithmetic>(depth), stride = panels.vectors_of(p) * kFloats,
                  first = panels.first_column(p);
    uint32_t* to = packed + first * steps;
    const auto numbers = scratch<uint32_t>(steps);
    for (int64_t c = 0; c < stride; ++c) {
        const int8_t* column = codes + (first + c) * depth;
        const bool exists = c < panels.columns_of(p);
        uint32_t sum = 0;  // unsigned: times kOffset it may wrap around, but so do the sums
        for (int64_t k = 0; exists && k < depth; ++k) sum += static_cast<uint32_t>(column[k]);
        correction[first + c] = static_cast<int32_t>(0U - Int8Arithmetic::kOffset * sum);
        if (exists) Int8Arithmetic::row<false>(column, depth, numbers.get());
        for (int64_t step = 0; step < steps; ++step) to[step * stride + c] = exists ? numbers[step] : 0;
    }
}

// Computes `rows` rows of y in one panel; x: the rows' numbers.
template <int rows, int vectors>
void int8_product_tile(const Int8Product& job, const StridedRows<uint32_t> x, const int64_t row, const int64_t p) {
    const int64_t column = job.panels.first_column(p), width = job.panels.width,
                  steps = steps_of<Int8Arithmetic>(job.depth);
    const int tail = job.panels.columns_of(p) - (vectors - 1) * kFloats;
    Ints sum[rows][vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
        const Ints start = load<int32_t, kFloats>(job.correction + column + v * kFloats);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) sum[r][v] = start;
    }
    add_int8_products(sum, x, job.packed + column * steps, steps);
    float* y = job.y + row * width + column;
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
        const int count = v + 1 < vectors ? kFloats : tail;
        const Floats scale = load<float, kFloats>(job.column_scale + column + v * kFloats);
        const Floats bias = job.bias == nullptr ? Floats{} : load_some<kFloats>(job.bias + column + v * kFloats, count);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            float* to = y + r * width + v * kFloats;
            Floats value = __builtin_convertvector(sum[r][v], Floats) * (scale * job.scale[row + r]);
            if (job.bias != nullptr) value += bias;
            if (job.accumulate) value = load_some<kFloats>(to, count) + value;
            if (count < kFloats) {
                store_first<float, kFloats>(to, value, count);
            } else if (job.past_caches) {
                stream<float, kFloats>(to, value);
            } else {
                store<float, kFloats>(to, value);
            }
        }
    }
}

template <int rows>
void int8_product_row_tile(const Int8Product& job, const StridedRows<uint32_t> x, const int64_t row, const int64_t p) {
    const int vectors = job.panels.vectors_of(p);
    if (vectors == 1) int8_product_tile<rows, 1>(job, x, row, p);
    if (vectors == 2) int8_product_tile<rows, 2>(job, x, row, p);
    if (vectors == 3) int8_product_tile<rows, 3>(job, x, row, p);
}

// Computes the rows [begin, end) of y, at most kInt8RowsAtOnce of them. numbers: memory for the numbers of x.
inline void int8_product_rows(const Int8Product& job, const int64_t begin, const int64_t end, uint32_t* numbers,
                              const int64_t stride) {
    const int64_t depth = job.depth;
    for (int64_t r = begin; r < end; ++r) {
        Int8Arithmetic::row<true>(job.codes + r * depth, depth, numbers + (r - begin) * stride);
    }
    const StridedRows<uint32_t> x{numbers, stride};
    for (int64_t p = 0; p < job.panels.count; ++p) {
        int64_t r = begin;
        for (; r + kTileRows <= end; r += kTileRows) int8_product_row_tile<kTileRows>(job, x.from(r - begin), r, p);
        for (; r < end; ++r) int8_product_row_tile<1>(job, x.from(r - begin), r, p);
    }
}

inline void int8_product(Int8Product job, const float* weight, const int64_t row_stride, const int64_t column_stride,
                         const Keyed& weight_rounding, const int threads) {
    const int64_t depth = job.depth, steps = steps_of<Int8Arithmetic>(depth), padded = job.panels.padded_width();
    const int64_t tasks = (job.rows + kInt8RowsAtOnce - 1) / kInt8RowsAtOnce, width = job.panels.width;
    const auto packed = scratch<uint32_t>(steps * padded);
    const auto correction = scratch<int32_t>(padded);
    const auto column_scale = scratch<float>(padded);
    const auto weight_codes = scratch<int8_t>(width * depth);
    std::fill_n(column_scale.get() + width, padded - width, 0.0F);
    job.packed = packed.get(), job.correction = correction.get(), job.column_scale = column_scale.get();
    job.past_caches = !job.accumulate && goes_past_caches(job.rows, width, job.y);
    const int64_t stride = steps + 16;  // a cache line more: otherwise rows would share few sets of the cache
#pragma omp parallel num_threads(threads)
    {
        const auto numbers = scratch<uint32_t>(kInt8RowsAtOnce * stride);
        const auto column = scratch<float>(depth);
#pragma omp for schedule(static)
        for (int64_t c = 0; c < width; ++c)
            quantize_column(weight, row_stride, column_stride, depth, c, weight_rounding, column.get(),
                            weight_codes.get(), column_scale.get());
#pragma omp for schedule(static)
        for (int64_t p = 0; p < job.panels.count; ++p)
            pack_int8_panel(weight_codes.get(), depth, job.panels, p, packed.get(), correction.get());
#pragma omp for schedule(dynamic, 4)
        for (int64_t t = 0; t < tasks; ++t)
            int8_product_rows(job, t * kInt8RowsAtOnce, std::min((t + 1) * kInt8RowsAtOnce, job.rows), numbers.get(),
                              stride);
        if (job.past_caches) finish_streams();
    }
}

// -- gradients of weights --------------------------------------------------------------------------------------------

struct Int8Gradient {
    int64_t rows;
    const int8_t* codes;
    const float *scale, *dy;  // dy is null where it is dy_codes times dy_scale
    const int8_t* dy_codes;
    const float* dy_scale;
    Keyed rounding;

    // `count` values of a row of dy, from column c on.
    template <bool kCoded>
    Floats values(const int64_t row, const int64_t width, const int64_t c, const int count) const {
        if constexpr (kCoded) {
            const int8_t* from = dy_codes + row * width + c;
            const auto bytes =
                count == kFloats ? load<int8_t, kFloats>(from) : load_first<int8_t, kFloats>(from, count);
            return widen<kFloats>(bytes) * dy_scale[row];
        } else {
            return load_some<kFloats>(dy + row * width + c, count);
        }
    }
};

// One thread's share, as SegmentSums, with the codes of a block of rows: dy times the scales of x, quantized by
// columns.
struct Int8Sums : SegmentSums<Int8Arithmetic> {
    Scratch<int8_t> codes;        // (kRowsPacked, padded width)
    Scratch<int32_t> largest;     // (padded width): bits of magnitudes
    Scratch<float> column_scale;  // (padded width)
    Scratch<float> per_step;      // (padded width)
    Scratch<int32_t> correction;  // (padded width)
    Scratch<int8_t> zeros;        // (the longer of a row of x and of dy)

    Int8Sums(const int64_t in_width, const int64_t out_width)
        : SegmentSums(in_width, out_width),
          codes(scratch<int8_t>(kRowsPacked * panels.padded_width())),
          largest(scratch<int32_t>(panels.padded_width())),
          column_scale(scratch<float>(panels.padded_width())),
          per_step(scratch<float>(panels.padded_width())),
          correction(scratch<int32_t>(panels.padded_width())),
          zeros(scratch<int8_t>(std::max(in_width, panels.padded_width()) + kTileRows)) {
        std::fill_n(codes.get(), kRowsPacked * panels.padded_width(), int8_t{0});
        std::fill_n(packed_x.get(), std::min(padded_depth(), kColumnsPacked) / kTileRows * kPackedTile, 0U);
        std::fill_n(zeros.get(), std::max(in_width, panels.padded_width()) + kTileRows, int8_t{0});
    }
};

// Finds the scales of a block's columns, and adds the values of dy to the sums of its columns.
template <bool kCoded>
inline void measure_columns(Int8Sums& own, const Int8Gradient& job, const int64_t first, const int64_t count) {
    const int64_t width = own.panels.width, padded = own.panels.padded_width();
    std::fill_n(own.largest.get(), padded, 0);
    for (int64_t i = first; i < first + count; ++i) {
        for (int64_t c = 0; c < width; c += kFloats) {
            const int lanes = static_cast<int>(std::min<int64_t>(width - c, kFloats));
            const Floats value = job.values<kCoded>(i, width, c, lanes);
            store<float, kFloats>(own.column_sums.get() + c, load<float, kFloats>(own.column_sums.get() + c) + value);
            const auto most = load<int32_t, kFloats>(own.largest.get() + c);
            store<int32_t, kFloats>(own.largest.get() + c, larger_magnitude<kFloats>(most, value * job.scale[i]));
        }
    }
    for (int64_t c = 0; c < padded; ++c) {
        own.column_scale[c] = int8_scale(own.largest[c]);
        own.per_step[c] = int8_per_step(own.column_scale[c]);
    }
}

template <Rounding rounding, bool kCoded>
inline void quantize_block(Int8Sums& own, const Int8Gradient& job, const int64_t first, const int64_t count) {
    const int64_t width = own.panels.width, padded = own.panels.padded_width();
    const float* per_step = own.per_step.get();
    for (int64_t i = 0; i < count; ++i) {
        const float factor = job.scale[first + i];
        const auto steps = [=, &job](const int64_t c, const int lanes) {
            return job.values<kCoded>(first + i, width, c, lanes) * factor * load_some<kFloats>(per_step + c, lanes);
        };
        int8_row<rounding>(steps, width, row_hash(job.rounding.key, first + i), own.codes.get() + i * padded);
    }
}

// Packs the block's operands as numbers: columns of x, kTileRows of them side by side, and panels of dy.
inline void pack_gradient_panels(Int8Sums& own, const int64_t count) {
    const Panels& panels = own.panels;
    const int64_t padded = panels.padded_width();
    const auto offsets = splat<uint32_t, kFloats>(Int8Arithmetic::kOffset * 0x01010101U);  // in a number of a row
    for (int64_t p = 0; p < panels.count; ++p) {
        Ints contribution[kTileVectors]{};
        const int64_t stride = panels.vectors_of(p) * kFloats, from = panels.first_column(p);
        uint32_t* to = own.packed_dy.get() + from * own.kStepsPacked;
        for (int64_t i = 0; i < count; i += kTermsOfInt8, to += stride) {
            const int8_t* rows[kTermsOfInt8];
            for (int64_t t = 0; t < kTermsOfInt8; ++t)
                rows[t] = i + t < count ? own.codes.get() + (i + t) * padded + from : own.zeros.get();
            Int8Arithmetic::columns<false>(rows, stride, to);
            for (int v = 0; v < kTileVectors && v * kFloats < stride && Int8Arithmetic::kOffset != 0; ++v)
                contribution[v] =
                    Int8Arithmetic::add(offsets, load<uint32_t, kFloats>(to + v * kFloats), contribution[v]);
        }
        for (int v = 0; v < panels.vectors_of(p); ++v)
            store<int32_t, kFloats>(own.correction.get() + from + v * kFloats, -contribution[v]);
    }
}

inline void pack_int8_columns(Int8Sums& own, const int8_t* x, const int64_t count, const int64_t columns) {
    const int64_t whole = columns / kTileRows * kTileRows;
    for (int64_t i = 0; i < count; i += kTermsOfInt8) {
        const int8_t* rows[kTermsOfInt8];
        for (int64_t t = 0; t < kTermsOfInt8; ++t) rows[t] = i + t < count ? x + (i + t) * own.depth : own.zeros.get();
        uint32_t* to = own.packed_x.get() + i / kTermsOfInt8 * kTileRows;
        for (int64_t c = 0; c < columns; c += kTileRows, to += own.kPackedTile) {
            Int8Arithmetic::columns<true>(rows, c < whole ? kTileRows : columns - whole, to);
            for (int64_t t = 0; t < kTermsOfInt8; ++t) rows[t] += kTileRows;
        }
    }
}

// Adds the sums of a block to one tile of the segment's sums.
template <int vectors>
void int8_gradient_tile(Int8Sums& own, const uint32_t* packed_x, const int64_t steps, const int64_t column,
                        const int64_t p) {
    const int64_t first = own.panels.first_column(p);
    Ints sum[kTileRows][vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
        const Ints start = load<int32_t, kFloats>(own.correction.get() + first + v * kFloats);
#pragma GCC unroll 8
        for (int r = 0; r < kTileRows; ++r) sum[r][v] = start;
    }
    add_int8_products(sum, PackedRows<uint32_t>{packed_x}, own.packed_dy.get() + first * own.kStepsPacked, steps);
    float* at = own.tile(column, p);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
        const Floats scale = load<float, kFloats>(own.column_scale.get() + first + v * kFloats);
#pragma GCC unroll 8
        for (int r = 0; r < kTileRows; ++r) {
            float* to = at + (r * vectors + v) * kFloats;
            const Floats value = __builtin_convertvector(sum[r][v], Floats) * scale;
            store<float, kFloats>(to, load<float, kFloats>(to) + value);
        }
    }
}

template <bool kCoded>
inline void quantize_columns(Int8Sums& own, const Int8Gradient& job, const int64_t first, const int64_t count) {
    measure_columns<kCoded>(own, job, first, count);
    if (job.rounding.to_nearest) {
        quantize_block<Rounding::kCentre, kCoded>(own, job, first, count);
    } else {
        quantize_block<Rounding::kRandom, kCoded>(own, job, first, count);
    }
}

inline void add_int8_block(Int8Sums& own, const Int8Gradient& job, const int64_t first, const int64_t count) {
    if (job.dy == nullptr) {
        quantize_columns<true>(own, job, first, count);
    } else {
        quantize_columns<false>(own, job, first, count);
    }
    pack_gradient_panels(own, count);
    const int64_t steps = steps_of<Int8Arithmetic>(count), depth = own.depth;
    for (int64_t from = 0; from < depth; from += kColumnsPacked) {
        const int64_t columns = std::min(depth - from, kColumnsPacked);
        pack_int8_columns(own, job.codes + first * depth + from, count, columns);
        for (int64_t p = 0; p < own.panels.count; ++p) {
            const int vectors = own.panels.vectors_of(p);
            for (int64_t c = 0; c < columns; c += kTileRows) {
                const uint32_t* packed_x = own.packed_x.get() + c / kTileRows * own.kPackedTile;
                if (vectors == 1) int8_gradient_tile<1>(own, packed_x, steps, from + c, p);
                if (vectors == 2) int8_gradient_tile<2>(own, packed_x, steps, from + c, p);
                if (vectors == 3) int8_gradient_tile<3>(own, packed_x, steps, from + c, p);
            }
        }
    }
}

// Free threads sum segments, one at a time each; the sums are added in order.
inline void int8_weight_gradient(const Int8Gradient& job, const int64_t depth, const int64_t width, float* dweight,
                                 float* sums, const int threads) {
    std::fill_n(dweight, depth * width, 0.0F);
    if (sums != nullptr) std::fill_n(sums, width, 0.0F);
    const int64_t segments = (job.rows + kRowsOfAProduct - 1) / kRowsOfAProduct;
    InOrder<Int8Arithmetic> in_order(dweight, sums);
#pragma omp parallel num_threads(static_cast<int>(std::clamp<int64_t>(segments, 1, threads)))
    {
        Int8Sums own(depth, width);
#pragma omp for schedule(monotonic : dynamic, 1)
        for (int64_t s = 0; s < segments; ++s) {
            std::fill_n(own.sums.get(), own.padded_depth() * own.panels.padded_width(), 0.0F);
            std::fill_n(own.column_sums.get(), own.panels.padded_width(), 0.0F);
            const int64_t end = std::min((s + 1) * kRowsOfAProduct, job.rows);
            for (int64_t first = s * kRowsOfAProduct; first < end; first += kRowsPacked)
                add_int8_block(own, job, first, std::min(end - first, kRowsPacked));
            in_order.add(own, s);
        }
    }
}

}  // namespace
