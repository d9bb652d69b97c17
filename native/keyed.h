// Random bits that are a function of a key, a row and a counter; hpcgnn/kernels/keyed.py has the same in numpy.
#pragma once

#include <cstdint>

namespace {

inline uint64_t mix64(uint64_t v) {  // splitmix64's finaliser
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ULL;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBULL;
    return v ^ (v >> 31);
}

template <typename U>  // uint32_t, or a vector of them
inline U mix32(U v) {  // lowbias32
    v = (v ^ (v >> 16)) * 0x7FEB352DU;
    v = (v ^ (v >> 15)) * 0x846CA68BU;
    return v ^ (v >> 16);
}

// The 64-bit hash of a row's number, such as an original node id, under a key.
inline uint64_t row_hash(const uint64_t key, const int64_t row) {
    return mix64(key ^ mix64(static_cast<uint64_t>(row) + 0x9E3779B97F4A7C15ULL));
}

// The 32-bit draw for one counter of a row, from the halves of its hash. Any two draws are independent over the keys,
// as rounding and dropout require. Mixing twice would add a third to the time of quantize.
inline uint32_t draw32(const uint32_t low, const uint32_t high, const uint32_t counter) {
    return mix32(low + counter * 0x9E3779B9U) ^ high;
}

}  // namespace
