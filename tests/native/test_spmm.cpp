// spmm, compared with loops that add in the order which native/hpcgnn.h defines: entry by entry within a segment, then
// segment by segment. Scheduling, tiles, prefetching, packed rows and threads must not affect the result.

#include <algorithm>
#include <memory>

#include "check.h"
#include "graphs.h"

namespace {

using bfloat16 = hpcgnn_bfloat16;

enum class Weight { kNone, kOne, kHeads };

constexpr hpcgnn_tuning kTunings[] = {
    {12 << 10, 512, 64, 0, 1},       // the default
    {0, 512, 64, 0, 0},              // no prefetching, no shared rows
    {12 << 10, 64, 64, 1, 1},        // narrow tiles, streaming stores
    {300, 4, 1, 0, 0},               // tiles of one register, static shares
    {64, 128, 4, 1, 0},              // one row ahead at most
    {1 << 20, 1 << 20, 1000, 1, 1},  // more than there is of everything
};
constexpr int kThreads[] = {1, 2, 3};
constexpr int64_t kWidths[] = {1, 3, 16, 40, 100, 128, 240, 256, 602};

template <typename Value>
Value stored_value(const Value x) {
    return x;
}
float stored_value(const bfloat16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
float stored_value(const int8_t x) {
    return x;
}

void draw(Random& random, float& x) {
    x = random.real();
}
void draw(Random& random, double& x) {
    x = random.real() + static_cast<double>(random.real()) / (1 << 24);
}
void draw(Random& random, bfloat16& x) {
    const float value = random.real();
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    x.bits = static_cast<uint16_t>(bits >> 16);
}
void draw(Random& random, int8_t& x) {
    x = static_cast<int8_t>(random.bits());
}

// Some columns that are packed.
struct Hot {
    std::vector<int32_t> columns;
    Exact<int32_t> indices;  // as in hpcgnn_csr

    Hot(const Graph& graph, const bool grouped, std::vector<int32_t>& order)
        : columns(hot_columns(graph)), indices(graph.entries()) {
        std::vector<int32_t> place(static_cast<size_t>(graph.cols), -1);
        for (size_t p = 0; p < columns.size(); ++p) place[columns[p]] = static_cast<int32_t>(p);
        const auto is_hot = [&](const int32_t column) { return place[column] >= 0; };
        order.assign(graph.indices.data(), graph.indices.data() + graph.entries());
        for (int64_t row = 0; row < graph.rows && grouped; ++row)
            std::stable_partition(order.begin() + graph.indptr[row], order.begin() + graph.indptr[row + 1], is_hot);
        for (size_t e = 0; e < order.size(); ++e) indices[e] = is_hot(order[e]) ? ~place[order[e]] : order[e];
    }

    // A third of them, the last ones first.
    static std::vector<int32_t> hot_columns(const Graph& graph) {
        std::vector<int32_t> columns;
        for (int64_t column = graph.cols - 1; column >= 0; column -= 3) columns.push_back(static_cast<int32_t>(column));
        return columns;
    }
};

template <typename Storage, typename Value>
struct Job {
    Job(const Graph& graph, int64_t width, Weight weight, bool accumulate, int64_t segment, bool packed,
        Random& random);

    // `total`, and what spmm adds for entry e in column c: of a row with a scale, rounded once.
    Value add(const Value total, const int64_t e, const int64_t c) const {
        const int64_t source = order[e];
        const Value value = stored_value(x[source * width + c]);
        const Value* factor = weight.size() ? &weight[e * heads + c / (width / heads)] : nullptr;
        if (!scale.size()) return total + (factor ? value * *factor : value);
        const Value of_row = static_cast<Value>(scale[source]);
        return std::fma(value, factor ? of_row * *factor : of_row, total);
    }
    Value sum(Value total, int64_t begin, int64_t end, int64_t c) const {
        for (int64_t e = begin; e < end; ++e) total = add(total, e, c);
        return total;
    }
    Value expected(int64_t row, int64_t c) const;

    const Graph& graph;
    int64_t width, heads, segment;
    bool accumulate, packed;
    Exact<Value> weight;
    std::vector<int32_t> order;  // the indices, those of hot rows first in each row if there are no weights
    Hot hot;
    Exact<Storage> x;
    Exact<float> scale;
    Exact<float> packed_scale;  // that of the p-th hot row at ~p before those of all rows
    std::vector<Value> before;  // what is in `out`
};

// Of 128, 240 and 256 columns the heads are of whole vectors, whatever their size: a tile of AVX-512's has all those of
// 128, of 240 tiles end within heads, and of 256 there are two tiles of several heads.
int64_t heads_for(const int64_t width) {
    if (width == 240) return 5;
    if (width == 256) return 8;
    return width % 4 == 0 ? 4 : width % 2 == 0 ? 2 : width;
}

template <typename Storage, typename Value>
Job<Storage, Value>::Job(const Graph& graph, const int64_t width, const Weight weight, const bool accumulate,
                         const int64_t segment, const bool packed, Random& random)
    : graph(graph),
      width(width),
      heads(weight == Weight::kHeads ? heads_for(width) : 1),
      segment(segment),
      accumulate(accumulate),
      packed(packed),
      weight(weight == Weight::kNone ? 0 : graph.entries() * heads),
      hot(graph, packed && weight == Weight::kNone, order),
      x(graph.cols * width),
      scale(std::is_same_v<Storage, int8_t> ? graph.cols : 0),
      packed_scale(scale.size() ? graph.cols + static_cast<int64_t>(hot.columns.size()) : 0),
      before(static_cast<size_t>(graph.rows * width)) {
    for (int64_t i = 0; i < this->weight.size(); ++i) draw(random, this->weight[i]);
    for (int64_t i = 0; i < x.size(); ++i) draw(random, x[i]);
    for (int64_t i = 0; i < scale.size(); ++i) draw(random, scale[i]);
    const int64_t num_hot = packed_scale.size() - scale.size();
    for (int64_t i = 0; i < scale.size(); ++i) packed_scale[num_hot + i] = scale[i];
    for (int64_t p = 0; p < num_hot; ++p) packed_scale[num_hot - 1 - p] = scale[hot.columns[p]];
    for (Value& value : before) draw(random, value);
    if constexpr (std::is_same_v<Storage, Value>) {
        constexpr Value kInfinity = std::numeric_limits<Value>::infinity();
        const Value special[] = {std::numeric_limits<Value>::quiet_NaN(), kInfinity, -kInfinity, Value(-0.0)};
        for (int k = 0; k < 4 && x.size() > 100; ++k) x[random.below(x.size())] = special[k];
    }
}

template <typename Storage, typename Value>
Value Job<Storage, Value>::expected(const int64_t row, const int64_t c) const {
    const int64_t begin = graph.indptr[row], end = graph.indptr[row + 1];
    const Value old = before[row * width + c];
    if (begin == end) return accumulate ? old : Value(0);
    if (end - begin <= segment) return sum(accumulate ? old : Value(0), begin, end, c);
    Value total = sum(0, begin, begin + segment, c);
    if (accumulate) total = old + total;
    for (int64_t e = begin + segment; e < end; e += segment) total += sum(0, e, std::min(e + segment, end), c);
    return total;
}

struct How {
    hpcgnn_tuning tuning;
    int threads;
};

// The types of the kernels for features of a type.
template <typename Storage>
struct KernelsFor;

#define KERNELS_FOR(Storage, suffix)                                     \
    template <>                                                          \
    struct KernelsFor<Storage> {                                         \
        using Spmm = KERNEL_TYPE(spmm_##suffix);                         \
        using Pack = KERNEL_TYPE(spmm_pack_##suffix);                    \
        using PackedColumns = KERNEL_TYPE(spmm_packed_columns_##suffix); \
    };
KERNELS_FOR(float, f32)
KERNELS_FOR(double, f64)
KERNELS_FOR(bfloat16, bf16)
KERNELS_FOR(int8_t, i8)

template <typename Storage, typename Value>
class Spmm {
public:
    Spmm(std::vector<Isa>& isas, const char* name, const int64_t segment)
        : isas_(isas), name_(name), segment_(segment) {
        for (const Isa& isa : isas) kernels_.emplace_back(isa, name);
        const std::string type = std::string(name).substr(4);
        for (const Isa& isa : isas) {
            const std::string start = "hpcgnn_" + isa.name;
            pack_.push_back(symbol<typename Types::Pack>(isa.library, start + "_spmm_pack" + type));
            packed_columns_.push_back(
                symbol<typename Types::PackedColumns>(isa.library, start + "_spmm_packed_columns" + type));
        }
    }

    // The hot rows of x as the kernel wants them, or none.
    std::unique_ptr<Exact<Storage>> pack(const Job<Storage, Value>& job, const How& how, const size_t k) const {
        if (!job.packed) return nullptr;
        const int64_t num_hot = static_cast<int64_t>(job.hot.columns.size());
        const int64_t columns = packed_columns_[k](job.width, &how.tuning);
        CHECK(columns >= job.width && columns < job.width + 64, columns << " packed columns for " << job.width);
        auto packed = std::make_unique<Exact<Storage>>(num_hot * columns);
        std::memset(packed->data(), 0x7F, static_cast<size_t>(num_hot * columns) * sizeof(Storage));
        pack_[k](job.hot.columns.data(), num_hot, job.x.data(), job.width, &how.tuning, packed->data(), how.threads);
        return packed;
    }

    void run(const Job<Storage, Value>& job, const std::vector<Value>& expected, const How& how) {
        const Graph& graph = job.graph;
        hpcgnn_csr csr = graph.csr();
        if (job.packed) {
            csr.hot_indices = job.hot.indices.data();
            csr.num_hot = static_cast<int64_t>(job.hot.columns.size());
        }
        for (size_t k = 0; k < isas_.size(); ++k) {  // innermost, so that another one ran before
            Exact<Value> out(job.before);
            const auto packed = pack(job, how, k);
            const float* scale = job.scale.size() ? job.scale.data() : nullptr;
            if (scale != nullptr && packed) scale = job.packed_scale.data() + csr.num_hot;
            kernels_[k](&csr, job.weight.size() ? job.weight.data() : nullptr, job.heads, job.x.data(),
                        packed ? packed->data() : nullptr, scale, job.width, out.data(), job.accumulate, &how.tuning,
                        how.threads);
            const int64_t at = first_difference(isas_[k], out, expected);
            CHECK(at < 0, isas_[k].name << " " << name_ << " entries " << graph.entries() << " width " << job.width
                                        << " heads " << job.heads << " weights " << job.weight.size() << " accumulate "
                                        << job.accumulate << " packed " << job.packed << " threads " << how.threads
                                        << " tile_bytes " << how.tuning.tile_bytes << ": row " << at / job.width
                                        << " column " << at % job.width << " is " << out[at] << ", not "
                                        << expected[at]);
        }
    }

    // All kinds of weights for these widths. Each with `some` of the ways to go about it, another choice
    // every time, or with all of them if `some` is 0.
    void run_all(const Graph& graph, const std::vector<int64_t>& widths, const int some) {
        std::vector<How> ways;
        for (const hpcgnn_tuning& tuning : kTunings) {
            for (const int threads : kThreads) ways.push_back({tuning, threads});
        }
        Random random(static_cast<uint64_t>(graph.entries()));
        for (const int64_t width : widths) {
            for (const Weight weight : {Weight::kNone, Weight::kOne, Weight::kHeads}) {
                for (const bool accumulate : {false, true}) {
                    for (const bool packed : {false, true}) {
                        if (packed && weight == Weight::kHeads) continue;
                        const Job<Storage, Value> job(graph, width, weight, accumulate, segment_, packed, random);
                        run_job(job, ways, some, random);
                    }
                }
            }
        }
    }

    void run_job(const Job<Storage, Value>& job, const std::vector<How>& ways, const int some, Random& random) {
        std::vector<Value> whole(job.before.size());
        for (int64_t i = 0; i < job.graph.rows * job.width; ++i) whole[i] = job.expected(i / job.width, i % job.width);
        if (some == 0) {
            for (const How& way : ways) run(job, whole, way);
        }
        for (int k = 0; k < some; ++k) run(job, whole, ways[random.below(static_cast<int64_t>(ways.size()))]);
    }

private:
    std::vector<Isa>& isas_;
    const char* name_;
    int64_t segment_;
    using Types = KernelsFor<Storage>;
    std::vector<Kernel<typename Types::Spmm>> kernels_;
    std::vector<typename Types::Pack*> pack_;
    std::vector<typename Types::PackedColumns*> packed_columns_;
};

template <typename Storage, typename Value>
void test_type(std::vector<Isa>& isas, const char* name) {
    const int64_t segment = symbol<int64_t()>(isas[0].library, "hpcgnn_segment_entries")();
    Random random(7);
    Spmm<Storage, Value> spmm(isas, name, segment);

    const Graph sparse = make_graph(random_lengths(37, random), 29, segment, random);
    spmm.run_all(sparse, {std::begin(kWidths), std::end(kWidths)}, 3);
    spmm.run_all(sparse, {40}, 0);

    const Graph heavy = make_graph({2, segment + 1, 0, 3, segment, 2 * segment + 5, 1}, 50, segment, random);
    spmm.run_all(heavy, {3, 40, 128}, 2);

    // Enough work that each thread has several tasks.
    const Graph large = make_graph(random_lengths(1000, random), 300, segment, random);
    spmm.run_all(large, {20}, 3);

    spmm.run_all(make_graph({}, 5, segment, random), {3}, 2);             // no rows
    spmm.run_all(make_graph({0, 0, 0}, 0, segment, random), {3, 16}, 2);  // no columns, so no entries
    spmm.run_all(make_graph({1, 0, 2}, 4, segment, random), {0}, 2);      // no features
}

}  // namespace

void test_spmm(std::vector<Isa>& isas) {
    test_type<float, float>(isas, "spmm_f32");
    test_type<double, double>(isas, "spmm_f64");
    test_type<bfloat16, float>(isas, "spmm_bf16");
    test_type<int8_t, float>(isas, "spmm_i8");
}
