// Tools of every part of the test program: a check, the kernels of each instruction set, memory that ends where its
// values end, numbers and cases that are the same on every machine, and the comparison with plain loops.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "../../native/hpcgnn.h"
#include "../../native/keyed.h"

inline int num_failures = 0;

template <typename... Parts>
std::string text(const Parts&... parts) {
    std::ostringstream stream;
    ((stream << parts << " "), ...);
    return stream.str();
}

// Prints a message, unless the condition holds, and goes on; main() fails later.
template <typename... Parts>
void check(const bool condition, const Parts&... message) {
    if (condition) return;
    std::cerr << text(message...) << "\n";
    if (++num_failures < 20) return;
    std::cerr << "too many failures\n";
    std::exit(1);
}

inline void require(const bool condition, const std::string& sentence) {
    if (condition) return;
    std::cerr << "test_kernels: " << sentence << "\n";
    std::exit(2);
}

inline std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

inline const bool kEverything = variable("HPCGNN_TESTS") == "all";  // more cases of each kind

// -- kernels ---------------------------------------------------------------------------------------------------------

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
using Isas = std::vector<Isa>;

// A way to run a kernel. suffix: "_dot" for one that uses instructions which not all CPUs of the instruction set have.
struct Way {
    const Isa& isa;
    int threads;
    std::string suffix;
};

inline std::set<std::string> kernels_run;

template <typename Function>
Function* kernel(const Way& way, const std::string& name) {
    kernels_run.insert(name + way.suffix);
    return symbol<Function>(way.isa.library, "hpcgnn_" + way.isa.name + "_" + name + way.suffix);
}

