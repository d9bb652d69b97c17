// Products of tall, narrow matrices with small ones, and the gradients of their weights, in an arithmetic
// (dense_tile.h).
//
// Shapes: x (rows, depth), weight (depth, width), y (rows, width); all but the weight are row-major.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "dense_tile.h"
#include "multiply_ceiling.h"

namespace {

constexpr int64_t kStepsAtOnce = 512;        // steps of a panel at a time, which, with
constexpr int64_t kPanelsAtOnce = 6;         // panels of the weight, fit into the second-level cache
constexpr int64_t kRowsOfATask = 128;        // rows of y in a task
constexpr int64_t kRowsOfAProduct = 1024;    // rows of a segment, which is summed separately: results depend on it
constexpr int64_t kRowsPacked = 256;         // rows of a segment that are packed at a time
constexpr int64_t kColumnsPacked = 256;      // columns of x that are packed at a time
constexpr int64_t kMostLeftBytes = 1 << 23;  // of sums of segments whose turn has not come
constexpr int kLooks = 1000;                 // for the turn of a segment, tens of microseconds on x86
constexpr int64_t kPanelThatStays = 24576;   // bytes of packed rows of dy that the first-level cache holds

template <typename Arithmetic>
int64_t steps_of(const int64_t terms) {
    return (terms + Arithmetic::kTerms - 1) / Arithmetic::kTerms;
}

template <typename Arithmetic>
struct ProductJob {
    int64_t rows, depth;
    const float* x;
    Panels panels;
    const typename Arithmetic::Number* packed;  // the weight: panel after panel, and step after step in a panel
    const float* bias;                          // (width), or null
    bool accumulate;
    float* y;
};

// Packs panel `p` of a weight with element (k, c) at weight[k * row_stride + c * column_stride]; padding is 0.
template <typename Arithmetic>
void pack_panel(const float* weight, const int64_t row_stride, const int64_t column_stride, const int64_t depth,
                const Panels& panels, const int64_t p, typename Arithmetic::Number* packed) {
    const int64_t stride = panels.vectors_of(p) * kFloats, steps = steps_of<Arithmetic>(depth);
    const float* from = weight + panels.first_column(p) * column_stride;
    typename Arithmetic::Number* to = packed + panels.first_column(p) * steps;
    const int64_t columns = panels.columns_of(p);
    const auto pack = [&](const int64_t step, const int64_t c) {
        const int64_t k = step * Arithmetic::kTerms, terms = std::min(depth - k, Arithmetic::kTerms);
        to[step * stride + c] = Arithmetic::number(from + k * row_stride + c * column_stride, row_stride, terms);
    };
    if (column_stride == 1) {
        for (int64_t step = 0; step < steps; ++step)
            for (int64_t c = 0; c < columns; ++c) pack(step, c);
    } else {
        for (int64_t c = 0; c < columns; ++c)
            for (int64_t step = 0; step < steps; ++step) pack(step, c);
    }
    for (int64_t c = columns; c < stride; ++c)
        for (int64_t step = 0; step < steps; ++step) to[step * stride + c] = 0;
}

// Computes steps [first, last) of `rows` rows of y from `row` on, in one panel. x: the rows' numbers from the first of
// these steps on. The sum of earlier steps is in y.
template <typename Arithmetic, int rows, int vectors>
void product_tile(const ProductJob<Arithmetic>& job, const StridedRows<typename Arithmetic::Number> x,
                  const int64_t row, const int64_t p, const int64_t first, const int64_t last) {
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
    const int64_t panel = column * steps_of<Arithmetic>(job.depth);
    add_products<Arithmetic>(sum, x, job.packed + panel + first * vectors * kFloats, last - first);
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

template <typename Arithmetic, int rows>
void product_row_tile(const ProductJob<Arithmetic>& job, const StridedRows<typename Arithmetic::Number> x,
                      const int64_t row, const int64_t p, const int64_t first, const int64_t last) {
    const int64_t vectors = job.panels.vectors_of(p);
    if (vectors == 1) return product_tile<Arithmetic, rows, 1>(job, x, row, p, first, last);
    if (vectors == 2) return product_tile<Arithmetic, rows, 2>(job, x, row, p, first, last);
    product_tile<Arithmetic, rows, 3>(job, x, row, p, first, last);
}

inline void fetch(const float* from, const float* end) {
    for (; from < end; from += 64 / sizeof(float)) __builtin_prefetch(from, 0, 2);
}

// Computes rows [begin, end) of y for steps [first, last) and panels [first_panel, last_panel).
template <typename Arithmetic>
void product_rows(const ProductJob<Arithmetic>& job, const int64_t begin, const int64_t end, const int64_t first,
                  const int64_t last, const int64_t first_panel, const int64_t last_panel) {
    using Number = typename Arithmetic::Number;
    const int64_t width = job.panels.width, depth = job.depth;
    const int64_t first_column = first * Arithmetic::kTerms, last_column = std::min(last * Arithmetic::kTerms, depth);
    alignas(64) Number memory[Arithmetic::kRowsMemory];
    const auto rows_from = [&](const int64_t row, const int64_t count) {
        const Number* rows = Arithmetic::rows(job.x + row * depth, depth, count, first_column, last_column, memory);
        return StridedRows<Number>{rows, Arithmetic::row_stride(depth)};
    };
    int64_t row = begin;
    for (; row + kTileRows <= end; row += kTileRows) {
        // The hardware prefetches too late if rows are short: prefetch the next rows, and the memory of their results.
        if (first_panel == 0) {
            const int64_t next = row + kTileRows, ahead = std::min<int64_t>(job.rows - next, kTileRows);
            for (int64_t r = next; r < next + ahead; ++r)
                fetch(job.x + r * depth + first_column, job.x + r * depth + last_column);
            fetch(job.y + next * width, job.y + (next + ahead) * width);
        }
        const auto x = rows_from(row, kTileRows);
        for (int64_t p = first_panel; p < last_panel; ++p)
            product_row_tile<Arithmetic, kTileRows>(job, x, row, p, first, last);
    }
    if (row == end) return;
    const auto x = rows_from(row, end - row);
    for (int64_t p = first_panel; p < last_panel; ++p) {
        int64_t r = 0;
        if (kTileRows > 4 && end - row >= 4) product_row_tile<Arithmetic, 4>(job, x, row, p, first, last), r = 4;
        for (; row + r < end; ++r) product_row_tile<Arithmetic, 1>(job, x.from(r), row + r, p, first, last);
    }
}

template <typename Arithmetic>
void product(ProductJob<Arithmetic> job, const float* weight, const int64_t row_stride, const int64_t column_stride,
             const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    const int64_t steps = steps_of<Arithmetic>(job.depth), tasks = (job.rows + kRowsOfATask - 1) / kRowsOfATask;
    const auto packed = scratch<typename Arithmetic::Number>(steps * job.panels.padded_width());
    job.packed = packed.get();
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t p = 0; p < job.panels.count; ++p)
            pack_panel<Arithmetic>(weight, row_stride, column_stride, job.depth, job.panels, p, packed.get());
#pragma omp for schedule(dynamic, 1)
        for (int64_t t = 0; t < tasks; ++t) {
            const int64_t begin = t * kRowsOfATask, end = std::min(begin + kRowsOfATask, job.rows);
            int64_t first = 0;
            do {  // runs once even without a step: y is then its earlier value plus the bias
                const int64_t last = std::min(first + kStepsAtOnce, steps);
                for (int64_t p = 0; p < job.panels.count; p += kPanelsAtOnce)
                    product_rows(job, begin, end, first, last, p, std::min(p + kPanelsAtOnce, job.panels.count));
                first = last;
            } while (first < steps);
        }
    }
}

