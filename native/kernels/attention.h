// Paged attention. Keys are cut into splits of 256 at fixed positions, and these are taken together
// in spans of 4. Every split is softmaxed by itself, the splits of a span are combined from left to
// right, and then the spans, so a row's result does not depend on chunking, batch or thread count.
// Scores are in units of log 2: queries come scaled by log2(e).
#pragma once
#include "attention_softmax.h"
#include "norm.h"
#include "rope.h"

namespace kt {

// Query rows of a unit: a split's keys and values stay in the second-level cache while they pass.
constexpr int kAttentionRows = 96;
// Splits that are combined by themselves before spans are, so that fewer partial outputs have to be
// kept where splits are computed in parallel.
constexpr int64_t kSpan = 4;
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
  float *span;  // [row][head_padded]: that of a span's splits so far
  float *out;  // [row][head_padded]: that of all spans so far
  float *head;  // [3][head_padded]

  static constexpr int64_t kMostTiles = (kAttentionRows + kQueryTile - 1) / kQueryTile;
  static int64_t bytes(int64_t hp) {
    return kMostTiles * packed_queries(hp) + kQueryTile * (kSplit * 4 + kProbBytes + hp * 4) +
           (2 * kAttentionRows + 3) * hp * 4;
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
    s.span = floats(kAttentionRows * hp);
    s.out = floats(kAttentionRows * hp);
    s.head = floats(3 * hp);
    return s;
  }
};

// One split, for the rows of q from `row` on that one tile takes: into scratch.part and state.
// ahead: what is fetched meanwhile.
inline int attend_tile(const KvHead &head, const SplitPages &pages, int64_t first, int window,
                       const QueryRows &q, int row, PageStream &ahead, AttentionScratch &s,
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
  scores(head, tile, pages, from, to, ahead, s.scores);
  const auto scored = [&](int r) { return ScoreRow{s.scores + r * 32, stride, from, to}; };
  for (int r = 0; r < count; r++)
    state.peak[r] = mask_split(scored(r), begin(position[r]), end(position[r]));
  ProbCodes codes;
  if (head.format == KT_KV_INT8)
    softmax_codes(head, pages, count, scored, ahead, state, s.probs, codes);
  else
    softmax_halves(count, scored, ahead, state, s.probs);
  for (int64_t d = 0; d < head.padded / 32; d++)
    sum_values(head, pages, from, to, d, s.probs, codes, count, ahead, s.part + d * stride);
  return count;
}

// How a row's sums so far and those of its next split add up: keep * sums + add * next.
struct SplitWeights {
  static constexpr int kMost = 16;
  float keep[kMost], add[kMost];
};

// Weights of up to 16 rows, or of as many splits of one. before, next: the largest score so far,
// and of the next split; -infinity: no key was seen. Neither depends on its neighbours.
inline void weigh_splits(const float *before, const float *next, int count, SplitWeights &w) {
  alignas(64) float old[SplitWeights::kMost] = {}, fresh[SplitWeights::kMost] = {};
  for (int i = 0; i < count; i++) {
    const float top = std::max(before[i], next[i]);
    old[i] = before[i] == -INFINITY ? -INFINITY : before[i] - top;
    fresh[i] = next[i] == -INFINITY ? -INFINITY : next[i] - top;
  }
  vf_store(w.keep, vf_exp2(vf_load(old)));
  vf_store(w.add, vf_exp2(vf_load(fresh)));
}

// acc <- keep * acc + add * next; blocks of 32 dims of `next` lie `stride` floats apart.
inline void add_split(float *acc, const float *next, int64_t stride, int64_t hp, float keep,
                      float add) {
  for (int64_t i = 0; i < hp; i += 16)
    vf_store(acc + i, vf_fma(vf_load(next + i / 32 * stride + i % 32), vf_set1(add),
                             vf_mul(vf_load(acc + i), vf_set1(keep))));
}

// Softmax state of a unit's rows, and their unnormalised outputs, over some splits.
struct RowSums {
  float peak[kAttentionRows];
  float total[kAttentionRows];
  float *out;  // [row][hp]

  void reset(int rows, int64_t hp) {
    std::fill(peak, peak + rows, -INFINITY);
    std::fill(total, total + rows, 0.0f);
    std::memset(out, 0, size_t(rows * hp) * 4);
  }
  // What follows, of rows row .. row + count - 1. Blocks of 32 dims of row r lie at next + r *
  // row_stride, block_stride apart.
  void add(int row, int count, const float *next_peak, const float *next_total, const float *next,
           int64_t row_stride, int64_t block_stride, int64_t hp) {
    SplitWeights w;
    for (int r = 0; r < count; r++) {
      const int i = r % SplitWeights::kMost, at = row + r;
      if (i == 0)
        weigh_splits(peak + at, next_peak + r, std::min(count - r, SplitWeights::kMost), w);
      if (next_peak[r] == -INFINITY) continue;  // no key of it is seen by this row
      add_split(out + at * hp, next + r * row_stride, block_stride, hp, w.keep[i], w.add[i]);
      total[at] = total[at] * w.keep[i] + next_total[r] * w.add[i];
      peak[at] = std::max(peak[at], next_peak[r]);
    }
  }
};

// Partial sums of one row, from left to right as RowSums::add has it: outputs are parts
// [count][hp]. Into acc, *peak and *total.
inline void combine(const float *peaks, const float *totals, const float *parts, int64_t count,
                    int64_t hp, float *acc, float *peak, float *total) {
  float top = -INFINITY, sum = 0;
  std::memset(acc, 0, size_t(hp) * 4);
  SplitWeights w;
  for (int64_t from = 0; from < count; from += SplitWeights::kMost) {
    const int n = int(std::min<int64_t>(count - from, SplitWeights::kMost));
    float before[SplitWeights::kMost];
    for (int i = 0; i < n; i++) before[i] = top, top = std::max(top, peaks[from + i]);
    weigh_splits(before, peaks + from, n, w);
    for (int i = 0; i < n; i++) {
      if (peaks[from + i] == -INFINITY) continue;
      add_split(acc, parts + (from + i) * hp, 32, hp, w.keep[i], w.add[i]);
      sum = sum * w.keep[i] + totals[from + i] * w.add[i];
    }
  }
  *peak = top, *total = sum;
}

}  // namespace kt
