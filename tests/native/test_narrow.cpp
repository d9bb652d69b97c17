// Conversion to bfloat16, rounded to the nearest, and back.

#include "check.h"

namespace {

void test_bfloat16(std::vector<Isa>& isas, const int64_t count, Random& random) {
    Exact<float> x(count);
    std::vector<uint16_t> expected(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits = static_cast<uint32_t>(random.bits());
        if (i % 7 == 0) bits = (bits & 0xFFFF0000U) | 0x8000U;  // a tie
        if (i % 11 == 0) bits |= 0x7F800000U;                   // NaN or infinity
        std::memcpy(&x[i], &bits, sizeof bits);
        const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
        const uint32_t below = bits >> 16, rest = bits & 0xFFFFU;
        expected[i] = static_cast<uint16_t>(nan ? 0x7FC0U : below + (rest > 0x8000U || (rest == 0x8000U && below % 2)));
    }
    const std::vector<uint16_t> found =
        same_everywhere<uint16_t>(isas, count, "pack_bf16", [&](const size_t k, uint16_t* out, const int threads) {
            KERNEL(isas[k], pack_bf16)(count, x.data(), reinterpret_cast<hpcgnn_bfloat16*>(out), threads);
        });
    CHECK(found == expected, "pack_bf16 of " << count);
    Exact<hpcgnn_bfloat16> packed(count);
    for (int64_t i = 0; i < count; ++i) packed[i].bits = found[i];
    const std::vector<uint32_t> back =
        same_everywhere<uint32_t>(isas, count, "unpack_bf16", [&](const size_t k, uint32_t* out, const int threads) {
            KERNEL(isas[k], unpack_bf16)(count, packed.data(), reinterpret_cast<float*>(out), threads);
        });
    for (int64_t i = 0; i < count; ++i) CHECK(back[i] == uint32_t{found[i]} << 16, "unpack_bf16 at " << i);
}

}  // namespace

void test_narrow(std::vector<Isa>& isas) {
    Random random(9);
    for (const int64_t count : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 602, 1312, 24682})
        test_bfloat16(isas, count, random);
}