// One thread's share of a sum over rows: the sum of a segment, as tiles of kTileRows columns of x by a panel of dy, and
// the packed operands of the present rows.
template <typename Arithmetic>
struct SegmentSums {
    using Number = typename Arithmetic::Number;
    static constexpr int64_t kStepsPacked = kRowsPacked / Arithmetic::kTerms;
    // Distance of packed tiles of columns; a cache line more than their size, so that they do not share a cache set.
    static constexpr int64_t kPackedTile = kStepsPacked * kTileRows + 16;

    int64_t depth;  // columns of x
    Panels panels;  // of dy
    Scratch<float> sums, column_sums;
    Scratch<Number> packed_x, packed_dy;

    SegmentSums(const int64_t in_width, const int64_t out_width)
        : depth(in_width),
          panels(out_width),
          sums(scratch<float>(padded_depth() * panels.padded_width())),
          column_sums(scratch<float>(panels.padded_width())),
          packed_x(scratch<Number>(std::min(padded_depth(), kColumnsPacked) / kTileRows * kPackedTile)),
          packed_dy(scratch<Number>(panels.padded_width() * kStepsPacked)) {}
    int64_t padded_depth() const { return (depth + kTileRows - 1) / kTileRows * kTileRows; }
    float* tile(const int64_t column, const int64_t p) {
        return sums.get() + column * panels.padded_width() + panels.first_column(p) * kTileRows;
    }
};

