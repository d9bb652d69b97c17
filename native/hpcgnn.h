// The C ABI of hpcgnn's native kernels.
//
// kernels.cpp is compiled once for each instruction set, and every kernel is exported once for each of them:
// HPCGNN_KERNEL(spmm_f32) defines hpcgnn_avx2_spmm_f32 in the object for AVX2. Python asks isa.cpp which ones this CPU
// can run and looks up the names of one. Python checks every argument before it calls; nothing is checked again here.
// The kernels of dense_bf16.cpp are there for AVX-512 only, and their bits are up to the CPU.
//
// Matrices are row-major and contiguous, indices are int32, offsets int64. `threads` is the number of OpenMP threads to
// use. Results do not depend on it, nor on the instruction set.
#pragma once

#include <cstdint>

#define HPCGNN_API extern "C" __attribute__((visibility("default")))

// Version of this interface; the loader refuses a library that answers another number.
HPCGNN_API int hpcgnn_abi_version();

// The instruction sets that were compiled in and that this CPU can run, worst first, separated by spaces.
HPCGNN_API const char* hpcgnn_isas();

// Whether this CPU can run the kernels of AVX-512 that multiply bfloat16.
HPCGNN_API int hpcgnn_multiplies_bf16();

// The instruction set of the kernel that ran last in this process ("" before the first): proof that a forced one ran.
HPCGNN_API const char* hpcgnn_last_isa();

void hpcgnn_ran(const char* isa);

#ifdef HPCGNN_ISA
#define HPCGNN_PASTE_(a, b, c, d) a##b##c##d
#define HPCGNN_PASTE(a, b, c, d) HPCGNN_PASTE_(a, b, c, d)
#define HPCGNN_TEXT_(a) #a
#define HPCGNN_TEXT(a) HPCGNN_TEXT_(a)
#define HPCGNN_KERNEL(name) HPCGNN_API void HPCGNN_PASTE(hpcgnn_, HPCGNN_ISA, _, name)
#endif

// Rows [first_row, last_row) of a CSR matrix. `heavy` lists, ascending, all rows of the matrix with more entries than
// hpcgnn_segment_entries(): several threads share such a row. `num_hot` columns that many entries name may be packed:
// `hot_indices` is `indices` with the p-th of them written as ~p, or null.
struct hpcgnn_csr {
    int64_t first_row, last_row;
    const int64_t* indptr;
    const int32_t* indices;
    const int64_t* heavy;
    int64_t num_heavy;
    const int32_t* hot_indices;
    int64_t num_hot;
};

// What lies between two layers: dropout(relu(norm(x))) of x (rows, width). gamma, beta (width,): of the norm, null:
// none. statistics (rows, 2): the mean of each row and 1 / sqrt(variance + eps), for the pass backward. ids (rows,):
// null: no dropout; a value is dropped where its draw is below `threshold` (see keyed.h), and multiplied by `scale`
// elsewhere.
struct hpcgnn_activation {
    int64_t rows, width;
    const float* x;
    const float* gamma;
    const float* beta;
    float* statistics;
    const int64_t* ids;
    uint64_t key;
    uint32_t threshold;
    float scale, eps;
};

// A row is summed in segments of this many entries, and then its segments in order: a rule of the result, not of the
// schedule, so that a row can be shared by threads and still have the same bits for any number of them.
HPCGNN_API int64_t hpcgnn_segment_entries();
