// The instruction sets that were compiled in, and those of them that this CPU can run. build.py defines
// HPCGNN_COMPILED, their names, and HPCGNN_HAS_BF16 and HPCGNN_HAS_DOT_... for kernels that need more instructions.

#include <atomic>
#include <string>
#include <vector>

#include "hpcgnn.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#ifndef HWCAP_SVE
#define HWCAP_SVE (1UL << 22)
#endif
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1UL << 20)
#endif
#ifndef PR_SVE_GET_VL
#define PR_SVE_GET_VL 51
#endif
#endif

namespace {

std::atomic<const char*> last_isa{""};

#if defined(__x86_64__)
std::vector<std::string> supported() {
    std::vector<std::string> names{"scalar"};
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma"))
        names.push_back("avx2");
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        names.push_back("avx512");
    return names;
}
#elif defined(__aarch64__)
// SVE code is compiled for each vector length separately, so that registers of a known size hold tiles of a known size.
std::vector<std::string> supported() {
    std::vector<std::string> names{"scalar", "neon"};
    if (getauxval(AT_HWCAP) & HWCAP_SVE) names.push_back("sve" + std::to_string(8 * (prctl(PR_SVE_GET_VL) & 0xffff)));
    return names;
}
#else
std::vector<std::string> supported() {
    return {"scalar"};
}
#endif

std::string usable() {
    const std::string compiled = " " HPCGNN_COMPILED " ";
    std::string names;
    for (const std::string& name : supported())
        if (compiled.find(" " + name + " ") != std::string::npos) names += (names.empty() ? "" : " ") + name;
    return names;
}

}  // namespace

int64_t hpcgnn_struct_bytes(const char* name) {
    const std::string known = name;
    const size_t bytes = known == "hpcgnn_csr"          ? sizeof(hpcgnn_csr)
                         : known == "hpcgnn_tuning"     ? sizeof(hpcgnn_tuning)
                         : known == "hpcgnn_activation" ? sizeof(hpcgnn_activation)
                                                        : 0;
    return static_cast<int64_t>(bytes);
}

const char* hpcgnn_isas() {
    static const std::string names = usable();
    return names.c_str();
}

int hpcgnn_multiplies_bf16() {
#if defined(HPCGNN_HAS_BF16)
    __builtin_cpu_init();
    return usable().find("avx512") != std::string::npos && __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

int hpcgnn_has_dot_products(const char* isa) {
    const std::string name = isa;
    if ((" " + usable() + " ").find(" " + name + " ") == std::string::npos) return 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
#if defined(HPCGNN_HAS_DOT_avx2)
    if (name == "avx2") return __builtin_cpu_supports("avxvnni") != 0;
#endif
#if defined(HPCGNN_HAS_DOT_avx512)
    if (name == "avx512") return __builtin_cpu_supports("avx512vnni") != 0;
#endif
#if defined(HPCGNN_HAS_DOT_neon)
    if (name == "neon") return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
#if defined(HPCGNN_HAS_DOT_sve)
    if (name.rfind("sve", 0) == 0) return 1;  // SVE has SDOT
#endif
    return 0;
}

const char* hpcgnn_last_isa() {
    return last_isa.load(std::memory_order_relaxed);
}

void hpcgnn_ran(const char* isa) {
    last_isa.store(isa, std::memory_order_relaxed);
}

int64_t hpcgnn_segment_entries() {
    return 4096;
}