// Packs `rows` rows of one panel of dy, and adds them to the column sums. It reads all vectors of a row at a time:
// vector by vector, each cache line would be read several times, and rows whose length is a power of two share few
// cache sets.
template <int vectors, typename Arithmetic>
void pack_gradient_panel(SegmentSums<Arithmetic>& own, const float* dy, const int64_t rows, const int64_t p) {
    using Number = typename Arithmetic::Number;
    constexpr int64_t kTerms = Arithmetic::kTerms;
    const Panels& panels = own.panels;
    const int tail = panels.columns_of(p) - (vectors - 1) * kFloats;
    const int64_t first = panels.first_column(p);
    const auto read = [&](const float* row, const int v) {
        return v + 1 < vectors || tail == kFloats ? load<float, kFloats>(row + v * kFloats)
                                                  : load_first<float, kFloats>(row + v * kFloats, tail);
    };
    float* sums = own.column_sums.get() + first;
    Number* to = own.packed_dy.get() + first * own.kStepsPacked;
    Floats sum[vectors];
    for (int v = 0; v < vectors; ++v) sum[v] = load<float, kFloats>(sums + v * kFloats);
    for (int64_t i = 0; i < rows; i += kTerms, to += vectors * kFloats) {
        Floats terms[vectors][kTerms]{};
        for (int64_t t = 0; t < kTerms && i + t < rows; ++t) {
            const float* row = dy + (i + t) * panels.width + first;
            for (int v = 0; v < vectors; ++v) {
                terms[v][t] = read(row, v);
                sum[v] += terms[v][t];
            }
        }
        for (int v = 0; v < vectors; ++v)
            store<Number, kFloats>(to + v * kFloats, Arithmetic::template numbers<kFloats>(terms[v]));
    }
    for (int v = 0; v < vectors; ++v) store<float, kFloats>(sums + v * kFloats, sum[v]);
}

template <typename Arithmetic>
void pack_gradient(SegmentSums<Arithmetic>& own, const float* dy, const int64_t rows) {
    for (int64_t p = 0; p < own.panels.count; ++p) {
        const int vectors = own.panels.vectors_of(p);
        if (vectors == 1) pack_gradient_panel<1>(own, dy, rows, p);
        if (vectors == 2) pack_gradient_panel<2>(own, dy, rows, p);
        if (vectors == 3) pack_gradient_panel<3>(own, dy, rows, p);
    }
}

// Packs `columns` columns of `rows` rows of x, kTileRows of them side by side; padding is 0.
template <typename Arithmetic>
void pack_columns(SegmentSums<Arithmetic>& own, const float* x, const int64_t rows, const int64_t columns) {
    using Number = typename Arithmetic::Number;
    constexpr int64_t kTerms = Arithmetic::kTerms;
    const int64_t whole = columns / kTileRows * kTileRows;
    for (int64_t i = 0; i < rows; i += kTerms) {
        const float* from = x + i * own.depth;
        const int64_t count = std::min(rows - i, kTerms);
        Number* to = own.packed_x.get() + i / kTerms * kTileRows;
        for (int64_t c = 0; c < whole; c += kTileRows, to += own.kPackedTile) {
            Lanes<float, kTileRows> terms[kTerms]{};
            for (int64_t t = 0; t < count; ++t) terms[t] = load<float, kTileRows>(from + t * own.depth + c);
            store<Number, kTileRows>(to, Arithmetic::template numbers<kTileRows>(terms));
        }
        if (whole < columns) {
            for (int r = 0; r < kTileRows; ++r)
                to[r] = whole + r < columns ? Arithmetic::number(from + whole + r, own.depth, count) : Number{};
        }
    }
}

// Adds `steps` packed steps to one tile of the sums.
template <int vectors, typename Arithmetic>
void gradient_tile(SegmentSums<Arithmetic>& own, const typename Arithmetic::Number* packed_x, const int64_t steps,
                   const int64_t column, const int64_t p) {
    float* at = own.tile(column, p);
    Floats sum[kTileRows][vectors];
    for (int r = 0; r < kTileRows; ++r)
        for (int v = 0; v < vectors; ++v) sum[r][v] = load<float, kFloats>(at + (r * vectors + v) * kFloats);
    const auto* dy = own.packed_dy.get() + own.panels.first_column(p) * own.kStepsPacked;
    add_products<Arithmetic>(sum, PackedRows<typename Arithmetic::Number>{packed_x}, dy, steps);
    for (int r = 0; r < kTileRows; ++r)
        for (int v = 0; v < vectors; ++v) store<float, kFloats>(at + (r * vectors + v) * kFloats, sum[r][v]);
}

