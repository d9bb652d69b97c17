// Dense products and weight gradients, compared element by element with sums in the same order.

#include <algorithm>

#include "check.h"

namespace {

constexpr int64_t kSegment = 1024;  // rows that a weight gradient sums on their own

struct Shape {
    int64_t rows, depth, width;
};

std::vector<float> numbers(const int64_t count, Random& random) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = random.real();
    return values;
}

std::string about(const char* name, const Shape& s) {
    return std::string(name) + " rows " + std::to_string(s.rows) + " depth " + std::to_string(s.depth) + " width " +
           std::to_string(s.width);
}

// y = x W (+ bias) (+ y), with W as it is or given transposed.
void test_product(std::vector<Isa>& isas, const Shape& s, const bool transposed, const bool has_bias,
                  const bool accumulate, Random& random) {
    const Exact<float> x(numbers(s.rows * s.depth, random)), weight(numbers(s.depth * s.width, random));
    const Exact<float> bias(numbers(s.width, random));
    const std::vector<float> before = numbers(s.rows * s.width, random);
    const int64_t row_stride = transposed ? 1 : s.width, column_stride = transposed ? s.depth : 1;
    std::vector<float> expected(before.size());
    for (int64_t i = 0; i < s.rows * s.width; ++i) {
        const int64_t row = i / s.width, column = i % s.width;
        float sum = accumulate ? before[i] : 0;
        if (has_bias) sum += bias[column];
        for (int64_t k = 0; k < s.depth; ++k)
            sum = std::fma(x[row * s.depth + k], weight[k * row_stride + column * column_stride], sum);
        expected[i] = sum;
    }
    const std::string what = about("dense_f32", s) + (transposed ? " transposed" : "") + (has_bias ? " bias" : "") +
                             (accumulate ? " accumulate" : "");
    const auto found =
        same_everywhere<float>(isas, s.rows * s.width, what, [&](const size_t k, float* y, const int threads) {
            if (accumulate) std::copy(before.begin(), before.end(), y);
            KERNEL(isas[k], dense_f32)(s.rows, s.depth, s.width, x.data(), weight.data(), row_stride, column_stride,
                                       has_bias ? bias.data() : nullptr, accumulate, y, threads);
        });
    CHECK(found == expected, what);
}

void test_gradient(std::vector<Isa>& isas, const Shape& s, Random& random) {
    const Exact<float> x(numbers(s.rows * s.depth, random)), dy(numbers(s.rows * s.width, random));
    std::vector<float> expected(static_cast<size_t>((s.depth + 1) * s.width));  // dW, and the sums of dy below it
    for (int64_t begin = 0; begin < s.rows; begin += kSegment) {
        const int64_t end = std::min(begin + kSegment, s.rows);
        for (int64_t i = 0; i < (s.depth + 1) * s.width; ++i) {
            const int64_t k = i / s.width, column = i % s.width;
            float sum = 0;
            for (int64_t row = begin; row < end; ++row)
                sum = std::fma(k < s.depth ? x[row * s.depth + k] : 1, dy[row * s.width + column], sum);
            expected[i] += sum;
        }
    }
    const int64_t size = s.depth * s.width;
    const auto found = same_everywhere<float>(
        isas, size + s.width, about("dense_gradient_f32", s), [&](const size_t k, float* out, const int threads) {
            KERNEL(isas[k], dense_gradient_f32)(s.rows, s.depth, s.width, x.data(), dy.data(), out, out + size,
                                                threads);
        });
    CHECK(found == expected, about("dense_gradient_f32", s));
    expected.resize(static_cast<size_t>(size));
    const auto alone = same_everywhere<float>(
        isas, size, about("dense_gradient_f32 without sums", s), [&](const size_t k, float* out, const int threads) {
            KERNEL(isas[k], dense_gradient_f32)(s.rows, s.depth, s.width, x.data(), dy.data(), out, nullptr, threads);
        });
    CHECK(alone == expected, about("dense_gradient_f32 without sums", s));
}

