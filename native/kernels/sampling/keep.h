// What the filters keep of a row.
#pragma once
#include "weigh.h"

namespace kt {
namespace sampling {

struct Kept {
  Weight weight;
  Range range{};
  bool over = false;  // whether what lies above the range is kept: scratch.block_over
  bool by_block = false;  // whether each block has a `low` of its own: scratch.block_low
  Candidates candidates{};  // the weights of what lies in it; 0 for what is dropped
};

// The logits in a range.
inline Packed pick_range(const float *logits, int32_t vocab, Range r, Scratch &scratch) {
  Packed packed(vocab, scratch);
  for (int32_t b = 0, start = 0; start < vocab; ++b, start += kBlock) {
    const int32_t size = std::min(kBlock, vocab - start);
    packed.count += pick(logits + start, size, r.low, r.high, packed.values + packed.count);
    packed.end_block(b, -kInfinity);
  }
  return packed;
}

inline double mass_of(const Candidates &c) { return above<Mass>(c.weights, c.count, 0.0f); }

// The weights in a range, packed.
inline Candidates candidates_of(const Packed &packed, Range r, const Weight &weight) {
  const int32_t count = pad(packed.count, kUnit);
  std::fill(packed.values + packed.count, packed.values + count, 0.0f);
  // Rounding may give a logit just above the weight of low, or a little less.
  const float least = 0.99999f * vf_reduce_max(weight(vf_set1(r.low)));
  const float most = 1.00001f * vf_reduce_max(weight(vf_set1(r.high)));
  return {packed.values, count, least, most};
}
// The same of packed logits, which become weights.
inline Candidates weigh_packed(const Packed &packed, Range r, const Weight &weight) {
  Candidates c = candidates_of(packed, r, weight);
  std::fill(c.weights + packed.count, c.weights + c.count, -kInfinity);
  vf most = vf_zero();
  for (int32_t i = 0; i < c.count; i += kUnit) {
    vf v[4], w[4];
    for (int j = 0; j < 4; ++j) v[j] = vf_load(c.weights + i + j * kWide);
    weight(v, w);
    for (int j = 0; j < 4; ++j) vf_store(c.weights + i + j * kWide, w[j]);
    most = vf_max(largest(w), most);
  }
  c.largest = vf_reduce_max(most);
  return c;
}
inline Candidates pick_candidates(const float *logits, int32_t vocab, const Kept &k,
                                  Scratch &scratch) {
  return weigh_packed(pick_range(logits, vocab, k.range, scratch), k.range, k.weight);
}

// The mass that top-p keeps of `mass`; more than nothing, so that there is a last token.
inline double goal_of(const kt_sampling &p, double mass) {
  return std::max(double{p.top_p} * mass, 1e-300);
}

// top-p of `mass`, of which `before` lies above the candidates, and min-p.
inline void filter(const Kept &k, double mass, double before, const kt_sampling &p,
                   Scratch &scratch) {
  const Candidates &c = k.candidates;
  Cut cut = kKeepAll;
  if (p.top_p < 1.0f) cut = cut_at<Mass>(c, before, goal_of(p, mass), scratch);
  if (p.min_p > 0.0f) cut = stricter(cut, {p.min_p * c.largest, kKeepAll.place});
  drop(c, cut);
}

// top-k, then top-p of what that leaves, then min-p. All that is kept lies above a logit which the
// sample suggests.
inline Kept keep_top(const float *logits, int32_t vocab, float base, const kt_sampling &p,
                     Scratch &scratch) {
  Weight weight(base, p.temperature);
  Range r;
  if (sampled(vocab)) {
    weigh_sample(weight, scratch);
    r.low = weight.logit(mark_of_top(p.top_k, vocab, scratch));
  }
  Packed packed = pick_range(logits, vocab, r, scratch);
  if (packed.picked < p.top_k && r.low > -kInfinity) {
    r = Range();
    packed = pick_range(logits, vocab, r, scratch);
  }
  Kept k{Weight(maximum(packed.values, packed.count), p.temperature), r};
  k.candidates = weigh_packed(packed, r, k.weight);
  drop(k.candidates, cut_at<Count>(k.candidates, 0, p.top_k, scratch));
  filter(k, mass_of(k.candidates), 0, p, scratch);
  return k;
}

// The row's masses need another base: its largest logit, which the sample missed by far.
inline Kept keep_mass(const float *logits, int32_t vocab, float base, const kt_sampling &p,
                      Scratch &scratch);
inline Kept keep_anew(const float *logits, int32_t vocab, float top, const kt_sampling &p,
                      Scratch &scratch) {
  take_sample(logits, vocab, scratch);
  return keep_mass(logits, vocab, top, p, scratch);
}

// top-p of a row in whose sample the border shows.
inline Kept keep_band(const float *logits, int32_t vocab, Kept k, const kt_sampling &p,
                      Scratch &scratch) {
  BandWatch watch(vocab, k.range, scratch);
  const Masses m = weigh(logits, vocab, k.weight, watch);
  if (too_heavy(m, k.weight)) return keep_anew(logits, vocab, m.top, p, scratch);
  k.candidates = candidates_of(watch.packed, k.range, k.weight);
  double before = watch.over;
  k.over = true;
  const double goal = goal_of(p, m.all), within = mass_of(k.candidates);
  if (before >= goal) {  // the border lies above the band
    k.range.low = k.range.high, k.range.high = kInfinity, k.over = false;
    before = 0;
    k.candidates = pick_candidates(logits, vocab, k, scratch);
  } else if (before + within < goal) {  // below it
    for (int32_t b = 0; b < blocks_of(vocab); ++b)
      scratch.block_over[size_t(b)] += static_cast<float>(mass_of_block(k.candidates, b, scratch));
    k.range.high = k.range.low, k.range.low = -kInfinity;
    before += within;
    k.candidates = pick_candidates(logits, vocab, k, scratch);
  }
  filter(k, m.all, before, p, scratch);
  return k;
}

// top-p and min-p of a row most of whose mass few tokens have: all that is kept is a candidate.
inline Kept keep_above(const float *logits, int32_t vocab, Kept k, const Sums &sums,
                       const kt_sampling &p, Scratch &scratch) {
  Floor floor(p, k.weight);
  if (p.top_p < 1.0f) floor.set_levels(sums.mass, vocab, k.weight, scratch);
  FloorWatch watch(logits, vocab, floor, scratch);
  const Masses m = weigh(logits, vocab, k.weight, watch);
  if (too_heavy(m, k.weight)) return keep_anew(logits, vocab, m.top, p, scratch);
  k.range.low = scratch.block_low[0], k.by_block = true;
  k.candidates = weigh_packed(watch.packed, k.range, k.weight);
  // Above the last floor they are complete, above earlier ones they are not.
  const float complete = 1.00001f * vf_reduce_max(k.weight(vf_set1(watch.floor.low())));
  const bool by_mass = p.top_p < 1.0f && !watch.floor.certain();
  const Candidates &c = k.candidates;
  if (by_mass && above<Mass>(c.weights, c.count, complete) >= goal_of(p, m.all)) {
    k.candidates.least = complete;  // the last token that is kept weighs more
  } else if (by_mass) {
    // More lies below than the sample made likely. Now the mass is known.
    k.by_block = false;
    const double tail = (1.0 - p.top_p) * m.all * kSampleSize / vocab;
    float mark = mark_at<Mass>(sums.mass - tail / 2, kMarkError, scratch);
    for (bool last = false; !last; mark = 0.0f) {
      k.range.low = std::max(k.weight.logit(mark), watch.floor.by_top());
      k.candidates = pick_candidates(logits, vocab, k, scratch);
      last = mark == 0.0f || mass_of(k.candidates) >= goal_of(p, m.all);
    }
  }
  filter(k, m.all, 0, p, scratch);
  return k;
}

// top-p, min-p, both or neither.
inline Kept keep_mass(const float *logits, int32_t vocab, float base, const kt_sampling &p,
                      Scratch &scratch) {
  Kept k{Weight(base, p.temperature)};
  const bool by_mass = p.top_p < 1.0f, by_top = p.min_p > 0.0f;
  if (!by_mass && !by_top) {
    weigh_row(logits, vocab, k.weight, BlockWatch(vocab, scratch));
    k.range.high = -kInfinity, k.over = true;
    return k;
  }
  if (!sampled(vocab)) {
    const double mass = weigh_row(logits, vocab, k.weight, Blind()).all;
    k.range.low = Floor(p, k.weight).low();
    k.candidates = pick_candidates(logits, vocab, k, scratch);
    filter(k, mass, 0, p, scratch);
    return k;
  }
  Sums sums;
  if (by_mass) {
    sums = weigh_sample(k.weight, scratch);
    if (!by_top) k.range = band_of(p.top_p, sums, k.weight, scratch);
    if (k.range.high < kInfinity) return keep_band(logits, vocab, k, p, scratch);
  }
  return keep_above(logits, vocab, k, sums, p, scratch);
}

}  // namespace sampling
}  // namespace kt
