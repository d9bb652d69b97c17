// Norm, ReLU and dropout in one pass, and dropout alone, compared with their definitions.

#include "plainly.h"

namespace {

constexpr float kScale = 1.7F, kEps = 1e-5F;

struct Activation {
    int64_t rows, width;
    bool norm, drop;
    uint32_t threshold;
    Random& random;
    Exact<float> x{random.numbers(rows * width)}, dy{random.numbers(rows * width)};
    Exact<float> gamma{random.numbers(width)}, beta{random.numbers(width)};
    Exact<int64_t> ids{random.integers<int64_t>(rows, 0, int64_t{1} << 40)};
};

struct Activated {
    Floats y, dx, statistics, dgamma, dbeta;
    Floats sums;  // of the columns of dx, without norm; added up in float64
};

int64_t num_segments_of(const int64_t rows) {
    return std::min<int64_t>(128, std::max<int64_t>(1, rows / 64));
}

// Sums of columns, four rows at a time within a segment.
Floats sums_of_columns(const Floats& matrix, const int64_t rows, const int64_t width) {
    std::vector<double> total(static_cast<size_t>(width));
    const int64_t segments = num_segments_of(rows);
    for (int64_t s = 0; s < segments; ++s) {
        std::vector<double> sums(static_cast<size_t>(width));
        for (int64_t r = rows * s / segments, end = rows * (s + 1) / segments; r < end;) {
            const int64_t together = r + 4 <= end ? 4 : 1;
            for (int64_t i = 0; i < width; ++i) {
                const auto at = [&](const int64_t k) { return static_cast<double>(matrix[(r + k) * width + i]); };
                sums[i] += together == 4 ? (at(0) + at(1)) + (at(2) + at(3)) : at(0);
            }
            r += together;
        }
        for (int64_t i = 0; i < width; ++i) total[i] += sums[i];
    }
    return Floats(total.begin(), total.end());
}

// Computes row r, and adds to the gradients of gamma and beta.
void activate_row(const Activation& of, const int64_t r, Activated& result, Floats& dgamma, Floats& dbeta) {
    const float *x = of.x.data() + r * of.width, *dy = of.dy.data() + r * of.width;
    const auto mean_of = [&](const auto& value) {
        return sum_of_lanes<float>(of.width, value) / static_cast<float>(of.width);
    };
    float mean = 0, per_std = 1;
    if (of.norm) {
        mean = x[0] + mean_of([&](const int64_t i) { return x[i] - x[0]; });
        per_std = 1 / std::sqrt(mean_of([&](const int64_t i) { return (x[i] - mean) * (x[i] - mean); }) + kEps);
        result.statistics[2 * r] = mean;
        result.statistics[2 * r + 1] = per_std;
    }
    Floats u(x, x + of.width), du(u.size());
    for (int64_t i = 0; i < of.width; ++i) {
        if (of.norm) u[i] = (x[i] - mean) * per_std;
        const float before = of.norm ? u[i] * of.gamma[i] + of.beta[i] : x[i], scale = of.drop ? kScale : 1;
        const bool kept = !(before <= 0) && !(of.drop && draw_for(kKey, of.ids[r], i) < of.threshold);
        result.y[r * of.width + i] = kept ? before * scale : 0;
        const float after = kept ? dy[i] * scale : 0;
        du[i] = of.norm ? after * of.gamma[i] : after;
        dgamma[i] += after * u[i];
        dbeta[i] += after;
    }
    float* dx = result.dx.data() + r * of.width;
    std::copy(du.begin(), du.end(), dx);
    if (!of.norm) return;
    const float sum = mean_of([&](const int64_t i) { return du[i]; });
    const float product = mean_of([&](const int64_t i) { return du[i] * u[i]; });
    for (int64_t i = 0; i < of.width; ++i) dx[i] = ((du[i] - sum) - u[i] * product) * per_std;
}

Activated activate_plainly(const Activation& of) {
    const size_t size = static_cast<size_t>(of.x.size()), width = static_cast<size_t>(of.width);
    Activated result{Floats(size), Floats(size), Floats(static_cast<size_t>(of.norm ? 2 * of.rows : 0)), {}, {}, {}};
    const int64_t segments = num_segments_of(of.rows);
    for (int64_t s = 0; s < segments; ++s) {
        Floats dgamma(width), dbeta(width);
        for (int64_t r = of.rows * s / segments; r < of.rows * (s + 1) / segments; ++r)
            activate_row(of, r, result, dgamma, dbeta);
        if (s == 0) result.dgamma = dgamma, result.dbeta = dbeta;
        for (size_t i = 0; i < width && s > 0; ++i) result.dgamma[i] += dgamma[i], result.dbeta[i] += dbeta[i];
    }
    if (!of.norm) result.dgamma = result.dbeta = {};
    if (!of.norm) result.sums = sums_of_columns(result.dx, of.rows, of.width);
    return result;
}

void test_activation(Isas& isas, Activation of) {
    if (of.rows > 3) std::fill_n(of.x.data() + 2 * of.width, of.width, 0.3F);  // a row of one value
    if (of.rows > 9 && of.width > 0) of.x[9 * of.width] = kNan;
    const Activated wanted = activate_plainly(of);
    const std::string what = text("activation: rows", of.rows, "width", of.width, "norm", of.norm, "drop", of.drop,
                                  "threshold", of.threshold);
    expect(isas, what, together(wanted.y, wanted.dx, wanted.statistics, wanted.dgamma, wanted.dbeta, wanted.sums),
           [&](const Way& way) {
               const int64_t size = of.x.size(), columns = of.norm ? of.width : 0;
               Exact<float> y(size), dx(size), statistics(of.norm ? 2 * of.rows : 0), dgamma(columns), dbeta(columns);
               const float *gamma = of.norm ? of.gamma.data() : nullptr, *beta = of.norm ? of.beta.data() : nullptr;
               const int64_t* ids = of.drop ? of.ids.data() : nullptr;
               float* kept = of.norm ? statistics.data() : nullptr;
               Exact<uint8_t> positive(of.norm ? 0 : of.rows * ((of.width + 7) / 8));
               const hpcgnn_activation job{
                   of.rows, of.width, of.x.data(),  gamma,  beta, kept, of.norm ? nullptr : positive.data(),
                   ids,     kKey,     of.threshold, kScale, kEps};
               KERNEL(way, activate)(&job, y.data(), way.threads);
               check_isa(way);
               if (of.norm) {
                   KERNEL(way, activate_backward)
                   (&job, of.dy.data(), dx.data(), dgamma.data(), dbeta.data(), way.threads);
                   return together(y, dx, statistics, dgamma, dbeta, Exact<float>(0));
               }
               Exact<double> sums(of.width), again(of.width);
               KERNEL(way, relu_backward)
               (of.rows, of.width, positive.data(), of.dy.data(), of.drop ? kScale : 1, dx.data(), sums.data(),
                way.threads);
               KERNEL(way, column_sums)(of.rows, of.width, dx.data(), again.data(), way.threads);
               Exact<float> rounded(of.width);
               for (int64_t i = 0; i < of.width; ++i)
                   rounded[i] =
                       std::memcmp(&sums[i], &again[i], sizeof(double)) == 0 ? static_cast<float>(sums[i]) : kNan;
               return together(y, dx, statistics, dgamma, dbeta, rounded);
           });
}

template <typename T>
void test_dropout(Isas& isas, const int64_t rows, const int64_t width, const uint32_t threshold, Random& random) {
    const Exact<int64_t> ids(random.integers<int64_t>(rows, 0, int64_t{1} << 40));
    const Exact<T> x(random.numbers<T>(rows * width));
    std::vector<T> expected(static_cast<size_t>(x.size()));
    for (int64_t i = 0; i < x.size(); ++i)
        expected[i] = draw_for(kKey, ids[i / width], i % width) >= threshold ? x[i] * T(1.7) : T(0);
    expect(isas, text("dropout rows", rows, "width", width, "threshold", threshold), expected, [&](const Way& way) {
        Exact<T> out(x.size());
        KERNEL_FOR(T, way, dropout_f32, dropout_f64)
        (rows, width, ids.data(), kKey, threshold, T(1.7), x.data(), out.data(), way.threads);
        return together<T>(out);
    });
}

}  // namespace

