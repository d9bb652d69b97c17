// The C ABI of hpcgnn's native kernels: every function that the library exports, once.
//
// kernels.cpp is compiled once for each instruction set, and every kernel is exported once for each of them:
// HPCGNN_KERNEL(void, spmm_f32) declares hpcgnn_avx2_spmm_f32 in the object for AVX2. Its definition begins in the same
// way, and does not compile if its parameters differ from those declared here. build.py puts this text into the library
// (hpcgnn_interface()), and Python makes the ctypes argument types and structures from it when it loads the library. So
// Python and the library agree, and an argument of a wrong name, number or type raises an error. This header uses only
// the parts of C that kernels/library.py can read; it refuses all others.
//
// Python asks isa.cpp which instruction sets this CPU can run, and looks up the kernels of one. It checks every
// argument before it calls; nothing is checked again here. The kernels in bfloat16 (dense_bf16.cpp) exist for AVX-512
// only, and their bits depend on the CPU.
//
// Matrices are row-major and contiguous, indices are int32, offsets int64; a pointer to values is a tensor of that
// type. `threads` is the number of OpenMP threads to use. Results depend neither on it nor on the instruction set.
#pragma once

#include <cstdint>

#define HPCGNN_API extern "C" __attribute__((visibility("default")))

#ifndef HPCGNN_ISA
#define HPCGNN_ISA any  // for code that calls kernels, or uses their types
#endif
#define HPCGNN_PASTE_(a, b, c, d) a##b##c##d
#define HPCGNN_PASTE(a, b, c, d) HPCGNN_PASTE_(a, b, c, d)
#define HPCGNN_TEXT_(a) #a
#define HPCGNN_TEXT(a) HPCGNN_TEXT_(a)
#define HPCGNN_KERNEL(result, name) HPCGNN_API result HPCGNN_PASTE(hpcgnn_, HPCGNN_ISA, _, name)

// -- the library -----------------------------------------------------------------------------------------------------

// This text.
HPCGNN_API const char* hpcgnn_interface();

// The size in bytes of a struct of this text, by its name; 0 if it is unknown.
HPCGNN_API int64_t hpcgnn_struct_bytes(const char* name);

// The instruction sets that were compiled in and that this CPU can run, separated by spaces, the best one last.
HPCGNN_API const char* hpcgnn_isas();

// Whether this CPU can run the kernels of AVX-512 that multiply bfloat16.
HPCGNN_API int hpcgnn_multiplies_bf16();

// Whether this CPU has the instructions that the kernels *_dot of `isa` use: those that add products of four 8-bit
// integers (VNNI, SDOT).
HPCGNN_API int hpcgnn_has_dot_products(const char* isa);

// The instruction set of the kernel that ran last in this process ("" before the first). It proves which one was used.
HPCGNN_API const char* hpcgnn_last_isa();

// A row is summed in segments of this many entries, and the sums of segments are added in order. The result is defined
// like this, so that threads can share a row and it has the same bits for any number of threads.
HPCGNN_API int64_t hpcgnn_segment_entries();

void hpcgnn_ran(const char* isa);

// -- arguments of several kernels ------------------------------------------------------------------------------------

typedef struct {
    uint16_t bits;
} hpcgnn_bfloat16;

// A CSR matrix. `heavy` lists, in ascending order, all rows with more entries than hpcgnn_segment_entries(); several
// threads share such a row. `num_hot` columns that many entries name may be packed: `hot_indices` is `indices` with the
// p-th of these columns written as ~p, or null.
struct hpcgnn_csr {
    int64_t rows;
    const int64_t* indptr;
    const int32_t* indices;
    const int64_t* heavy;
    int64_t num_heavy;
    const int32_t* hot_indices;
    int64_t num_hot;
};

// The schedule of a product; results do not depend on it. Python's `Tuning` holds the defaults.
struct hpcgnn_tuning {
    int32_t prefetch_bytes;  // bytes of gathered rows that are being prefetched; 0: none
    int32_t tile_bytes;      // bytes of a gathered row in one tile of columns; at most kMaxVectors registers
    int32_t tasks_a_thread;  // least number of tasks for each thread; 1: each thread has one static share
    int32_t streaming;       // whether stores go past the caches
    int32_t split_rows;      // whether threads share heavy rows
};

