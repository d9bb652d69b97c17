// Tests every kernel of the native library, for every instruction set that this CPU can run: compares it with plain
// loops, bit for bit. It includes the other files, so that their common headers are compiled once.
//
// usage: test_kernels LIBRARY [ISA ...]        (or HPCGNN_ISA=ISA; default: all that are usable)
//        HPCGNN_PART="PART ...": only these   HPCGNN_TESTS=all: many more cases
//
// Prints the usable instruction sets; for each part and instruction set the number of results and a digest of their
// bits, which must be the same for all of them, on all machines; and the kernels that ran. Exit code 1: a kernel is
// wrong; 2: it could not run.

#include "test_activation.cpp"
#include "test_dense.cpp"
#include "test_dense_int8.cpp"
#include "test_edges.cpp"
#include "test_int8.cpp"
#include "test_messages.cpp"
#include "test_rows.cpp"
#include "test_spmm.cpp"

std::vector<std::string> words(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> result;
    for (std::string word; stream >> word;) result.push_back(word);
    return result;
}

int main(int count, char** arguments) {
    require(count >= 2, "usage: test_kernels LIBRARY [ISA ...]");
    void* library = dlopen(arguments[1], RTLD_NOW);
    require(library != nullptr, library == nullptr ? dlerror() : "");
    segment_entries = symbol<int64_t()>(library, "hpcgnn_segment_entries")();
    const std::string usable = symbol<const char*()>(library, "hpcgnn_isas")();
    std::cout << "usable " << usable << std::endl;

    std::vector<std::string> asked(arguments + 2, arguments + count);
    if (asked.empty()) asked = words(variable("HPCGNN_ISA"));
    if (asked.empty()) asked = words(usable);
    Isas isas;
    for (const std::string& name : asked) {
        require((" " + usable + " ").find(" " + name + " ") != std::string::npos, "cannot run " + name + " here");
        isas.push_back({library, name});
    }
    require(!isas.empty(), "the library has no instruction set for this CPU");

    const std::vector<std::string> chosen = words(variable("HPCGNN_PART"));
    size_t found = 0;
    for (const Part& part : parts) {
        if (!chosen.empty() && std::count(chosen.begin(), chosen.end(), part.name) == 0) continue;
        ++found;
        part.test(isas);
        for (Isa& isa : isas) {
            std::cout << part.name << " " << isa.name << " " << isa.results << " " << std::hex << isa.digest << std::dec
                      << std::endl;
            isa.digest = 0;
            isa.results = 0;
        }
    }
    require(chosen.empty() || found == chosen.size(), "not all of these are parts: " + variable("HPCGNN_PART"));
    std::cout << "kernels";
    for (const std::string& name : kernels_run) std::cout << " " << name;
    std::cout << "\n" << (num_failures == 0 ? "all passed" : "failed") << "\n";
    return num_failures == 0 ? 0 : 1;
}
