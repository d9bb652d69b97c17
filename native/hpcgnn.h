// The C ABI of hpcgnn's native kernels: every function that the library exports, once.
//
// kernels.cpp is compiled once for each instruction set, and every kernel is exported once for each of them:
// HPCGNN_KERNEL(void, spmm_f32) declares hpcgnn_avx2_spmm_f32 in the object for AVX2, and its definition begins in the
// same way: one whose parameters differ from what is declared here does not compile. build.py puts this text into the
// library (hpcgnn_interface()), and Python makes ctypes' argument types and structures from it when it loads the
// library: so Python and the library agree, and an argument of a wrong name, number or type raises. What
// native/interface.py can read of C is what is used here; it refuses all else.
//
// Python asks isa.cpp which instruction sets this CPU can run and looks up the names of one. It checks every argument
// before it calls; nothing is checked again here. The kernels in bfloat16 (dense_bf16.cpp) are there for AVX-512 only,
// and their bits are up to the CPU.
//
// Matrices are row-major and contiguous, indices are int32, offsets int64; a pointer to values is a tensor of that
// type. `threads` is the number of OpenMP threads to use. Results do not depend on it, nor on the instruction set.
#pragma once

#include <cstdint>

#define HPCGNN_API extern "C" __attribute__((visibility("default")))

#ifndef HPCGNN_ISA
#define HPCGNN_ISA any  // where kernels are called, or their types are meant
#endif
#define HPCGNN_PASTE_(a, b, c, d) a##b##c##d
#define HPCGNN_PASTE(a, b, c, d) HPCGNN_PASTE_(a, b, c, d)
#define HPCGNN_TEXT_(a) #a
#define HPCGNN_TEXT(a) HPCGNN_TEXT_(a)
#define HPCGNN_KERNEL(result, name) HPCGNN_API result HPCGNN_PASTE(hpcgnn_, HPCGNN_ISA, _, name)

// -- the library -----------------------------------------------------------------------------------------------------

// This text.
HPCGNN_API const char* hpcgnn_interface();

// The size of a struct of this text, by its name; 0 for an unknown one.
HPCGNN_API int64_t hpcgnn_struct_bytes(const char* name);

// The instruction sets that were compiled in and that this CPU can run, worst first, separated by spaces.
HPCGNN_API const char* hpcgnn_isas();

// Whether this CPU can run the kernels of AVX-512 that multiply bfloat16.
HPCGNN_API int hpcgnn_multiplies_bf16();

// Whether this CPU has the instructions of `isa`'s kernels that are called *_dot: those that add products of four 8-bit
// integers (VNNI, SDOT).
HPCGNN_API int hpcgnn_has_dot_products(const char* isa);

// The instruction set of the kernel that ran last in this process ("" before the first): proof that a forced one ran.
HPCGNN_API const char* hpcgnn_last_isa();

// A row is summed in segments of this many entries, and then its segments in order: a rule of the result, not of the
// schedule, so that a row can be shared by threads and still have the same bits for any number of them.
HPCGNN_API int64_t hpcgnn_segment_entries();

void hpcgnn_ran(const char* isa);

// -- what several kernels take ---------------------------------------------------------------------------------------

typedef struct {
    uint16_t bits;
} hpcgnn_bfloat16;

// A CSR matrix. `heavy` lists, ascending, all rows with more entries than hpcgnn_segment_entries(): several threads
// share such a row. `num_hot` columns that many entries name may be packed: `hot_indices` is `indices` with the p-th of
// them written as ~p, or null.
struct hpcgnn_csr {
    int64_t rows;
    const int64_t* indptr;
    const int32_t* indices;
    const int64_t* heavy;
    int64_t num_heavy;
    const int32_t* hot_indices;
    int64_t num_hot;
};

// How to go about a product; results do not depend on it. Python's `Tuning` holds the defaults.
struct hpcgnn_tuning {
    int32_t prefetch_bytes;  // of gathered rows under way; 0: none
    int32_t tile_bytes;      // of a gathered row, for one tile of columns; at most kMaxVectors registers
    int32_t tasks_a_thread;  // at least; 1: one static share each
    int32_t streaming;       // stores go past the caches
    int32_t split_rows;      // heavy rows are shared by threads
};

