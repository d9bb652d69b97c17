// Products of 8-bit integers and gradients of weights, element by element: sums of integers, of which float32 is made
// in one way.

#include "plainly.h"

namespace {

constexpr int64_t kRowsOfABlock = 256;     // rows of a weight gradient that are quantized together; the products of
constexpr int64_t kRowsOfASegment = 1024;  // these are summed on their own
constexpr int64_t kMostTerms = 2147483647 / (kMostCode * kMostCode);  // of a sum in int32

// -- products --------------------------------------------------------------------------------------------------------

// columns: of the weight, each as a row.
void test_int8_product(Isas& isas, const Shape& s, const Exact<float>& x, const Exact<float>& columns, Cases& cases) {
    const auto [rows, depth, width] = s;
    const bool transposed = cases.flag(), has_bias = cases.flag(), accumulate = cases.flag();
    const Rounding rounding = cases.one_of<Rounding>({kNearest, kKeyed}),
                   of_weight = cases.one_of<Rounding>({kNearest, kOtherKeyed});
    const Rows quantized = quantize(x, rows, depth, nullptr, rounding);
    const Rows quantized_weight = quantize(columns, width, depth, nullptr, of_weight);
    Exact<float> weight(columns.size());
    for (int64_t i = 0; i < weight.size(); ++i)
        weight[i] = transposed ? columns[i] : columns[i % width * depth + i / width];
    const Floats bias = cases.random.numbers(width), before = cases.random.numbers(rows * width);
    Floats expected = before;
    for (int64_t i = 0; i < rows * width; ++i) {
        const int64_t r = i / width, c = i % width;
        float y = dot(quantized.codes.data() + r * depth, quantized_weight.codes.data() + c * depth, depth) *
                  (quantized.scale[r] * quantized_weight.scale[c]);
        if (has_bias) y += bias[c];
        expected[i] = accumulate ? expected[i] + y : y;
    }
    const Exact<float> exact_bias(bias);
    const auto run = [&, rows = rows, depth = depth, width = width](const Way& way) {
        Exact<float> y(before);
        const Exact<float> scale(quantized.scale);
        const Exact<int8_t> codes(quantized.codes);
        KERNEL(way, dense_int8)
        (rows, depth, width, codes.data(), scale.data(), weight.data(), transposed ? 1 : width, transposed ? depth : 1,
         of_weight.to_nearest, of_weight.key, has_bias ? exact_bias.data() : nullptr, accumulate, y.data(),
         way.threads);
        return together(y);
    };
    const std::string what = text("dense_int8", s, "transposed", transposed, "bias", has_bias, "accumulate", accumulate,
                                  "nearest", rounding.to_nearest, of_weight.to_nearest);
    expect(isas, what, expected, run, true);
}

void test_products(Isas& isas) {
    const std::vector<Shape> shapes{{0, 3, 4},    {1, 1, 1},     {5, 0, 3},     {6, 4, 0},   {7, 17, 40}, {8, 64, 48},
                                    {33, 5, 100}, {40, 130, 19}, {19, 12, 150}, {3, 602, 8}, {257, 7, 3}};
    Cases cases(44, 13);
    while (cases.next()) {
        const Shape s = cases.one_of(shapes);
        const Exact<float> x(make_rows(s.rows, s.depth, cases.random));
        test_int8_product(isas, s, x, Exact<float>(make_rows(s.width, s.depth, cases.random)), cases);
    }
    // Sums as large as int32 holds, which a code without sign would carry beyond.
    const Shape longest{3, kMostTerms, 2};
    Floats x(static_cast<size_t>(3 * kMostTerms), kMostCode), columns(static_cast<size_t>(2 * kMostTerms), kMostCode);
    std::fill_n(x.begin(), kMostTerms, -kMostCode);
    for (int64_t k = 0; k < kMostTerms; k += 3) x[2 * kMostTerms + k] = 0;
    std::fill_n(columns.begin(), kMostTerms, -kMostCode);
    Cases long_cases(1, 14);
    test_int8_product(isas, longest, Exact(x), Exact(columns), long_cases);
#if defined(__x86_64__)
    // Results that go past the caches, because they are large: ARM stores those as all others, so no digest has them.
    Isas aside = isas;
    const Exact<float> many(cases.random.numbers(65537 * 2));
    test_int8_product(aside, {65537, 2, 64}, many, Exact<float>(cases.random.numbers(64 * 2)), long_cases);
#endif
}

// -- gradients of weights --------------------------------------------------------------------------------------------

struct Int8Gradient {
    Shape s;
    Exact<int8_t> codes;
    Exact<float> scale, dy;
    Rounding rounding;

