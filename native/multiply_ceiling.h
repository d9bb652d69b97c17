// The machine's limit of multiply-adds: the operands stay in registers.
#pragma once

#include "dense_tile.h"
#include "hpcgnn.h"
#include "simd.h"

namespace {

// Makes the compiler assume that a register may have changed, so that it moves no product out of a loop.
template <typename V>
inline __attribute__((always_inline)) void forget(V& value) {
#if defined(__AVX512F__)
    __asm__ volatile("" : "+v"(value));
#elif defined(__x86_64__) && HPCGNN_VECTOR_BYTES > 4
    __asm__ volatile("" : "+x"(value));
#elif defined(__aarch64__) && HPCGNN_VECTOR_BYTES > 4
    __asm__ volatile("" : "+w"(value));
#else
    __asm__ volatile("" : "+m"(value));
#endif
}

// As many sums as a product's tile has, so that no addition waits for the one before. add(a, b, sum): adds `each`
// products.
template <typename Operand, typename Sum, typename Add>
double multiply_ceiling(const int64_t rounds, const int threads, const int each, const Add add) {
    constexpr int kSums = kTileRows * kTileVectors;
#pragma omp parallel num_threads(threads)
    {
        Operand a{}, b{};
        Sum sum[kSums] = {};
        for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 32
            for (int k = 0; k < kSums; ++k) {
                forget(a);
                forget(b);
                sum[k] = add(a, b, sum[k]);
            }
        }
#pragma GCC unroll 32
        for (int k = 0; k < kSums; ++k) forget(sum[k]);
    }
    return static_cast<double>(rounds) * threads * kSums * each;
}

}  // namespace