// What lies between two layers: dropout(relu(norm(x))) of x (rows, width). gamma, beta (width,): of the norm, null:
// none. statistics (rows, 2): the mean of each row and 1 / sqrt(variance + eps), for the pass backward. ids (rows,):
// null: no dropout; a value is dropped where its draw is below `threshold` (see keyed.h), and multiplied by `scale`
// elsewhere.
struct hpcgnn_activation {
    int64_t rows;
    int64_t width;
    const float* x;
    const float* gamma;
    const float* beta;
    float* statistics;
    const int64_t* ids;
    uint64_t key;
    uint32_t threshold;
    float scale;
    float eps;
};

enum hpcgnn_sddmm { HPCGNN_DOT, HPCGNN_ADD, HPCGNN_LEFT };

// -- spmm.h ----------------------------------------------------------------------------------------------------------

// out[r, c] is, or grows by if `accumulate`, the sum over the entries e of row r of
// weight[e, head of c] * scale[indices[e]] * x[indices[e], c].
//
// weight: (entries, heads) or null; the columns fall into `heads` equal groups. scale: (rows of x) or null, for int8.
// packed: what `spmm_pack` made of the hot rows with the same tuning, or null; only for one head. Then scale[~p] is the
// scale of the p-th hot row, before those of all rows. Without weights, hot_indices may list a row's entries in another
// order than indices does, and should list the hot ones first.
HPCGNN_KERNEL(void, spmm_f32)(const hpcgnn_csr* csr, const float* weight, int64_t heads, const float* x,
                              const float* packed, const float* scale, int64_t width, float* out, int accumulate,
                              const hpcgnn_tuning* tuning, int threads);
HPCGNN_KERNEL(void, spmm_f64)(const hpcgnn_csr* csr, const double* weight, int64_t heads, const double* x,
                              const double* packed, const float* scale, int64_t width, double* out, int accumulate,
                              const hpcgnn_tuning* tuning, int threads);
HPCGNN_KERNEL(void, spmm_bf16)(const hpcgnn_csr* csr, const float* weight, int64_t heads, const hpcgnn_bfloat16* x,
                               const hpcgnn_bfloat16* packed, const float* scale, int64_t width, float* out,
                               int accumulate, const hpcgnn_tuning* tuning, int threads);
HPCGNN_KERNEL(void, spmm_i8)(const hpcgnn_csr* csr, const float* weight, int64_t heads, const int8_t* x,
                             const int8_t* packed, const float* scale, int64_t width, float* out, int accumulate,
                             const hpcgnn_tuning* tuning, int threads);

// Copies the `num_hot` rows of x that `hot_rows` names; `packed` has `spmm_packed_columns` values for each of them.
HPCGNN_KERNEL(void, spmm_pack_f32)(const int32_t* hot_rows, int64_t num_hot, const float* x, int64_t width,
                                   const hpcgnn_tuning* tuning, float* packed, int threads);
HPCGNN_KERNEL(void, spmm_pack_f64)(const int32_t* hot_rows, int64_t num_hot, const double* x, int64_t width,
                                   const hpcgnn_tuning* tuning, double* packed, int threads);
HPCGNN_KERNEL(void, spmm_pack_bf16)(const int32_t* hot_rows, int64_t num_hot, const hpcgnn_bfloat16* x, int64_t width,
                                    const hpcgnn_tuning* tuning, hpcgnn_bfloat16* packed, int threads);
HPCGNN_KERNEL(void, spmm_pack_i8)(const int32_t* hot_rows, int64_t num_hot, const int8_t* x, int64_t width,
                                  const hpcgnn_tuning* tuning, int8_t* packed, int threads);
