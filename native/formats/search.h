// 4-bit rounding with a search: scales (and minimums) that make a group's squared error small,
// instead of those that its extremes suggest. 16 rows at once, a row per lane, so that the result
// is the same for every variant: each lane sums its K in order.
//
// Every candidate scale gives codes; the codes have a best scale in closed form (least squares),
// and what that pair leaves of the group decides. The winner is refitted, rounded to float16, coded
// once more, and used where it beats plain rounding.
#pragma once
#include "rounding.h"

namespace kt {

inline vi vi_where(vi mask, vi yes, vi no) { return vi_or(vi_and(mask, yes), vi_andnot(mask, no)); }
inline vf vf_where(vi mask, vf yes, vf no) {
  return vf_bits(vi_where(mask, vi_bits(yes), vi_bits(no)));
}
// x < y for numbers that are not negative; NaN is larger than any number.
inline vi below(vf x, vf y) { return vi_less(vi_bits(x), vi_bits(y)); }

inline vf clamp_round(vf x, float low, float high) {
  return vf_from(vi_round(vf_max(vf_min(x, vf_set1(high)), vf_set1(low))));
}
inline vf round_half(vf x) {
  float lanes[kPanel];
  vf_store(lanes, x);
  for (float &v : lanes) v = half_to_float(float_to_half(v));
  return vf_load(lanes);
}
// 1 / x, 0 where x is 0 (or so small that 1 / x is infinite).
inline vf inverse_of(vf x) {
  const vf inverse = vf_div(vf_set1(1), x);
  return vf_where(below(vf_abs(inverse), vf_set1(INFINITY)), inverse, vf_zero());
}

// w = scale * (code - 8) + minimum, codes 0 .. 15; without minimums (Min false) minimum is 0, with
// them it is scale * 8 more than the record's.
struct Fit {
  vf scale, minimum;
};

// What a fit's codes leave of the group: sum of weight * (x - w)^2.
template <int G>
inline vf squared_error(const Group<G> &group, const Fit &fit) {
  const vf inverse = inverse_of(fit.scale);
  vf sum = vf_zero();
  for (int i = 0; i < G; i++) {
    const vf x = vf_sub(vf_load(group.x[i]), fit.minimum);
    const vf rest = vf_sub(x, vf_mul(clamp_round(vf_mul(x, inverse), -8, 7), fit.scale));
    sum = vf_fma(vf_mul(rest, rest), vf_set1(group.weight[i]), sum);
  }
  return sum;
}

// Least squares without a minimum for the codes that `inverse` gives. *gain: how much of the sum of
// squares it explains.
template <int G>
inline Fit refit_scale(const Group<G> &group, vf inverse, vf *gain) {
  vf xq = vf_zero(), qq = vf_zero();
  for (int i = 0; i < G; i++) {
    const vf x = vf_load(group.x[i]), q = clamp_round(vf_mul(x, inverse), -8, 7);
    const vf weighted = vf_mul(q, vf_set1(group.weight[i]));
    xq = vf_fma(x, weighted, xq);
    qq = vf_fma(q, weighted, qq);
  }
  const Fit fit = {vf_mul(xq, inverse_of(qq)), vf_zero()};
  *gain = vf_mul(fit.scale, xq);
  return fit;
}

// The same with a minimum, for codes around `middle`.
template <int G>
inline Fit refit_scale_minimum(const Group<G> &group, vf inverse, vf middle, vf *gain) {
  vf w = vf_zero(), q1 = vf_zero(), qq = vf_zero(), x1 = vf_zero(), xq = vf_zero();
  for (int i = 0; i < G; i++) {
    const vf x = vf_sub(vf_load(group.x[i]), middle), q = clamp_round(vf_mul(x, inverse), -8, 7);
    const vf weight = vf_set1(group.weight[i]), weighted = vf_mul(q, weight);
    w = vf_add(w, weight);
    q1 = vf_add(q1, weighted);
    qq = vf_fma(q, weighted, qq);
    x1 = vf_fma(x, weight, x1);
    xq = vf_fma(x, weighted, xq);
  }
  const vf determinant = vf_sub(vf_mul(w, qq), vf_mul(q1, q1));
  const vf scale = vf_mul(vf_sub(vf_mul(w, xq), vf_mul(q1, x1)), inverse_of(determinant));
  const vf minimum = vf_mul(vf_sub(x1, vf_mul(scale, q1)), inverse_of(w));
  *gain = vf_fma(scale, xq, vf_mul(minimum, x1));
  return {scale, vf_add(middle, minimum)};
}

inline void keep_better(Fit *best, vf *best_gain, const Fit &fit, vf gain) {
  const vi better = below(*best_gain, gain);
  best->scale = vf_where(better, fit.scale, best->scale);
  best->minimum = vf_where(better, fit.minimum, best->minimum);
  *best_gain = vf_where(better, gain, *best_gain);
}

// The largest value by size, of each row.
template <int G>
inline vf peak_of(const Group<G> &group) {
  vf peak = vf_load(group.x[0]);
  for (int i = 1; i < G; i++) {
    const vf x = vf_load(group.x[i]);
    peak = vf_where(below(vf_abs(peak), vf_abs(x)), x, peak);
  }
  return peak;
}

template <int G>
inline Fit search_scale(const Group<G> &group) {
  const vf peak = peak_of(group), unit = inverse_of(peak);
  Fit best = {vf_zero(), vf_zero()};
  vf best_gain = vf_zero(), gain;
  // Where the peak falls: on codes about 8 below zero, or about 7 above it.
  for (int step = 0; step < 17; step++)
    for (int side = 0; side < 2; side++) {
      const float at = side ? 5.8f + 0.2f * float(step) : -(6.4f + 0.2f * float(step));
      const Fit fit = refit_scale(group, vf_mul(unit, vf_set1(at)), &gain);
      keep_better(&best, &best_gain, fit, gain);
    }
  for (int again = 0; again < 2; again++) {
    const Fit fit = refit_scale(group, inverse_of(best.scale), &gain);
    keep_better(&best, &best_gain, fit, gain);
  }
  best.scale = round_half(best.scale);
  const Fit plain = {round_half(vf_mul(peak, vf_set1(-0.125f))), vf_zero()};
  const vi better = below(squared_error(group, best), squared_error(group, plain));
  return {vf_where(better, best.scale, plain.scale), vf_zero()};
}

// The record's minimum is the value of code 0, a float16: 8 scales below Fit's.
inline Fit as_recorded(const Fit &fit) {
  const vf scale = round_half(fit.scale), eight = vf_mul(scale, vf_set1(8));
  return {scale, vf_add(round_half(vf_sub(fit.minimum, eight)), eight)};
}

template <int G>
inline Fit search_scale_minimum(const Group<G> &group) {
  vf low = vf_load(group.x[0]), high = low;
  for (int i = 1; i < G; i++) {
    low = vf_min(low, vf_load(group.x[i]));
    high = vf_max(high, vf_load(group.x[i]));
  }
  const vf range = vf_sub(high, low), unit = inverse_of(range);
  Fit best = {vf_zero(), low};
  vf best_gain = vf_zero(), gain;
  const vf half_step = vf_mul(range, vf_set1(0.5f / 15));
  const vf middle = vf_add(vf_mul(vf_add(low, high), vf_set1(0.5f)), half_step);
  for (int step = 0; step < 20; step++) {
    const vf inverse = vf_mul(unit, vf_set1(12.5f + 0.25f * float(step)));
    const Fit fit = refit_scale_minimum(group, inverse, middle, &gain);
    keep_better(&best, &best_gain, fit, gain);
  }
  for (int again = 0; again < 2; again++) {
    // The gain is measured from `middle` there and from the fit's own minimum here.
    const Fit fit = refit_scale_minimum(group, inverse_of(best.scale), best.minimum, &gain);
    const vi better = below(squared_error(group, fit), squared_error(group, best));
    best = {vf_where(better, fit.scale, best.scale), vf_where(better, fit.minimum, best.minimum)};
  }
  best = as_recorded(best);
  const vf step = round_half(vf_mul(range, vf_set1(1.0f / 15)));
  const Fit plain = {step, vf_add(round_half(low), vf_mul(step, vf_set1(8)))};
  const vi better = below(squared_error(group, best), squared_error(group, plain));
  return {vf_where(better, best.scale, plain.scale), vf_where(better, best.minimum, plain.minimum)};
}

// Codes q[block][row][K] of rows 0 .. rows, and their scale record.
template <class F, int G>
inline void search_group(const Group<G> &group, int rows, uint8_t *record,
                         uint8_t (*q)[kPanel][32]) {
  Fit fit;
  if constexpr (F::Scales::kMin)
    fit = search_scale_minimum(group);
  else
    fit = search_scale(group);
  const vf inverse = inverse_of(fit.scale);
  for (int i = 0; i < G; i++) {
    const vf x = vf_mul(vf_sub(vf_load(group.x[i]), fit.minimum), inverse);
    float code[kPanel];
    vf_store(code, vf_add(clamp_round(x, -8, 7), vf_set1(8)));
    for (int r = 0; r < rows; r++) q[i / 32][r][i % 32] = uint8_t(code[r]);
  }
  float scale[kPanel], minimum[kPanel];
  vf_store(scale, fit.scale);
  vf_store(minimum, vf_sub(fit.minimum, vf_mul(fit.scale, vf_set1(8))));
  for (int r = 0; r < rows; r++) {
    store_u16(record + r * 2, float_to_half(scale[r]));
    if constexpr (F::Scales::kMin) store_u16(record + 32 + r * 2, float_to_half(minimum[r]));
  }
}

}  // namespace kt