// Rows of a matrix, from one of its columns on.
struct Block {
    const float* first;
    int64_t stride, rows, columns;

    // Prefetches the share of the rows that corresponds to steps `begin` to `end` of `all`.
    void fetch_share(const int64_t begin, const int64_t end, const int64_t all) const {
        for (int64_t i = begin * rows / all; i < end * rows / all; ++i)
            fetch(first + i * stride, first + i * stride + columns);
    }
};

// Adds `steps` packed steps to one tile of the sums; packed_x: the tile's columns.
template <typename Arithmetic>
void gradient_panel_tile(SegmentSums<Arithmetic>& own, const typename Arithmetic::Number* packed_x, const int64_t steps,
                         const int64_t column, const int64_t p) {
    const int vectors = own.panels.vectors_of(p);
    if (vectors == 1) gradient_tile<1>(own, packed_x, steps, column, p);
    if (vectors == 2) gradient_tile<2>(own, packed_x, steps, column, p);
    if (vectors == 3) gradient_tile<3>(own, packed_x, steps, column, p);
}

// Adds `steps` packed steps to the sums of `columns` columns from `first` on, and prefetches the next rows meanwhile. A
// panel of dy stays in the first-level cache for all columns of x if it fits; else columns of x stay for all panels.
template <typename Arithmetic>
void add_packed(SegmentSums<Arithmetic>& own, const int64_t steps, const int64_t first, const int64_t columns,
                const Block& next_x, const Block& next_dy) {
    constexpr bool kPanelStays = kTileVectors * kVectorBytes * SegmentSums<Arithmetic>::kStepsPacked <= kPanelThatStays;
    const int64_t tiles = (columns + kTileRows - 1) / kTileRows, panels = own.panels.count;
    const int64_t outer = kPanelStays ? panels : tiles, inner = kPanelStays ? tiles : panels;
    for (int64_t i = 0; i < outer; ++i) {
        for (int64_t k = 0; k < inner; ++k) {
            next_x.fetch_share(i * inner + k, i * inner + k + 1, outer * inner);
            next_dy.fetch_share(i * inner + k, i * inner + k + 1, outer * inner);
            const int64_t t = kPanelStays ? k : i, p = kPanelStays ? i : k;
            gradient_panel_tile(own, own.packed_x.get() + t * own.kPackedTile, steps, first + t * kTileRows, p);
        }
    }
}

// Computes the sums of rows [begin, end), which are a segment.
template <typename Arithmetic>
void sum_segment(SegmentSums<Arithmetic>& own, const float* x, const float* dy, const int64_t begin,
                 const int64_t end) {
    std::fill_n(own.sums.get(), own.padded_depth() * own.panels.padded_width(), 0.0F);
    std::fill_n(own.column_sums.get(), own.panels.padded_width(), 0.0F);
    const int64_t depth = own.depth, width = own.panels.width;
    const auto of_x = [&](const int64_t row, const int64_t column) {
        return Block{x + row * depth + column, depth, std::min(end - row, kRowsPacked),
                     std::min(depth - column, kColumnsPacked)};
    };
    for (int64_t row = begin; row < end; row += kRowsPacked) {
        const int64_t rows = std::min(end - row, kRowsPacked), next = row + rows;
        pack_gradient(own, dy + row * width, rows);
        for (int64_t first = 0; first < depth; first += kColumnsPacked) {
            const int64_t columns = std::min(depth - first, kColumnsPacked), after = first + columns;
            pack_columns(own, x + row * depth + first, rows, columns);
            const bool is_last = after == depth;
            const Block next_dy{dy + next * width, width, is_last ? std::min(end - next, kRowsPacked) : 0, width};
            add_packed(own, steps_of<Arithmetic>(rows), first, columns, is_last ? of_x(next, 0) : of_x(row, after),
                       next_dy);
        }
    }
}