HPCGNN_KERNEL(int64_t, spmm_packed_columns_f32)(int64_t width, const hpcgnn_tuning* tuning);
HPCGNN_KERNEL(int64_t, spmm_packed_columns_f64)(int64_t width, const hpcgnn_tuning* tuning);
HPCGNN_KERNEL(int64_t, spmm_packed_columns_bf16)(int64_t width, const hpcgnn_tuning* tuning);
HPCGNN_KERNEL(int64_t, spmm_packed_columns_i8)(int64_t width, const hpcgnn_tuning* tuning);

// -- edges.h ---------------------------------------------------------------------------------------------------------

// out[e] from row r of a and row c of b, for each entry e = (r, c).
//
// op: HPCGNN_DOT: out (entries, heads), the products of `heads` equal groups of columns; HPCGNN_ADD: out (entries,
// width), their sum; HPCGNN_LEFT: out (entries, width), row r of a alone (b is null).
HPCGNN_KERNEL(void, sddmm_f32)(const hpcgnn_csr* csr, const float* a, const float* b, int64_t width, int op,
                               int64_t heads, float* out, int threads);
HPCGNN_KERNEL(void, sddmm_f64)(const hpcgnn_csr* csr, const double* a, const double* b, int64_t width, int op,
                               int64_t heads, double* out, int threads);

// out (entries, width) = softmax over the entries of each row, for each column; a row of nothing but -inf becomes 0.
HPCGNN_KERNEL(void, edge_softmax_f32)(const hpcgnn_csr* csr, const float* scores, int64_t width, float* out,
                                      int threads);
HPCGNN_KERNEL(void, edge_softmax_f64)(const hpcgnn_csr* csr, const double* scores, int64_t width, double* out,
                                      int threads);

// out (entries, width) = alpha * (gradient - the row's sum of alpha * gradient).
HPCGNN_KERNEL(void, edge_softmax_backward_f32)(const hpcgnn_csr* csr, const float* alpha, const float* gradient,
                                               int64_t width, float* out, int threads);
HPCGNN_KERNEL(void, edge_softmax_backward_f64)(const hpcgnn_csr* csr, const double* alpha, const double* gradient,
                                               int64_t width, double* out, int threads);

// out (rows, width) = the sum of each row's entries of values (entries, width).
HPCGNN_KERNEL(void, edge_sum_f32)(const hpcgnn_csr* csr, const float* values, int64_t width, float* out, int threads);
HPCGNN_KERNEL(void, edge_sum_f64)(const hpcgnn_csr* csr, const double* values, int64_t width, double* out, int threads);

// -- rows.h ----------------------------------------------------------------------------------------------------------

// Row k of out is row index[k] of x, or zeros if that is negative. Rows are `row_bytes` long.
HPCGNN_KERNEL(void, gather_rows_i32)(const uint8_t* x, int64_t row_bytes, const int32_t* index, int64_t count,
                                     uint8_t* out, int threads);
HPCGNN_KERNEL(void, gather_rows_i64)(const uint8_t* x, int64_t row_bytes, const int64_t* index, int64_t count,
                                     uint8_t* out, int threads);

// order (count): the positions of an index, by the row that it names, those of a row ascending; row r's are
// order[indptr[r]] to order[indptr[r + 1]]. count < 2^31.
HPCGNN_KERNEL(void, cluster_i32)(const int32_t* index, int64_t count, int64_t rows, int64_t* indptr, int32_t* order,
                                 int threads);
HPCGNN_KERNEL(void, cluster_i64)(const int64_t* index, int64_t count, int64_t rows, int64_t* indptr, int32_t* order,
                                 int threads);

// -- dense_f32.h, dense_bf16.cpp -------------------------------------------------------------------------------------

// y = x weight, plus a row `bias` where there is one, plus what y holds if `accumulate`. Element (k, c) of the weight
// is at weight[k * row_stride + c * column_stride], so a transposed one is the same thing.
HPCGNN_KERNEL(void, dense_f32)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* weight,
                               int64_t row_stride, int64_t column_stride, const float* bias, int accumulate, float* y,
                               int threads);
HPCGNN_KERNEL(void, dense_bf16)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* weight,
                                int64_t row_stride, int64_t column_stride, const float* bias, int accumulate, float* y,
                                int threads);

