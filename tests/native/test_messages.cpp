// Rows of a wire buffer of exactly their size: the bytes of quantize, or those of a plain loop where there is no key,
// back as plain loops say, and nothing beside them.

#include <algorithm>
#include <numeric>

#include "check.h"
#include "graphs.h"
#include "wire.h"

namespace {

constexpr uint8_t kUntouched = 0x5A;  // as same_everywhere fills memory

// As in native/tasks.h.
struct Tuning {
    int32_t prefetch_bytes, tile_bytes, tasks_a_thread, streaming, split_rows;
};

// Places for rows in a random order, with gaps; the last byte of the buffer is the last of a payload.
struct Wire {
    int bits;
    int64_t width, bytes, size;
    Exact<int64_t> payload_at, params_at;

    Wire(const int bits, const int64_t count, const int64_t width, Random& random)
        : bits(bits), width(width), bytes((width * bits + 7) / 8), payload_at(count), params_at(count) {
        std::vector<int64_t> order(static_cast<size_t>(count));
        std::iota(order.begin(), order.end(), 0);
        for (int64_t i = count - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
        for (int64_t i = 0; i < count; ++i) params_at[order[i]] = 4 * (2 * i + random.below(2));
        size = 8 * count + 1;
        for (const int64_t i : order) {
            payload_at[i] = size += random.below(5);
            size += bytes;
        }
    }
};

uint32_t pattern_of(const float value) {
    uint32_t pattern;
    std::memcpy(&pattern, &value, sizeof pattern);
    return pattern;
}

// Column c of row i, decoded.
float decoded(const Wire& wire, const Exact<uint8_t>& buffer, const int64_t i, const int64_t c) {
    const uint8_t* payload = buffer.data() + wire.payload_at[i];
    if (wire.bits == 32) {
        float value;
        std::memcpy(&value, payload + 4 * c, sizeof value);
        return value;
    }
    uint16_t half[2];
    if (wire.bits == 16) {
        std::memcpy(half, payload + 2 * c, sizeof half[0]);
        return from_bfloat16(half[0]);
    }
    std::memcpy(half, buffer.data() + wire.params_at[i], sizeof half);
    const unsigned code = code_at(payload, c, wire.width, wire.bits);
    return from_bfloat16(half[0]) + static_cast<float>(code) * from_bfloat16(half[1]);
}

// Of the two bfloat16 numbers around a finite value, the nearer one, or the even one.
uint16_t nearest_bfloat16(const float value) {
    const uint16_t inner = static_cast<uint16_t>(pattern_of(value) >> 16), outer = static_cast<uint16_t>(inner + 1);
    const double to_inner = std::abs(static_cast<double>(value) - from_bfloat16(inner));
    const double to_outer = std::abs(static_cast<double>(value) - from_bfloat16(outer));
    return to_inner < to_outer || (to_inner == to_outer && inner % 2 == 0) ? inner : outer;
}

// A row rounded to the nearest centre of 2**bits cells.
void encode_to_centres(const float* x, const int64_t width, const int bits, uint8_t* payload, uint16_t* params) {
    std::fill(payload, payload + (width * bits + 7) / 8, uint8_t{0});
    params[0] = params[1] = 0x7FC0;  // NaN
    float low = width == 0 ? 0 : x[0], high = low;
    for (int64_t c = 0; c < width; ++c) {
        if (!std::isfinite(x[c])) return;
        low = std::min(low, x[c]);
        high = std::max(high, x[c]);
    }
    low = std::max(std::min(low, 0x1p126F), -0x1p126F) + 0.0F;
    high = std::max(std::min(high, 0x1p126F), -0x1p126F);
    params[1] = 0;
    if (high > low) {
        const float exact = std::max((high - low) / static_cast<float>(1 << bits), 0x1p-110F);
        params[1] = static_cast<uint16_t>(pattern_of(exact) >> 16);
        params[1] = static_cast<uint16_t>(params[1] + (from_bfloat16(params[1]) < exact));
    }
    const float scale = from_bfloat16(params[1]);
    params[0] = nearest_bfloat16(low + scale / 2);
    const float zero = from_bfloat16(params[0]), per_step = scale == 0 ? 0 : 0x1p17F / scale;
    const float top = static_cast<float>((1 << bits) - 1) * 0x1p17F;
    for (int64_t c = 0; c < width; ++c) {
        const float steps = std::min(std::max((x[c] - zero) * per_step, 0.0F), top);
        const int32_t code = (static_cast<int32_t>(steps) + (1 << 16)) >> 17;
        const Place place(c, width, bits);
        payload[place.byte] = static_cast<uint8_t>(payload[place.byte] | code << place.shift);
    }
}

// What encode_rows should write: by way of quantize if there is a key.
std::vector<uint8_t> expected_bytes(const Isa& isa, const Wire& wire, const Exact<float>& x, const Exact<int64_t>& rows,
                                    const uint64_t* key) {
    const int64_t width = wire.width, num_rows = width == 0 ? 50 : x.size() / width;
    Exact<uint8_t> payload(num_rows * wire.bytes);
    Exact<uint16_t> params(num_rows * 2);
    if (wire.bits <= 8 && key == nullptr) {
        for (int64_t r = 0; r < num_rows; ++r)
            encode_to_centres(x.data() + r * width, width, wire.bits, payload.data() + r * wire.bytes, &params[2 * r]);
    } else if (wire.bits <= 8) {
        Kernel<int64_t, int64_t, int, uint64_t, const float*, uint8_t*, uint16_t*, int>(isa, "quantize")(
            num_rows, width, wire.bits, *key, x.data(), payload.data(), params.data(), 1);
    } else if (wire.bits == 16) {
        Exact<uint32_t> patterns(x.size());
        for (int64_t i = 0; i < x.size(); ++i) patterns[i] = pattern_of(x[i]);
        Exact<uint16_t> words(x.size());
        Kernel<int64_t, const uint32_t*, uint16_t*, int>(isa, "pack_bf16")(x.size(), patterns.data(), words.data(), 1);
        std::memcpy(payload.data(), words.data(), static_cast<size_t>(payload.size()));
    } else {
        std::memcpy(payload.data(), x.data(), static_cast<size_t>(payload.size()));
    }
    std::vector<uint8_t> buffer(static_cast<size_t>(wire.size), kUntouched);
    for (int64_t i = 0; i < rows.size(); ++i) {
        const uint8_t* from = payload.data() + rows[i] * wire.bytes;
        std::copy(from, from + wire.bytes, buffer.begin() + wire.payload_at[i]);
        if (wire.bits <= 8) std::memcpy(&buffer[wire.params_at[i]], &params[2 * rows[i]], 4);
    }
    return buffer;
}

Exact<uint8_t> test_encode(std::vector<Isa>& isas, const Wire& wire, const Exact<float>& x, const Exact<int64_t>& rows,
                           const uint64_t* key) {
    int64_t troubled = 0;
    for (int64_t i = 0; i < rows.size(); ++i) {
        const float* row = x.data() + rows[i] * wire.width;
        troubled += std::any_of(row, row + wire.width, [](const float v) { return !std::isfinite(v); });
    }
    const std::string what = "encode_rows bits " + std::to_string(wire.bits) + " width " + std::to_string(wire.width) +
                             (key == nullptr ? " to centres" : "");
    const auto found =
        same_everywhere<uint8_t>(isas, wire.size, what, [&](const size_t k, uint8_t* out, const int threads) {
            int64_t not_finite = -1;
            Kernel<int64_t, const int64_t*, int64_t, int, const uint64_t*, const float*, uint8_t*, const int64_t*,
                   const int64_t*, int64_t*, int>(isas[k], "encode_rows")(
                rows.size(), rows.data(), wire.width, wire.bits, key, x.data(), out, wire.payload_at.data(),
                wire.bits <= 8 ? wire.params_at.data() : nullptr, &not_finite, threads);
            CHECK(not_finite == troubled, what << ": " << not_finite << " rows, not " << troubled);
        });
    CHECK(found == expected_bytes(isas[0], wire, x, rows, key), what);
    return Exact<uint8_t>(found);
}

void test_decode(std::vector<Isa>& isas, const Wire& wire, Exact<uint8_t>& buffer, const bool accumulate,
                 Random& random) {
    const int64_t count = wire.payload_at.size(), size = (count + 9) * wire.width;
    Exact<int64_t> rows(count);
    for (int64_t i = 0; i < count; ++i) rows[i] = count + 8 - i;  // all different
    std::vector<float> before(static_cast<size_t>(size)), expected;
    for (float& value : before) value = random.real();
    expected = before;
    int64_t troubled = 0;
    for (int64_t i = 0; i < count; ++i) {
        bool finite = true;
        for (int64_t c = 0; c < wire.width; ++c) {
            const float value = decoded(wire, buffer, i, c);
            finite = finite && std::isfinite(value);
            float& out = expected[rows[i] * wire.width + c];
            out = accumulate ? out + value : value;
        }
        troubled += !finite;
    }
    const std::string what = "decode_rows bits " + std::to_string(wire.bits) + " width " + std::to_string(wire.width);
    const auto found = same_everywhere<float>(isas, size, what, [&](const size_t k, float* out, const int threads) {
        std::copy(before.begin(), before.end(), out);
        int64_t not_finite = -1;
        Kernel<int64_t, const int64_t*, int64_t, int, uint8_t*, const int64_t*, const int64_t*, float*, int, int64_t*,
               int>(isas[k], "decode_rows")(count, rows.data(), wire.width, wire.bits, buffer.data(),
                                            wire.payload_at.data(), wire.bits <= 8 ? wire.params_at.data() : nullptr,
                                            out, accumulate, &not_finite, threads);
        CHECK(not_finite == troubled, what << ": " << not_finite << " rows, not " << troubled);
    });
    for (int64_t i = 0; i < size; ++i)
        CHECK(canonical(found[i]) == canonical(expected[i]), what << " accumulate " << accumulate << " at " << i);
}

// Entry by entry within a segment, then segment by segment.
float expected_sum(const Graph& graph, const std::vector<float>& rows, const Exact<float>& weight, const int64_t width,
                   const int64_t segment, const int64_t row, const int64_t c, float total) {
    const auto term = [&](const int64_t e) {
        const float value = rows[graph.indices[e] * width + c];
        return weight.size() ? value * weight[e] : value;
    };
    const int64_t begin = graph.indptr[row], end = graph.indptr[row + 1];
    if (end - begin <= segment) {
        for (int64_t e = begin; e < end; ++e) total += term(e);
        return total;
    }
    for (int64_t first = begin; first < end; first += segment) {
        float part = 0;
        for (int64_t e = first; e < std::min(first + segment, end); ++e) part += term(e);
        total += part;
    }
    return total;
}

void test_spmm_rows(std::vector<Isa>& isas, const Graph& graph, const Wire& wire, const Exact<uint8_t>& buffer,
                    const bool weighted, Random& random) {
    const int64_t segment = symbol<int64_t()>(isas[0].library, "hpcgnn_segment_entries")(), width = wire.width;
    Exact<float> weight(weighted ? graph.entries() : 0);
    for (int64_t e = 0; e < weight.size(); ++e) weight[e] = random.real();
    std::vector<float> before(static_cast<size_t>(graph.rows * width)), rows(static_cast<size_t>(graph.cols * width));
    for (float& value : before) value = random.real();
    for (size_t i = 0; i < rows.size(); ++i)
        rows[i] = decoded(wire, buffer, static_cast<int64_t>(i) / width, static_cast<int64_t>(i) % width);
    const Tuning tuning{12 << 10, 512, 64, 0, 1};
    const hpcgnn_csr csr = graph.csr(0, graph.rows);
    const std::string what = "spmm_rows bits " + std::to_string(wire.bits) + " width " + std::to_string(width);
    const auto found =
        same_everywhere<float>(isas, graph.rows * width, what, [&](const size_t k, float* out, const int threads) {
            std::copy(before.begin(), before.end(), out);
            Kernel<const hpcgnn_csr*, const float*, const uint8_t*, const int64_t*, const int64_t*, int, int64_t,
                   float*, const Tuning*, int>(isas[k], "spmm_rows")(
                &csr, weighted ? weight.data() : nullptr, buffer.data(), wire.payload_at.data(),
                wire.bits <= 8 ? wire.params_at.data() : nullptr, wire.bits, width, out, &tuning, threads);
        });
    for (int64_t i = 0; i < graph.rows * width; ++i) {
        const float wanted =
            expected_sum(graph, rows, weight, width, segment, i / width, i % width, before[static_cast<size_t>(i)]);
        CHECK(canonical(found[i]) == canonical(wanted), what << " entries " << graph.entries() << " weighted "
                                                             << weighted << " row " << i / width << " column "
                                                             << i % width << " is " << found[i] << ", not " << wanted);
    }
}

void test_width(std::vector<Isa>& isas, const int bits, const int64_t count, const int64_t width, const Graph& graph,
                Random& random) {
    const Exact<float> x(make_rows(50, width, random));
    Exact<int64_t> rows(count);
    for (int64_t i = 0; i < count; ++i) rows[i] = random.below(50);
    const Wire wire(bits, count, width, random);
    test_encode(isas, wire, x, rows, nullptr);
    Exact<uint8_t> buffer = test_encode(isas, wire, x, rows, &kKey);
    test_decode(isas, wire, buffer, false, random);
    test_decode(isas, wire, buffer, true, random);
    if (graph.cols != count) return;
    test_spmm_rows(isas, graph, wire, buffer, false, random);
    test_spmm_rows(isas, graph, wire, buffer, true, random);
}

}  // namespace

void test_messages(std::vector<Isa>& isas) {
    Random random(21);
    const int64_t segment = symbol<int64_t()>(isas[0].library, "hpcgnn_segment_entries")();
    const Graph graph = make_graph(random_lengths(40, random), 45, segment, random);
    const Graph heavy = make_graph({2, segment + 1, 0, segment, 2 * segment + 5, 1}, 45, segment, random);
    const Graph none = make_graph({0, 0}, 0, segment, random);
    for (const int bits : {1, 2, 4, 8, 16, 32}) {
        for (const int64_t width : {0, 1, 3, 16, 17, 31, 40, 61, 63, 64, 100, 127, 128, 130, 256, 602}) {
            test_width(isas, bits, 45, width, graph, random);
            test_width(isas, bits, 0, width, none, random);
            test_width(isas, bits, 1, width, graph, random);
        }
        for (const int64_t width : {3, 40}) test_width(isas, bits, 45, width, heavy, random);
    }
}
