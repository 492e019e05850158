// The softmax of a split: scores to probabilities, in the form that the products with values read.
#pragma once
#include <cmath>

#include "attention_tile.h"

namespace kt {

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
inline float softmax_split(const ScoreRow &row, float peak, PageStream &ahead, Each &&each) {
  vf lo_sum = vf_zero(), hi_sum = vf_zero();
  const vf shift = vf_set1(peak == -INFINITY ? 0.0f : peak);
  for (int p = row.from; p < row.to; p++) {
    if (p % 2) ahead.step();
    const float *s = row.page(p);
    const vf lo = vf_exp2(vf_sub(vf_load(s), shift)), hi = vf_exp2(vf_sub(vf_load(s + 16), shift));
    lo_sum = vf_add(lo_sum, lo);
    hi_sum = vf_add(hi_sum, hi);
    each(p, lo, hi);
  }
  return vf_sum(vf_add(lo_sum, hi_sum));
}

// Probabilities of the tile's rows, for bfloat16 values. scored(r): the scores of a row.
template <class Scored>
inline void softmax_halves(int count, const Scored &scored, PageStream &ahead, SplitState &state,
                           uint8_t *probs) {
  for (int r = 0; r < count; r++)
    state.total[r] = softmax_split(scored(r), state.peak[r], ahead, [&](int p, vf lo, vf hi) {
      b_store(probs + r * kProbRow + p * 32 * kHalfBytes, lo, hi);
    });
}

// The same for int8 values: probabilities times the values' scales, as integers of two parts. The
// largest of a row's split becomes kMostProb, so that an error is below 2^-15 of it. All rows take
// a step before any takes the next: the reductions at its end do not wait for each other.
constexpr float kMostProb = 127 * 256 + 127;
template <class Scored>
inline void softmax_codes(const KvHead &head, const SplitPages &pages, int count,
                          const Scored &scored, PageStream &ahead, SplitState &state,
                          uint8_t *probs, ProbCodes &codes) {
  float most[kQueryTile];
  for (int r = 0; r < count; r++) {
    const ScoreRow row = scored(r);
    vf top = vf_zero(), sum = vf_zero();
    state.total[r] = softmax_split(row, state.peak[r], ahead, [&](int p, vf lo, vf hi) {
      const float *scales = reinterpret_cast<const float *>(pages.keys[p] + head.value_scales());
      lo = vf_mul(lo, vf_load(scales)), hi = vf_mul(hi, vf_load(scales + 16));
      top = vf_max(top, vf_max(lo, hi));
      sum = vf_add(sum, vf_add(lo, hi));
      vf_store(row.page(p), lo), vf_store(row.page(p) + 16, hi);
    });
    most[r] = vf_reduce_max(top);
    // NaN if a value was not finite.
    codes.scale[1][r] = most[r] / kMostProb + vf_sum(vf_mul(sum, vf_zero()));
    codes.scale[0][r] = 256.0f * codes.scale[1][r];
  }
  for (int r = 0; r < count; r++) {
    const ScoreRow row = scored(r);
    const vf inverse = vf_set1(most[r] > 0 ? kMostProb / most[r] : 0.0f);
    vi high_sum = vi_zero(), low_sum = vi_zero();
    for (int p = row.from; p < row.to; p++) {
      uint8_t *high = probs + r * kProbPart + p * kProbPage, *low = high + kQueryTile * kProbPart;
      q_store_parts(high, low, vi_round(vf_mul(vf_load(row.page(p)), inverse)),
                    vi_round(vf_mul(vf_load(row.page(p) + 16), inverse)));
      high_sum = q_sum(high_sum, high), low_sum = q_sum(low_sum, low);
      end_codes(codes.scale[0][r], high), end_codes(codes.scale[1][r], low);
    }
    codes.negative[0][r] = -vi_sum(high_sum), codes.negative[1][r] = -vi_sum(low_sum);
  }
}

}  // namespace kt
