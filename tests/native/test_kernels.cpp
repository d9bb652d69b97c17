// Tests every kernel of the native library, for every instruction set that this CPU can run: compares it with plain
// loops, bit for bit.
//
// usage: test_kernels LIBRARY [ISA ...]        (or HPCGNN_ISA=ISA; default: all that are usable)
//        HPCGNN_PART=PART: only this part
//
// Prints the usable instruction sets, and for each part and instruction set the number of results and a digest of their
// bits, which must be the same for all of them, on all machines. Exit code 1: a kernel is wrong; 2: it could not run.

#include "check.h"

namespace {

std::vector<std::string> words(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> result;
    for (std::string word; stream >> word;) result.push_back(word);
    return result;
}

void run_part(const char* name, void (*part)(std::vector<Isa>&), std::vector<Isa>& isas) {
    const char* only = std::getenv("HPCGNN_PART");
    if (only != nullptr && std::strcmp(only, name) != 0) return;
    part(isas);
    for (Isa& isa : isas) {
        std::printf("%s %s %lld %016llx\n", name, isa.name.c_str(), static_cast<long long>(isa.results),
                    static_cast<unsigned long long>(isa.digest));
        isa.digest = isa.results = 0;
    }
}

}  // namespace

int main(int count, char** arguments) {
    require(count >= 2, "usage: test_kernels LIBRARY [ISA ...]");
    void* library = dlopen(arguments[1], RTLD_NOW);
    require(library != nullptr, library == nullptr ? dlerror() : "");
    const std::string usable = symbol<const char*()>(library, "hpcgnn_isas")();
    std::printf("usable %s\n", usable.c_str());

    std::vector<std::string> asked(arguments + 2, arguments + count);
    const char* forced = std::getenv("HPCGNN_ISA");
    if (asked.empty()) asked = words(forced != nullptr && *forced ? forced : usable);
    std::vector<Isa> isas;
    for (const std::string& name : asked) {
        require((" " + usable + " ").find(" " + name + " ") != std::string::npos, "cannot run " + name + " here");
        isas.push_back({library, name});
    }
    require(!isas.empty(), "the library has no instruction set for this CPU");

    run_part("activation", test_activation, isas);
    run_part("spmm", test_spmm, isas);
    run_part("dense", test_dense, isas);
    run_part("dropout", test_dropout, isas);
    run_part("edges", test_edges, isas);
    run_part("ceiling", test_ceiling, isas);
    run_part("rows", test_rows, isas);
    run_part("narrow", test_narrow, isas);
    run_part("quantize", test_quantize, isas);
    run_part("int8", test_int8, isas);
    run_part("messages", test_messages, isas);
    if (num_failures == 0) std::printf("all passed\n");
    return num_failures == 0 ? 0 : 1;
}