PART(activation) {
    for (Cases cases(56, 1); cases.next();) {
        const int64_t width = cases.one_of<int64_t>({1, 3, 16, 40, 100, 256, 602}),
                      rows = cases.one_of<int64_t>({0, 1, 17});
        const bool norm = cases.flag(), drop = cases.flag();
        test_activation(isas, {rows, width, norm, drop, cases.one_of<uint32_t>({0, 1U << 31}), cases.random});
    }
    Random random(1);
    for (const bool drop : {false, true}) test_activation(isas, {20, 0, false, drop, 1U << 30, random});
    test_activation(isas, {8300, 3, true, true, 1U << 30, random});  // more rows than the most segments have at least
#if defined(__x86_64__)                                              // ARM stores results that are large as all others
    Isas aside = isas;                                               // these are not part of a digest
    for (const bool norm : {false, true}) test_activation(aside, {4100, 1024, norm, true, 1U << 30, random});
#endif
}

PART(dropout) {
    for (Cases cases(24, 2); cases.next();) {
        const int64_t width = cases.one_of<int64_t>({0, 1, 3, 16, 40, 100, 256, 602}),
                      rows = cases.one_of<int64_t>({0, 1, 17});
        const uint32_t threshold = cases.one_of<uint32_t>({0, 1U << 31, ~0U});
        test_dropout<float>(isas, rows, width, threshold, cases.random);
        test_dropout<double>(isas, rows, width, threshold, cases.random);
    }
}
