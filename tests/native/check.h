// Tools of every part of the test program: a check, the kernels of each instruction set, memory that ends where its
// values end, and random numbers that are the same on every machine.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "../../native/hpcgnn.h"
#include "../../native/keyed.h"

// Prints a failed condition and the values in `message` (an expression for a stream), and goes on; main() fails later.
#define CHECK(condition, message)                                                            \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            std::ostringstream text;                                                         \
            text << __FILE__ << ":" << __LINE__ << ": " #condition " is false: " << message; \
            failed(text.str());                                                              \
        }                                                                                    \
    } while (false)

inline int num_failures = 0;

inline void failed(const std::string& text) {
    std::cerr << text << "\n";
    if (++num_failures == 20) {
        std::cerr << "too many failures\n";
        std::exit(1);
    }
}

inline void require(const bool condition, const std::string& sentence) {
    if (condition) return;
    std::cerr << "test_kernels: " << sentence << "\n";
    std::exit(2);
}

template <typename Function>
Function* symbol(void* library, const std::string& name) {
    void* found = dlsym(library, name.c_str());
    require(found != nullptr, "the library has no " + name);
    return reinterpret_cast<Function*>(found);
}

// One instruction set of the library, and a digest of its results.
struct Isa {
    void* library;
    std::string name;
    uint64_t digest = 0;  // of all results since the last report
    int64_t results = 0;
};

// A kernel of one instruction set, of the type that hpcgnn.h declares; calling it also checks that this one ran, and
// not another. KERNEL(isas[k], encode_rows)(...) calls one by its name.
template <typename Function>
class Kernel;

template <typename Result, typename... Arguments>
class Kernel<Result(Arguments...)> {
public:
    Kernel(const Isa& isa, const std::string& name)
        : isa_(isa.name),
          run_(symbol<Result(Arguments...)>(isa.library, "hpcgnn_" + isa.name + "_" + name)),
          last_isa_(symbol<const char*()>(isa.library, "hpcgnn_last_isa")) {}

    Result operator()(Arguments... arguments) const {
        if constexpr (std::is_void_v<Result>) {
            run_(arguments...);
            check();
        } else {
            const Result result = run_(arguments...);
            check();
            return result;
        }
    }

private:
    void check() const { CHECK(last_isa_() == isa_, last_isa_() << " ran instead of " << isa_); }

    std::string isa_;
    Result (*run_)(Arguments...);
    const char* (*last_isa_)();
};

#define KERNEL_TYPE(name) decltype(HPCGNN_PASTE(hpcgnn_, HPCGNN_ISA, _, name))
#define KERNEL(isa, name) Kernel<KERNEL_TYPE(name)>(isa, #name)
// The type of a kernel that has one for floats and one for doubles.
#define KERNEL_TYPE_OF(T, name) std::conditional_t<sizeof(T) == 4, KERNEL_TYPE(name##_f32), KERNEL_TYPE(name##_f64)>

// `count` values with nothing behind them. AddressSanitizer guards both ends; without it the values end at the end of a
// page that no other follows, which also stops the masked instructions that AddressSanitizer does not look at.
template <typename T>
class Exact {
public:
    explicit Exact(const int64_t count) : count_(count) {
        const size_t bytes = static_cast<size_t>(count) * sizeof(T);
#if defined(__SANITIZE_ADDRESS__)
        void* memory = nullptr;
        require(posix_memalign(&memory, 64, bytes) == 0, "out of memory");
        data_ = static_cast<T*>(memory);
#else
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        mapped_ = (bytes + page - 1) / page * page + page;
        mapping_ =
            static_cast<char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        require(mapping_ != MAP_FAILED && mprotect(mapping_ + mapped_ - page, page, PROT_NONE) == 0, "out of memory");
        data_ = reinterpret_cast<T*>(mapping_ + mapped_ - page - bytes);
#endif
    }
    explicit Exact(const std::vector<T>& values) : Exact(static_cast<int64_t>(values.size())) {
        std::copy(values.begin(), values.end(), data_);
    }
    Exact(const Exact&) = delete;
    Exact& operator=(const Exact&) = delete;
    ~Exact() {
#if defined(__SANITIZE_ADDRESS__)
        std::free(data_);
#else
        munmap(mapping_, mapped_);
#endif
    }

    T* data() { return data_; }
    const T* data() const { return data_; }
    int64_t size() const { return count_; }
    T& operator[](const int64_t i) { return data_[i]; }
    const T& operator[](const int64_t i) const { return data_[i]; }

private:
    int64_t count_;
    T* data_;
#if !defined(__SANITIZE_ADDRESS__)
    char* mapping_;
    size_t mapped_;
#endif
};

// Numbers that depend on the seed alone, in any language library.
class Random {
public:
    explicit Random(const uint64_t seed) : state_(seed) {}

    uint64_t bits() { return mix64(state_ += 0x9E3779B97F4A7C15ULL); }
    int64_t below(const int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }
    float real() { return static_cast<float>(static_cast<int32_t>(bits() >> 40) - (1 << 23)) / (1 << 22); }  // [-2, 2)

private:
    uint64_t state_;
};

// The bits of a result, with the same bits for every NaN, because sign and payload of a NaN depend on the machine.
template <typename T>
uint64_t canonical(const T value) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(value)) return ~uint64_t{0};
    }
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
}

// Adds `result` to the digest of `isa`; returns the first position where it differs from `expected` in a bit, or -1.
template <typename T>
int64_t first_difference(Isa& isa, const Exact<T>& result, const std::vector<T>& expected) {
    int64_t position = -1;
    uint64_t digest = isa.digest;
    for (int64_t i = 0; i < result.size(); ++i) {
        const uint64_t bits = canonical(result[i]);
        digest = (digest ^ bits) * 0x9E3779B97F4A7C15ULL;
        digest ^= digest >> 29;
        if (position < 0 && bits != canonical(expected[i])) position = i;
    }
    isa.digest = digest;
    isa.results += 1;
    return position;
}

// Runs `compute(k, out, threads)`, with the kernel of isas[k], for all of them and several numbers of threads. The bits
// of `out`, `size` values, must always be the same; returns them.
template <typename T, typename Compute>
std::vector<T> same_everywhere(std::vector<Isa>& isas, const int64_t size, const std::string& what,
                               const Compute& compute) {
    std::vector<T> first;
    for (const int threads : {1, 2, 3}) {
        for (size_t k = 0; k < isas.size(); ++k) {
            Exact<T> out(size);
            std::memset(out.data(), 0x5A, static_cast<size_t>(size) * sizeof(T));  // so that a gap shows
            compute(k, out.data(), threads);
            if (threads == 1 && k == 0) first.assign(out.data(), out.data() + size);
            const int64_t at = first_difference(isas[k], out, first);
            CHECK(at < 0, isas[k].name << " " << what << " threads " << threads << " differs at " << at);
        }
    }
    return first;
}

// The parts of the program: one for each header of native/.
void test_spmm(std::vector<Isa>& isas);
void test_dense(std::vector<Isa>& isas);
void test_activation(std::vector<Isa>& isas);
void test_dropout(std::vector<Isa>& isas);
void test_edges(std::vector<Isa>& isas);
void test_ceiling(std::vector<Isa>& isas);
void test_rows(std::vector<Isa>& isas);
void test_narrow(std::vector<Isa>& isas);
void test_quantize(std::vector<Isa>& isas);
void test_int8(std::vector<Isa>& isas);
void test_messages(std::vector<Isa>& isas);