// The operations between two layers: dropout(relu(norm(x))) of x (rows, width). gamma, beta (width,): weight and bias
// of the norm; null: no norm. For the backward pass are, with a norm, statistics (rows, 2): the mean of each row and
// 1 / sqrt(variance + eps); and without one, unless null, positive (rows, (width + 7) / 8): one bit a column, the
// lowest of a byte first, whether the result is positive or NaN. ids (rows,): null: no dropout. A value is dropped
// where its draw is below `threshold` (see keyed.h), and multiplied by `scale` elsewhere.
struct hpcgnn_activation {
    int64_t rows;
    int64_t width;
    const float* x;
    const float* gamma;
    const float* beta;
    float* statistics;
    uint8_t* positive;
    const int64_t* ids;
    uint64_t key;
    uint32_t threshold;
    float scale;
    float eps;
};

enum hpcgnn_sddmm { HPCGNN_DOT, HPCGNN_ADD, HPCGNN_LEFT };

// -- spmm.h ----------------------------------------------------------------------------------------------------------

// Writes to out[r, c], or adds if `accumulate`, the sum over the entries e of row r of
// weight[e, head of c] * scale[indices[e]] * x[indices[e], c].
//
// weight: (entries, heads) or null; the columns form `heads` equal groups. scale: (rows of x), for int8, and for one
// head of floats, or null.
// packed: the hot rows as `spmm_pack` has copied them with the same tuning, or null; only for one head. Then scale[~p]
// is the scale of the p-th hot row, which is stored before those of all rows. Without weights, hot_indices may list a
// row's entries in another order than indices, and should list hot ones first.
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

// Writes out[e] from row r of a and row c of b, for each entry e = (r, c).
//
// op: HPCGNN_DOT: out (entries, heads), the dot products of `heads` equal groups of columns; HPCGNN_ADD: out (entries,
// width), the sum of both rows; HPCGNN_LEFT: out (entries, width), row r of a (b is null).
HPCGNN_KERNEL(void, sddmm_f32)(const hpcgnn_csr* csr, const float* a, const float* b, int64_t width, int op,
                               int64_t heads, float* out, int threads);
HPCGNN_KERNEL(void, sddmm_f64)(const hpcgnn_csr* csr, const double* a, const double* b, int64_t width, int op,
                               int64_t heads, double* out, int threads);

// out (entries, width) = softmax over the entries of each row, for each column; a row whose scores are all -inf gets 0.
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

// Row k of out is row index[k] of x, or zeros if index[k] is negative. Rows have `row_bytes` bytes.
HPCGNN_KERNEL(void, gather_rows_i32)(const uint8_t* x, int64_t row_bytes, const int32_t* index, int64_t count,
                                     uint8_t* out, int threads);
HPCGNN_KERNEL(void, gather_rows_i64)(const uint8_t* x, int64_t row_bytes, const int64_t* index, int64_t count,
                                     uint8_t* out, int threads);

// order (count): the positions in an index, sorted by the row that it names, ascending for each row. Those of row r are
// order[indptr[r]] up to, and without, order[indptr[r + 1]]. count < 2^31.
HPCGNN_KERNEL(void, cluster_i32)(const int32_t* index, int64_t count, int64_t rows, int64_t* indptr, int32_t* order,
                                 int threads);
HPCGNN_KERNEL(void, cluster_i64)(const int64_t* index, int64_t count, int64_t rows, int64_t* indptr, int32_t* order,
                                 int threads);

// -- dense.h ----------------------------------------------------------------------------------------------------------

// y = x weight, plus a row `bias` unless it is null, plus the earlier values of y if `accumulate`. Element (k, c) of
// the weight is at weight[k * row_stride + c * column_stride], so the weight may be transposed.
HPCGNN_KERNEL(void, dense_f32)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* weight,
                               int64_t row_stride, int64_t column_stride, const float* bias, int accumulate, float* y,
                               int threads);
HPCGNN_KERNEL(void, dense_bf16)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* weight,
                                int64_t row_stride, int64_t column_stride, const float* bias, int accumulate, float* y,
                                int threads);

// dweight (depth, width) = the transposed x (rows, depth) times dy (rows, width); sums (width) = the sums of dy's
// columns, unless null. The sums are of values that are not rounded to bfloat16. Each thread also takes memory for one
// more dweight and sums, and for 256 rows of both operands.
HPCGNN_KERNEL(void, dense_gradient_f32)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* dy,
                                        float* dweight, float* sums, int threads);
