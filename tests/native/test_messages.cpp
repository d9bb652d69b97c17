// Rows of a wire buffer of exactly their size: encoding and decoding are compared with plain loops, and other bytes
// must stay unchanged.

#include <algorithm>
#include <numeric>

#include "check.h"
#include "graphs.h"
#include "wire.h"

namespace {

constexpr uint8_t kUntouched = 0x5A;  // as same_everywhere fills memory

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

// The bytes that encode_rows must write.
std::vector<uint8_t> expected_bytes(const Isa& isa, const Wire& wire, const Exact<float>& x, const Exact<int64_t>& rows,
                                    const uint64_t* key) {
    const int64_t width = wire.width, num_rows = width == 0 ? 50 : x.size() / width;
    Exact<uint8_t> payload(num_rows * wire.bytes);
    Exact<uint16_t> params(num_rows * 2);
    if (wire.bits <= 8) {
        for (int64_t r = 0; r < num_rows; ++r)
            encode_plainly(x.data() + r * width, width, wire.bits, key, r, payload.data() + r * wire.bytes,
                           &params[2 * r]);
    } else if (wire.bits == 16) {
        Exact<hpcgnn_bfloat16> words(x.size());
        KERNEL(isa, pack_bf16)(x.size(), x.data(), words.data(), 1);
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
            const int64_t not_finite = KERNEL(isas[k], encode_rows)(
                rows.size(), rows.data(), wire.width, wire.bits, key == nullptr, key == nullptr ? 0 : *key,
                wire.width == 0 ? nullptr : x.data(),  // as PyTorch gives it
                out, wire.payload_at.data(), wire.bits <= 8 ? wire.params_at.data() : nullptr, threads);
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
        const int64_t not_finite = KERNEL(isas[k], decode_rows)(
            count, rows.data(), wire.width, wire.bits, buffer.data(), wire.payload_at.data(),
            wire.bits <= 8 ? wire.params_at.data() : nullptr, out, accumulate, threads);
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
    const hpcgnn_tuning tuning{12 << 10, 512, 64, 0, 1};
    const hpcgnn_csr csr = graph.csr();
    const std::string what = "spmm_rows bits " + std::to_string(wire.bits) + " width " + std::to_string(width);
    const auto found =
        same_everywhere<float>(isas, graph.rows * width, what, [&](const size_t k, float* out, const int threads) {
            std::copy(before.begin(), before.end(), out);
            KERNEL(isas[k], spmm_rows)(&csr, weighted ? weight.data() : nullptr, buffer.data(), wire.payload_at.data(),
                                       wire.bits <= 8 ? wire.params_at.data() : nullptr, wire.bits, width, out, &tuning,
                                       threads);
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
