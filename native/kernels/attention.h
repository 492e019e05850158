// Paged attention. Keys are cut into splits of 256 at fixed positions. Every split is softmaxed by
// itself and the splits are combined from left to right, so a row's result does not depend on
// chunking, batch or thread count. Scores are in units of log 2: queries come scaled by log2(e).
#pragma once
#include <cmath>

#include "attention_tile.h"
#include "norm.h"
#include "rope.h"

namespace kt {

// Query rows of a unit: a split's keys and values stay in the second-level cache while they pass.
constexpr int kAttentionRows = 96;
constexpr float kLog2E = 1.44269504f;

// The encoded query rows of a unit, all of one KV head, in the order of their positions.
struct QueryRows {
  const void *row[kAttentionRows];
  int64_t position[kAttentionRows];
  int count;
};

// A worker's memory.
struct AttentionScratch {
  uint8_t *packed;  // queries, tile by tile
  float *scores;  // [page][row of the tile][32]
  uint8_t *probs;  // [row of the tile][kSplit] encoded for bfloat16 weights
  float *part;  // [head_padded / 32][row of the tile][32]: a split's unnormalised output
  float *out;  // [row][head_padded]: that of all splits so far
  float *head;  // [3][head_padded]
  uint8_t *values;  // [page] bfloat16 panels of int8 values

  static constexpr int64_t kMostTiles = (kAttentionRows + kQueryTile - 1) / kQueryTile;
  static int64_t bytes(int64_t hp) {
    return kMostTiles * packed_queries(hp) + kQueryTile * (kSplit * 4 + kProbRow + hp * 4) +
           (kAttentionRows + 3) * hp * 4 + kSplitPages * hp * 64;
  }
  static AttentionScratch at(uint8_t *p, int64_t hp) {
    AttentionScratch s;
    const auto floats = [&](int64_t count) {
      float *at = reinterpret_cast<float *>(p);
      p += count * 4;
      return at;
    };
    s.values = p, p += kSplitPages * hp * 64;
    s.packed = p, p += kMostTiles * packed_queries(hp);
    s.probs = p, p += kQueryTile * kProbRow;
    s.scores = floats(kQueryTile * kSplit);
    s.part = floats(kQueryTile * hp);
    s.out = floats(kAttentionRows * hp);
    s.head = floats(3 * hp);
    return s;
  }
};

// Softmax state of the rows of a tile.
struct SplitState {
  float peak[kQueryTile];
  float total[kQueryTile];
};

// Softmax of one row's scores within pages [from, to) of a split: keys [begin, end) of the split
// count. Probabilities go out encoded, times the scales of int8 values.
inline void softmax_split(const SplitPages &pages, float *scores, int from, int to, int64_t stride,
                          int begin, int end, uint8_t *probs, float *peak, float *total) {
  vf top = vf_set1(-INFINITY);
  for (int p = from; p < to; p++) {
    float *s = scores + p * stride;
    for (int i = std::max(0, std::min(32, begin - p * 32)) - 1; i >= 0; i--) s[i] = -INFINITY;
    for (int i = std::max(0, end - p * 32); i < 32; i++) s[i] = -INFINITY;
    top = vf_max(top, vf_max(vf_load(s), vf_load(s + 16)));
  }
  *peak = vf_reduce_max(top);
  vf lo_sum = vf_zero(), hi_sum = vf_zero();
  const vf shift = vf_set1(*peak == -INFINITY ? 0.0f : *peak);
  for (int p = from; p < to; p++) {
    const float *s = scores + p * stride;
    vf lo = vf_exp2(vf_sub(vf_load(s), shift)), hi = vf_exp2(vf_sub(vf_load(s + 16), shift));
    lo_sum = vf_add(lo_sum, lo);
    hi_sum = vf_add(hi_sum, hi);
    if (pages.scales[p]) {
      const float *scale = reinterpret_cast<const float *>(pages.scales[p]);
      lo = vf_mul(lo, vf_load(scale)), hi = vf_mul(hi, vf_load(scale + 16));
    }
    b_store(probs + p * 32 * kHalfBytes, lo, hi);
  }
  *total = vf_sum(vf_add(lo_sum, hi_sum));
}

// One split, for the rows of q from `row` on that one tile takes: into scratch.part and state.
// fetch: this tile is the first of its split.
inline int attend_tile(const KvHead &head, const SplitPages &pages, int64_t first, int window,
                       const QueryRows &q, int row, bool fetch, AttentionScratch &s,
                       SplitState &state) {
  const int count = std::min(kQueryTile, q.count - row);
  const int64_t *position = q.position + row;
  const auto begin = [&](int64_t at) {
    return window ? int(std::clamp<int64_t>(at - window + 1 - first, 0, kSplit)) : 0;
  };
  const auto end = [&](int64_t at) { return int(std::clamp<int64_t>(at + 1 - first, 0, kSplit)); };
  // Pages that a row of the tile sees part of.
  const int to = int(ceil_div(end(position[count - 1]), kPageTokens));
  const int from = std::min(begin(position[0]) / kPageTokens, to);
  const QueryTile tile{q.row + row, s.packed + row / kQueryTile * packed_queries(head.padded),
                       count};
  const int64_t stride = int64_t(count) * 32;
  for (int p = from; p < to; p++)
    scores(head, tile, pages.keys[p], s.scores + p * stride, fetch ? pages.after_keys[p] : nullptr);
  for (int r = 0; r < count; r++)
    softmax_split(pages, s.scores + r * 32, from, to, stride, begin(position[r]), end(position[r]),
                  s.probs + r * kProbRow, state.peak + r, state.total + r);
  for (int64_t d = 0; d < head.padded / 32; d++)
    sum_values(pages, from, to, d, s.probs, count, fetch, s.part + d * stride);
  return count;
}

// acc <- acc combined with the next split of one row, whose blocks of 32 dims lie `stride` floats
// apart. A row starts with peak -infinity and total 0.
inline void combine_split(float *peak, float *total, float *acc, float next_peak, float next_total,
                          const float *next, int64_t stride, int64_t hp) {
  if (next_peak == -INFINITY) return;  // no key of the split is seen by this row
  const float top = std::max(*peak, next_peak);
  alignas(64) float weight[16] = {*peak - top, next_peak - top};
  vf_store(weight, vf_exp2(vf_load(weight)));
  const float keep = *peak == -INFINITY ? 0.0f : weight[0], add = weight[1];
  for (int64_t i = 0; i < hp; i += 16)
    vf_store(acc + i, vf_fma(vf_load(next + i / 32 * stride + i % 32), vf_set1(add),
                             vf_mul(vf_load(acc + i), vf_set1(keep))));
  *total = *total * keep + next_total * add;
  *peak = top;
}

}  // namespace kt