// Small whole numbers: bfloat16 holds them and float32 their sums, so that the kernels of bfloat16 have one right
// result.
std::vector<float> whole_numbers(const int64_t count, Random& random) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(random.below(17) - 8);
    return values;
}

// AVX512_BF16 is not an instruction set of the library's, so nothing is added to a digest.
void test_bfloat16(const Isa& isa, const Shape& s, const bool transposed, Random& random) {
    const Exact<float> x(whole_numbers(s.rows * s.depth, random)), weight(whole_numbers(s.depth * s.width, random));
    const Exact<float> bias(whole_numbers(s.width, random)), dy(whole_numbers(s.rows * s.width, random));
    const int64_t row_stride = transposed ? 1 : s.width, column_stride = transposed ? s.depth : 1;
    std::vector<float> product(static_cast<size_t>(s.rows * s.width)), gradient(static_cast<size_t>(s.depth * s.width));
    std::vector<float> sums(static_cast<size_t>(s.width));
    for (int64_t i = 0; i < s.rows * s.width; ++i) {
        const int64_t row = i / s.width, column = i % s.width;
        product[i] = bias[column] + dy[i];
        sums[column] += dy[i];
        for (int64_t k = 0; k < s.depth; ++k) {
            product[i] += x[row * s.depth + k] * weight[k * row_stride + column * column_stride];
            gradient[k * s.width + column] += x[row * s.depth + k] * dy[i];
        }
    }
    for (const int threads : {1, 2, 3}) {
        const std::string what = about("bf16", s) + (transposed ? " transposed" : "") + ", threads ";
        Exact<float> y(std::vector<float>(dy.data(), dy.data() + dy.size())), dweight(s.depth * s.width),
            total(s.width);
        KERNEL(isa, dense_bf16)(s.rows, s.depth, s.width, x.data(), weight.data(), row_stride, column_stride,
                                bias.data(), 1, y.data(), threads);
        CHECK(std::equal(product.begin(), product.end(), y.data()), what << threads);
        KERNEL(isa, dense_gradient_bf16)(s.rows, s.depth, s.width, x.data(), dy.data(), dweight.data(), total.data(),
                                         threads);
        CHECK(std::equal(gradient.begin(), gradient.end(), dweight.data()), what << threads << ", gradient");
        CHECK(std::equal(sums.begin(), sums.end(), total.data()), what << threads << ", sums");
    }
}

}  // namespace

void test_dense(std::vector<Isa>& isas) {
    Random random(1);
    const std::vector<Shape> shapes{{0, 3, 4},    {1, 1, 1},     {5, 0, 3},     {6, 4, 0},    {17, 3, 40}, {9, 33, 100},
                                    {131, 9, 16}, {40, 530, 20}, {19, 12, 300}, {12, 40, 49}, {3, 602, 8}, {300, 7, 1}};
    for (const Shape& shape : shapes) {
        for (const bool transposed : {false, true}) {
            for (const bool has_bias : {false, true})
                for (const bool accumulate : {false, true})
                    test_product(isas, shape, transposed, has_bias, accumulate, random);
        }
        test_gradient(isas, shape, random);
    }
    for (const Shape& shape : {Shape{2100, 9, 7}, Shape{1030, 20, 33}, Shape{300, 261, 50}})
        test_gradient(isas, shape, random);
    const bool has_bfloat16 = symbol<int()>(isas[0].library, "hpcgnn_multiplies_bf16")() != 0;
    for (const Isa& isa : isas) {
        if (!has_bfloat16 || isa.name != "avx512") continue;
        for (const bool transposed : {false, true}) {
            for (const Shape& shape : shapes) test_bfloat16(isa, shape, transposed, random);
            for (const Shape& shape : {Shape{2100, 9, 7}, Shape{1031, 20, 33}, Shape{7, 1100, 50}, Shape{300, 261, 50}})
                test_bfloat16(isa, shape, transposed, random);
        }
    }
}
