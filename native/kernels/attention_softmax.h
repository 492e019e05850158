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
  for (int p = row.from; p < std::min(row.to, int(ceil_div(begin, 32))); p++)
    std::fill(row.page(p), row.page(p) + std::min(32, begin - p * 32), -INFINITY);
  for (int p = std::max(row.from, end / 32); p < row.to; p++)
    std::fill(row.page(p) + std::max(0, end - p * 32), row.page(p) + 32, -INFINITY);
  vf lo = vf_set1(-INFINITY), hi = lo;
  for (int p = row.from; p < row.to; p++)
    lo = vf_max(lo, vf_load(row.page(p))), hi = vf_max(hi, vf_load(row.page(p) + 16));
  return vf_reduce_max(vf_max(lo, hi));
}

// Calls each(page, probabilities of its 32 keys) and returns their sum. Two pages at a time: their
// exponentials do not wait for each other.
template <class Each>
inline float softmax_split(const ScoreRow &row, float peak, PageStream &ahead, Each &&each) {
  vf lo_sum = vf_zero(), hi_sum = vf_zero();
  const vf shift = vf_set1(peak == -INFINITY ? 0.0f : peak);
  const auto pages = [&](int first, auto count) {
    ahead.step();
    vf x[2 * count];
    for (int j = 0; j < 2 * count; j++)
      x[j] = vf_sub(vf_load(row.page(first + j / 2) + j % 2 * 16), shift);
    vf_exp2_all(x);
    for (int j = 0; j < count; j++) {
      lo_sum = vf_add(lo_sum, x[2 * j]);
      hi_sum = vf_add(hi_sum, x[2 * j + 1]);
      each(first + j, x[2 * j], x[2 * j + 1]);
    }
  };
  int p = row.from;
  for (; p + 1 < row.to; p += 2) pages(p, std::integral_constant<int, 2>());
  if (p < row.to) pages(p, std::integral_constant<int, 1>());
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

inline const float *value_scales(const KvHead &head, const SplitPages &pages, int p) {
  return reinterpret_cast<const float *>(pages.keys[p] + head.value_scales());
}
// 0, or NaN if an int8 value of pages [from, to) was not finite.
inline float value_error(const KvHead &head, const SplitPages &pages, int from, int to) {
  vf error = vf_zero();
  for (int p = from; p < to; p++) {
    const float *scales = value_scales(head, pages, p);
    error = vf_fma(vf_add(vf_load(scales), vf_load(scales + 16)), vf_zero(), error);
  }
  return vf_sum(error);
}

// The same for int8 values: probabilities times the values' scales, as integers of two parts. The
// largest of a row's split becomes kMostProb, so that an error is below 2^-15 of it. All rows take
// a step before any takes the next: the reductions at its end do not wait for each other.
constexpr float kMostProb = 127 * 256 + 127;
template <class Scored>
inline void softmax_codes(const KvHead &head, const SplitPages &pages, int count,
                          const Scored &scored, PageStream &ahead, SplitState &state,
                          uint8_t *probs, ProbCodes &codes) {
  const float broken = value_error(head, pages, scored(0).from, scored(0).to);
  float most[kQueryTile];
  for (int r = 0; r < count; r++) {
    const ScoreRow row = scored(r);
    vf top = vf_zero();
    state.total[r] = softmax_split(row, state.peak[r], ahead, [&](int p, vf lo, vf hi) {
      const float *scales = value_scales(head, pages, p);
      lo = vf_mul(lo, vf_load(scales)), hi = vf_mul(hi, vf_load(scales + 16));
      top = vf_max(top, vf_max(lo, hi));
      vf_store(row.page(p), lo), vf_store(row.page(p) + 16, hi);
    });
    most[r] = vf_reduce_max(top);
    codes.scale[r] = most[r] / kMostProb + broken;
  }
  for (int r = 0; r < count; r++) {
    const ScoreRow row = scored(r);
    const vf inverse = vf_set1(most[r] > 0 ? kMostProb / most[r] : 0.0f);
    vi negative = vi_zero();
    for (int p = row.from; p < row.to; p++) {
      uint8_t *high = probs + r * kProbPart + p * kProbPage, *low = high + kQueryTile * kProbPart;
      const vi lo = vi_round(vf_mul(vf_load(row.page(p)), inverse));
      const vi hi = vi_round(vf_mul(vf_load(row.page(p) + 16), inverse));
      q_store_parts(high, low, lo, hi);
      negative = vi_sub(negative, vi_add(lo, hi));
      end_codes(256.0f * codes.scale[r], high), end_codes(codes.scale[r], low);
    }
    codes.negative[r] = vi_sum(negative);
  }
}

}  // namespace kt
