// Gathering and scattering of whole rows, and the sorting of an index; conversion to bfloat16 and back; and the
// ceilings of gathering and multiplying, whose results are the same in any order.

#include "plainly.h"

namespace {

template <typename Index>
void test_gather(Isas& isas, const int64_t row_bytes, const int64_t count, Random& random) {
    constexpr int64_t kRows = 13;
    const Exact<uint8_t> x(random.numbers<uint8_t>(kRows * row_bytes));
    const Exact<Index> index(random.integers<Index>(count, -2, kRows));
    std::vector<uint8_t> expected(static_cast<size_t>(count * row_bytes));
    for (int64_t i = 0; i < count * row_bytes; ++i) {
        const int64_t row = index[i / row_bytes];
        expected[i] = row < 0 ? uint8_t{0} : x[row * row_bytes + i % row_bytes];
    }
    expect(isas, text("gather_rows row_bytes", row_bytes, "count", count), expected, [&](const Way& way) {
        Exact<uint8_t> out(count * row_bytes);
        KERNEL_FOR(Index, way, gather_rows_i32, gather_rows_i64)
        (x.data(), row_bytes, index.data(), count, out.data(), way.threads);
        return together<uint8_t>(out);
    });
}

template <typename Index>
void test_cluster(Isas& isas, const int64_t count, const int64_t rows, const bool sorted, Random& random) {
    Exact<Index> index(random.integers<Index>(count, 0, rows));
    if (sorted) std::sort(index.data(), index.data() + count);
    std::vector<int64_t> order(static_cast<size_t>(count)), indptr(static_cast<size_t>(rows) + 1);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](const int64_t a, const int64_t b) { return index[a] < index[b]; });
    for (int64_t k = 0; k < count; ++k) ++indptr[index[k] + 1];
    std::partial_sum(indptr.begin(), indptr.end(), indptr.begin());
    const std::string what = text("cluster count", count, "rows", rows, "sorted", sorted);
    expect(isas, what, together<int64_t>(indptr, order), [&](const Way& way) {
        Exact<int64_t> starts(rows + 1);
        Exact<int32_t> places(count);
        KERNEL_FOR(Index, way, cluster_i32, cluster_i64)
        (index.data(), count, rows, starts.data(), places.data(), way.threads);
        return together<int64_t>(starts, places);
    });
}

template <typename Index>
void test_index_type(Isas& isas) {
    Random random(5);
    for (const int64_t row_bytes : {0, 1, 2, 3, 4, 8, 12, 64, 400, 2408})
        for (const int64_t count : {0, 1, 50}) test_gather<Index>(isas, row_bytes, count, random);
    for (const int64_t rows : {1, 2, 30, 5000}) {
        for (const int64_t count : {0, 1, 3, 2000})
            for (const bool sorted : {false, true}) test_cluster<Index>(isas, count, rows, sorted, random);
    }
}

void test_bfloat16(Isas& isas, const int64_t count, Random& random) {
    Exact<float> x(count);
    std::vector<uint32_t> expected(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits = static_cast<uint32_t>(random.bits());
        if (i % 7 == 0) bits = (bits & 0xFFFF0000U) | 0x8000U;  // a tie
        if (i % 11 == 0) bits |= 0x7F800000U;                   // NaN or infinity
        std::memcpy(&x[i], &bits, sizeof bits);
        expected[i] = nearest_bfloat16(x[i]);
    }
    Exact<hpcgnn_bfloat16> packed(count);
    for (int64_t i = 0; i < count; ++i) packed[i].bits = static_cast<uint16_t>(expected[i]);
    expect(isas, text("pack_bf16 count", count), expected, [&](const Way& way) {
        Exact<uint16_t> out(count);
        KERNEL(way, pack_bf16)(1, count, x.data(), nullptr, reinterpret_cast<hpcgnn_bfloat16*>(out.data()),
                               way.threads);
        return together<uint32_t>(out);
    });
    Exact<float> factor(count);
    std::vector<uint32_t> scaled(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        factor[i] = static_cast<float>(i % 5) - 1.5F;
        scaled[i] = nearest_bfloat16(x[i] * factor[i]);
    }
    expect(isas, text("pack_bf16 with factors, count", count), scaled, [&](const Way& way) {
        Exact<uint16_t> out(count);
        auto* to = reinterpret_cast<hpcgnn_bfloat16*>(out.data());
        KERNEL(way, pack_bf16)(count, 1, x.data(), factor.data(), to, way.threads);
        return together<uint32_t>(out);
    });
    for (uint32_t& bits : expected) bits <<= 16;
    expect(isas, text("unpack_bf16 count", count), expected, [&](const Way& way) {
        Exact<uint32_t> out(count);
        KERNEL(way, unpack_bf16)(count, packed.data(), reinterpret_cast<float*>(out.data()), way.threads);
        return together<uint32_t>(out);
    });
}

// Sums of small integers. No column beyond the last whole register is read, so the widths are whole numbers of
// registers in every instruction set.
void test_gather_ceiling(Isas& isas, const int64_t width, const int64_t entries, const int64_t ahead, Random& random) {
    constexpr int64_t kRows = 23;
    const Exact<float> x(random.integers<float>(kRows * width, -2, 3));
    const Exact<int32_t> indices(random.integers<int32_t>(entries, 0, kRows));
    std::vector<double> expected(1);
    for (int64_t i = 0; i < entries * width; ++i) expected[0] += x[indices[i / width] * width + i % width];
    expect(isas, text("gather_ceiling width", width, "entries", entries, "ahead", ahead), expected,
           [&](const Way& way) {
               const auto run = KERNEL(way, gather_ceiling_f32);
               return std::vector<double>{run(entries, indices.data(), x.data(), width, ahead, way.threads)};
           });
}

}  // namespace

PART(rows) {
    test_index_type<int32_t>(isas);
    test_index_type<int64_t>(isas);
}

PART(narrow) {
    Random random(9);
    for (const int64_t count : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 602, 1312, 24682})
        test_bfloat16(isas, count, random);
}

PART(ceiling) {
    Random random(17);
    for (const int64_t width : {16, 32, 48, 256, 272, 640}) {
        for (const int64_t ahead : {0, 8}) {
            for (const int64_t entries : {0, 1, 100}) test_gather_ceiling(isas, width, entries, ahead, random);
        }
    }
    test_gather_ceiling(isas, 16, 5000, 8, random);  // several chunks
    // The ceilings of multiplications: the kernels return the number of products that they computed.
    const auto run = [](const Way& way) {
        const auto floats = KERNEL((Way{way.isa, way.threads, ""}), multiply_ceiling_f32);
        const auto bytes = KERNEL(way, multiply_ceiling_int8);
        return std::vector<double>{floats(50, 3) / floats(1, 1), bytes(50, 3) / bytes(1, 1)};
    };
    expect(isas, "multiply_ceiling", std::vector<double>(2, 150), run, true);
}
