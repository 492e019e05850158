/* The whole C ABI of a kt kernel library. cffi parses this file as it is: plain C, no macros in
 * declarations. Every variant exports exactly these functions and nothing else.
 *
 * Conventions. Matrices are W[n, k]: n output rows, k inputs. Activations are float32 rows unless
 * said otherwise. Functions that can fail return 0 on success or a negative kt_status;
 * kt_last_error() then says what failed (thread local). Nothing here is called concurrently on the
 * same pool or program.
 */
#ifndef KT_H
#define KT_H
#include <stdint.h>

#define KT_ABI_VERSION 8

#ifdef __cplusplus
extern "C" {
#endif

enum kt_status { KT_OK = 0, KT_BAD_ARGUMENT = -1, KT_NO_MEMORY = -2, KT_NOT_FINITE = -3 };

int32_t kt_abi_version(void);
const char *kt_variant_name(void);
const char *kt_last_error(void);

/* ---- memory -----------------------------------------------------------------------------------
 * Anonymous zeroed pages, 2 MiB aligned when large, asking for huge pages. node < 0: no binding. */
void *kt_alloc(int64_t bytes, int32_t node);
void kt_free(void *data, int64_t bytes);

/* ---- worker pool ------------------------------------------------------------------------------
 * n_threads workers, worker i pinned to cpus[i] when cpus is not NULL. They spin briefly between
 * jobs and then park. The calling thread sleeps while a job runs. */
typedef struct kt_pool kt_pool;
kt_pool *kt_pool_new(int32_t n_threads, const int32_t *cpus);
int32_t kt_pool_threads(const kt_pool *pool);
void kt_pool_free(kt_pool *pool);

/* ---- packed weights ---------------------------------------------------------------------------
 * See native/formats/layout.h for the bytes. */
enum kt_format {
  KT_F32 = 0,
  KT_F16 = 1,
  KT_BF16 = 2,
  KT_F8_G32 = 3, /* FP8 E4M3, float32 scale per row and 32 K */
  KT_F8_G128 = 4, /* per 128 */
  KT_F8_ROW = 5, /* FP8 E4M3, float32 scale per row */
  KT_F8_MX = 6, /* FP8 E4M3, power of two per 32 (MXFP8) */
  KT_I8_G32 = 7, /* int8, float16 scale per 32 (Q8_0, quantised at load) */
  KT_I8_G64 = 8, /* per 64 */
  KT_I8_G128 = 9, /* per 128 */
  KT_I8_ROW = 10, /* int8, float32 scale per row */
  KT_I6_K16 = 11, /* 6 bits, int8 scale per 16, float16 per 256 (Q6_K) */
  KT_I5_G32 = 12, /* 5 bits, float16 scale per 32, zero point 16 (Q5_0) */
  KT_I5_G32M = 13, /* 5 bits, float16 scale and minimum per 32 (Q5_1) */
  KT_I5_K32M = 14, /* 5 bits, 6-bit scale and minimum per 32, float16 pair per 256 (Q5_K) */
  KT_I4_G32 = 15, /* 4 bits, float16 scale per 32, zero point 8 (Q4_0, quantised at load) */
  KT_I4_G64 = 16, /* per 64 */
  KT_I4_G128 = 17, /* per 128 (GPTQ, AutoRound) */
  KT_I4_B32 = 18, /* 4 bits, bfloat16 scale per 32, zero point 8 */
  KT_I4_B128 = 19, /* per 128 (compressed-tensors) */
  KT_I4_G32M = 20, /* 4 bits, float16 scale and minimum per 32 (Q4_1) */
  KT_I4_G64M = 21, /* per 64 */
  KT_I4_G128M = 22, /* per 128 */
  KT_I4_K32M = 23, /* 4 bits, 6-bit scale and minimum per 32, float16 pair per 256 (Q4_K) */
  KT_I4_Z32 = 24, /* 4 bits, float32 scale and zero point per 32 */
  KT_I4_Z64 = 25, /* per 64 */
  KT_I4_Z128 = 26, /* per 128 */
  KT_I4_Z128H = 27, /* 4 bits, float16 scale and zero point per 128 (AWQ) */
  KT_I4_NL = 28, /* 4-bit codes of a table, float16 scale per 32 (IQ4_NL) */
  KT_I4_NLK = 29, /* 4-bit codes of a table, 6-bit scale per 32, float16 per 256 (IQ4_XS) */
  KT_F4_MX = 30, /* FP4 E2M1, power of two per 32 (MXFP4) */
  KT_F4_NV = 31, /* FP4 E2M1, FP8 E4M3 scale per 16 (NVFP4) */
  KT_I4_IQ3XXS = 32, /* 4-bit codes of a table, 4-bit scale per 32, float16 per 256 (IQ3_XXS) */
  KT_I4_IQ3S = 33, /* the same with another table (IQ3_S) */
  KT_I3_K16 = 34, /* 3 bits, 6-bit scale per 16, float16 per 256 (Q3_K) */
  KT_I3_IQ2XXS = 35, /* 3-bit codes of a table, 4-bit scale per 32, float16 per 256 (IQ2_XXS) */
  KT_I3_IQ2 = 36, /* scale per 16 (IQ2_XS, IQ2_S) */
  KT_I3_IQ1M = 37, /* 3-bit codes of a table, 3-bit scale per 16, float16 per 256 (IQ1_M) */
  KT_I2_K16M = 38, /* 2 bits, 4-bit scale and minimum per 16, float16 pair per 256 (Q2_K) */
  KT_I2_IQ1S = 39, /* 2 bits, 3-bit scale and one of two minimums per 32, float16 per 256 (IQ1_S) */
  KT_FORMATS = 40
};

/* Where a matrix comes from. encoding: GGUF's type number (safetensors dtypes too: F32 0, F16 1,
 * BF16 30), whose blocks hold their scales; or one of these, whose scales lie apart. */
enum kt_source_encoding {
  KT_SRC_I8 = 100, /* int8 [n, k] */
  KT_SRC_E4M3 = 101, /* FP8 [n, k] */
  KT_SRC_U4 = 102, /* 4-bit codes [n, k / 2 bytes], low nibble first */
  KT_SRC_GPTQ = 103, /* int32 [k / 8, n], nibble j of a word is K 8 i + j */
  KT_SRC_AWQ = 104 /* int32 [k, n / 8], nibble j of a word is row 8 i + (0 2 4 6 1 3 5 7)[j] */
};
enum kt_scale_type { KT_SCALE_F32 = 0, KT_SCALE_F16 = 1, KT_SCALE_BF16 = 30, KT_SCALE_BYTE = 200 };
typedef struct kt_source {
  const void *data;
  int64_t
      row_bytes; /* from one row of data to the next; GPTQ and AWQ: from one word row to the next */
  int32_t encoding;
  int32_t scale_type; /* KT_SCALE_BYTE: E8M0 or E4M3 as the packed format has it */
  const void *scales; /* [n / scale_rows, k / scale_k], the last of each may be partial */
  int64_t scale_stride; /* entries from one row of scales to the next */
  int32_t scale_rows;
  int32_t scale_k;
  const uint8_t *zeros; /* zero points shaped as scales, or NULL: 8 for 4-bit codes */
  int32_t search; /* 1: floats into 4-bit codes by search of the scales (slower) */
  const float *importance; /* [k] or NULL: with search, what an input's squared error counts */
  const uint8_t *grid; /* IQ1, IQ2, IQ3 of GGUF: codes of the grid's entries, 8 or (IQ3) 4 each */
} kt_source;

/* Bytes of W[n, k] packed; negative status if the format does not exist or k does not fit it. */
int64_t kt_packed_bytes(int32_t format, int64_t n, int64_t k);
/* Packs a source into dst. Float sources go into KT_F32, KT_F16, KT_BF16, KT_F8_G128, and KT_I8_G*,
 * KT_I4_G* (rounded to nearest, or by search); blocks into the format that names their type. Codes
 * with scales apart go into a format of their bits whose groups are the source's, or divide them,
 * and whose scales are stored as the source's are (float32 holds all of them); zero points need
 * KT_I4_Z*. The bytes do not depend on the variant or the thread count. */
int32_t kt_pack(kt_pool *pool, int32_t format, int64_t n, int64_t k, const kt_source *source,
                void *dst);
/* Exact float32 values of a packed matrix, row-major [n, k]. */
int32_t kt_unpack(kt_pool *pool, int32_t format, int64_t n, int64_t k, const void *packed,
                  float *dst);

typedef struct kt_weight {
  int32_t format;
  int32_t count; /* matrices behind data: 1, or the number of experts */
  int64_t n; /* rows of one matrix */
  int64_t k; /* columns */
  int64_t stride; /* bytes from one matrix to the next */
  const void *data; /* 64-byte aligned */
  const float *bias; /* [count, n] or NULL */
  const float *scale; /* [count] or NULL: multiplies each matrix */
} kt_weight;

/* ---- step program -----------------------------------------------------------------------------
 * A model is a flat list of operations over value slots. A slot holds one row of `width` float32
 * per token of the batch (rows are padded to 32 with zeros). */
enum kt_op_kind {
  KT_OP_EMBED = 0, /* out = scale * w[0][token] */
  KT_OP_NORM = 1, /* out = rmsnorm(in, eps) * gain */
  KT_OP_LINEAR = 2, /* out columns = in . w[i]^T + bias, i < n_weights, one after the other;
                       KT_ADD: added to out */
  KT_OP_ATTENTION = 3, /* in: q heads | k heads | v heads per token -> out: heads * head_dim */
  KT_OP_ROUTE = 4, /* in: router logits -> expert ids and weights of this program */
  KT_OP_MLP = 5, /* out += sum over chosen experts of weight * down(act(gate(in)) * up(in));
                    w: gate, up, down; count 1 and top_k 0: a dense MLP */
  KT_OP_SELECT = 6 /* out rows = the in rows that need logits; later operations run on those */
};
enum kt_op_flags { KT_ADD = 1 };

typedef struct kt_rope {
  int32_t dims; /* leading dims of a head that rotate; 0: no rotation */
  int32_t interleaved; /* 1: pairs (2i, 2i+1); 0: pairs (i, i + dims/2) */
  const float *inv_freq; /* [dims/2] */
  float attention_factor; /* multiplies cos and sin */
} kt_rope;

typedef struct kt_attention {
  int32_t layer; /* index into the KV cache */
  int32_t n_heads;
  int32_t n_kv_heads;
  int32_t head_dim;
  int32_t window; /* keys a query sees, itself included; 0: all */
  float scale; /* multiplies q.k */
  float qk_norm_eps;
  const float *q_norm; /* [head_dim] or NULL */
  const float *k_norm;
  kt_rope rope;
} kt_attention;

enum kt_score { KT_SOFTMAX = 0, KT_SIGMOID = 1, KT_SQRT_SOFTPLUS = 2 };
typedef struct kt_router {
  int32_t n_experts;
  int32_t top_k;
  int32_t score;
  int32_t softmax_after; /* softmax over the chosen logits instead of over all */
  int32_t normalise; /* chosen weights divided by their sum */
  int32_t n_groups; /* 0 or 1: none */
  int32_t top_groups;
  int32_t group_top2; /* group score: sum of its two best, else its maximum */
  float scale;
  const float *selection_bias; /* [n_experts] or NULL: added for the choice only */
} kt_router;

enum kt_activation { KT_SILU = 0 };

typedef struct kt_op {
  int32_t kind;
  int32_t flags;
  int32_t in;
  int32_t out;
  int32_t n_weights;
  int32_t activation;
  float eps;
  float scale;
  const float *gain;
  const int32_t *order; /* LINEAR and MLP: [count, w[0].k] or NULL: the column of `in` that column i
                           of the weights (of an MLP: of gate and up) is multiplied by */
  double *squares; /* MLP: [count, w[0].n] or NULL: the squares of what down reads are added to it;
                      batches of at most 240 tokens then */
  kt_weight w[3];
  kt_attention attention;
  kt_router router;
} kt_op;

/* KV pages: 32 tokens each. One page holds one layer's keys and values of all KV heads. */
enum kt_kv_format {
  KT_KV_BF16 = 0,
  KT_KV_INT8 = 1 /* a scale per key and 32 dims, and per value; native/kernels/kv_pages.h */
};
int32_t kt_page_tokens(void);
int64_t kt_page_bytes(int32_t kv_format, int32_t n_kv_heads, int32_t head_dim);

typedef struct kt_program_desc {
  int32_t n_ops;
  int32_t n_slots;
  int32_t max_tokens; /* rows of a batch */
  int32_t max_logits; /* rows of a batch that need logits */
  int32_t n_kv_layers;
  int32_t n_pages; /* per layer */
  int32_t n_kv_heads;
  int32_t head_dim;
  int32_t kv_format;
  int32_t logits_slot;
  const kt_op *ops; /* copied; what they point to is not */
  const int32_t *slot_widths; /* [n_slots] */
  void *kv; /* n_kv_layers * n_pages * kt_page_bytes bytes from kt_alloc */
} kt_program_desc;

typedef struct kt_program kt_program;
kt_program *kt_program_new(kt_pool *pool, const kt_program_desc *desc);
void kt_program_free(kt_program *program);
int64_t kt_program_bytes(const kt_program *program); /* working memory it holds */

/* A ragged batch. Sequence s owns rows seq_start[s] .. seq_start[s+1]; they are consecutive
 * positions, the first at first_position[s]; their keys and values are written to the sequence's
 * pages. */
typedef struct kt_batch {
  int32_t n_seqs;
  int32_t n_logits;
  int32_t page_stride; /* entries of a page_table row */
  int32_t n_ops; /* run only the first n_ops operations; 0: all */
  const int32_t *tokens; /* [seq_start[n_seqs]] */
  const int32_t *seq_start; /* [n_seqs + 1] */
  const int32_t *first_position; /* [n_seqs] */
  const int32_t *page_table; /* [n_seqs, page_stride] */
  const int32_t *logit_rows; /* [n_logits] ascending batch rows */
} kt_batch;

/* logits: float32 [n_logits, width of logits_slot], or NULL. KT_NOT_FINITE if a logit is NaN or
 * infinite. */
int32_t kt_forward(kt_program *program, const kt_batch *batch, float *logits);
/* float32 rows of a slot after kt_forward, row stride in floats into *stride. */
const float *kt_slot(const kt_program *program, int32_t slot, int64_t *stride);

/* ---- sampling ---------------------------------------------------------------------------------*/
typedef struct kt_sampling {
  float temperature; /* 0: greedy */
  int32_t top_k; /* 0: off */
  float top_p; /* 1: off */
  float min_p; /* 0: off */
  float repetition_penalty; /* 1: off; over prompt and output */
  float presence_penalty; /* 0: off; over output */
  float frequency_penalty; /* 0: off; over output */
  int32_t n_logprobs; /* best log probabilities to report; -1: none at all */
  uint64_t seed;
  uint64_t position; /* counter of the random stream: the token's index in the output */
  int32_t n_prompt; /* history[0..n_prompt) is the prompt, the rest output */
  int32_t n_history;
  const int32_t *history;
  int32_t n_bias; /* logit_bias pairs */
  const int32_t *bias_ids;
  const float *bias_values;
  const uint32_t *mask; /* [(vocab + 31) / 32] bit i of word j: id 32 j + i is allowed; NULL: all */
  int32_t given; /* this id instead of a draw, for its log probability; -1: draw */
} kt_sampling;

/* One id per row of logits [n_rows, vocab] (changed in place). logprobs of the raw distribution:
 * chosen [n_rows], best ids and values [n_rows, 20]; each may be NULL if no row asks for them. */
int32_t kt_sample(kt_pool *pool, float *logits, int32_t n_rows, int32_t vocab,
                  const kt_sampling *params, int32_t *ids, float *chosen_logprob, int32_t *best_ids,
                  float *best_logprobs);

/* ---- the machine's floors, for bench ----------------------------------------------------------
 * Rate of one instruction kind on all workers, operations (multiply and add count 2) per second. */
enum kt_peak { KT_PEAK_FMA_F32 = 0, KT_PEAK_DOT_INT8 = 1, KT_PEAK_DOT_BF16 = 2 };
double kt_peak_rate(kt_pool *pool, int32_t kind, double seconds);
/* Bytes per second that all workers read from data (larger than the caches). */
double kt_read_rate(kt_pool *pool, const void *data, int64_t bytes, double seconds);

/* Tile operations since the library was loaded, counted by the software model of AMX; 0 elsewhere.
 * Late: multiplies right behind the load of an operand, and early: stores right behind the last
 * multiply of their sum; the tile unit waits for either. */
enum kt_tile_count {
  KT_TILE_MULTIPLIES = 0,
  KT_TILE_LOADS = 1,
  KT_TILE_STORES = 2,
  KT_TILE_ZEROS = 3,
  KT_TILE_LATE_LOADS = 4,
  KT_TILE_EARLY_STORES = 5,
  KT_TILE_COUNTS = 6
};
void kt_tile_counts(int64_t *counts);

#ifdef __cplusplus
}
#endif

#endif
