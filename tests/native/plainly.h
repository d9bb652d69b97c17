// Functions that several parts share: matrices and rows of all kinds to try kernels on, sums in the order that the
// kernels have, and the plain encoding of rows in few bits and in 8-bit integers.
#pragma once

#include "check.h"

namespace {

constexpr uint64_t kKey = 0xFEDCBA9876543210ULL;
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

int64_t segment_entries;  // of the library

struct Shape {
    int64_t rows, depth, width;
};
std::ostream& operator<<(std::ostream& stream, const Shape& s) {
    return stream << "rows " << s.rows << " depth " << s.depth << " width " << s.width;
}

// -- sparse matrices, in memory of exactly their size ----------------------------------------------------------------

struct Graph {
    int64_t rows, cols;
    Exact<int64_t> indptr;
    Exact<int32_t> indices;
    Exact<int64_t> heavy;

    Graph(const std::vector<int64_t>& lengths, const int64_t cols, Random& random)
        : rows(static_cast<int64_t>(lengths.size())),
          cols(cols),
          indptr(rows + 1),
          indices(random.integers<int32_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), 0, cols)),
          heavy(std::count_if(lengths.begin(), lengths.end(), [](const int64_t n) { return n > segment_entries; })) {
        indptr[0] = 0;
        std::partial_sum(lengths.begin(), lengths.end(), indptr.data() + 1);
        for (int64_t r = 0, h = 0; r < rows; ++r)
            if (lengths[r] > segment_entries) heavy[h++] = r;
    }
    int64_t entries() const { return indices.size(); }
    hpcgnn_csr csr() const { return {rows, indptr.data(), indices.data(), heavy.data(), heavy.size(), nullptr, 0}; }
};

std::vector<int64_t> random_lengths(const int64_t rows, Random& random) {
    std::vector<int64_t> lengths;
    for (int64_t r = 0; r < rows; ++r) lengths.push_back(random.below(3) == 0 ? 0 : random.below(12));
    return lengths;
}

// Rows that are summed in one segment, or in several; and enough work that each thread has several tasks.
struct Graphs {
    Random random{7};
    Graph sparse{random_lengths(37, random), 29, random};
    Graph heavy{{2, segment_entries + 1, 0, segment_entries, 2 * segment_entries + 5, 1}, 50, random};
    Graph large{random_lengths(1000, random), 300, random};
    Graph no_entries{{0, 0, 0}, 0, random}, no_rows{{}, 3, random};
};

// -- sums ------------------------------------------------------------------------------------------------------------

// `total` plus the terms of the entries [begin, end): one by one in a segment, then segment by segment.
// add(total, e): total and the term of an entry.
template <typename T, typename Add>
T sum_of_row(const int64_t begin, const int64_t end, T total, const Add& add) {
    if (end - begin <= segment_entries) {
        for (int64_t e = begin; e < end; ++e) total = add(total, e);
        return total;
    }
    for (int64_t e = begin; e < end; e += segment_entries)
        total += sum_of_row(e, std::min(e + segment_entries, end), T(0), add);
    return total;
}

// Lane j adds values j, j + 16, ...; then lanes j and j + 8 are added, j and j + 4, j and j + 2, j and j + 1.
template <typename T, typename Value>
T sum_of_lanes(const int64_t width, const Value& value) {
    T lanes[16] = {};
    for (int64_t c = 0; c < width; ++c) lanes[c % 16] += value(c);
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    return lanes[0];
}

// -- random bits and bfloat16 ----------------------------------------------------------------------------------------

uint32_t draw_for(const uint64_t key, const int64_t number, const int64_t counter) {
    const uint64_t hash = row_hash(key, number);
    return draw32(static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(counter));
}

// 16 random bits and a half, in fixed point: one draw serves columns c and c + 16.
int32_t noise_of(const uint64_t key, const int64_t number, const int64_t c) {
    const uint32_t draw = draw_for(key, number, c / 32 * 16 + c % 16);
    return static_cast<int32_t>(2 * (c / 16 % 2 == 1 ? draw >> 16 : draw & 0xFFFFU) + 1);
}

float from_bfloat16(const uint16_t bits) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

// The bfloat16 number with the same sign whose magnitude is the next smaller one, or the same.
uint16_t cut_to_bfloat16(const float value) {
    return static_cast<uint16_t>(pattern_of(value) >> 16);
}

// The nearer of the two bfloat16 numbers around a value, at a tie the even one; the same bits for every NaN.
uint16_t nearest_bfloat16(const float value) {
    if (std::isnan(value)) return 0x7FC0;
    const uint32_t bits = pattern_of(value), rest = bits & 0xFFFFU;
    return static_cast<uint16_t>((bits >> 16) + (rest > 0x8000U || (rest == 0x8000U && (bits >> 16) % 2 == 1)));
}

// -- rows of few bits ------------------------------------------------------------------------------------------------

