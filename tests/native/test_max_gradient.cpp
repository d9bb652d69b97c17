// The gradient of a maximum, against loops that add in entry order (and, for a weight, over columns in the order of a
// dot product), bit for bit. Features are small integers, so that maxima tie.

#include "check.h"
#include "graphs.h"

namespace {

template <typename T>
std::vector<T> small_integers(const int64_t count, Random& random) {
    std::vector<T> values(static_cast<size_t>(count));
    for (T& value : values) value = static_cast<T>(random.below(5) - 2);
    return values;
}

template <typename T>
std::vector<T> reals(const int64_t count, Random& random) {
    std::vector<T> values(static_cast<size_t>(count));
    for (T& value : values) value = random.real();
    return values;
}

// The transpose, and where each of its entries is in `graph`.
Graph transpose(const Graph& graph, std::vector<int64_t>& entry_of) {
    std::vector<std::vector<int64_t>> entries(static_cast<size_t>(graph.cols));
    std::vector<int32_t> row_of;
    for (int64_t row = 0; row < graph.rows; ++row) {
        for (int64_t e = graph.indptr[row]; e < graph.indptr[row + 1]; ++e) {
            row_of.push_back(static_cast<int32_t>(row));
            entries[graph.indices[e]].push_back(e);
        }
    }
    std::vector<int64_t> indptr{0};
    std::vector<int32_t> indices;
    for (const auto& own : entries) {
        for (const int64_t e : own) {
            indices.push_back(row_of[e]);
            entry_of.push_back(e);
        }
        indptr.push_back(static_cast<int64_t>(indices.size()));
    }
    return {graph.cols, graph.rows, Exact(indptr), Exact(indices), Exact<int64_t>(0)};
}

template <typename T>
class MaxGradient {
public:
    MaxGradient(const Graph& graph, const int64_t width, const int64_t heads, const bool weighted, Random& random)
        : graph_(graph),
          width_(width),
          heads_(heads),
          columns_(width / heads),
          transpose_(transpose(graph, entry_of_)),
          x_(small_integers<T>(graph.cols * width, random)),
          gradient_(reals<T>(graph.rows * width, random)),
          weight_(weighted ? small_integers<T>(graph.entries() * heads, random) : std::vector<T>()),
          transposed_weight_(weight_.size()),
          z_(graph.rows * width) {
        for (int64_t k = 0; k < weight_.size(); ++k)
            transposed_weight_[k] = weight_[entry_of_[k / heads] * heads + k % heads];
        for (int64_t i = 0; i < z_.size(); ++i) {
            const int64_t row = i / width, begin = graph.indptr[row], end = graph.indptr[row + 1];
            z_[i] = begin == end ? T(0) : product(begin, i % width);
            for (int64_t e = begin; e < end; ++e) z_[i] = std::max(z_[i], product(e, i % width));
        }
    }

    void run(std::vector<Isa>& isas) const {
        const Exact<T> shares(kernel(isas, "max_shares", graph_, weight_, gradient_, expected_shares()));
        kernel(isas, "max_backward", transpose_, transposed_weight_, shares, expected_backward(shares));
        if (weight_.size())
            kernel(isas, "max_weight_backward", graph_, weight_, shares, expected_weight_backward(shares));
    }

private:
    T factor(const int64_t e, const int64_t c) const { return weight_.size() ? weight_[e * heads_ + c / columns_] : 1; }
    T product(const int64_t e, const int64_t c) const { return x_[graph_.indices[e] * width_ + c] * factor(e, c); }

    std::vector<T> expected_shares() const {
        std::vector<T> result;
        for (int64_t i = 0; i < z_.size(); ++i) {
            T ties = 0;
            for (int64_t e = graph_.indptr[i / width_]; e < graph_.indptr[i / width_ + 1]; ++e)
                ties += product(e, i % width_) == z_[i];
            result.push_back(ties > 0 ? gradient_[i] / ties : T(0));
        }
        return result;
    }

