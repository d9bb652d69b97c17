// Norm, ReLU and dropout in one pass, compared with their definition.

#include <algorithm>
#include <array>

#include "check.h"

namespace {

constexpr uint64_t kKey = 0xFEDCBA9876543210ULL;
constexpr float kScale = 1.7F, kEps = 1e-5F;

struct Case {
    int64_t rows, width;
    bool norm, drop;
    uint32_t threshold;
};

struct Data {
    Exact<float> x, dy, gamma, beta;
    Exact<int64_t> ids;

    Data(const Case& c, Random& random)
        : x(c.rows * c.width), dy(c.rows * c.width), gamma(c.width), beta(c.width), ids(c.rows) {
        for (int64_t i = 0; i < x.size(); ++i) x[i] = random.real();
        for (int64_t i = 0; i < dy.size(); ++i) dy[i] = random.real();
        for (int64_t i = 0; i < c.width; ++i) gamma[i] = random.real();
        for (int64_t i = 0; i < c.width; ++i) beta[i] = random.real();
        for (int64_t r = 0; r < c.rows; ++r) ids[r] = random.below(int64_t{1} << 40);
        if (c.rows > 3) std::fill(x.data() + 2 * c.width, x.data() + 3 * c.width, 0.3F);  // a row of one value
        if (c.rows > 9 && c.width > 0) x[9 * c.width] = std::numeric_limits<float>::quiet_NaN();
    }
};

struct Result {
    std::vector<float> y, dx, dgamma, dbeta, statistics;
};

// Lane j adds the values of columns j, j + 16, ...; then lanes are added in a tree.
template <typename Value>
float sum_row(const int64_t width, const Value& value) {
    std::array<float, 16> lanes{};
    for (int64_t c = 0; c < width; ++c) lanes[c % 16] += value(c);
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    return lanes[0];
}

Result expected(const Case& c, const Data& data) {
    const size_t size = static_cast<size_t>(c.rows * c.width), width = static_cast<size_t>(c.width);
    Result result{std::vector<float>(size), std::vector<float>(size), std::vector<float>(width),
                  std::vector<float>(width), std::vector<float>(static_cast<size_t>(2 * c.rows))};
    const int64_t segments = std::min<int64_t>(128, std::max<int64_t>(1, c.rows / 64));
    const float columns = static_cast<float>(c.width);
    for (int64_t s = 0; s < segments; ++s) {
        std::vector<float> dgamma(width), dbeta(width);
        for (int64_t r = c.rows * s / segments; r < c.rows * (s + 1) / segments; ++r) {
            const float* x = data.x.data() + r * c.width;
            const float* dy = data.dy.data() + r * c.width;
            float mean = 0, per_std = 1;
            if (c.norm) {
                mean = x[0] + sum_row(c.width, [&](const int64_t i) { return x[i] - x[0]; }) / columns;
                const float squares = sum_row(c.width, [&](const int64_t i) { return (x[i] - mean) * (x[i] - mean); });
                per_std = 1 / std::sqrt(squares / columns + kEps);
                result.statistics[2 * r] = mean;
                result.statistics[2 * r + 1] = per_std;
            }
            const uint64_t hash = row_hash(kKey, data.ids[r]);
            std::vector<float> u(width), du(width);
            for (int64_t i = 0; i < c.width; ++i) {
                u[i] = c.norm ? (x[i] - mean) * per_std : x[i];
                const float before = c.norm ? u[i] * data.gamma[i] + data.beta[i] : x[i];
                const uint32_t draw =
                    draw32(static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(i));
                const bool kept = !(before <= 0) && !(c.drop && draw < c.threshold);
                const float scale = c.drop ? kScale : 1;
                result.y[r * c.width + i] = kept ? before * scale : 0;
                const float after = kept ? dy[i] * scale : 0;
                du[i] = c.norm ? after * data.gamma[i] : after;
                dgamma[i] += after * u[i];
                dbeta[i] += after;
            }
            float* dx = result.dx.data() + r * c.width;
            if (c.norm) {
                const float sum = sum_row(c.width, [&](const int64_t i) { return du[i]; }) / columns;
                const float product = sum_row(c.width, [&](const int64_t i) { return du[i] * u[i]; }) / columns;
                for (int64_t i = 0; i < c.width; ++i) dx[i] = ((du[i] - sum) - u[i] * product) * per_std;
            } else {
                std::copy(du.begin(), du.end(), dx);
            }
        }
        for (int64_t i = 0; i < c.width; ++i) {
            result.dgamma[i] = s == 0 ? dgamma[i] : result.dgamma[i] + dgamma[i];
            result.dbeta[i] = s == 0 ? dbeta[i] : result.dbeta[i] + dbeta[i];
        }
    }
    return result;
}

void check_one(Isa& isa, const Case& c, const char* what, const int threads, const Exact<float>& found,
               const std::vector<float>& wanted) {
    const int64_t at = first_difference(isa, found, wanted);
    CHECK(at < 0, isa.name << " " << what << " rows " << c.rows << " width " << c.width << " norm " << c.norm
                           << " drop " << c.drop << " threshold " << c.threshold << " threads " << threads << " at "
                           << at << ": " << found[at] << ", not " << wanted[at]);
}

void test_one(std::vector<Isa>& isas, const Case& c, Random& random) {
    Data data(c, random);
    const Result wanted = expected(c, data);
    for (const int threads : {1, 2, 3}) {
        for (Isa& isa : isas) {
            const auto forward = KERNEL(isa, activate);
            const auto backward = KERNEL(isa, activate_backward);
            Exact<float> statistics(2 * c.rows), y(data.x.size()), dx(data.x.size()), dgamma(c.width), dbeta(c.width);
            const hpcgnn_activation job{c.rows,
                                        c.width,
                                        data.x.data(),
                                        c.norm ? data.gamma.data() : nullptr,
                                        c.norm ? data.beta.data() : nullptr,
                                        c.norm ? statistics.data() : nullptr,
                                        c.drop ? data.ids.data() : nullptr,
                                        kKey,
                                        c.threshold,
                                        kScale,
                                        kEps};
            forward(&job, y.data(), threads);
            check_one(isa, c, "y", threads, y, wanted.y);
            backward(&job, data.dy.data(), dx.data(), dgamma.data(), dbeta.data(), threads);
            check_one(isa, c, "dx", threads, dx, wanted.dx);
            if (!c.norm) continue;
            check_one(isa, c, "statistics", threads, statistics, wanted.statistics);
            check_one(isa, c, "dgamma", threads, dgamma, wanted.dgamma);
            check_one(isa, c, "dbeta", threads, dbeta, wanted.dbeta);
        }
    }
}

}  // namespace

void test_activation(std::vector<Isa>& isas) {
    Random random(1);
    for (const bool norm : {false, true}) {
        for (const bool drop : {false, true}) {
            for (const int64_t width : {1, 3, 16, 40, 100, 256, 602}) {
                for (const int64_t rows : {0, 1, 17}) {
                    for (const uint32_t threshold : {0U, 1U << 31})
                        test_one(isas, {rows, width, norm, drop, threshold}, random);
                }
            }
            test_one(isas, {20, 0, false, drop, 1U << 30}, random);
            test_one(isas, {8300, 5, norm, drop, 1U << 30}, random);     // more rows than the most segments
            test_one(isas, {4100, 1024, norm, drop, 1U << 30}, random);  // results that go past the caches
        }
    }
}
