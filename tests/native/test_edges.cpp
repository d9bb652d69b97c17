// Operators over the entries of a matrix: compared bit for bit where native/edges.h defines the order of a sum, else
// with sums in double. Every instruction set and number of threads must give the same bits in any case.

#include "plainly.h"

namespace {

// The result of the first instruction set on one thread, which all others must give as well.
template <typename T, typename Run>
std::vector<T> same_everywhere(Isas& isas, const std::string& what, const Run& run) {
    const std::vector<T> found = run(Way{isas[0], 1, ""});
    expect(isas, what, found, run);
    return found;
}

// The largest error of some results: relative to the magnitude of what was added.
template <typename T>
struct Errors {
    double worst = 0;

    void add(const double found, const double expected, const double magnitude) {
        worst = std::max(worst, std::abs(found - expected) / std::max(magnitude, 1e-30));
    }
    bool is_small() const { return worst < (sizeof(T) == 4 ? 2e-6 : 1e-14); }
};

template <typename T>
void test_sddmm(Isas& isas, const Graph& graph, const int64_t width, const hpcgnn_sddmm op, const int64_t heads,
                Random& random) {
    const Exact<T> a(random.numbers<T>(graph.rows * width)), b(random.numbers<T>(graph.cols * width));
    const hpcgnn_csr csr = graph.csr();
    const int64_t columns = width / heads;
    std::vector<T> expected;
    for (int64_t row = 0; row < graph.rows; ++row) {
        for (int64_t e = graph.indptr[row]; e < graph.indptr[row + 1]; ++e) {
            const T *left = a.data() + row * width, *right = b.data() + graph.indices[e] * width;
            for (int64_t h = 0; h < heads && op == HPCGNN_DOT; ++h)
                expected.push_back(sum_of_lanes<T>(
                    columns, [&](const int64_t c) { return left[h * columns + c] * right[h * columns + c]; }));
            for (int64_t c = 0; c < width && op != HPCGNN_DOT; ++c)
                expected.push_back(op == HPCGNN_ADD ? left[c] + right[c] : left[c]);
        }
    }
    const std::string what = text("sddmm", op, "entries", graph.entries(), "width", width, "heads", heads);
    expect(isas, what, expected, [&](const Way& way) {
        Exact<T> out(static_cast<int64_t>(expected.size()));
        KERNEL_FOR(T, way, sddmm_f32, sddmm_f64)
        (&csr, a.data(), op == HPCGNN_LEFT ? nullptr : b.data(), width, op, heads, out.data(), way.threads);
        return together<T>(out);
    });
}

template <typename T>
void test_softmax(Isas& isas, const Graph& graph, const int64_t width, Random& random) {
    const hpcgnn_csr csr = graph.csr();
    const int64_t size = graph.entries() * width;
    Exact<T> scores(random.numbers<T>(size));
    const Exact<T> gradient(random.numbers<T>(size));
    for (int64_t i = 0; i < size; ++i) scores[i] *= 20;
    for (int64_t i = 0; i < std::min<int64_t>(size, 2 * width); ++i) scores[i] = -std::numeric_limits<T>::infinity();
    const std::string what = text("edge_softmax entries", graph.entries(), "width", width);
    const Exact<T> alpha(same_everywhere<T>(isas, what, [&](const Way& way) {
        Exact<T> out(size);
        KERNEL_FOR(T, way, edge_softmax_f32, edge_softmax_f64)(&csr, scores.data(), width, out.data(), way.threads);
        return together<T>(out);
    }));
    const std::vector<T> back = same_everywhere<T>(isas, what + "backward", [&](const Way& way) {
        Exact<T> out(size);
        KERNEL_FOR(T, way, edge_softmax_backward_f32, edge_softmax_backward_f64)
        (&csr, alpha.data(), gradient.data(), width, out.data(), way.threads);
        return together<T>(out);
    });
    Errors<T> errors, errors_back;
    for (int64_t i = 0; i < graph.rows * width; ++i) {
        const int64_t first = graph.indptr[i / width] * width + i % width, end = graph.indptr[i / width + 1] * width;
        double top = -std::numeric_limits<double>::infinity(), sum = 0, product = 0, magnitude = 0;
        for (int64_t k = first; k < end; k += width) top = std::max<double>(top, scores[k]);
        for (int64_t k = first; k < end; k += width) {
            sum += std::isinf(top) ? 0 : std::exp(scores[k] - top);
            product += static_cast<double>(alpha[k]) * gradient[k];
            magnitude += std::abs(static_cast<double>(alpha[k]) * gradient[k]);
        }
        for (int64_t k = first; k < end; k += width) {
            errors.add(alpha[k], sum == 0 ? 0 : std::exp(scores[k] - top) / sum, 1);
            errors_back.add(back[k], alpha[k] * (gradient[k] - product), alpha[k] * (2 + magnitude));
        }
    }
    check(errors.is_small() && errors_back.is_small(), what, "errors", errors.worst, errors_back.worst);
}

template <typename T>
void test_sum(Isas& isas, const Graph& graph, const int64_t width, Random& random) {
    const hpcgnn_csr csr = graph.csr();
    const Exact<T> values(random.numbers<T>(graph.entries() * width));
    const std::string what = text("edge_sum entries", graph.entries(), "width", width);
    const std::vector<T> found = same_everywhere<T>(isas, what, [&](const Way& way) {
        Exact<T> out(graph.rows * width);
        KERNEL_FOR(T, way, edge_sum_f32, edge_sum_f64)(&csr, values.data(), width, out.data(), way.threads);
        return together<T>(out);
    });
    Errors<T> errors;
    for (int64_t i = 0; i < graph.rows * width; ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t e = graph.indptr[i / width]; e < graph.indptr[i / width + 1]; ++e) {
            sum += values[e * width + i % width];
            magnitude += std::abs(values[e * width + i % width]);
        }
        errors.add(found[i], sum, magnitude);
    }
    check(errors.is_small(), what, "error", errors.worst);
}

template <typename T>
void test_edges(Isas& isas) {
    Graphs graphs;
    const auto test = [&](const Graph& graph, const int64_t width) {
        for (const int64_t heads : {int64_t{1}, width % 4 == 0 ? 4 : width})
            test_sddmm<T>(isas, graph, width, HPCGNN_DOT, heads, graphs.random);
        for (const hpcgnn_sddmm op : {HPCGNN_ADD, HPCGNN_LEFT}) test_sddmm<T>(isas, graph, width, op, 1, graphs.random);
        test_softmax<T>(isas, graph, width, graphs.random);
        test_sum<T>(isas, graph, width, graphs.random);
    };
    for (const int64_t width : {1, 3, 4, 7, 8, 16, 17, 40, 100}) test(graphs.sparse, width);
    for (const int64_t width : {1, 3, 17}) test(graphs.heavy, width);
    for (const int64_t width : {4, 7}) test(graphs.large, width);
    for (const Graph* graph : {&graphs.no_entries, &graphs.no_rows}) test(*graph, 8);
    for (const int64_t width : {4, 7, 8, 40}) {
        if (!kEverything) continue;
        test(graphs.heavy, width);
        test(graphs.large, width);
    }
}

}  // namespace

PART(edges) {
    test_edges<float>(isas);
    test_edges<double>(isas);
}
