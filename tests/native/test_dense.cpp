// Dense products and weight gradients, compared element by element with sums in the same order.

#include "plainly.h"

namespace {

constexpr int64_t kSegment = 1024;  // rows that a weight gradient sums on their own

using Numbers = Floats (*)(int64_t count, Random& random);

Floats real_numbers(const int64_t count, Random& random) {
    return random.numbers(count);
}

// bfloat16 holds these, and float32 their sums, so that the kernels of bfloat16 have one right result.
Floats whole_numbers(const int64_t count, Random& random) {
    return random.integers<float>(count, -8, 9);
}

struct Dense {
    std::string type;  // the end of the kernels' names
    Numbers numbers;
};

// y = x W (+ bias) (+ y), with W as it is or given transposed.
void test_product(Isas& isas, const Dense& of, const Shape& s, Cases& cases) {
    const bool transposed = cases.flag(), has_bias = cases.flag(), accumulate = cases.flag();
    const Exact<float> x(of.numbers(s.rows * s.depth, cases.random));
    const Exact<float> weight(of.numbers(s.depth * s.width, cases.random)), bias(of.numbers(s.width, cases.random));
    const Floats before = of.numbers(s.rows * s.width, cases.random);
    const int64_t row_stride = transposed ? 1 : s.width, column_stride = transposed ? s.depth : 1;
    Floats expected(before.size());
    for (int64_t i = 0; i < s.rows * s.width; ++i) {
        const int64_t row = i / s.width, column = i % s.width;
        float sum = accumulate ? before[i] : 0;
        if (has_bias) sum += bias[column];
        for (int64_t k = 0; k < s.depth; ++k)
            sum = std::fma(x[row * s.depth + k], weight[k * row_stride + column * column_stride], sum);
        expected[i] = sum;
    }
    const std::string name = "dense_" + of.type;
    const std::string what = text(name, s, "transposed", transposed, "bias", has_bias, "accumulate", accumulate);
    expect(isas, what, expected, [&](const Way& way) {
        Exact<float> y(s.rows * s.width);
        if (accumulate) std::copy(before.begin(), before.end(), y.data());
        kernel<KERNEL_TYPE(dense_f32)>(way, name)(s.rows, s.depth, s.width, x.data(), weight.data(), row_stride,
                                                  column_stride, has_bias ? bias.data() : nullptr, accumulate, y.data(),
                                                  way.threads);
        return together(y);
    });
}

void test_gradient(Isas& isas, const Dense& of, const Shape& s, Cases& cases) {
    const bool has_sums = cases.flag();
    const Exact<float> x(of.numbers(s.rows * s.depth, cases.random)), dy(of.numbers(s.rows * s.width, cases.random));
    Floats expected(static_cast<size_t>((s.depth + has_sums) * s.width));  // dW, and the sums of dy below it
    for (int64_t begin = 0; begin < s.rows; begin += kSegment) {
        const int64_t end = std::min(begin + kSegment, s.rows);
        for (size_t i = 0; i < expected.size(); ++i) {
            const int64_t k = static_cast<int64_t>(i) / s.width, column = static_cast<int64_t>(i) % s.width;
            float sum = 0;
            for (int64_t row = begin; row < end; ++row)
                sum = std::fma(k < s.depth ? x[row * s.depth + k] : 1, dy[row * s.width + column], sum);
            expected[i] += sum;
        }
    }
    const std::string name = "dense_gradient_" + of.type;
    expect(isas, text(name, s, "sums", has_sums), expected, [&](const Way& way) {
        Exact<float> dweight(s.depth * s.width), sums(has_sums ? s.width : 0);
        kernel<KERNEL_TYPE(dense_gradient_f32)>(way, name)(s.rows, s.depth, s.width, x.data(), dy.data(),
                                                           dweight.data(), has_sums ? sums.data() : nullptr,
                                                           way.threads);
        return together(dweight, sums);
    });
}

void test_dense(Isas& isas, const Dense& of) {
    const std::vector<Shape> shapes{{0, 3, 4},    {1, 1, 1},     {5, 0, 3},     {6, 4, 0},     {17, 3, 40},
                                    {9, 33, 100}, {131, 9, 16},  {40, 530, 20}, {19, 12, 300}, {12, 40, 49},
                                    {3, 602, 8},  {7, 1100, 50}, {300, 7, 1}};
    for (Cases cases(26, 1); cases.next();) {
        const Shape s = cases.one_of(shapes);
        test_product(isas, of, s, cases);
        test_gradient(isas, of, s, cases);
    }
    const std::vector<Shape> large{{2100, 9, 7}, {1031, 5, 33}, {260, 261, 10}};
    for (Cases cases(6, 2); cases.next();) test_gradient(isas, of, cases.one_of(large), cases);
}

}  // namespace

PART(dense) {
    test_dense(isas, {"f32", real_numbers});
    // AVX512_BF16 is no instruction set of the library, so nothing is added to a digest.
    Isas avx512;
    std::copy_if(isas.begin(), isas.end(), std::back_inserter(avx512),
                 [](const Isa& isa) { return isa.name == "avx512"; });
    const bool has_bfloat16 = symbol<int()>(isas[0].library, "hpcgnn_multiplies_bf16")() != 0;
    if (has_bfloat16 && !avx512.empty()) test_dense(avx512, {"bf16", whole_numbers});
}