HPCGNN_KERNEL(void, dense_gradient_bf16)(int64_t rows, int64_t depth, int64_t width, const float* x, const float* dy,
                                         float* dweight, float* sums, int threads);

// -- int8_rows.h, dense_int8.h, sddmm_int8.h, int8_dot.cpp -----------------------------------------------------------

// Quantizes row r of x (rows, width), times factor[r] unless factor is null, to codes (rows, width) times scale[r].
// Values are rounded with the noise of `key`, or to the nearest.
HPCGNN_KERNEL(void, quantize_int8)(int64_t rows, int64_t width, const float* x, const float* factor, int to_nearest,
                                   uint64_t key, int8_t* codes, float* scale, int threads);

// y = (codes times scale) times the weight, whose columns are quantized, plus `bias`, plus the earlier values of y if
// `accumulate`. The weight is given as for dense_f32. A call also takes 5 bytes of memory for each element of the
// weight.
HPCGNN_KERNEL(void, dense_int8)(int64_t rows, int64_t depth, int64_t width, const int8_t* codes, const float* scale,
                                const float* weight, int64_t row_stride, int64_t column_stride, int weight_to_nearest,
                                uint64_t weight_key, const float* bias, int accumulate, float* y, int threads);
HPCGNN_KERNEL(void, dense_int8_dot)(int64_t rows, int64_t depth, int64_t width, const int8_t* codes, const float* scale,
                                    const float* weight, int64_t row_stride, int64_t column_stride,
                                    int weight_to_nearest, uint64_t weight_key, const float* bias, int accumulate,
                                    float* y, int threads);

// dweight (depth, width) = the transposed (codes (rows, depth) times scale) times dy (rows, width), which is dy_codes
// times dy_scale if it is null; sums (width) = the sums of dy's columns, unless null. It takes memory as
// dense_gradient_f32 does.
HPCGNN_KERNEL(void, dense_gradient_int8)(int64_t rows, int64_t depth, int64_t width, const int8_t* codes,
                                         const float* scale, const float* dy, const int8_t* dy_codes,
                                         const float* dy_scale, int to_nearest, uint64_t key, float* dweight,
                                         float* sums, int threads);
HPCGNN_KERNEL(void, dense_gradient_int8_dot)(int64_t rows, int64_t depth, int64_t width, const int8_t* codes,
                                             const float* scale, const float* dy, const int8_t* dy_codes,
                                             const float* dy_scale, int to_nearest, uint64_t key, float* dweight,
                                             float* sums, int threads);

// As sddmm_f32 with HPCGNN_DOT, for a (rows, width) times a_scale, and b times b_scale.
HPCGNN_KERNEL(void, sddmm_int8)(const hpcgnn_csr* csr, const int8_t* a, const float* a_scale, const int8_t* b,
                                const float* b_scale, int64_t width, int64_t heads, float* out, int threads);
HPCGNN_KERNEL(void, sddmm_int8_dot)(const hpcgnn_csr* csr, const int8_t* a, const float* a_scale, const int8_t* b,
                                    const float* b_scale, int64_t width, int64_t heads, float* out, int threads);

// -- activation.h, dropout.h -----------------------------------------------------------------------------------------

// Writes out (rows, width), and job->statistics or job->positive. Without gamma, beta is added to x, if it is given.
HPCGNN_KERNEL(void, activate)(const hpcgnn_activation* job, float* out, int threads);

// Writes the gradients of x, (rows, width), and of gamma and beta, (width,), from dy; reads job->statistics.
HPCGNN_KERNEL(void, activate_backward)(const hpcgnn_activation* job, const float* dy, float* dx, float* dgamma,
                                       float* dbeta, int threads);

// The same without gamma: dx = dy * scale where the bit of job->positive is set, else 0. dx may be dy. sums: (width,)
// sums of the columns of dx, or null.
HPCGNN_KERNEL(void, relu_backward)(int64_t rows, int64_t width, const uint8_t* positive, const float* dy, float scale,
                                   float* dx, double* sums, int threads);

// sums (width,) of the columns of x (rows, width).
HPCGNN_KERNEL(void, column_sums)(int64_t rows, int64_t width, const float* x, double* sums, int threads);

// out = x * scale, or 0 where the draw for the row's id and the column is below `threshold`.
HPCGNN_KERNEL(void, dropout_f32)(int64_t rows, int64_t width, const int64_t* ids, uint64_t key, uint32_t threshold,
                                 float scale, const float* x, float* out, int threads);
