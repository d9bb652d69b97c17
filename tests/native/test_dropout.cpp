// Dropout, compared with the definition of its mask.

#include "check.h"

namespace {

constexpr uint64_t kKey = 0x0123456789ABCDEFULL;

template <typename T>
struct Case {
    int64_t rows, width;
    uint32_t threshold;
    T scale;
};

template <typename T>
void test_one(std::vector<Isa>& isas, const char* name, const Case<T>& c, Random& random) {
    Exact<int64_t> ids(c.rows);
    Exact<T> x(c.rows * c.width);
    for (int64_t r = 0; r < c.rows; ++r) ids[r] = random.below(int64_t{1} << 40);
    for (int64_t i = 0; i < x.size(); ++i) x[i] = random.real();

    std::vector<T> expected(static_cast<size_t>(x.size()));
    for (int64_t i = 0; i < x.size(); ++i) {
        const uint64_t hash = row_hash(kKey, ids[i / c.width]);
        const uint32_t draw =
            draw32(static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(i % c.width));
        expected[i] = draw >= c.threshold ? x[i] * c.scale : T(0);
    }
    for (const int threads : {1, 2, 3}) {
        for (Isa& isa : isas) {
            const Kernel<KERNEL_TYPE_OF(T, dropout)> dropout(isa, name);
            Exact<T> out(x.size());
            dropout(c.rows, c.width, ids.data(), kKey, c.threshold, c.scale, x.data(), out.data(), threads);
            const int64_t at = first_difference(isa, out, expected);
            CHECK(at < 0, isa.name << " " << name << " rows " << c.rows << " width " << c.width << " threshold "
                                   << c.threshold << " threads " << threads << " at " << at);
        }
    }
}

template <typename T>
void test_type(std::vector<Isa>& isas, const char* name) {
    Random random(1);
    for (const int64_t width : {0, 1, 3, 16, 40, 100, 256, 602}) {
        for (const int64_t rows : {0, 1, 17}) {
            for (const uint32_t threshold : {0U, 1U << 31, ~0U})
                test_one<T>(isas, name, {rows, width, threshold, T(1.7)}, random);
        }
    }
}

}  // namespace

void test_dropout(std::vector<Isa>& isas) {
    test_type<float>(isas, "dropout_f32");
    test_type<double>(isas, "dropout_f64");
}
