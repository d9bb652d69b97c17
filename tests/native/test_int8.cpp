// Rows of 8-bit integers, also in messages, and operators over the entries of a matrix with them: compared with plain
// loops, bit for bit. test_dense_int8.cpp tests their products.

#include "graphs.h"
#include "int8_plainly.h"

namespace {

// -- rows ------------------------------------------------------------------------------------------------------------

void test_rows_of_codes(std::vector<Isa>& isas, const int64_t rows, const int64_t width, const Rounding& rounding,
                        const bool has_factor, Random& random) {
    const Exact<float> x(all_kinds_of_rows(rows, width, random));
    Exact<float> factor(numbers(rows, random));
    const float unusual[] = {kNan, 0, kInfinity, 1e-40F, 1e38F};
    for (int64_t r = 0; r < std::min<int64_t>(rows, 20); r += 4) factor[r] = unusual[r / 4];
    const float* factors = has_factor ? factor.data() : nullptr;
    const Rows expected = quantize(x, rows, width, factors, rounding);
    const std::string what = "quantize_int8 rows " + std::to_string(rows) + " width " + std::to_string(width) +
                             (rounding.to_nearest ? " nearest" : "") + (has_factor ? " factor" : "");
    test_kernel(isas, what, false, together(expected.scale, expected.codes),
                [&](const Isa& isa, const std::string&, const int threads) {
                    Exact<int8_t> codes(unwritten<int8_t>(rows * width));
                    Exact<float> scale(unwritten<float>(rows));
                    KERNEL(isa, quantize_int8)(rows, width, x.data(), factors, rounding.to_nearest, rounding.key,
                                               codes.data(), scale.data(), threads);
                    return together(scale, codes);
                });
}

// Encodes some rows, last ones first, as rows of a message of 8 bits, and decodes them.
void test_messages_of_codes(std::vector<Isa>& isas, const int64_t all, const int64_t width, Random& random) {
    const int64_t count = all * 2 / 3;
    const Exact<int8_t> codes(random_codes(all * width, random));
    Exact<float> scale(all);
    Exact<int64_t> rows(count), payload_at(count), params_at(count);
    for (int64_t r = 0; r < all; ++r) scale[r] = scale_for(r % 7 == 3 ? kNan : std::ldexp(std::abs(random.real()), 20));
    for (int64_t i = 0; i < count; ++i) {
        rows[i] = all - 1 - i;
        payload_at[i] = i * width;
        params_at[i] = count * width + 4 * i;
    }
    std::vector<uint8_t> wire(static_cast<size_t>(count * (width + 4)));
    int64_t num_nan = 0;
    for (int64_t i = 0; i < count; ++i) {
        const float own = scale[rows[i]], zero = -128 * own;
        for (int64_t c = 0; c < width; ++c)
            wire[i * width + c] = static_cast<uint8_t>(codes[rows[i] * width + c] + 128);
        uint16_t params[2] = {0x7FC0, 0x7FC0};
        if (!std::isnan(own)) params[0] = nearest_bfloat16(zero), params[1] = nearest_bfloat16(own);
        std::memcpy(&wire[params_at[i]], params, sizeof params);
        num_nan += std::isnan(own);
    }
    const std::string what = "int8 rows " + std::to_string(count) + " width " + std::to_string(width);
    test_kernel(isas, "encode_" + what, false, together(wire, Floats{static_cast<float>(num_nan)}),
                [&](const Isa& isa, const std::string&, const int threads) {
                    Exact<uint8_t> buffer(unwritten<uint8_t>(static_cast<int64_t>(wire.size())));
                    const int64_t trouble =
                        KERNEL(isa, encode_int8)(count, rows.data(), width, codes.data(), scale.data(), buffer.data(),
                                                 payload_at.data(), params_at.data(), threads);
                    return together(buffer, Floats{static_cast<float>(trouble)});
                });

    // Rows that are not named stay unchanged. The fourth received row has another form.
    Bytes expected_codes = unwritten<int8_t>(all * width);
    Floats expected_scale = unwritten<float>(all);
    for (int64_t i = 0; i < count; ++i) {
        std::copy_n(&codes[rows[i] * width], width,
                    expected_codes.begin() + static_cast<std::ptrdiff_t>(rows[i] * width));
        expected_scale[rows[i]] = scale[rows[i]];
    }
    const bool has_other = count > 3;
    if (has_other) wire[params_at[3]] ^= 1;
    const Exact<uint8_t> message(wire);
    test_kernel(isas, "decode_" + what, false,
                together(expected_codes, expected_scale, Floats{static_cast<float>(has_other)}),
                [&](const Isa& isa, const std::string&, const int threads) {
                    Exact<int8_t> back(unwritten<int8_t>(all * width));
                    Exact<float> scales(unwritten<float>(all));
                    const int64_t others =
                        KERNEL(isa, decode_int8)(count, rows.data(), width, message.data(), payload_at.data(),
                                                 params_at.data(), back.data(), scales.data(), threads);
                    return together(back, scales, Floats{static_cast<float>(others)});
                });
}

// -- over the entries of a matrix ------------------------------------------------------------------------------------

struct Heads {
    int64_t width, number;
};

// op: HPCGNN_DOT of `heads`, or HPCGNN_ADD.
void test_sddmm(std::vector<Isa>& isas, const Graph& graph, const int op, const Heads& heads, Random& random) {
    const auto [width, number] = heads;
    const Exact<int8_t> a(random_codes(graph.rows * width, random)), b(random_codes(graph.cols * width, random));
    Exact<float> a_scale(numbers(graph.rows, random)), b_scale(numbers(graph.cols, random));
    if (graph.rows > 3) a_scale[3] = 0;
    if (graph.cols > 3) b_scale[2] = kNan, b_scale[3] = 0x1p-110F;
    const hpcgnn_csr csr = graph.csr();
    Floats expected;
    for (int64_t row = 0; row < graph.rows; ++row) {
        for (int64_t e = graph.indptr[row]; e < graph.indptr[row + 1]; ++e) {
            const int64_t column = graph.indices[e], columns = width / number;
            const int8_t *left = a.data() + row * width, *right = b.data() + column * width;
            const float of_a = a_scale[row], of_b = b_scale[column];
            for (int64_t h = 0; h < number && op == HPCGNN_DOT; ++h)
                expected.push_back(dot(left + h * columns, right + h * columns, columns) * (of_a * of_b));
            for (int64_t c = 0; c < width && op == HPCGNN_ADD; ++c)
                expected.push_back(static_cast<float>(left[c]) * of_a + static_cast<float>(right[c]) * of_b);
        }
    }
    const std::string what = std::string(op == HPCGNN_DOT ? "sddmm_int8 dot" : "sddmm_int8 add") + " entries " +
                             std::to_string(graph.entries()) + " width " + std::to_string(width) + " heads " +
                             std::to_string(number);
    test_kernel(isas, what, true, expected, [&](const Isa& isa, const std::string& suffix, const int threads) {
        Exact<float> out(unwritten<float>(static_cast<int64_t>(expected.size())));
        Kernel<KERNEL_TYPE(sddmm_int8)>(isa, "sddmm_int8" + suffix)(
            &csr, a.data(), a_scale.data(), b.data(), b_scale.data(), width, op, number, out.data(), threads);
        return together(out);
    });
}

// Heads of whole chunks of codes, for instructions that take from 1 to 64 codes; several heads in a chunk; and all
// other widths. The longest rows have more chunks than are kept in registers.
void test_entries(std::vector<Isa>& isas, Random& random) {
    const int64_t segment = symbol<int64_t()>(isas[0].library, "hpcgnn_segment_entries")();
    const Graph sparse = make_graph(random_lengths(37, random), 29, segment, random);
    const Graph large = make_graph(random_lengths(900, random), 300, segment, random);
    const Graph small = make_graph({1, 0, 3}, 5, segment, random);
    const Graph none = make_graph({0, 0}, 0, segment, random);
    const Graph no_rows = make_graph({}, 3, segment, random);
    for (const Heads& heads :
         {Heads{0, 1},   Heads{1, 1},   Heads{3, 1},   Heads{3, 3},   Heads{6, 3},   Heads{8, 2},
          Heads{16, 1},  Heads{16, 4},  Heads{17, 1},  Heads{40, 4},  Heads{64, 1},  Heads{64, 4},
          Heads{64, 8},  Heads{64, 16}, Heads{64, 64}, Heads{96, 1},  Heads{96, 3},  Heads{96, 2},
          Heads{100, 5}, Heads{128, 4}, Heads{128, 8}, Heads{192, 2}, Heads{256, 2}, Heads{320, 5}})
        test_sddmm(isas, sparse, HPCGNN_DOT, heads, random);
    for (const int64_t width : {1, 3, 16, 17, 100}) test_sddmm(isas, sparse, HPCGNN_ADD, {width, 1}, random);
    for (const Heads& heads : {Heads{4096, 1}, Heads{4096, 4}, Heads{4160, 1}, Heads{4160, 5}, Heads{4097, 1}})
        test_sddmm(isas, small, HPCGNN_DOT, heads, random);
    for (const Graph* graph : {&large, &none, &no_rows}) {
        for (const Heads& heads : {Heads{5, 1}, Heads{64, 2}}) test_sddmm(isas, *graph, HPCGNN_DOT, heads, random);
        test_sddmm(isas, *graph, HPCGNN_ADD, {20, 1}, random);
    }
}

// The ceiling of multiplications: the kernels return the number of products that they computed.
void test_ceilings(const std::vector<Isa>& isas) {
    for (const Isa& isa : isas) {
        for (const std::string& suffix : suffixes_of(isa)) {
            const std::string name = "hpcgnn_" + isa.name + "_multiply_ceiling_int8" + suffix;
            const auto multiply = symbol<KERNEL_TYPE(multiply_ceiling_int8)>(isa.library, name);
            const double once = multiply(1, 1);
            CHECK(once >= 1 && multiply(50, 3) == 150 * once, name << " counts " << once << " in one round");
        }
    }
}

}  // namespace

void test_int8(std::vector<Isa>& isas) {
    Random random(11);
    for (const int64_t rows : {0, 1, 41}) {
        for (const int64_t width : {0, 1, 3, 15, 16, 17, 31, 33, 48, 64, 100, 130}) {
            for (const Rounding& rounding : {kNearest, kKeyed})
                test_rows_of_codes(isas, rows, width, rounding, width % 2 == rows % 2, random);
        }
    }
    for (const int64_t rows : {0, 2, 41})
        for (const int64_t width : {0, 1, 33, 64, 100}) test_messages_of_codes(isas, rows, width, random);
    test_dense_int8(isas);
    test_entries(isas, random);
    test_ceilings(isas);
}