HPCGNN_KERNEL(void, dropout_f64)(int64_t rows, int64_t width, const int64_t* ids, uint64_t key, uint32_t threshold,
                                 double scale, const double* x, double* out, int threads);

// -- messages.h, spmm_rows.h -----------------------------------------------------------------------------------------

// Writes row rows[i] of x (any number of rows, width), in `bits` bits (1, 2, 4, 8, 16 or 32), to buffer + payload_at[i]
// and, up to 8 bits, buffer + params_at[i]; params_at is null for more bits. Values are rounded with the noise of
// `key`, or to the centres of cells. Returns the number of rows with a NaN or an infinity.
HPCGNN_KERNEL(int64_t, encode_rows)(int64_t count, const int64_t* rows, int64_t width, int bits, int to_centres,
                                    uint64_t key, const float* x, uint8_t* buffer, const int64_t* payload_at,
                                    const int64_t* params_at, int threads);

// The reverse: writes row i of the buffer to row rows[i] of out (any number of rows, width), or adds it. `rows` names
// no row twice. Returns the number of rows whose parameters (up to 8 bits) or values (beyond) are not finite.
HPCGNN_KERNEL(int64_t, decode_rows)(int64_t count, const int64_t* rows, int64_t width, int bits, const uint8_t* buffer,
                                    const int64_t* payload_at, const int64_t* params_at, float* out, int accumulate,
                                    int threads);

// out[r] += the sum over the entries e of row r of weight[e] * row indices[e] of the buffer. weight: (entries,) or
// null. The sums, and their order, are those of spmm with decoded rows.
HPCGNN_KERNEL(void, spmm_rows)(const hpcgnn_csr* csr, const float* weight, const uint8_t* buffer,
                               const int64_t* payload_at, const int64_t* params_at, int bits, int64_t width, float* out,
                               const hpcgnn_tuning* tuning, int threads);

// Convert rows of 8-bit codes with a scale to rows of 8 bits in the buffer, and back: 128 is added to the codes, and
// the zero-point is -128 times the scale. Row rows[i] of codes (any number of rows, width) is row i of the buffer. The
// functions return the number of NaN scales, and the number of rows that have another form.
HPCGNN_KERNEL(int64_t, encode_int8)(int64_t count, const int64_t* rows, int64_t width, const int8_t* codes,
                                    const float* scale, uint8_t* buffer, const int64_t* payload_at,
                                    const int64_t* params_at, int threads);
HPCGNN_KERNEL(int64_t, decode_int8)(int64_t count, const int64_t* rows, int64_t width, const uint8_t* buffer,
                                    const int64_t* payload_at, const int64_t* params_at, int8_t* codes, float* scale,
                                    int threads);

// Convert x (rows, width), each row multiplied by its `factor` (rows; null: ones), to the nearest bfloat16, ties to
// even, with the same bits for every NaN; and `count` values back, exactly.
HPCGNN_KERNEL(void, pack_bf16)(int64_t rows, int64_t width, const float* x, const float* factor, hpcgnn_bfloat16* out,
                               int threads);
HPCGNN_KERNEL(void, unpack_bf16)(int64_t count, const hpcgnn_bfloat16* x, float* out, int threads);

// -- ceiling.h -------------------------------------------------------------------------------------------------------

// Returns the sum of the rows of x (rows, width) that indices (entries) name, in any order; the compiler can then leave
// out no read. Columns beyond the last whole vector are not read. ahead: entries to prefetch ahead; 0: none.
HPCGNN_KERNEL(double, gather_ceiling_f32)(int64_t entries, const int32_t* indices, const float* x, int64_t width,
                                          int64_t ahead, int threads);

// Runs `rounds` of multiply-adds, whose operands stay in registers, on each thread; returns their number. They are of
// float32, of bfloat16 with sums in float32, or of 8-bit integers with sums in int32.
HPCGNN_KERNEL(double, multiply_ceiling_f32)(int64_t rounds, int threads);
HPCGNN_KERNEL(double, multiply_ceiling_bf16)(int64_t rounds, int threads);
HPCGNN_KERNEL(double, multiply_ceiling_int8)(int64_t rounds, int threads);
HPCGNN_KERNEL(double, multiply_ceiling_int8_dot)(int64_t rounds, int threads);