    std::vector<T> expected_backward(const Exact<T>& shares) const {
        std::vector<T> result(static_cast<size_t>(x_.size()));
        for (int64_t row = 0; row < graph_.rows; ++row) {
            for (int64_t e = graph_.indptr[row]; e < graph_.indptr[row + 1]; ++e) {
                for (int64_t c = 0; c < width_; ++c) {
                    const int64_t at = row * width_ + c;
                    if (product(e, c) == z_[at]) result[graph_.indices[e] * width_ + c] += shares[at] * factor(e, c);
                }
            }
        }
        return result;
    }

    std::vector<T> expected_weight_backward(const Exact<T>& shares) const {
        std::vector<T> result;
        for (int64_t row = 0; row < graph_.rows; ++row) {
            for (int64_t k = graph_.indptr[row] * heads_; k < graph_.indptr[row + 1] * heads_; ++k) {
                T lanes[16] = {};
                for (int64_t c = 0; c < columns_; ++c) {
                    const int64_t column = k % heads_ * columns_ + c, at = row * width_ + column;
                    if (product(k / heads_, column) == z_[at])
                        lanes[c % 16] += shares[at] * x_[graph_.indices[k / heads_] * width_ + column];
                }
                for (int half = 8; half > 0; half /= 2) {
                    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
                }
                result.push_back(lanes[0]);
            }
        }
        return result;
    }

    std::vector<T> kernel(std::vector<Isa>& isas, const std::string& of, const Graph& graph, const Exact<T>& weight,
                          const Exact<T>& incoming, const std::vector<T>& expected) const {
        const std::string name = of + (sizeof(T) == 4 ? "_f32" : "_f64");
        const hpcgnn_csr csr = graph.csr(0, graph.rows);
        const T* factors = weight.size() ? weight.data() : nullptr;
        using Run = Kernel<const hpcgnn_csr*, const T*, int64_t, const T*, int64_t, const T*, const T*, T*, int>;
        std::vector<Run> kernels;
        for (const Isa& isa : isas) kernels.emplace_back(isa, name);
        std::vector<T> found = same_everywhere<T>(
            isas, static_cast<int64_t>(expected.size()), name, [&](const size_t k, T* out, const int threads) {
                kernels[k](&csr, factors, heads_, x_.data(), width_, z_.data(), incoming.data(), out, threads);
            });
        CHECK(found == expected, name << " width " << width_ << " heads " << heads_ << " weights " << weight.size());
        return found;
    }

    const Graph& graph_;
    int64_t width_, heads_, columns_;
    std::vector<int64_t> entry_of_;
    Graph transpose_;
    Exact<T> x_, gradient_, weight_, transposed_weight_, z_;
};

template <typename T>
void test_type(std::vector<Isa>& isas) {
    const int64_t segment = symbol<int64_t()>(isas[0].library, "hpcgnn_segment_entries")();
    Random random(13);
    const Graph sparse = make_graph(random_lengths(37, random), 29, segment, random);
    const Graph heavy = make_graph({2, segment + 1, 0, 3}, 50, segment, random);
    const Graph large = make_graph(random_lengths(1000, random), 300, segment, random);
    const Graph none = make_graph({0, 0}, 3, segment, random);
    for (const Graph* graph : {&sparse, &heavy, &large, &none}) {
        for (const int64_t width : {1, 3, 16, 40, 100, 256}) {
            if (graph->entries() > 1000 && width != 3 && width != 40) continue;
            MaxGradient<T>(*graph, width, 1, false, random).run(isas);
            MaxGradient<T>(*graph, width, 1, true, random).run(isas);
            MaxGradient<T>(*graph, width, width % 4 == 0 ? 4 : width, true, random).run(isas);
        }
    }
}

}  // namespace

void test_max_gradient(std::vector<Isa>& isas) {
    test_type<float>(isas);
    test_type<double>(isas);
}
