// Functions that the tests of 8-bit integers share: operands of all kinds, plain loops that compute the expected
// results, and comparisons of kernels with them: of kernels for the instructions that every CPU of an instruction set
// has, and of those that add products of four integers, if this CPU has such instructions.
#pragma once

#include <algorithm>
#include <functional>

#include "check.h"
#include "wire.h"

constexpr int kMostCode = 127;
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

using Floats = std::vector<float>;
using Bytes = std::vector<int8_t>;

struct Rounding {
    int to_nearest;
    uint64_t key;
};
constexpr Rounding kNearest{1, 0}, kKeyed{0, kKey}, kOtherKeyed{0, ~uint64_t{0}};

// The suffixes of the names of an instruction set's kernels.
inline std::vector<std::string> suffixes_of(const Isa& isa) {
    if (symbol<int(const char*)>(isa.library, "hpcgnn_has_dot_products")(isa.name.c_str())) return {"", "_dot"};
    return {""};
}

// A kernel of an instruction set, given by the suffix of its name, on a number of threads.
using Run = std::function<Floats(const Isa&, const std::string&, int)>;

// Runs run(isa, suffix, threads), which returns all that a kernel wrote, for every instruction set and, if `has_dot`,
// for its dot products, too. Not all CPUs have them, so their results, which are the same, are not part of a digest.
inline void test_kernel(std::vector<Isa>& isas, const std::string& what, const bool has_dot, const Floats& expected,
                        const Run& run) {
    const int64_t size = static_cast<int64_t>(expected.size());
    const auto differs_at = [&](const Floats& found) {
        int64_t i = 0;
        while (i < size && canonical(found[i]) == canonical(expected[i])) ++i;
        return i < size ? i : -1;
    };
    const Floats found = same_everywhere<float>(isas, size, what, [&](const size_t k, float* out, const int threads) {
        const Floats result = run(isas[k], "", threads);
        std::copy(result.begin(), result.end(), out);
    });
    const int64_t at = differs_at(found);
    CHECK(at < 0, what << ": " << at << " is " << found[at] << ", not " << expected[at]);
    for (const Isa& isa : isas) {
        if (!has_dot || suffixes_of(isa).size() == 1) continue;
        for (const int threads : {1, 2, 3}) {
            const Floats result = run(isa, "_dot", threads);
            const int64_t wrong = differs_at(result);
            CHECK(wrong < 0, isa.name << "_dot " << what << " threads " << threads << ": " << wrong << " is "
                                      << result[wrong] << ", not " << expected[wrong]);
        }
    }
}

template <typename... Parts>
Floats together(const Parts&... parts) {
    Floats all;
    (all.insert(all.end(), parts.data(), parts.data() + parts.size()), ...);
    return all;
}

// Memory for results, filled so that a value that is not overwritten is noticed.
template <typename T>
std::vector<T> unwritten(const int64_t count) {
    return std::vector<T>(static_cast<size_t>(count), T{99});
}

inline Floats numbers(const int64_t count, Random& random) {
    Floats values(static_cast<size_t>(count));
    for (float& value : values) value = random.real();
    return values;
}

inline Bytes random_codes(const int64_t count, Random& random) {
    Bytes codes(static_cast<size_t>(count));
    for (int8_t& code : codes) code = static_cast<int8_t>(random.below(2 * kMostCode + 1) - kMostCode);
    for (int64_t i = 0; i < count / 3; ++i) codes[i] = i < count / 6 ? kMostCode : -kMostCode;
    return codes;
}

// Rows of every magnitude; after the first ten, unusual rows.
inline Floats all_kinds_of_rows(const int64_t rows, const int64_t width, Random& random) {
    Floats x = make_rows(rows, width, random);
    const float fills[] = {0, -0.0F, 1e-45F, 3e38F, -1e-38F, -kInfinity};
    for (int64_t k = 0; k < 6 && 10 + k < rows; ++k)
        std::fill_n(x.begin() + static_cast<std::ptrdiff_t>((10 + k) * width), width, fills[k]);
    if (rows > 16 && width > 0) x[16 * width + width - 1] = kNan;
    return x;
}

// The following functions compute the kernels' results, as hpcgnn/kernels/reference/int8.py does.

// A NaN stays.
inline float larger_magnitude(const float most, const float value) {
    return std::isnan(value) ? value : std::max(most, std::abs(value));
}

inline float scale_for(const float largest) {
    if (!std::isfinite(largest)) return kNan;
    if (largest == 0) return 0;
    const float wanted = std::max(std::min(largest, 0x1p126F) / kMostCode, 0x1p-110F);
    return from_bfloat16(static_cast<uint16_t>((pattern_of(wanted) + 0xFFFF) >> 16));
}

inline int8_t code_for(const float value, const float scale, const Rounding& rounding, const int64_t number,
                       const int64_t column) {
    if (!(scale > 0)) return 0;
    const float per_step = 0x1p17F / scale, top = kMostCode * 0x1p17F;
    const float steps = std::min(std::max(value * per_step, -top), top);
    const int32_t noise = rounding.to_nearest ? 1 << 16 : noise_of(rounding.key, number, column);
    return static_cast<int8_t>((static_cast<int32_t>(steps) + noise) >> 17);
}

struct Rows {
    Bytes codes;
    Floats scale;
};

inline Rows quantize(const Exact<float>& x, const int64_t rows, const int64_t width, const float* factor,
                     const Rounding& rounding) {
    Rows result{Bytes(static_cast<size_t>(rows * width)), Floats(static_cast<size_t>(rows))};
    const auto value = [&](const int64_t r, const int64_t c) {
        return x[r * width + c] * (factor == nullptr ? 1 : factor[r]);
    };
    for (int64_t r = 0; r < rows; ++r) {
        float largest = 0;
        for (int64_t c = 0; c < width; ++c) largest = larger_magnitude(largest, value(r, c));
        result.scale[r] = scale_for(largest);
        for (int64_t c = 0; c < width; ++c)
            result.codes[r * width + c] = code_for(value(r, c), result.scale[r], rounding, r, c);
    }
    return result;
}

inline float dot(const int8_t* a, const int8_t* b, const int64_t count) {
    int64_t sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += a[k] * b[k];
    return static_cast<float>(sum);
}

// Part of test_int8.
void test_dense_int8(std::vector<Isa>& isas);