// dweight (depth, width) = the transposed x (rows, depth) times dy (rows, width), and sums (width) = those of dy's
// columns, unless null; those are of what was not rounded to bfloat16. Beside them, each thread takes memory for one
// more of each, and 256 rows of both operands.
HPCGNN_KERNEL(void, dense_gradient_f32)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* dy,
                                        float* dweight, float* sums, int threads);
HPCGNN_KERNEL(void, dense_gradient_bf16)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* dy,
                                         float* dweight, float* sums, int threads);

// -- int8_rows.h, dense_int8.h, sddmm_int8.h, int8_dot.cpp -----------------------------------------------------------

// Row r of x (rows, width), times factor[r] where there is one, as codes (rows, width) times scale[r]. Rounded with the
// noise of `key`, or to the nearest.
HPCGNN_KERNEL(void, quantize_int8)(int64_t rows, int64_t width, const float* x, const float* factor, int to_nearest,
                                   uint64_t key, int8_t* codes, float* scale, int threads);

// y = (codes times scale) times the weight, whose columns are quantized, plus `bias`, plus what y holds if
// `accumulate`. x: quantized to codes and scale first, or null: they are given. The weight as for dense_f32. Beside
// them, a call takes 5 bytes for each element of the weight.
HPCGNN_KERNEL(void, dense_int8)(int64_t rows, int64_t depth, int64_t width, const float* x, int to_nearest,
                                uint64_t key, int8_t* codes, float* scale, const float* weight, int64_t row_stride,
                                int64_t column_stride, int weight_to_nearest, uint64_t weight_key, const float* bias,
                                int accumulate, float* y, int threads);
HPCGNN_KERNEL(void, dense_int8_dot)(int64_t rows, int64_t depth, int64_t width, const float* x, int to_nearest,
                                    uint64_t key, int8_t* codes, float* scale, const float* weight, int64_t row_stride,
                                    int64_t column_stride, int weight_to_nearest, uint64_t weight_key,
                                    const float* bias, int accumulate, float* y, int threads);

// dweight (depth, width) = the transposed (codes (rows, depth) times scale) times dy (rows, width), and sums (width) =
// those of dy's columns, unless null. Memory as for dense_gradient_f32.
HPCGNN_KERNEL(void, dense_gradient_int8)(int64_t rows, int64_t depth, int64_t width, const int8_t* codes,
                                         const float* scale, const float* dy, int to_nearest, uint64_t key,
                                         float* dweight, float* sums, int threads);
HPCGNN_KERNEL(void, dense_gradient_int8_dot)(int64_t rows, int64_t depth, int64_t width, const int8_t* codes,
                                             const float* scale, const float* dy, int to_nearest, uint64_t key,
                                             float* dweight, float* sums, int threads);

// As sddmm_f32, of a (rows, width) times a_scale and b times b_scale; op is not HPCGNN_LEFT.
HPCGNN_KERNEL(void, sddmm_int8)(const hpcgnn_csr* csr, const int8_t* a, const float* a_scale, const int8_t* b,
                                const float* b_scale, int64_t width, int op, int64_t heads, float* out, int threads);
HPCGNN_KERNEL(void, sddmm_int8_dot)(const hpcgnn_csr* csr, const int8_t* a, const float* a_scale, const int8_t* b,
                                    const float* b_scale, int64_t width, int op, int64_t heads, float* out,
                                    int threads);

// -- activation.h, dropout.h -----------------------------------------------------------------------------------------

// out (rows, width); with gamma also writes job->statistics.
HPCGNN_KERNEL(void, activate)(const hpcgnn_activation* job, float* out, int threads);

// The gradients of x, (rows, width), and of gamma and beta, (width,), from dy; reads job->statistics. Without gamma,
// dgamma and dbeta are not looked at.
HPCGNN_KERNEL(void, activate_backward)(const hpcgnn_activation* job, const float* dy, float* dx, float* dgamma,
                                       float* dbeta, int threads);

// out = x * scale, or 0 where the draw for the row's id and the column is below `threshold`.
HPCGNN_KERNEL(void, dropout_f32)(int64_t rows, int64_t width, const int64_t* ids, uint64_t key, uint32_t threshold,
                                 float scale, const float* x, float* out, int threads);
