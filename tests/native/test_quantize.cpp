// Quantization of whole matrices: codes are within a step of the value, the same everywhere, and unpacked exactly.
// test_messages.cpp checks the codes themselves.

#include <algorithm>

#include "check.h"
#include "wire.h"

namespace {

void test_bits(std::vector<Isa>& isas, const int bits, const int64_t rows, const int64_t width, Random& random) {
    const Exact<float> x(make_rows(rows, width, random));
    const int64_t bytes = (width * bits + 7) / 8;
    const int64_t size = rows * (bytes + 4);  // payloads, and then parameters
    Exact<int64_t> numbers(rows), payload_at(rows), params_at(rows);
    for (int64_t r = 0; r < rows; ++r) {
        numbers[r] = r;
        payload_at[r] = r * bytes;
        params_at[r] = rows * bytes + 4 * r;
    }
    const Exact<uint8_t> wire(
        same_everywhere<uint8_t>(isas, size, "encode", [&](const size_t k, uint8_t* out, const int threads) {
            KERNEL(isas[k], encode_rows)(rows, numbers.data(), width, bits, 0, kKey, x.data(), out, payload_at.data(),
                                         params_at.data(), threads);
        }));
    const auto back =
        same_everywhere<float>(isas, rows * width, "decode", [&](const size_t k, float* out, const int threads) {
            KERNEL(isas[k], decode_rows)(rows, numbers.data(), width, bits, wire.data(), payload_at.data(),
                                         params_at.data(), out, 0, threads);
        });
    std::vector<uint16_t> params(static_cast<size_t>(2 * rows));
    if (rows > 0) std::memcpy(params.data(), wire.data() + rows * bytes, static_cast<size_t>(4 * rows));
    for (int64_t i = 0; i < rows * width; ++i) {
        const int64_t r = i / width;
        const float zero = from_bfloat16(params[2 * r]), scale = from_bfloat16(params[2 * r + 1]);
        const unsigned code = code_at(wire.data() + r * bytes, i % width, width, bits);
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

}  // namespace

void test_quantize(std::vector<Isa>& isas) {
    Random random(9);
    for (const int64_t rows : {0, 1, 41}) {
        for (const int64_t width : {0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 40, 63, 64, 100, 127, 128, 130, 256, 602}) {
            for (const int bits : {1, 2, 4, 8}) test_bits(isas, bits, rows, width, random);
        }
    }
}
