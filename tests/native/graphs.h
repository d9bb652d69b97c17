// Sparse matrices to try kernels on, in memory of exactly their size.
#pragma once

#include "check.h"

struct Graph {
    int64_t rows, cols;
    Exact<int64_t> indptr;
    Exact<int32_t> indices;
    Exact<int64_t> heavy;

    int64_t entries() const { return indices.size(); }
    hpcgnn_csr csr() const { return {rows, indptr.data(), indices.data(), heavy.data(), heavy.size(), nullptr, 0}; }
};

inline Graph make_graph(const std::vector<int64_t>& lengths, const int64_t cols, const int64_t segment,
                        Random& random) {
    std::vector<int64_t> indptr{0}, heavy;
    for (const int64_t length : lengths) {
        if (length > segment) heavy.push_back(static_cast<int64_t>(indptr.size()) - 1);
        indptr.push_back(indptr.back() + length);
    }
    std::vector<int32_t> indices(static_cast<size_t>(indptr.back()));
    for (int32_t& index : indices) index = static_cast<int32_t>(random.below(cols));
    return {static_cast<int64_t>(lengths.size()), cols, Exact(indptr), Exact(indices), Exact(heavy)};
}

inline std::vector<int64_t> random_lengths(const int64_t rows, Random& random) {
    std::vector<int64_t> lengths;
    for (int64_t r = 0; r < rows; ++r) lengths.push_back(random.below(3) == 0 ? 0 : random.below(12));
    return lengths;
}
