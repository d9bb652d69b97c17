// Rows of 8-bit integers, and operators over the entries of a matrix with them: compared with plain
// loops, bit for bit. test_dense_int8.cpp tests their products, and test_messages.cpp messages of them.

#include "plainly.h"

namespace {

void test_rows_of_codes(Isas& isas, const int64_t rows, const int64_t width, const Rounding& rounding,
                        const bool has_factor, Random& random) {
    const Exact<float> x(make_rows(rows, width, random));
    Exact<float> factor(random.numbers(rows));
    const float unusual[] = {kNan, 0, kInfinity, 1e-40F, 1e38F};
    for (int64_t r = 0; r < std::min<int64_t>(rows, 20); r += 4) factor[r] = unusual[r / 4];
    const float* factors = has_factor ? factor.data() : nullptr;
    const Rows expected = quantize(x, rows, width, factors, rounding);
    const std::string what =
        text("quantize_int8 rows", rows, "width", width, "nearest", rounding.to_nearest, "factor", has_factor);
    expect(isas, what, together(expected.scale, expected.codes), [&](const Way& way) {
        Exact<int8_t> codes(rows * width);
        Exact<float> scale(rows);
        KERNEL(way, quantize_int8)
        (rows, width, x.data(), factors, rounding.to_nearest, rounding.key, codes.data(), scale.data(), way.threads);
        return together(scale, codes);
    });
}

// -- over the entries of a matrix ------------------------------------------------------------------------------------

struct Heads {
    int64_t width, number;
};

void test_sddmm_int8(Isas& isas, const Graph& graph, const Heads& heads, Random& random) {
    const int64_t width = heads.width, number = heads.number, columns = width / number;
    const Exact<int8_t> a(random_codes(graph.rows * width, random)), b(random_codes(graph.cols * width, random));
    Exact<float> a_scale(random.numbers(graph.rows)), b_scale(random.numbers(graph.cols));
    if (graph.rows > 3) a_scale[3] = 0;
    if (graph.cols > 3) b_scale[2] = kNan, b_scale[3] = 0x1p-110F;
    const hpcgnn_csr csr = graph.csr();
    Floats expected;
    for (int64_t row = 0; row < graph.rows; ++row) {
        for (int64_t e = graph.indptr[row]; e < graph.indptr[row + 1]; ++e) {
            const int8_t *left = a.data() + row * width, *right = b.data() + graph.indices[e] * width;
            const float of_a = a_scale[row], of_b = b_scale[graph.indices[e]];
            for (int64_t h = 0; h < number; ++h)
                expected.push_back(dot(left + h * columns, right + h * columns, columns) * (of_a * of_b));
        }
    }
    const auto run = [&](const Way& way) {
        Exact<float> out(static_cast<int64_t>(expected.size()));
        KERNEL(way, sddmm_int8)
        (&csr, a.data(), a_scale.data(), b.data(), b_scale.data(), width, number, out.data(), way.threads);
        return together(out);
    };
    expect(isas, text("sddmm_int8", "entries", graph.entries(), "width", width, "heads", number), expected, run, true);
}

// Heads of whole chunks of codes, for instructions that take from 1 to 64 codes; several heads in a chunk; and all
// other widths. The longest rows have more chunks than are kept in registers.
void test_entries(Isas& isas) {
    Graphs graphs;
    const Graph small({1, 0, 3}, 5, graphs.random);
    const std::vector<Heads> kinds{{0, 1},  {1, 1},  {3, 1},   {3, 3},   {6, 3},   {8, 2},   {16, 1},  {16, 4},
                                   {17, 1}, {40, 4}, {64, 1},  {64, 4},  {64, 8},  {64, 16}, {64, 64}, {96, 1},
                                   {96, 3}, {96, 2}, {100, 5}, {128, 4}, {128, 8}, {192, 2}, {256, 2}, {320, 5}};
    const std::vector<Heads> long_rows{{4096, 1}, {4096, 4}, {4160, 1}, {4160, 5}, {4097, 1}};
    for (const Heads& heads : kinds) test_sddmm_int8(isas, graphs.sparse, heads, graphs.random);
    for (const Heads& heads : long_rows) test_sddmm_int8(isas, small, heads, graphs.random);
    for (const Graph* graph : {&graphs.large, &graphs.no_entries, &graphs.no_rows}) {
        for (const Heads& heads : {Heads{5, 1}, Heads{64, 2}}) test_sddmm_int8(isas, *graph, heads, graphs.random);
    }
}

}  // namespace

PART(int8) {
    for (Cases cases(48, 11); cases.next();) {
        const int64_t rows = cases.one_of<int64_t>({0, 1, 41, 41});
        const int64_t width = cases.one_of<int64_t>({0, 1, 3, 15, 16, 17, 31, 33, 48, 64, 100, 130});
        const Rounding rounding = cases.one_of<Rounding>({kNearest, kKeyed});
        test_rows_of_codes(isas, rows, width, rounding, cases.flag(), cases.random);
    }
    test_entries(isas);
}