// KERNEL(way, encode_rows) is the kernel of a name, of the type that hpcgnn.h declares.
#define KERNEL_TYPE(name) decltype(HPCGNN_PASTE(hpcgnn_, HPCGNN_ISA, _, name))
#define KERNEL(way, name) kernel<KERNEL_TYPE(name)>(way, #name)
// The kernel for a type of 4 bytes, or the one for a type of 8.
#define KERNEL_FOR(T, way, four, eight)                                                    \
    kernel<std::conditional_t<sizeof(T) == 4, KERNEL_TYPE(four), KERNEL_TYPE(eight)>>(way, \
                                                                                      sizeof(T) == 4 ? #four : #eight)

// Checks that the kernel which ran last belongs to the instruction set.
inline void check_isa(const Way& way) {
    const std::string last = symbol<const char*()>(way.isa.library, "hpcgnn_last_isa")();
    check(last == way.isa.name, last, "ran instead of", way.isa.name);
}

// -- memory ----------------------------------------------------------------------------------------------------------

extern "C" void __asan_init() __attribute__((weak));

// `count` values with nothing behind them, which are no results of a kernel at first. AddressSanitizer guards both ends
// of memory from malloc; without it the values end at the end of a page that no other follows, which also stops the
// masked instructions that AddressSanitizer does not look at.
template <typename T>
class Exact {
public:
    explicit Exact(const int64_t count) : count_(count) {
        const size_t bytes = static_cast<size_t>(count) * sizeof(T);
        if (__asan_init != nullptr) {
            require(posix_memalign(&memory_, 64, bytes) == 0, "out of memory");
            data_ = static_cast<T*>(memory_);
        } else {
            const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
            mapped_ = (bytes + page - 1) / page * page + page;
            memory_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            char* guard = static_cast<char*>(memory_) + mapped_ - page;
            require(memory_ != MAP_FAILED && mprotect(guard, page, PROT_NONE) == 0, "out of memory");
            data_ = reinterpret_cast<T*>(guard - bytes);
        }
        std::memset(static_cast<void*>(data_), 0x5A, bytes);  // so that a gap shows
    }
    explicit Exact(const std::vector<T>& values) : Exact(static_cast<int64_t>(values.size())) {
        std::copy(values.begin(), values.end(), data_);
    }
    Exact(const Exact&) = delete;
    Exact& operator=(const Exact&) = delete;
    ~Exact() {
        if (mapped_ == 0) {
            std::free(memory_);
        } else {
            munmap(memory_, mapped_);
        }
    }

    T* data() { return data_; }
    const T* data() const { return data_; }
    int64_t size() const { return count_; }
    T& operator[](const int64_t i) { return data_[i]; }
    const T& operator[](const int64_t i) const { return data_[i]; }

private:
    int64_t count_;
    T* data_;
    void* memory_ = nullptr;
    size_t mapped_ = 0;
};

using Floats = std::vector<float>;

// All values of some arrays, one after the other.
template <typename T = float, typename... Parts>
std::vector<T> together(const Parts&... parts) {
    std::vector<T> all;
    (all.insert(all.end(), parts.data(), parts.data() + parts.size()), ...);
    return all;
}

// -- numbers and cases -----------------------------------------------------------------------------------------------

inline uint32_t pattern_of(const float value) {
    uint32_t pattern;
    std::memcpy(&pattern, &value, sizeof pattern);
    return pattern;
}

// Numbers that depend on the seed alone, in any language library.
class Random {
public:
    explicit Random(const uint64_t seed) : state_(seed) {}

    uint64_t bits() { return mix64(state_ += 0x9E3779B97F4A7C15ULL); }
    int64_t below(const int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }
    float real() { return static_cast<float>(static_cast<int32_t>(bits() >> 40) - (1 << 23)) / (1 << 22); }  // [-2, 2)

    template <typename T>
    T number() {
        const float value = real();
        if constexpr (std::is_same_v<T, float>) return value;
        if constexpr (std::is_same_v<T, double>) return value + static_cast<double>(real()) / (1 << 24);
        if constexpr (std::is_same_v<T, hpcgnn_bfloat16>) return {static_cast<uint16_t>(pattern_of(value) >> 16)};
        if constexpr (std::is_integral_v<T>) return static_cast<T>(bits());
    }
    template <typename T = float>
    std::vector<T> numbers(const int64_t count) {
        std::vector<T> values(static_cast<size_t>(count));
        for (T& value : values) value = number<T>();
        return values;
    }
    // Integers from `first` up to, and without, `bound`.
    template <typename T>
    std::vector<T> integers(const int64_t count, const int64_t first, const int64_t bound) {
        std::vector<T> values(static_cast<size_t>(count));
        for (T& value : values) value = static_cast<T>(first + below(bound - first));
        return values;
    }

private:
    uint64_t state_;
};

// Cases for a test: `while (cases.next())` takes a value of each factor by one_of(...), always in the same order. All
// values of a factor are taken, in an order by chance, before one is taken again. There are `count` cases, or many more
// if everything is to be tested.
class Cases {
public:
    Cases(const int64_t count, const uint64_t seed) : random(seed), left_(kEverything ? 12 * count : count) {}

    bool next() {
        factor_ = 0;
        return left_-- > 0;
    }
    template <typename T>
    T one_of(const std::vector<T>& values) {
        if (factor_ == decks_.size()) decks_.emplace_back();
        std::vector<size_t>& deck = decks_[factor_++];
        if (deck.empty()) {
            deck.resize(values.size());
            std::iota(deck.begin(), deck.end(), 0);
        }
        std::swap(deck[static_cast<size_t>(random.below(static_cast<int64_t>(deck.size())))], deck.back());
        const size_t taken = deck.back();
        deck.pop_back();
        return values[taken];
    }
    bool flag() { return one_of<int>({0, 1}) != 0; }

    Random random;

private:
    int64_t left_;
    size_t factor_ = 0;
    std::vector<std::vector<size_t>> decks_;
};

// -- comparisons -----------------------------------------------------------------------------------------------------

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

// Compares the bits of results, and adds them to a digest.
template <typename T>
void compare(const Way& way, const std::string& what, const std::vector<T>& found, const std::vector<T>& expected,
             uint64_t& digest) {
    size_t at = found.size();
    for (size_t i = 0; i < found.size(); ++i) {
        const uint64_t bits = canonical(found[i]);
        digest = (digest ^ bits) * 0x9E3779B97F4A7C15ULL;
        digest ^= digest >> 29;
        if (at == found.size() && (i >= expected.size() || bits != canonical(expected[i]))) at = i;
    }
    if (at == found.size() && found.size() == expected.size()) return;
    check(false, way.isa.name + way.suffix, "on", way.threads, "threads:", what, "at", at, "of", found.size(), "is",
          at < found.size() ? +found[at] : T(), "not", at < expected.size() ? +expected[at] : T());
}

// Runs run(way), which returns all values that a kernel wrote, for each instruction set, on one thread and on several.
// The bits must be those of `expected`. has_dot: there is a kernel *_dot, too, if the CPU has the instructions; as not
// all CPUs have them, its results, which are the same, are not part of a digest.
template <typename T, typename Run>
void expect(Isas& isas, const std::string& what, const std::vector<T>& expected, const Run& run,
            const bool has_dot = false) {
    const int several = mix64(static_cast<uint64_t>(isas[0].results)) % 2 == 0 ? 2 : 3;
    for (const int threads : kEverything ? std::vector<int>{1, 2, 3} : std::vector<int>{1, several}) {
        for (Isa& isa : isas) {  // innermost, so that another one ran before
            const Way way{isa, threads, ""}, dot{isa, threads, "_dot"};
            compare<T>(way, what, run(way), expected, isa.digest);
            check_isa(way);
            uint64_t unused = 0;
            if (!has_dot || !symbol<int(const char*)>(isa.library, "hpcgnn_has_dot_products")(isa.name.c_str()))
                continue;
            compare<T>(dot, what, run(dot), expected, unused);
            check_isa(dot);
        }
    }
    for (Isa& isa : isas) isa.results += 1;
}

// -- the parts of the program ----------------------------------------------------------------------------------------

struct Part {
    const char* name;
    void (*test)(Isas& isas);
};

inline std::vector<Part> parts;

// PART(rows) { ... } tests the kernels of native/rows.h, for `isas`.
#define PART(name)                                                                      \
    static void part_##name(Isas& isas);                                                \
    static const bool name##_is_listed = (parts.push_back({#name, part_##name}), true); \
    static void part_##name(Isas& isas)
