// Operators over the entries of a matrix: compared bit for bit where native/edges.h defines the order of a sum, else
// with sums in double. Every instruction set and number of threads must give the same bits in any case.

#include <algorithm>

#include "check.h"
#include "graphs.h"

namespace {

template <typename T>
constexpr double kTolerance = sizeof(T) == 4 ? 2e-6 : 1e-14;

template <typename T>
std::vector<T> random_values(const int64_t count, Random& random) {
    std::vector<T> values(static_cast<size_t>(count));
    for (T& value : values) value = random.real();
    return values;
}

template <typename Function>
std::vector<Kernel<Function>> kernels(const std::vector<Isa>& isas, const std::string& name) {
    std::vector<Kernel<Function>> found;
    for (const Isa& isa : isas) found.emplace_back(isa, name);
    return found;
}

template <typename T>
std::string with_type(const std::string& name) {
    return name + (sizeof(T) == 4 ? "_f32" : "_f64");
}

// Lane j adds values j, j + 16, ...; then lanes j and j + 8 are added, j and j + 4, j and j + 2, j and j + 1.
template <typename T>
T dot(const T* a, const T* b, const int64_t width) {
    T lanes[16] = {};
    for (int64_t c = 0; c < width; ++c) lanes[c % 16] += a[c] * b[c];
    for (int half = 8; half > 0; half /= 2) {
        for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    }
    return lanes[0];
}

template <typename T>
void test_sddmm(std::vector<Isa>& isas, const Graph& graph, const int64_t width, Random& random) {
    const std::string name = with_type<T>("sddmm");
    const auto sddmm = kernels<KERNEL_TYPE_OF(T, sddmm)>(isas, name);
    const Exact<T> a(random_values<T>(graph.rows * width, random)), b(random_values<T>(graph.cols * width, random));
    const hpcgnn_csr csr = graph.csr();
    const int64_t some_heads = width % 4 == 0 ? 4 : width;
    const struct {
        hpcgnn_sddmm op;
        int64_t heads;
    } cases[] = {{HPCGNN_DOT, 1}, {HPCGNN_DOT, some_heads}, {HPCGNN_ADD, 1}, {HPCGNN_LEFT, 1}};
    for (const auto& c : cases) {
        const int64_t written = c.op == HPCGNN_DOT ? c.heads : width, columns = width / c.heads;
        std::vector<T> expected;
        for (int64_t row = 0; row < graph.rows; ++row) {
            for (int64_t e = graph.indptr[row]; e < graph.indptr[row + 1]; ++e) {
                const T *left = a.data() + row * width, *right = b.data() + graph.indices[e] * width;
                for (int64_t k = 0; k < written; ++k) {
                    expected.push_back(c.op == HPCGNN_DOT   ? dot(left + k * columns, right + k * columns, columns)
                                       : c.op == HPCGNN_ADD ? left[k] + right[k]
                                                            : left[k]);
                }
            }
        }
        const T* right = c.op == HPCGNN_LEFT ? nullptr : b.data();
        const std::vector<T> found =
            same_everywhere<T>(isas, graph.entries() * written, name, [&](const size_t k, T* out, const int threads) {
                sddmm[k](&csr, a.data(), right, width, c.op, c.heads, out, threads);
            });
        CHECK(found == expected, name << " op " << c.op << " width " << width << " heads " << c.heads);
    }
}

// |found - expected| in units of the sum of the terms' magnitudes.
template <typename T>
double error(const T found, const double expected, const double magnitude) {
    return std::abs(static_cast<double>(found) - expected) / std::max(magnitude, 1e-30);
}

template <typename T>
void test_softmax(std::vector<Isa>& isas, const Graph& graph, const int64_t width, Random& random) {
    const std::string name = with_type<T>("edge_softmax"), back = with_type<T>("edge_softmax_backward");
    const auto forward = kernels<KERNEL_TYPE_OF(T, edge_softmax)>(isas, name);
    const auto backward = kernels<KERNEL_TYPE_OF(T, edge_softmax_backward)>(isas, back);
    const hpcgnn_csr csr = graph.csr();
    const int64_t size = graph.entries() * width;
    Exact<T> scores(random_values<T>(size, random));
    const Exact<T> gradient(random_values<T>(size, random));
    for (int64_t i = 0; i < size; ++i) scores[i] *= 20;
    for (int64_t i = 0; i < std::min<int64_t>(size, 2 * width); ++i) scores[i] = -std::numeric_limits<T>::infinity();
    const Exact<T> alpha(same_everywhere<T>(isas, size, name, [&](const size_t k, T* out, const int threads) {
        forward[k](&csr, scores.data(), width, out, threads);
    }));
    const std::vector<T> result = same_everywhere<T>(isas, size, back, [&](const size_t k, T* out, const int threads) {
        backward[k](&csr, alpha.data(), gradient.data(), width, out, threads);
    });
    double worst = 0, worst_back = 0;
    for (int64_t row = 0; row < graph.rows; ++row) {
        const int64_t begin = graph.indptr[row] * width, end = graph.indptr[row + 1] * width;
        for (int64_t c = begin; c < begin + width && begin < end; ++c) {
            double top = -std::numeric_limits<double>::infinity(), sum = 0, product = 0, magnitude = 0;
            for (int64_t i = c; i < end; i += width) top = std::max<double>(top, scores[i]);
            for (int64_t i = c; i < end; i += width) sum += std::isinf(top) ? 0 : std::exp(scores[i] - top);
            for (int64_t i = c; i < end; i += width) {
                product += static_cast<double>(alpha[i]) * gradient[i];
                magnitude += std::abs(static_cast<double>(alpha[i]) * gradient[i]);
            }
            for (int64_t i = c; i < end; i += width) {
                worst = std::max(worst, error(alpha[i], sum == 0 ? 0 : std::exp(scores[i] - top) / sum, 1));
                const double wanted = alpha[i] * (gradient[i] - product);
                worst_back = std::max(worst_back, error(result[i], wanted, alpha[i] * (2 + magnitude)));
            }
        }
    }
    CHECK(worst < kTolerance<T>, name << " width " << width << " error " << worst);
    CHECK(worst_back < kTolerance<T>, back << " width " << width << " error " << worst_back);
}

template <typename T>
void test_sum(std::vector<Isa>& isas, const Graph& graph, const int64_t width, Random& random) {
    const std::string name = with_type<T>("edge_sum");
    const auto edge_sum = kernels<KERNEL_TYPE_OF(T, edge_sum)>(isas, name);
    const hpcgnn_csr csr = graph.csr();
    const Exact<T> values(random_values<T>(graph.entries() * width, random));
    const std::vector<T> found = same_everywhere<T>(
        isas, graph.rows * width, name,
        [&](const size_t k, T* out, const int threads) { edge_sum[k](&csr, values.data(), width, out, threads); });
    double worst = 0;
    for (int64_t i = 0; i < graph.rows * width; ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t e = graph.indptr[i / width]; e < graph.indptr[i / width + 1]; ++e) {
            sum += values[e * width + i % width];
            magnitude += std::abs(values[e * width + i % width]);
        }
        worst = std::max(worst, error(found[i], sum, magnitude));
    }
    CHECK(worst < kTolerance<T>, name << " width " << width << " error " << worst);
}

template <typename T>
void test_type(std::vector<Isa>& isas) {
    const int64_t segment = symbol<int64_t()>(isas[0].library, "hpcgnn_segment_entries")();
    Random random(3);
    const Graph sparse = make_graph(random_lengths(37, random), 29, segment, random);
    const Graph heavy = make_graph({2, segment + 1, 0, 3, segment, 2 * segment + 5, 1}, 50, segment, random);
    const Graph large = make_graph(random_lengths(1000, random), 300, segment, random);
    const Graph none = make_graph({0, 0}, 0, segment, random);
    const Graph no_rows = make_graph({}, 3, segment, random);
    for (const Graph* graph : {&sparse, &heavy, &large, &none, &no_rows}) {
        for (const int64_t width : {1, 3, 4, 7, 8, 16, 17, 40, 100}) {
            if (width > 8 && graph->entries() > 1000 && width != 40) continue;
            test_sddmm<T>(isas, *graph, width, random);
            test_softmax<T>(isas, *graph, width, random);
            test_sum<T>(isas, *graph, width, random);
        }
    }
}

}  // namespace

void test_edges(std::vector<Isa>& isas) {
    test_type<float>(isas);
    test_type<double>(isas);
}