HPCGNN_KERNEL(void, dropout_f64)(int64_t rows, int64_t width, const int64_t* ids, uint64_t key, uint32_t threshold,
                                 double scale, const double* x, double* out, int threads);

// -- messages.h, spmm_rows.h, narrow.h -------------------------------------------------------------------------------

// Row rows[i] of x (any number of rows, width), in `bits` bits (1, 2, 4, 8, 16 or 32), to buffer + payload_at[i] and,
// up to 8 bits, buffer + params_at[i]; params_at is null beyond. Rounded with the noise of `key`, or to the centres of
// cells. Returns how many of the rows hold a NaN or an infinity.
HPCGNN_KERNEL(int64_t, encode_rows)(int64_t count, const int64_t* rows, int64_t width, int bits, int to_centres,
                                    uint64_t key, const float* x, uint8_t* buffer, const int64_t* payload_at,
                                    const int64_t* params_at, int threads);

// The reverse: row rows[i] of out (any number of rows, width) becomes row i of the buffer, or grows by it. No row
// twice. Returns, up to 8 bits, how many rows have parameters that are not finite; else how many hold such values.
HPCGNN_KERNEL(int64_t, decode_rows)(int64_t count, const int64_t* rows, int64_t width, int bits, const uint8_t* buffer,
                                    const int64_t* payload_at, const int64_t* params_at, float* out, int accumulate,
                                    int threads);

// out[r] += sum over the entries e of row r of weight[e] * row indices[e] of the buffer. weight: (entries,) or null.
// The sums are those of spmm with decoded rows, added in its order.
HPCGNN_KERNEL(void, spmm_rows)(const hpcgnn_csr* csr, const float* weight, const uint8_t* buffer,
                               const int64_t* payload_at, const int64_t* params_at, int bits, int64_t width, float* out,
                               const hpcgnn_tuning* tuning, int threads);

// Rows of 8-bit codes with a scale as rows of the buffer, of 8 bits, and back: 128 is added to the codes, and the
// zero-point is -128 scales. Row rows[i] of codes (any number of rows, width) is row i of the buffer. They return how
// many scales are NaN, and how many rows are of another form.
HPCGNN_KERNEL(int64_t, encode_int8)(int64_t count, const int64_t* rows, int64_t width, const int8_t* codes,
                                    const float* scale, uint8_t* buffer, const int64_t* payload_at,
                                    const int64_t* params_at, int threads);
HPCGNN_KERNEL(int64_t, decode_int8)(int64_t count, const int64_t* rows, int64_t width, const uint8_t* buffer,
                                    const int64_t* payload_at, const int64_t* params_at, int8_t* codes, float* scale,
                                    int threads);

// `count` values, to the nearest, ties to even; every NaN becomes the same one. And back, exactly.
HPCGNN_KERNEL(void, pack_bf16)(int64_t count, const float* x, hpcgnn_bfloat16* out, int threads);
HPCGNN_KERNEL(void, unpack_bf16)(int64_t count, const hpcgnn_bfloat16* x, float* out, int threads);

// -- ceiling.h -------------------------------------------------------------------------------------------------------

// The sum of x (rows, width) over the rows that indices (entries) name, in any order; it only exists so that no read
// can be left out. Columns beyond the last whole vector are not read. ahead: entries to prefetch, 0 is not at all.
HPCGNN_KERNEL(double, gather_ceiling_f32)(int64_t entries, const int32_t* indices, const float* x, int64_t width,
                                          int64_t ahead, int threads);

// Runs `rounds` of multiply-adds of which no operand comes from memory, on each thread; returns how many multiply-adds
// those were: of float32, and of 8-bit integers with sums in int32.
HPCGNN_KERNEL(double, multiply_ceiling_f32)(int64_t rounds, int threads);
HPCGNN_KERNEL(double, multiply_ceiling_int8)(int64_t rounds, int threads);
HPCGNN_KERNEL(double, multiply_ceiling_int8_dot)(int64_t rounds, int threads);
