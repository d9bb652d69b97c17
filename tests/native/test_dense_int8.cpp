// Products of 8-bit integers and gradients of weights, element by element: sums of integers, of which float32 is made
// in one way.

#include "int8_plainly.h"

namespace {

constexpr int64_t kBlock = 256;     // rows of a weight gradient that are quantized together, and
constexpr int64_t kSegment = 1024;  // whose products are summed on their own
constexpr int64_t kMostTerms = 2147483647 / (kMostCode * kMostCode);  // of a sum in int32

// -- products --------------------------------------------------------------------------------------------------------

struct Shape {
    int64_t rows, depth, width;
};

std::string about(const char* name, const Shape& s) {
    return std::string(name) + " rows " + std::to_string(s.rows) + " depth " + std::to_string(s.depth) + " width " +
           std::to_string(s.width);
}

// given: x is quantized already.
struct Way {
    bool transposed, has_bias, accumulate, given;
    Rounding rounding, weight_rounding;
};

// A product's operands: x, or what it was quantized to, and a weight, whose column c is row c of `columns` or, not
// transposed, column c.
struct Operands {
    const Shape shape;
    const Exact<float> x, columns;
    Exact<float> weight;
    const Exact<float> bias;
    const Floats before;  // what is in y

    Operands(const Shape& s, const Floats& x, const Floats& columns, Random& random)
        : shape(s),
          x(x),
          columns(columns),
          weight(s.depth * s.width),
          bias(numbers(s.width, random)),
          before(numbers(s.rows * s.width, random)) {
        for (int64_t i = 0; i < weight.size(); ++i) weight[i] = columns[i % s.width * s.depth + i / s.width];
    }
};

void test_product(std::vector<Isa>& isas, const Operands& of, const Way& way) {
    const auto [rows, depth, width] = of.shape;
    const Rows x = quantize(of.x, rows, depth, nullptr, way.rounding);
    const Rows weight = quantize(of.columns, width, depth, nullptr, way.weight_rounding);
    Floats expected(of.before);
    for (int64_t i = 0; i < rows * width; ++i) {
        const int64_t r = i / width, c = i % width;
        float y =
            dot(x.codes.data() + r * depth, weight.codes.data() + c * depth, depth) * (x.scale[r] * weight.scale[c]);
        if (way.has_bias) y += of.bias[c];
        expected[i] = way.accumulate ? expected[i] + y : y;
    }
    const std::string what = about("dense_int8", of.shape) + (way.transposed ? " transposed" : "") +
                             (way.has_bias ? " bias" : "") + (way.accumulate ? " accumulate" : "") +
                             (way.given ? " given" : "") + (way.rounding.to_nearest ? " nearest" : "") +
                             (way.weight_rounding.to_nearest ? " nearest weight" : "");
    test_kernel(isas, what, true, together(expected, x.scale, x.codes),
                [&](const Isa& isa, const std::string& suffix, const int threads) {
                    Exact<float> y(of.before), scale(way.given ? x.scale : unwritten<float>(rows));
                    Exact<int8_t> codes(way.given ? x.codes : unwritten<int8_t>(rows * depth));
                    Kernel<KERNEL_TYPE(dense_int8)>(isa, "dense_int8" + suffix)(
                        rows, depth, width, way.given ? nullptr : of.x.data(), way.rounding.to_nearest,
                        way.rounding.key, codes.data(), scale.data(),
                        way.transposed ? of.columns.data() : of.weight.data(), way.transposed ? 1 : width,
                        way.transposed ? depth : 1, way.weight_rounding.to_nearest, way.weight_rounding.key,
                        way.has_bias ? of.bias.data() : nullptr, way.accumulate, y.data(), threads);
                    return together(y, scale, codes);
                });
}

// Eight of the 64 ways, among which every pair of choices occurs.
void test_products(std::vector<Isa>& isas, const Shape& s, Random& random) {
    for (int way = 0; way < 8; ++way) {
        const bool first = way & 1, second = way & 2, third = way & 4;
        const Floats x = all_kinds_of_rows(s.rows, s.depth, random);
        const Operands operands(s, x, all_kinds_of_rows(s.width, s.depth, random), random);
        test_product(isas, operands,
                     {first, second, third, first != second, first != third ? kNearest : kKeyed,
                      second != third ? kNearest : kOtherKeyed});
    }
}

// Sums as large as int32 holds, which a code without sign would carry beyond.
void test_longest_sums(std::vector<Isa>& isas, Random& random) {
    const Shape s{3, kMostTerms, 2};
    Floats x(static_cast<size_t>(3 * s.depth), kMostCode), columns(static_cast<size_t>(2 * s.depth), kMostCode);
    std::fill_n(x.begin(), s.depth, -kMostCode);
    for (int64_t k = 0; k < s.depth; k += 3) x[2 * s.depth + k] = 0;
    std::fill_n(columns.begin(), s.depth, -kMostCode);
    const Operands operands(s, x, columns, random);
    test_product(isas, operands, {true, false, false, true, kNearest, kNearest});
}

// Results that go past the caches, because they are large: on ARM those are stored as all others are.
#if defined(__x86_64__)
void test_large_product(const std::vector<Isa>& isas) {
    Random random(12);  // its own, so that other tests are the same ones on all machines
    const Shape s{65537, 2, 64};
    const Floats values = numbers(s.rows * s.depth, random);
    const Operands operands(s, values, numbers(s.depth * s.width, random), random);
    const Rows x = quantize(operands.x, s.rows, s.depth, nullptr, kNearest);
    const Rows weight = quantize(operands.columns, s.width, s.depth, nullptr, kNearest);
    for (const Isa& isa : isas) {
        for (const std::string& suffix : suffixes_of(isa)) {
            Exact<float> y(unwritten<float>(s.rows * s.width)), scale(x.scale);
            Exact<int8_t> codes(x.codes);
            Kernel<KERNEL_TYPE(dense_int8)>(isa, "dense_int8" + suffix)(
                s.rows, s.depth, s.width, nullptr, 1, 0, codes.data(), scale.data(), operands.columns.data(), 1,
                s.depth, 1, 0, nullptr, 0, y.data(), 2);
            int64_t wrong = -1;
            for (int64_t i = 0; i < y.size() && wrong < 0; ++i) {
                const int64_t r = i / s.width, c = i % s.width;
                const float sum = dot(x.codes.data() + r * s.depth, weight.codes.data() + c * s.depth, s.depth);
                if (y[i] != sum * (x.scale[r] * weight.scale[c])) wrong = i;
            }
            CHECK(wrong < 0, isa.name << suffix << " " << about("dense_int8", s) << " is wrong at " << wrong);
        }
    }
}
#endif

// -- gradients of weights --------------------------------------------------------------------------------------------

// dW, and below it the sums of dy's columns.
Floats gradient(const Shape& s, const Exact<int8_t>& codes, const Exact<float>& scale, const Exact<float>& dy,
                const Rounding& rounding) {
    const auto value = [&](const int64_t r, const int64_t c) { return dy[r * s.width + c] * scale[r]; };
    Floats total(static_cast<size_t>((s.depth + 1) * s.width));
    for (int64_t begin = 0; begin < s.rows; begin += kSegment) {
        const int64_t end = std::min(begin + kSegment, s.rows);
        Floats of_segment(total.size());
        for (int64_t first = begin; first < end; first += kBlock) {
            const int64_t last = std::min(first + kBlock, end), count = last - first;
            Bytes x(static_cast<size_t>(s.depth * count)), of_dy(static_cast<size_t>(count));
            for (int64_t i = 0; i < s.depth * count; ++i) x[i] = codes[(first + i % count) * s.depth + i / count];
            for (int64_t c = 0; c < s.width; ++c) {
                float largest = 0;
                for (int64_t r = first; r < last; ++r) largest = larger_magnitude(largest, value(r, c));
                const float column_scale = scale_for(largest);
                for (int64_t r = first; r < last; ++r) {
                    of_dy[r - first] = code_for(value(r, c), column_scale, rounding, r, c);
                    of_segment[s.depth * s.width + c] += dy[r * s.width + c];
                }
                for (int64_t k = 0; k < s.depth; ++k)
                    of_segment[k * s.width + c] += dot(x.data() + k * count, of_dy.data(), count) * column_scale;
            }
        }
        for (size_t i = 0; i < total.size(); ++i) total[i] += of_segment[i];
    }
    return total;
}

// `trouble`: to x's scales, in the second row.
void test_gradient(std::vector<Isa>& isas, const Shape& s, const Rounding& rounding, const float trouble,
                   Random& random) {
    const Exact<int8_t> codes(random_codes(s.rows * s.depth, random));
    Exact<float> scale(numbers(s.rows, random)), dy(numbers(s.rows * s.width, random));
    for (int64_t r = 0; r < s.rows; ++r) scale[r] = r % 9 == 5 ? 0 : std::abs(scale[r]);
    if (s.rows > 1) scale[1] += trouble;
    for (int64_t i = 0; i < dy.size(); ++i) {
        const float factors[] = {1, 1e-3F, 0, 1e30F, 1e-42F, 1, 3e38F};
        dy[i] *= factors[i % s.width % 7];
    }
    if (s.rows > 2 && s.width > 5) dy[2 * s.width + 5] = kNan;
    const Floats expected = gradient(s, codes, scale, dy, rounding);
    const std::string what = about("dense_gradient_int8", s) + (rounding.to_nearest ? " nearest" : "");
    for (const bool has_sums : {true, false}) {
        const int64_t size = s.depth * s.width;
        const Floats wanted(expected.begin(), expected.end() - static_cast<std::ptrdiff_t>(has_sums ? 0 : s.width));
        test_kernel(isas, what + (has_sums ? "" : " without sums"), true, wanted,
                    [&](const Isa& isa, const std::string& suffix, const int threads) {
                        Exact<float> dweight(unwritten<float>(size)), sums(unwritten<float>(has_sums ? s.width : 0));
                        Kernel<KERNEL_TYPE(dense_gradient_int8)>(isa, "dense_gradient_int8" + suffix)(
                            s.rows, s.depth, s.width, codes.data(), scale.data(), dy.data(), rounding.to_nearest,
                            rounding.key, dweight.data(), has_sums ? sums.data() : nullptr, threads);
                        return together(dweight, sums);
                    });
    }
}

}  // namespace

