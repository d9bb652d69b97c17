// The ceiling of gathering: sums of small integers, which are the same in any order. It reads no column beyond the last
// whole register, so the widths are whole numbers of registers in every instruction set.

#include "check.h"

void test_ceiling(std::vector<Isa>& isas) {
    constexpr int64_t kRows = 23;
    Random random(17);
    for (const int64_t width : {16, 32, 48, 256, 272, 640}) {
        for (const int64_t entries : {0, 1, 5000}) {
            Exact<float> x(kRows * width);
            Exact<int32_t> indices(entries);
            std::vector<double> expected(1);
            for (int64_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random.below(5) - 2);
            for (int64_t e = 0; e < entries; ++e) indices[e] = static_cast<int32_t>(random.below(kRows));
            for (int64_t i = 0; i < entries * width; ++i) expected[0] += x[indices[i / width] * width + i % width];
            for (const int64_t ahead : {0, 8}) {
                const auto found =
                    same_everywhere<double>(isas, 1, "gather_ceiling", [&](const size_t k, double* sum, const int n) {
                        *sum = KERNEL(isas[k], gather_ceiling_f32)(entries, indices.data(), x.data(), width, ahead, n);
                    });
                CHECK(found == expected, "width " << width << ": " << found[0] << ", not " << expected[0]);
            }
        }
    }
}