// Rows of every magnitude: with values that are special, a constant row, and whole rows of unusual values.
Floats make_rows(const int64_t rows, const int64_t width, Random& random) {
    Floats x(static_cast<size_t>(rows * width));
    for (int64_t r = 0; r < rows; ++r) {
        const float factor = std::ldexp(1.0F, static_cast<int>(random.below(60)) - 30);
        for (int64_t c = 0; c < width; ++c) x[r * width + c] = r % 5 == 1 ? factor : random.real() * factor;
    }
    const float special[] = {kNan, kInfinity, std::numeric_limits<float>::max(), 1e-42F, -0.0F};
    for (int64_t k = 0; k < 5 && width > 0 && rows > 10; ++k) x[(5 + k) * width + random.below(width)] = special[k];
    const float fills[] = {0, -0.0F, 1e-45F, 3e38F, -1e-38F, -kInfinity};
    for (int64_t k = 0; k < 6 && 10 + k < rows; ++k)
        std::fill_n(x.begin() + static_cast<std::ptrdiff_t>((10 + k) * width), width, fills[k]);
    if (rows > 16 && width > 0) x[16 * width + width - 1] = kNan;
    return x;
}

// The place of a column's code: in a block of n bytes (16, or fewer at the end), byte k holds columns k, k + n, ...
struct Place {
    int64_t byte, shift;

    Place(const int64_t column, const int64_t width, const int bits) {
        const int64_t block = 16 * (8 / bits), first = column / block * block;
        const int64_t bytes = (std::min(block, width - first) * bits + 7) / 8;
        byte = first * bits / 8 + (column - first) % bytes;
        shift = (column - first) / bytes * bits;
    }
};

// Row `number` of a matrix, rounded with the noise of `key`, or without one to the nearest centre of 2**bits cells.
void encode_plainly(const float* x, const int64_t width, const int bits, const uint64_t* key, const int64_t number,
                    uint8_t* payload, uint16_t* params) {
    std::fill(payload, payload + (width * bits + 7) / 8, uint8_t{0});
    params[0] = params[1] = 0x7FC0;  // NaN
    if (std::any_of(x, x + width, [](const float v) { return !std::isfinite(v); })) return;
    float low = width == 0 ? 0 : *std::min_element(x, x + width),
          high = width == 0 ? 0 : *std::max_element(x, x + width);
    low = std::max(std::min(low, 0x1p126F), -0x1p126F) + 0.0F;
    high = std::max(std::min(high, 0x1p126F), -0x1p126F);
    if (key != nullptr) {  // the largest bfloat16 number that is at most `low`
        params[0] = cut_to_bfloat16(low);
        params[0] = static_cast<uint16_t>(params[0] + (from_bfloat16(params[0]) > low));
        low = from_bfloat16(params[0]);
    }
    params[1] = 0;
    const int steps_between = key == nullptr ? 1 << bits : (1 << bits) - 1;
    if (high > low) {
        const float exact = std::max((high - low) / static_cast<float>(steps_between), 0x1p-110F);
        params[1] = cut_to_bfloat16(exact);
        params[1] = static_cast<uint16_t>(params[1] + (from_bfloat16(params[1]) < exact));
    }
    const float scale = from_bfloat16(params[1]);
    if (key == nullptr) params[0] = nearest_bfloat16(low + scale / 2);
    const float zero = from_bfloat16(params[0]), per_step = scale == 0 ? 0 : 0x1p17F / scale;
    const float top = static_cast<float>((1 << bits) - 1) * 0x1p17F;
    for (int64_t c = 0; c < width; ++c) {
        const float steps = std::min(std::max((x[c] - zero) * per_step, 0.0F), top);
        const int32_t noise = key == nullptr ? 1 << 16 : noise_of(*key, number, c);
        const int32_t code = (static_cast<int32_t>(steps) + noise) >> 17;
        const Place place(c, width, bits);
        payload[place.byte] = static_cast<uint8_t>(payload[place.byte] | code << place.shift);
    }
}

// -- rows of 8-bit integers ------------------------------------------------------------------------------------------

constexpr int kMostCode = 127;

using Bytes = std::vector<int8_t>;

struct Rounding {
    int to_nearest;
    uint64_t key;
};
constexpr Rounding kNearest{1, 0}, kKeyed{0, kKey}, kOtherKeyed{0, ~uint64_t{0}};

Bytes random_codes(const int64_t count, Random& random) {
    Bytes codes = random.integers<int8_t>(count, -kMostCode, kMostCode + 1);
    for (int64_t i = 0; i < count / 3; ++i) codes[i] = i < count / 6 ? kMostCode : -kMostCode;
    return codes;
}

// A NaN stays.
float larger_magnitude(const float most, const float value) {
    return std::isnan(value) ? value : std::max(most, std::abs(value));
}

float scale_for(const float largest) {
    if (!std::isfinite(largest)) return kNan;
    if (largest == 0) return 0;
    const float wanted = std::max(std::min(largest, 0x1p126F) / kMostCode, 0x1p-110F);
    return from_bfloat16(static_cast<uint16_t>((pattern_of(wanted) + 0xFFFF) >> 16));
}

int8_t code_for(const float value, const float scale, const Rounding& rounding, const int64_t number,
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

// factor: of each row, or null.
Rows quantize(const Exact<float>& x, const int64_t rows, const int64_t width, const float* factor,
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

float dot(const int8_t* a, const int8_t* b, const int64_t count) {
    int64_t sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += a[k] * b[k];
    return static_cast<float>(sum);
}

}  // namespace