    float value(const int64_t r, const int64_t c) const { return dy[r * s.width + c] * scale[r]; }
};

// Adds the products of the rows [first, last) to dW, and the sums of dy's columns below it.
void add_block(const Int8Gradient& of, const int64_t first, const int64_t last, Floats& total) {
    const auto [rows, depth, width] = of.s;
    const int64_t count = last - first;
    Bytes x(static_cast<size_t>(depth * count)), codes(static_cast<size_t>(count));
    for (int64_t i = 0; i < depth * count; ++i) x[i] = of.codes[(first + i % count) * depth + i / count];
    for (int64_t c = 0; c < width; ++c) {
        float largest = 0;
        for (int64_t r = first; r < last; ++r) largest = larger_magnitude(largest, of.value(r, c));
        const float scale = scale_for(largest);
        for (int64_t r = first; r < last; ++r) {
            codes[r - first] = code_for(of.value(r, c), scale, of.rounding, r, c);
            total[depth * width + c] += of.dy[r * width + c];
        }
        for (int64_t k = 0; k < depth; ++k)
            total[k * width + c] += dot(x.data() + k * count, codes.data(), count) * scale;
    }
}

// trouble: is added to the scale of x's second row. is_coded: whether dy is given as integers and a scale for each row.
void test_int8_gradient(Isas& isas, const Shape& s, const Rounding& rounding, const bool has_sums, const float trouble,
                        Random& random, const bool is_coded = false) {
    Int8Gradient of{s, Exact<int8_t>(random_codes(s.rows * s.depth, random)), Exact<float>(random.numbers(s.rows)),
                    Exact<float>(random.numbers(s.rows * s.width)), rounding};
    for (int64_t r = 0; r < s.rows; ++r) of.scale[r] = r % 9 == 5 ? 0 : std::abs(of.scale[r]);
    if (s.rows > 1) of.scale[1] += trouble;
    const float factors[] = {1, 1e-3F, 0, 1e30F, 1e-42F, 1, 3e38F};
    for (int64_t i = 0; i < of.dy.size(); ++i) of.dy[i] *= factors[i % s.width % 7];
    if (s.rows > 2 && s.width > 5) of.dy[2 * s.width + 5] = kNan;
    const Exact<int8_t> dy_codes(random_codes(is_coded ? s.rows * s.width : 0, random));
    const Exact<float> dy_scale(random.numbers(is_coded ? s.rows : 0));
    for (int64_t i = 0; i < dy_codes.size(); ++i) of.dy[i] = static_cast<float>(dy_codes[i]) * dy_scale[i / s.width];
    Floats expected(static_cast<size_t>((s.depth + 1) * s.width));
    for (int64_t begin = 0; begin < s.rows; begin += kRowsOfASegment) {
        const int64_t end = std::min(begin + kRowsOfASegment, s.rows);
        Floats own(expected.size());
        for (int64_t first = begin; first < end; first += kRowsOfABlock)
            add_block(of, first, std::min(first + kRowsOfABlock, end), own);
        for (size_t i = 0; i < own.size(); ++i) expected[i] += own[i];
    }
    if (!has_sums) expected.resize(static_cast<size_t>(s.depth * s.width));
    const auto run = [&](const Way& way) {
        Exact<float> dweight(s.depth * s.width), sums(has_sums ? s.width : 0);
        KERNEL(way, dense_gradient_int8)
        (s.rows, s.depth, s.width, of.codes.data(), of.scale.data(), is_coded ? nullptr : of.dy.data(), dy_codes.data(),
         dy_scale.data(), rounding.to_nearest, rounding.key, dweight.data(), has_sums ? sums.data() : nullptr,
         way.threads);
        return together(dweight, sums);
    };
    const std::string what =
        text("dense_gradient_int8", s, "nearest", rounding.to_nearest, "sums", has_sums, "coded", is_coded);
    expect(isas, what, expected, run, true);
}

void test_int8_gradients(Isas& isas) {
    for (Cases cases(20, 14); cases.next();) {
        const int64_t rows = cases.one_of<int64_t>({0, 1, 7, 8, 33, 255, 256, 257, 1025, 2100});
        const Rounding rounding = cases.one_of<Rounding>({kNearest, kKeyed});
        const bool has_sums = cases.flag();
        test_int8_gradient(isas, {rows, 9, 13}, rounding, has_sums, 0, cases.random);
        test_int8_gradient(isas, {rows, 9, 19}, rounding, has_sums, 0, cases.random, true);
    }
    for (Cases cases(6, 15); cases.next();) {
        const Shape s =
            cases.one_of<Shape>({{5, 0, 3}, {5, 3, 0}, {40, 261, 20}, {34, 20, 100}, {9, 530, 7}, {300, 9, 150}});
        test_int8_gradient(isas, s, kKeyed, cases.flag(), 0, cases.random);
    }
    Random random(16);
    for (const float trouble : {kNan, kInfinity}) test_int8_gradient(isas, {300, 5, 9}, kKeyed, true, trouble, random);
}

}  // namespace

PART(dense_int8) {
    test_products(isas);
    test_int8_gradients(isas);
}