template <typename Arithmetic>
void add_segment(SegmentSums<Arithmetic>& own, float* dweight, float* sums) {
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

// Lets the other thread of a core run for some cycles.
inline void rest() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Adds the sums of segments in the order of the segments. A thread waits a moment for its turn, because its sums are in
// its caches; then it leaves them here and goes on, and the thread whose turn it was adds them. So no thread waits for
// another whose core the system has given to other work. Each thread must get its segments in ascending order.
template <typename Arithmetic>
class InOrder {
public:
    InOrder(float* dweight, float* sums) : dweight_(dweight), sums_(sums) {}

    // Takes the sums of a segment; `own` may then have other memory for those of the next one.
    void add(SegmentSums<Arithmetic>& own, const int64_t segment) {
        const int64_t values = own.padded_depth() * own.panels.padded_width();
        const auto most =
            static_cast<size_t>(std::max<int64_t>(2, kMostLeftBytes / (4 * std::max<int64_t>(values, 1))));
        for (int looks = 0; looks < kLooks && next_.load(std::memory_order_relaxed) != segment; ++looks) rest();
        std::unique_lock lock(mutex_);
        has_room_.wait(lock, [&] { return next_ == segment || left_.size() < most; });
        if (next_ != segment) {
            if (spare_.empty()) spare_.push_back({scratch<float>(values), scratch<float>(own.panels.padded_width())});
            exchange(own, left_[segment] = std::move(spare_.back()));
            spare_.pop_back();
            return;
        }
        lock.unlock();
        add_segment(own, dweight_, sums_);
        lock.lock();
        for (auto found = left_.find(++next_); found != left_.end(); found = left_.find(++next_)) {
            spare_.push_back(std::move(found->second));
            left_.erase(found);
            has_room_.notify_all();
            exchange(own, spare_.back());
            lock.unlock();
            add_segment(own, dweight_, sums_);
            lock.lock();
        }
        has_room_.notify_all();  // of which one may have the next segment
    }

private:
    struct Left {
        Scratch<float> sums, column_sums;
    };

    static void exchange(SegmentSums<Arithmetic>& own, Left& left) {
        std::swap(own.sums, left.sums);
        std::swap(own.column_sums, left.column_sums);
    }

    float *dweight_, *sums_;
    std::mutex mutex_;
    std::condition_variable has_room_;
    std::map<int64_t, Left> left_;  // by segment
    std::vector<Left> spare_;
    std::atomic<int64_t> next_ = 0;
};

// Free threads sum segments, one at a time each; the sums are added in order.
template <typename Arithmetic>
void weight_gradient(const int64_t rows, const int64_t depth, const int64_t width, const float* x, const float* dy,
                     float* dweight, float* sums, const int threads) {
    hpcgnn_ran(HPCGNN_TEXT(HPCGNN_ISA));
    std::fill_n(dweight, depth * width, 0.0F);
    if (sums != nullptr) std::fill_n(sums, width, 0.0F);
    const int64_t segments = (rows + kRowsOfAProduct - 1) / kRowsOfAProduct;
    InOrder<Arithmetic> in_order(dweight, sums);
#pragma omp parallel num_threads(static_cast<int>(std::clamp<int64_t>(segments, 1, threads)))
    {
        SegmentSums<Arithmetic> own(depth, width);
#pragma omp for schedule(monotonic : dynamic, 1)
        for (int64_t s = 0; s < segments; ++s) {
            sum_segment(own, x, dy, s * kRowsOfAProduct, std::min((s + 1) * kRowsOfAProduct, rows));
            in_order.add(own, s);
        }
    }
}

}  // namespace

#define HPCGNN_DENSE(suffix, Arithmetic)                                                                            \
    HPCGNN_KERNEL(void, dense_##suffix)(int64_t rows, int64_t depth, int64_t width, const float* x,                 \
                                        const float* weight, int64_t row_stride, int64_t column_stride,             \
                                        const float* bias, int accumulate, float* y, int threads) {                 \
        product<Arithmetic>({rows, depth, x, Panels(width), nullptr, bias, accumulate != 0, y}, weight, row_stride, \
                            column_stride, threads);                                                                \
    }                                                                                                               \
    HPCGNN_KERNEL(void, dense_gradient_##suffix)(int64_t rows, int64_t depth, int64_t width, const float* x,        \
                                                 const float* dy, float* dweight, float* sums, int threads) {       \
        weight_gradient<Arithmetic>(rows, depth, width, x, dy, dweight, sums, threads);                             \
    }                                                                                                               \
    HPCGNN_KERNEL(double, multiply_ceiling_##suffix)(int64_t rounds, int threads) {                                 \
        using Numbers = Lanes<Arithmetic::Number, kFloats>;                                                         \
        const auto add = [](const Numbers a, const Numbers b, const Floats sum) {                                   \
            return Arithmetic::add(a, b, sum);                                                                      \
        };                                                                                                          \
        return multiply_ceiling<Numbers, Floats>(rounds, threads, kFloats * Arithmetic::kTerms, add);               \
    }
