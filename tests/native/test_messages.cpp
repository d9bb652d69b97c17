// Rows of a wire buffer of exactly their size: encoding and decoding are compared with plain loops, and other bytes
// must stay unchanged.

#include "plainly.h"

namespace {

// Places for rows in a random order, with gaps; the last byte of the buffer is the last of a payload.
struct Wire {
    int bits;
    int64_t count, width, size;
    Exact<int64_t> payload_at, params_at;

    Wire(const int bits, const int64_t count, const int64_t width, Random& random)
        : bits(bits), count(count), width(width), size(8 * count + 1), payload_at(count), params_at(count) {
        std::vector<int64_t> order(static_cast<size_t>(count));
        std::iota(order.begin(), order.end(), 0);
        for (int64_t i = count - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
        for (int64_t i = 0; i < count; ++i) params_at[order[i]] = 4 * (2 * i + random.below(2));
        for (const int64_t i : order) {
            payload_at[i] = size += random.below(5);
            size += (width * bits + 7) / 8;
        }
    }
    const int64_t* params() const { return bits <= 8 ? params_at.data() : nullptr; }
    // Column c of row i, decoded.
    float decoded(const Exact<uint8_t>& buffer, const int64_t i, const int64_t c) const {
        const uint8_t* payload = buffer.data() + payload_at[i];
        uint32_t word = 0;
        if (bits > 8) {
            std::memcpy(&word, payload + bits / 8 * c, static_cast<size_t>(bits / 8));
            word <<= 32 - bits;
            float value;
            std::memcpy(&value, &word, sizeof value);
            return value;
        }
        uint16_t params[2];
        std::memcpy(params, buffer.data() + params_at[i], sizeof params);
        const Place place(c, width, bits);
        const unsigned code = (payload[place.byte] >> place.shift) & ((1U << bits) - 1);
        return from_bfloat16(params[0]) + static_cast<float>(code) * from_bfloat16(params[1]);
    }
};

// x: the matrix whose `rows` are encoded. key: of the noise, or null. Returns the message.
std::vector<uint8_t> test_encode(Isas& isas, const Wire& wire, const Exact<float>& x, const Exact<int64_t>& rows,
                                 const uint64_t* key) {
    std::vector<uint8_t> expected(static_cast<size_t>(wire.size), 0x5A);  // as Exact fills memory
    Floats troubled{0};
    for (int64_t i = 0; i < wire.count; ++i) {
        const float* row = x.data() + rows[i] * wire.width;
        troubled[0] += std::any_of(row, row + wire.width, [](const float v) { return !std::isfinite(v); });
        uint8_t* payload = expected.data() + wire.payload_at[i];
        if (wire.bits <= 8) {
            uint16_t params[2];
            encode_plainly(row, wire.width, wire.bits, key, rows[i], payload, params);
            std::memcpy(&expected[wire.params_at[i]], params, sizeof params);
        }
        for (int64_t c = 0; c < wire.width && wire.bits > 8; ++c) {
            const uint32_t word = wire.bits == 16 ? nearest_bfloat16(row[c]) : pattern_of(row[c]);
            std::memcpy(payload + wire.bits / 8 * c, &word, static_cast<size_t>(wire.bits / 8));
        }
    }
    const std::string what = text("encode_rows bits", wire.bits, "width", wire.width, "noise", key != nullptr);
    expect(isas, what, together(expected, troubled), [&](const Way& way) {
        Exact<uint8_t> out(wire.size);
        const int64_t not_finite = KERNEL(way, encode_rows)(
            wire.count, rows.data(), wire.width, wire.bits, key == nullptr, key == nullptr ? 0 : *key,
            wire.width == 0 ? nullptr : x.data(),  // as PyTorch gives it
            out.data(), wire.payload_at.data(), wire.params(), way.threads);
        return together(out, Floats{static_cast<float>(not_finite)});
    });
    return expected;
}

void test_decode(Isas& isas, const Wire& wire, const Exact<uint8_t>& buffer, const bool accumulate, Random& random) {
    const int64_t size = (wire.count + 9) * wire.width;
    Exact<int64_t> rows(wire.count);
    for (int64_t i = 0; i < wire.count; ++i) rows[i] = wire.count + 8 - i;  // all different
    const Floats before = random.numbers(size);
    Floats expected = before;
    float troubled = 0;
    for (int64_t i = 0; i < wire.count; ++i) {
        bool finite = true;
        for (int64_t c = 0; c < wire.width; ++c) {
            const float value = wire.decoded(buffer, i, c);
            finite = finite && std::isfinite(value);
            float& out = expected[rows[i] * wire.width + c];
            out = accumulate ? out + value : value;
        }
        troubled += !finite;
    }
    expected.push_back(troubled);
    const std::string what = text("decode_rows bits", wire.bits, "width", wire.width, "accumulate", accumulate);
    expect(isas, what, expected, [&](const Way& way) {
        Exact<float> out(before);
        const int64_t not_finite =
            KERNEL(way, decode_rows)(wire.count, rows.data(), wire.width, wire.bits, buffer.data(),
                                     wire.payload_at.data(), wire.params(), out.data(), accumulate, way.threads);
        return together(out, Floats{static_cast<float>(not_finite)});
    });
}

void test_spmm_rows(Isas& isas, const Graph& graph, const Wire& wire, const Exact<uint8_t>& buffer, const bool weighted,
                    Random& random) {
    const Exact<float> weight(random.numbers(weighted ? graph.entries() : 0));
    const Floats before = random.numbers(graph.rows * wire.width);
    Floats rows(static_cast<size_t>(graph.cols * wire.width)), expected = before;
    for (size_t i = 0; i < rows.size(); ++i)
        rows[i] = wire.decoded(buffer, static_cast<int64_t>(i) / wire.width, static_cast<int64_t>(i) % wire.width);
    for (int64_t i = 0; i < graph.rows * wire.width; ++i) {
        const auto add = [&](const float total, const int64_t e) {
            const float value = rows[graph.indices[e] * wire.width + i % wire.width];
            return total + (weighted ? value * weight[e] : value);
        };
        const int64_t row = i / wire.width;
        expected[i] = sum_of_row(graph.indptr[row], graph.indptr[row + 1], before[i], add);
    }
    const hpcgnn_tuning tuning{12 << 10, 512, 64, 0, 1};
    const hpcgnn_csr csr = graph.csr();
    const std::string what =
        text("spmm_rows entries", graph.entries(), "bits", wire.bits, "width", wire.width, "weighted", weighted);
    expect(isas, what, expected, [&](const Way& way) {
        Exact<float> out(before);
        KERNEL(way, spmm_rows)
        (&csr, weighted ? weight.data() : nullptr, buffer.data(), wire.payload_at.data(), wire.params(), wire.bits,
         wire.width, out.data(), &tuning, way.threads);
        return together(out);
    });
}

// graph: its columns are the rows of the message, or null.
void test_width(Isas& isas, const int bits, const int64_t count, const int64_t width, const Graph* graph,
                Random& random) {
    constexpr int64_t kRows = 30;
    const Exact<float> x(make_rows(kRows, width, random));
    const Exact<int64_t> rows(random.integers<int64_t>(count, 0, kRows));
    const Wire wire(bits, count, width, random);
    test_encode(isas, wire, x, rows, nullptr);
    const Exact<uint8_t> buffer(test_encode(isas, wire, x, rows, &kKey));
    for (int64_t i = 0; i < count * width && bits <= 8; ++i) {
        const float given = x[rows[i / width] * width + i % width], back = wire.decoded(buffer, i / width, i % width);
        uint16_t scale;
        std::memcpy(&scale, buffer.data() + wire.params_at[i / width] + 2, sizeof scale);
        const double most = from_bfloat16(scale) * 1.001 + 1e-6 * std::abs(given);
        check(!std::isfinite(back) || std::abs(given) > 1e30F || std::abs(static_cast<double>(back) - given) <= most,
              bits, "bits, width", width, ":", given, "became", back);
    }
    for (const bool flag : {false, true}) {
        test_decode(isas, wire, buffer, flag, random);
        if (graph != nullptr) test_spmm_rows(isas, *graph, wire, buffer, flag, random);
    }
}

// Encodes rows of codes as a message of 8 bits, and decodes them. Rows that are not named stay unchanged; the fourth
// received row has another form.
void test_codes(Isas& isas, const int64_t count, const int64_t width, Random& random) {
    const Wire wire(8, count, width, random);
    const int64_t all = count + 14;
    const Exact<int8_t> codes(random_codes(all * width, random));
    Exact<float> scale(all);
    Exact<int64_t> rows(count);
    for (int64_t r = 0; r < all; ++r) scale[r] = scale_for(r % 7 == 3 ? kNan : std::ldexp(std::abs(random.real()), 20));
    std::vector<uint8_t> sent(static_cast<size_t>(wire.size), 0x5A);
    Bytes back(static_cast<size_t>(all * width), 0x5A);
    Floats back_scale(static_cast<size_t>(all), 99), num_nan{0}, num_others{count > 3 ? 1.0F : 0};
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = rows[i] = all - 1 - i;
        const int8_t* own = codes.data() + row * width;
        std::copy_n(own, width, back.data() + row * width);
        std::transform(own, own + width, sent.data() + wire.payload_at[i],
                       [](const int8_t code) { return code + 128; });
        const uint16_t params[2] = {nearest_bfloat16(-128 * scale[row]), nearest_bfloat16(scale[row])};
        std::memcpy(&sent[wire.params_at[i]], params, sizeof params);
        back_scale[row] = scale[row];
        num_nan[0] += std::isnan(scale[row]);
    }
    expect(isas, text("encode_int8 rows", count, "width", width), together(sent, num_nan), [&](const Way& way) {
        Exact<uint8_t> buffer(wire.size);
        const int64_t trouble =
            KERNEL(way, encode_int8)(count, rows.data(), width, codes.data(), scale.data(), buffer.data(),
                                     wire.payload_at.data(), wire.params(), way.threads);
        return together(buffer, Floats{static_cast<float>(trouble)});
    });
    if (count > 3) sent[wire.params_at[3]] ^= 1;
    const Exact<uint8_t> received(sent);
    const Floats wanted = together(back, back_scale, num_others);
    expect(isas, text("decode_int8 rows", count, "width", width), wanted, [&](const Way& way) {
        Exact<int8_t> out(all * width);
        Exact<float> out_scale(Floats(static_cast<size_t>(all), 99));
        const int64_t others =
            KERNEL(way, decode_int8)(count, rows.data(), width, received.data(), wire.payload_at.data(), wire.params(),
                                     out.data(), out_scale.data(), way.threads);
        return together(out, out_scale, Floats{static_cast<float>(others)});
    });
}

}  // namespace

PART(messages) {
    constexpr int64_t kCount = 20;
    Random random(21);
    const Graph graph(random_lengths(40, random), kCount, random), none({0, 0}, 0, random);
    const Graph heavy({2, segment_entries + 1, 0, segment_entries, 2 * segment_entries + 5, 1}, kCount, random);
    for (const int bits : {1, 2, 4, 8, 16, 32}) {
        for (const int64_t width : {0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 40, 61, 63, 64, 100, 127, 128, 130, 256, 602}) {
            test_width(isas, bits, kCount, width, &graph, random);
            test_width(isas, bits, 1, width, nullptr, random);
        }
        test_width(isas, bits, 0, 40, &none, random);
        test_width(isas, bits, 0, 0, &none, random);
        for (const int64_t width : {3, 20}) test_width(isas, bits, kCount, width, &heavy, random);
    }
    for (const int64_t count : {0, 1, 27})
        for (const int64_t width : {0, 1, 33, 64, 100}) test_codes(isas, count, width, random);
}
