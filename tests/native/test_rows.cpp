// Gathering and scattering of whole rows, and the sorting of an index.

#include <algorithm>
#include <numeric>

#include "check.h"

namespace {

// The type of a kernel for this type of index.
#define KERNEL_TYPE_FOR(Index, name) \
    std::conditional_t<sizeof(Index) == 4, KERNEL_TYPE(name##_i32), KERNEL_TYPE(name##_i64)>

template <typename Index>
void test_gather(std::vector<Isa>& isas, const std::string& name, const int64_t row_bytes, const int64_t count,
                 Random& random) {
    constexpr int64_t kRows = 13;
    Exact<uint8_t> x(kRows * row_bytes);
    Exact<Index> index(count);
    for (int64_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(random.bits());
    for (int64_t k = 0; k < count; ++k) index[k] = static_cast<Index>(random.below(kRows + 2) - 2);
    std::vector<uint8_t> expected(static_cast<size_t>(count * row_bytes));
    for (int64_t i = 0; i < count * row_bytes; ++i) {
        const int64_t row = index[i / row_bytes];
        expected[i] = row < 0 ? uint8_t{0} : x[row * row_bytes + i % row_bytes];
    }
    const std::vector<uint8_t> found =
        same_everywhere<uint8_t>(isas, count * row_bytes, name, [&](const size_t k, uint8_t* out, const int threads) {
            Kernel<KERNEL_TYPE_FOR(Index, gather_rows)>(isas[k], name)(x.data(), row_bytes, index.data(), count, out,
                                                                       threads);
        });
    CHECK(found == expected, name << " row_bytes " << row_bytes << " count " << count);
}

template <typename Index>
void test_cluster(std::vector<Isa>& isas, const std::string& name, const int64_t count, const int64_t rows,
                  const bool sorted, Random& random) {
    Exact<Index> index(count);
    for (int64_t k = 0; k < count; ++k) index[k] = static_cast<Index>(random.below(rows));
    if (sorted) std::sort(index.data(), index.data() + count);
    std::vector<int32_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](const int32_t a, const int32_t b) { return index[a] < index[b]; });
    std::vector<int64_t> indptr(static_cast<size_t>(rows) + 1);
    for (int64_t k = 0; k < count; ++k) ++indptr[index[k] + 1];
    std::partial_sum(indptr.begin(), indptr.end(), indptr.begin());

    const auto cluster = [&](const size_t k, int64_t* starts, int32_t* places, const int threads) {
        Kernel<KERNEL_TYPE_FOR(Index, cluster)>(isas[k], name)(index.data(), count, rows, starts, places, threads);
    };
    Exact<int32_t> other_order(count);
    Exact<int64_t> other_indptr(rows + 1);
    const auto starts = same_everywhere<int64_t>(
        isas, rows + 1, name,
        [&](const size_t k, int64_t* out, const int threads) { cluster(k, out, other_order.data(), threads); });
    const auto places = same_everywhere<int32_t>(
        isas, count, name,
        [&](const size_t k, int32_t* out, const int threads) { cluster(k, other_indptr.data(), out, threads); });
    CHECK(starts == indptr, name << " count " << count << " rows " << rows << " sorted " << sorted);
    CHECK(places == order, name << " count " << count << " rows " << rows << " sorted " << sorted);
}

template <typename Index>
void test_index_type(std::vector<Isa>& isas, const std::string& suffix) {
    Random random(5);
    for (const int64_t row_bytes : {0, 1, 2, 3, 4, 8, 12, 64, 400, 2408}) {
        for (const int64_t count : {0, 1, 50})
            test_gather<Index>(isas, "gather_rows" + suffix, row_bytes, count, random);
    }
    for (const int64_t rows : {1, 2, 30, 5000}) {
        for (const int64_t count : {0, 1, 3, 2000}) {
            for (const bool sorted : {false, true})
                test_cluster<Index>(isas, "cluster" + suffix, count, rows, sorted, random);
        }
    }
}

}  // namespace

void test_rows(std::vector<Isa>& isas) {
    test_index_type<int32_t>(isas, "_i32");
    test_index_type<int64_t>(isas, "_i64");
}
