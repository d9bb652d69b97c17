// Dropout whose mask is a function of (key, original node id, column): the same for any number of ranks and threads.
// hpcgnn/kernels/keyed.py holds the same function in numpy; the two must agree bit for bit.

#include "hpcgnn.h"

namespace {

inline uint64_t mix64(uint64_t v) {  // splitmix64's finaliser
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ULL;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBULL;
    return v ^ (v >> 31);
}

inline uint32_t mix32(uint32_t v) {  // lowbias32
    v = (v ^ (v >> 16)) * 0x7FEB352DU;
    v = (v ^ (v >> 15)) * 0x846CA68BU;
    return v ^ (v >> 16);
}

template <typename T>
void dropout(const int64_t rows, const int64_t width, const int64_t* ids, const uint64_t key, const uint32_t threshold,
             const T scale, const T* x, T* out, const int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) {
        const uint64_t hash = mix64(key ^ mix64(static_cast<uint64_t>(ids[r]) + 0x9E3779B97F4A7C15ULL));
        const uint32_t low = static_cast<uint32_t>(hash), high = static_cast<uint32_t>(hash >> 32);
        const T* from = x + r * width;
        T* to = out + r * width;
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) {
            const uint32_t draw = mix32(mix32(low + static_cast<uint32_t>(c) * 0x9E3779B9U) ^ high);
            to[c] = draw >= threshold ? from[c] * scale : T(0);
        }
    }
}

}  // namespace

void hpcgnn_dropout_f32(int64_t rows, int64_t width, const int64_t* ids, uint64_t key, uint32_t threshold, float scale,
                        const float* x, float* out, int threads) {
    dropout(rows, width, ids, key, threshold, scale, x, out, threads);
}

void hpcgnn_dropout_f64(int64_t rows, int64_t width, const int64_t* ids, uint64_t key, uint32_t threshold, double scale,
                        const double* x, double* out, int threads) {
    dropout(rows, width, ids, key, threshold, scale, x, out, threads);
}
