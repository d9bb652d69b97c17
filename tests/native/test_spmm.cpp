// spmm, compared with loops that add in the order which native/hpcgnn.h defines: entry by entry within a segment, then
// segment by segment. Scheduling, tiles, prefetching, packed rows and threads must not affect the result.

#include "plainly.h"

namespace {

using bfloat16 = hpcgnn_bfloat16;

enum class Weight { kNone, kOne, kHeads };

struct Choice {
    int64_t width;
    Weight weight;
    bool accumulate, packed;
    hpcgnn_tuning tuning;
};

const std::vector<hpcgnn_tuning> kTunings{
    {12 << 10, 512, 64, 0, 1},       // the default
    {0, 512, 64, 0, 0},              // no prefetching, no shared rows
    {12 << 10, 64, 64, 1, 1},        // narrow tiles, streaming stores
    {300, 4, 1, 0, 0},               // tiles of one register, static shares
    {64, 128, 4, 1, 0},              // one row ahead at most
    {1 << 20, 1 << 20, 1000, 1, 1},  // more than there is of everything
};

template <typename Value>
Value stored_value(const Value x) {
    return x;
}
float stored_value(const bfloat16 x) {
    return from_bfloat16(x.bits);
}
float stored_value(const int8_t x) {
    return x;
}

#define KERNELS_FOR(Storage, suffix)                      \
    auto spmm_of(const Way& way, Storage) {               \
        return KERNEL(way, spmm_##suffix);                \
    }                                                     \
    auto pack_of(const Way& way, Storage) {               \
        return KERNEL(way, spmm_pack_##suffix);           \
    }                                                     \
    auto columns_of(const Way& way, Storage) {            \
        return KERNEL(way, spmm_packed_columns_##suffix); \
    }
KERNELS_FOR(float, f32)
KERNELS_FOR(double, f64)
KERNELS_FOR(bfloat16, bf16)
KERNELS_FOR(int8_t, i8)

// Of 128, 240 and 256 columns the heads are of whole vectors, whatever their size: a tile of AVX-512's has all those of
// 128, of 240 tiles end within heads, and of 256 there are two tiles of several heads. Of 16, 32, 48, 64 and 96
// columns, vectors of AVX-512 have columns of several heads, and of 32 and 48 those of shorter vectors.
int64_t heads_for(const int64_t width) {
    if (width == 32) return 32;
    if (width == 48) return 24;
    if (width == 64) return 8;
    if (width == 96) return 24;
    if (width == 240) return 5;
    if (width == 256) return 8;
    return width % 4 == 0 ? 4 : width % 2 == 0 ? 2 : width;
}

template <typename Storage, typename Value>
struct Spmm {
    const Graph& graph;
    const Choice choice;
    Random& random;
    const int64_t heads = choice.weight == Weight::kHeads ? heads_for(choice.width) : 1;
    std::vector<int32_t> hot;  // a third of the columns, the last ones first, if rows are packed
    // The indices, those of hot columns first in each row if there are no weights.
    std::vector<int32_t> order = together<int32_t>(graph.indices);
    Exact<int32_t> hot_indices{graph.entries()};  // as in hpcgnn_csr
    const Exact<Value> weight{random.numbers<Value>(choice.weight == Weight::kNone ? 0 : graph.entries() * heads)};
    Exact<Storage> x{random.numbers<Storage>(graph.cols * choice.width)};
    // That of the p-th hot row at ~p before those of all rows, which begin at hot.size().
    Exact<float> scale{graph.cols + (choice.packed ? (graph.cols + 2) / 3 : 0)};
    const Exact<Value> before{random.numbers<Value>(graph.rows * choice.width)};

    Spmm(const Graph& graph, const Choice& choice, Random& random) : graph(graph), choice(choice), random(random) {
        for (int64_t column = graph.cols - 1; column >= 0 && choice.packed; column -= 3)
            hot.push_back(static_cast<int32_t>(column));
        sort_entries();
        const int64_t num_hot = static_cast<int64_t>(hot.size());
        for (int64_t i = 0; i < graph.cols; ++i) scale[num_hot + i] = random.real();
        for (int64_t p = 0; p < num_hot; ++p) scale[num_hot - 1 - p] = scale[num_hot + hot[p]];
        if constexpr (std::is_same_v<Storage, Value>) {
            const float special[] = {kNan, kInfinity, -kInfinity, -0.0F};
            for (int k = 0; k < 4 && x.size() > 100; ++k) x[random.below(x.size())] = special[k];
        }
    }
    void sort_entries() {
        std::vector<int32_t> place(static_cast<size_t>(graph.cols), -1);
        for (size_t p = 0; p < hot.size(); ++p) place[hot[p]] = static_cast<int32_t>(p);
        const auto is_hot = [&](const int32_t column) { return place[column] >= 0; };
        for (int64_t row = 0; row < graph.rows && choice.weight == Weight::kNone; ++row)
            std::stable_partition(order.begin() + graph.indptr[row], order.begin() + graph.indptr[row + 1], is_hot);
        for (size_t e = 0; e < order.size(); ++e) hot_indices[e] = is_hot(order[e]) ? ~place[order[e]] : order[e];
    }
    // `total`, and what spmm adds for entry e in column c: of a row with a scale, rounded once.
    Value add(const Value total, const int64_t e, const int64_t c) const {
        const Value value = stored_value(x[order[e] * choice.width + c]);
        const Value* factor = weight.size() ? &weight[e * heads + c / (choice.width / heads)] : nullptr;
        if (!std::is_same_v<Storage, int8_t>) return total + (factor ? value * *factor : value);
        const Value of_row = static_cast<Value>(scale[static_cast<int64_t>(hot.size()) + order[e]]);
        return std::fma(value, factor ? of_row * *factor : of_row, total);
    }
    std::vector<Value> expected() const {
        std::vector<Value> sums(static_cast<size_t>(before.size()));
        for (int64_t i = 0; i < before.size(); ++i) {
            const int64_t row = i / choice.width, c = i % choice.width;
            sums[i] = sum_of_row(graph.indptr[row], graph.indptr[row + 1], choice.accumulate ? before[i] : Value(0),
                                 [&](const Value total, const int64_t e) { return add(total, e, c); });
        }
        return sums;
    }
    std::vector<Value> run(const Way& way) const {
        hpcgnn_csr csr = graph.csr();
        csr.num_hot = static_cast<int64_t>(hot.size());
        csr.hot_indices = choice.packed ? hot_indices.data() : nullptr;
        const int64_t columns = columns_of(way, Storage())(choice.width, &choice.tuning);
        check(columns >= choice.width && columns < choice.width + 64, columns, "packed columns");
        Exact<Storage> packed(csr.num_hot * columns);
        if (choice.packed)
            pack_of(way, Storage())(hot.data(), csr.num_hot, x.data(), choice.width, &choice.tuning, packed.data(),
                                    way.threads);
        Exact<Value> out(together<Value>(before));
        spmm_of(way, Storage())(&csr, weight.size() ? weight.data() : nullptr, heads, x.data(),
                                choice.packed ? packed.data() : nullptr,
                                std::is_same_v<Storage, int8_t> ? scale.data() + hot.size() : nullptr, choice.width,
                                out.data(), choice.accumulate, &choice.tuning, way.threads);
        return together<Value>(out);
    }
};

template <typename Storage, typename Value>
void test_spmm(Isas& isas, const std::string& name) {
    Graphs graphs;
    const auto test = [&](const Graph& graph, const int64_t count, const std::vector<int64_t>& widths) {
        for (Cases cases(count, static_cast<uint64_t>(graph.entries())); cases.next();) {
            Choice choice{cases.one_of(widths), cases.one_of<Weight>({Weight::kNone, Weight::kOne, Weight::kHeads}),
                          cases.flag(), cases.flag(), cases.one_of(kTunings)};
            choice.packed = choice.packed && choice.weight != Weight::kHeads;  // only for one head
            const Spmm<Storage, Value> spmm(graph, choice, cases.random);
            const std::string what = text(name, "entries", graph.entries(), "width", choice.width, "heads", spmm.heads,
                                          "weights", spmm.weight.size(), "accumulate", choice.accumulate, "packed",
                                          choice.packed, "tile_bytes", choice.tuning.tile_bytes);
            expect(isas, what, spmm.expected(), [&](const Way& way) { return spmm.run(way); });
        }
    };
    test(graphs.sparse, 72, {1, 3, 16, 32, 40, 48, 64, 96, 100, 128, 240, 256, 602});
    test(graphs.heavy, 8, {3, 20, 64});
    test(graphs.large, 4, {20});
    test(graphs.no_rows, 2, {3});
    test(graphs.no_entries, 2, {3, 16});
    test(Graph({1, 0, 2}, 4, graphs.random), 2, {0});
}

}  // namespace

PART(spmm) {
    test_spmm<float, float>(isas, "spmm_f32");
    test_spmm<double, double>(isas, "spmm_f64");
    test_spmm<bfloat16, float>(isas, "spmm_bf16");
    test_spmm<int8_t, float>(isas, "spmm_i8");
}