void test_dense_int8(std::vector<Isa>& isas) {
    Random random(13);
    for (const Shape& shape :
         {Shape{0, 3, 4}, Shape{1, 1, 1}, Shape{5, 0, 3}, Shape{6, 4, 0}, Shape{7, 17, 40}, Shape{8, 64, 48},
          Shape{33, 5, 100}, Shape{40, 130, 19}, Shape{19, 12, 150}, Shape{3, 602, 8}, Shape{257, 7, 3}})
        test_products(isas, shape, random);
    test_longest_sums(isas, random);
#if defined(__x86_64__)
    test_large_product(isas);
#endif
    for (const int64_t rows : {0, 1, 7, 8, 33, 255, 256, 257, 1025, 2100}) {
        for (const Rounding& rounding : {kNearest, kKeyed}) test_gradient(isas, {rows, 9, 13}, rounding, 0, random);
    }
    for (const Shape& shape : {Shape{5, 0, 3}, Shape{5, 3, 0}, Shape{40, 261, 50}, Shape{34, 20, 100}, Shape{9, 530, 7},
                               Shape{300, 33, 150}})
        test_gradient(isas, shape, kKeyed, 0, random);
    for (const float trouble : {kNan, kInfinity}) test_gradient(isas, {300, 5, 9}, kKeyed, trouble, random);
}
