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
  uint8_t *probs;  // [row of the tile][kSplit], or for int8 values [part][row][page]
  float *part;  // [head_padded / 32][row of the tile][32]: a split's unnormalised output
  float *out;  // [row][head_padded]: that of all splits so far
  float *head;  // [3][head_padded]

  static constexpr int64_t kMostTiles = (kAttentionRows + kQueryTile - 1) / kQueryTile;
  static int64_t bytes(int64_t hp) {
    return kMostTiles * packed_queries(hp) + kQueryTile * (kSplit * 4 + kProbBytes + hp * 4) +
           (kAttentionRows + 3) * hp * 4;
  }
  static AttentionScratch at(uint8_t *p, int64_t hp) {
    AttentionScratch s;
    const auto floats = [&](int64_t count) {
      float *at = reinterpret_cast<float *>(p);
      p += count * 4;
      return at;
    };
    s.packed = p, p += kMostTiles * packed_queries(hp);
    s.probs = p, p += kQueryTile * kProbBytes;
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

// One row's scores, page after page `stride` floats apart.
struct ScoreRow {
  float *scores;
  int64_t stride;
  int from, to;  // pages
  float *page(int p) const { return scores + p * stride; }
};

// Hides the keys outside [begin, end) of a split, and returns the largest score.
inline float mask_split(const ScoreRow &row, int begin, int end) {
  vf top = vf_set1(-INFINITY);
  for (int p = row.from; p < row.to; p++) {
    float *s = row.page(p);
    for (int i = std::max(0, std::min(32, begin - p * 32)) - 1; i >= 0; i--) s[i] = -INFINITY;
    for (int i = std::max(0, end - p * 32); i < 32; i++) s[i] = -INFINITY;
    top = vf_max(top, vf_max(vf_load(s), vf_load(s + 16)));
  }
  return vf_reduce_max(top);
}

// Calls each(page, probabilities of its 32 keys) and returns their sum.
template <class Each>
inline float softmax_split(const ScoreRow &row, float peak, Each &&each) {
  vf lo_sum = vf_zero(), hi_sum = vf_zero();
  const vf shift = vf_set1(peak == -INFINITY ? 0.0f : peak);
  for (int p = row.from; p < row.to; p++) {
    const float *s = row.page(p);
    const vf lo = vf_exp2(vf_sub(vf_load(s), shift)), hi = vf_exp2(vf_sub(vf_load(s + 16), shift));
    lo_sum = vf_add(lo_sum, lo);
    hi_sum = vf_add(hi_sum, hi);
    each(p, lo, hi);
  }
  return vf_sum(vf_add(lo_sum, hi_sum));
}

// Probabilities of tile row r for int8 values, times the values' scales, as integers of two parts.
// The largest of the split becomes kMostProb, so that an error is below 2^-15 of it.
constexpr float kMostProb = 127 * 256 + 127;
inline float softmax_codes(const KvHead &head, const SplitPages &pages, const ScoreRow &row,
                           float peak, int r, uint8_t *probs, ProbCodes &codes) {
  vf top = vf_zero(), broken = vf_zero();
  const float total = softmax_split(row, peak, [&](int p, vf lo, vf hi) {
    const float *scales = reinterpret_cast<const float *>(pages.keys[p] + head.value_scales());
    lo = vf_mul(lo, vf_load(scales)), hi = vf_mul(hi, vf_load(scales + 16));
    top = vf_max(top, vf_max(lo, hi));
    broken = vf_fma(vf_add(lo, hi), vf_zero(), broken);  // NaN if a value was not finite
    vf_store(row.page(p), lo), vf_store(row.page(p) + 16, hi);
  });
  const float most = vf_reduce_max(top), scale = most / kMostProb + vf_sum(broken);
  const vf inverse = vf_set1(most > 0 ? kMostProb / most : 0.0f);
  const vi round = vi_set1(128);
  vi high_sum = vi_zero(), low_sum = vi_zero();
  for (int p = row.from; p < row.to; p++) {
    const vi lo = vi_round(vf_mul(vf_load(row.page(p)), inverse));
    const vi hi = vi_round(vf_mul(vf_load(row.page(p) + 16), inverse));
    const vi lo_high = vi_shr<8>(vi_add(lo, round)), hi_high = vi_shr<8>(vi_add(hi, round));
    const vi lo_low = vi_sub(lo, vi_shl<8>(lo_high)), hi_low = vi_sub(hi, vi_shl<8>(hi_high));
    high_sum = vi_add(high_sum, vi_add(lo_high, hi_high));
    low_sum = vi_add(low_sum, vi_add(lo_low, hi_low));
    uint8_t *to = probs + r * kProbPart + p * kProbPage;
    store_codes(lo_high, hi_high, 256.0f * scale, to);
    store_codes(lo_low, hi_low, scale, to + kQueryTile * kProbPart);
  }
  codes.scale[0][r] = 256.0f * scale, codes.scale[1][r] = scale;
  codes.negative[0][r] = -vi_sum(high_sum), codes.negative[1][r] = -vi_sum(low_sum);
  return total;
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
  for (int p = from; p < to; p++) scores(head, tile, pages.keys[p], fetch, s.scores + p * stride);
  ProbCodes codes;
  for (int r = 0; r < count; r++) {
    const ScoreRow scored{s.scores + r * 32, stride, from, to};
    const float peak = mask_split(scored, begin(position[r]), end(position[r]));
    state.peak[r] = peak;
    if (head.format == KT_KV_INT8)
      state.total[r] = softmax_codes(head, pages, scored, peak, r, s.probs, codes);
    else
      state.total[r] = softmax_split(scored, peak, [&](int p, vf lo, vf hi) {
        b_store(s.probs + r * kProbRow + p * 32 * kHalfBytes, lo, hi);
      });
  }
  for (int64_t d = 0; d < head.padded / 32; d++)
    sum_values(head, pages, from, to, d, s.probs, codes, count, fetch, s.part + d * stride);
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
