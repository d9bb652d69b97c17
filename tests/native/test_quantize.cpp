// The wire formats: codes within a step of the value, exactly the same ones everywhere, and unpacked exactly.

#include <algorithm>

#include "check.h"
#include "wire.h"

namespace {

void test_bits(std::vector<Isa>& isas, const int bits, const int64_t rows, const int64_t width, Random& random) {
    const Exact<float> x(make_rows(rows, width, random));
    const int64_t bytes = (width * bits + 7) / 8;
    using Quantize = Kernel<int64_t, int64_t, int, uint64_t, const float*, uint8_t*, uint16_t*, int>;
    using Dequantize = Kernel<int64_t, int64_t, int, const uint8_t*, const uint16_t*, float*, int>;
    Exact<uint8_t> other_payload(rows * bytes);
    Exact<uint16_t> other_params(rows * 2);
    const Exact<uint8_t> payload(
        same_everywhere<uint8_t>(isas, rows * bytes, "quantize", [&](const size_t k, uint8_t* out, const int threads) {
            Quantize(isas[k], "quantize")(rows, width, bits, kKey, x.data(), out, other_params.data(), threads);
        }));
    const Exact<uint16_t> params(
        same_everywhere<uint16_t>(isas, rows * 2, "quantize", [&](const size_t k, uint16_t* out, const int threads) {
            Quantize(isas[k], "quantize")(rows, width, bits, kKey, x.data(), other_payload.data(), out, threads);
        }));
    const auto back =
        same_everywhere<float>(isas, rows * width, "dequantize", [&](const size_t k, float* out, const int threads) {
            Dequantize(isas[k], "dequantize")(rows, width, bits, payload.data(), params.data(), out, threads);
        });
    for (int64_t i = 0; i < rows * width; ++i) {
        const int64_t r = i / width;
        const float zero = from_bfloat16(params[2 * r]), scale = from_bfloat16(params[2 * r + 1]);
        const unsigned code = code_at(payload.data() + r * bytes, i % width, width, bits);
        const float wanted = zero + static_cast<float>(code) * scale;
        const bool finite = !std::isnan(zero);
        const std::string where = "bits " + std::to_string(bits) + " width " + std::to_string(width) + " row " +
                                  std::to_string(r) + " column " + std::to_string(i % width);
        CHECK(canonical(back[i]) == canonical(wanted), where << ": " << back[i] << ", not " << wanted);
        if (finite && std::abs(x[i]) < 1e30F)
            CHECK(std::abs(static_cast<double>(back[i]) - x[i]) <= scale * 1.001 + 1e-6 * std::abs(x[i]),
                  where << ": " << x[i] << " became " << back[i] << ", scale " << scale);
    }
}

void test_bfloat16(std::vector<Isa>& isas, const int64_t count, Random& random) {
    Exact<uint32_t> x(count);
    std::vector<uint16_t> expected(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        x[i] = static_cast<uint32_t>(random.bits());
        if (i % 7 == 0) x[i] = (x[i] & 0xFFFF0000U) | 0x8000U;  // a tie
        if (i % 11 == 0) x[i] |= 0x7F800000U;                   // NaN or infinity
        const bool nan = (x[i] & 0x7FFFFFFFU) > 0x7F800000U;
        const uint32_t below = x[i] >> 16, rest = x[i] & 0xFFFFU;
        expected[i] = static_cast<uint16_t>(nan ? 0x7FC0U : below + (rest > 0x8000U || (rest == 0x8000U && below % 2)));
    }
    const std::vector<uint16_t> found =
        same_everywhere<uint16_t>(isas, count, "pack_bf16", [&](const size_t k, uint16_t* out, const int threads) {
            Kernel<int64_t, const uint32_t*, uint16_t*, int>(isas[k], "pack_bf16")(count, x.data(), out, threads);
        });
    CHECK(found == expected, "pack_bf16 of " << count);
    const Exact<uint16_t> packed(found);
    const std::vector<uint32_t> back =
        same_everywhere<uint32_t>(isas, count, "unpack_bf16", [&](const size_t k, uint32_t* out, const int threads) {
            Kernel<int64_t, const uint16_t*, uint32_t*, int>(isas[k], "unpack_bf16")(count, packed.data(), out,
                                                                                     threads);
        });
    for (int64_t i = 0; i < count; ++i) CHECK(back[i] == uint32_t{found[i]} << 16, "unpack_bf16 at " << i);
}

void test_int8(std::vector<Isa>& isas, const int64_t rows, const int64_t width, Random& random) {
    const Exact<float> x(make_rows(rows, width, random));
    using Pack = Kernel<int64_t, int64_t, const float*, uint8_t*, float*, int>;
    Exact<uint8_t> other_codes(rows * width);
    Exact<float> other_scales(rows);
    const auto codes =
        same_everywhere<uint8_t>(isas, rows * width, "pack_int8", [&](const size_t k, uint8_t* out, const int threads) {
            Pack(isas[k], "pack_int8")(rows, width, x.data(), out, other_scales.data(), threads);
        });
    const auto scales =
        same_everywhere<float>(isas, rows, "pack_int8", [&](const size_t k, float* out, const int threads) {
            Pack(isas[k], "pack_int8")(rows, width, x.data(), other_codes.data(), out, threads);
        });
    for (int64_t i = 0; i < rows * width; ++i) {
        const double scale = scales[i / width], found = static_cast<int8_t>(codes[i]) * scale;
        if (std::isnan(scale)) continue;
        CHECK(std::abs(found - x[i]) <= 0.5001 * scale + 1e-6 * std::abs(x[i]),
              "pack_int8 width " << width << " row " << i / width << ": " << x[i] << " became " << found);
    }
}

}  // namespace

void test_quantize(std::vector<Isa>& isas) {
    Random random(9);
    for (const int64_t rows : {0, 1, 41}) {
        for (const int64_t width : {0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 40, 63, 64, 100, 127, 128, 130, 256, 602}) {
            for (const int bits : {1, 2, 4, 8}) test_bits(isas, bits, rows, width, random);
            test_int8(isas, rows, width, random);
            test_bfloat16(isas, rows * width, random);
        }
    }
}
