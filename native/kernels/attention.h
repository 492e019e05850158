// Paged attention. A KV page is 32 tokens of one layer, laid out as packed bfloat16 matrices, so
// that both products are the register tiles of the linear layers:
//   per KV head:  K [32 keys, head_dim]   two panels of 16 keys
//                 V^T [head_dim, 32 keys] head_dim / 16 panels, 16 lines each
// Keys are cut into splits of 256 at fixed positions. Every split is softmaxed by itself and the
// splits are combined from left to right, so a row's result does not depend on chunking, batch or
// thread count.
#pragma once
#include <cmath>

#include "gemm.h"
#include "norm.h"
#include "rope.h"

namespace kt {

constexpr int kPageTokens = 32;
constexpr int kSplitPages = 8;
constexpr int kSplit = kSplitPages * kPageTokens;
constexpr int kAttentionRows = 24;  // query rows of a unit

inline int64_t padded_head(int64_t head_dim) { return round_up(head_dim, kBlock); }
inline int64_t page_head_bytes(int64_t head_dim) { return padded_head(head_dim) * kPageTokens * 4; }

// One layer's pages.
struct KvLayer {
  uint8_t *base;
  int64_t page_bytes;
  int64_t head_bytes;
  int64_t head_padded;
  uint8_t *keys(int32_t page, int head) const {
    return base + page * page_bytes + head * head_bytes;
  }
  uint8_t *values(int32_t page, int head) const { return keys(page, head) + head_bytes / 2; }
};

// Writes one token's key and value head into slot `slot` of a page. A page's first token clears the
// page's head, so that unused slots are zeros, never another sequence's leftovers.
inline void write_kv(const KvLayer &kv, int32_t page, int head, int slot, int head_dim,
                     const float *key, const float *value) {
  uint8_t *k = kv.keys(page, head), *v = kv.values(page, head);
  if (slot == 0) std::memset(k, 0, size_t(kv.head_bytes));
  k += slot / 16 * (kv.head_bytes / 4) + slot % 16 * 4;
  for (int d = 0; d < head_dim; d++) store_u16(k + d / 2 * 64 + d % 2 * 2, float_to_bf16(key[d]));
  v += slot / 2 * 64 + slot % 2 * 2;
  for (int d = 0; d < head_dim; d++)
    store_u16(v + d / 16 * 1024 + d % 16 * 4, float_to_bf16(value[d]));
}

// Softmax state of some query rows: maximum, sum of exponentials, unnormalised output.
struct AttentionRows {
  float peak[kAttentionRows];
  float total[kAttentionRows];
  float *out;  // [row][head_padded]
};

struct AttentionScratch {
  float *scores;  // [page][row][32]
  uint8_t *probs;  // [row][kSplit] encoded for bfloat16 weights
  float *tile;  // [head_padded / 32][row][32]
  float *out[2];  // [row][head_padded]
  static int64_t bytes(int64_t hp) { return kAttentionRows * (kSplit * 8 + hp * 12) + 64; }
  static AttentionScratch at(uint8_t *p, int64_t hp) {
    AttentionScratch s;
    s.scores = reinterpret_cast<float *>(p);
    s.probs = p + kAttentionRows * kSplit * 4;
    s.tile = reinterpret_cast<float *>(s.probs + kAttentionRows * kSplit * 4);
    s.out[0] = s.tile + kAttentionRows * hp;
    s.out[1] = s.out[0] + kAttentionRows * hp;
    return s;
  }
};

// One tile call over `rows` rows of any number.
inline void run_tiles(TileArgs args, const void *const *rows, int count) {
  for (int from = 0; from < count;) {
    const int height = tile_height(count - from);
    args.rows = rows + from;
    args.count = std::min(count - from, kTileRows[height]);
    kTiles[KT_BF16].fn[height](args);
    args.out += args.count * 32;
    from += args.count;
  }
}

// Softmax of one row's scores within a split: keys [begin, end) of the split count. Probabilities
// go out encoded.
inline void softmax_split(float *scores, int pages, int64_t page_stride, int begin, int end,
                          uint8_t *probs, float *peak, float *total) {
  vf top = vf_set1(-INFINITY);
  for (int p = 0; p < pages; p++) {
    float *s = scores + p * page_stride;
    for (int i = std::max(0, std::min(32, begin - p * 32)) - 1; i >= 0; i--) s[i] = -INFINITY;
    for (int i = std::max(0, end - p * 32); i < 32; i++) s[i] = -INFINITY;
    top = vf_max(top, vf_max(vf_load(s), vf_load(s + 16)));
  }
  *peak = vf_reduce_max(top);
  vf lo_sum = vf_zero(), hi_sum = vf_zero();
  const vf shift = vf_set1(*peak == -INFINITY ? 0.0f : *peak);
  for (int p = 0; p < pages; p++) {
    const float *s = scores + p * page_stride;
    const vf lo = vf_exp(vf_sub(vf_load(s), shift)), hi = vf_exp(vf_sub(vf_load(s + 16), shift));
    lo_sum = vf_add(lo_sum, lo);
    hi_sum = vf_add(hi_sum, hi);
    b_store(probs + p * 32 * kHalfBytes, lo, hi);
  }
  *total = vf_sum(vf_add(lo_sum, hi_sum));
}

struct QueryRows {
  const void *row[kAttentionRows];  // encoded, scaled queries
  int64_t position[kAttentionRows];
  int count;
};

// State of one split for all rows. pages: the sequence's page table.
inline void attend_split(const KvLayer &kv, const int32_t *pages, int head, int64_t split,
                         int window, const QueryRows &q, AttentionScratch &s,
                         AttentionRows &state) {
  const int64_t hp = kv.head_padded, first = split * kSplit;
  int64_t last = 0;
  for (int r = 0; r < q.count; r++) last = std::max(last, q.position[r]);
  const int n_pages = int(std::min<int64_t>(kSplitPages, (last - first) / kPageTokens + 1));
  const int64_t page_stride = int64_t(q.count) * 32;
  TileArgs args{};
  args.blocks = hp / 32;
  for (int p = 0; p < n_pages; p++) {
    args.lines[0] = kv.keys(pages[split * kSplitPages + p], head);
    args.lines[1] = args.lines[0] + kv.head_bytes / 4;
    args.out = s.scores + p * page_stride;
    run_tiles(args, q.row, q.count);
  }
  const void *probs[kAttentionRows];
  const int64_t probs_bytes = kSplit * kHalfBytes;
  for (int r = 0; r < q.count; r++) {
    const int64_t begin = window ? std::max<int64_t>(0, q.position[r] - window + 1 - first) : 0;
    softmax_split(s.scores + r * 32, n_pages, page_stride, int(std::min<int64_t>(begin, kSplit)),
                  int(std::clamp<int64_t>(q.position[r] + 1 - first, 0, kSplit)),
                  s.probs + r * probs_bytes, state.peak + r, state.total + r);
  }
  args.blocks = 1;
  for (int64_t d = 0; d < hp / 32; d++) {
    args.out = s.tile + d * page_stride;
    for (int p = 0; p < n_pages; p++) {
      args.lines[0] = kv.values(pages[split * kSplitPages + p], head) + d * 2048;
      args.lines[1] = args.lines[0] + 1024;
      args.accumulate = p > 0;
      for (int r = 0; r < q.count; r++) probs[r] = s.probs + r * probs_bytes + p * 32 * kHalfBytes;
      run_tiles(args, probs, q.count);
    }
    for (int r = 0; r < q.count; r++)
      std::memcpy(state.out + r * hp + d * 32, args.out + r * 32, 128);
  }
}

// acc <- acc combined with the next split of one row. A row starts with peak -infinity and total 0.
inline void combine_split(float *peak, float *total, float *acc, float next_peak, float next_total,
                          const float *next, int64_t hp) {
  if (next_peak == -INFINITY) return;  // no key of the split is seen by this row
  const float top = std::max(*peak, next_peak);
  alignas(64) float weight[16] = {*peak - top, next_peak - top};
  vf_store(weight, vf_exp(vf_load(weight)));
  const float keep = *peak == -INFINITY ? 0.0f : weight[0], add = weight[1];
  for (int64_t i = 0; i < hp; i += 16)
    vf_store(acc + i,
             vf_fma(vf_load(next + i), vf_set1(add), vf_mul(vf_load(acc + i), vf_set1(keep))));
  *total = *total * keep + next_total * add;
  *peak = top;
}

}  // namespace kt
