// What the filters keep of a row.
#pragma once
#include "weigh.h"

namespace kt {
namespace sampling {

// Logits above high are kept; those in (low, high] are candidates.
struct Range {
  float low = -kInfinity, high = kInfinity;
  double before = 0;  // mass above high
  int part = -1;  // the same by blocks: which of scratch.block_parts; -1: there is none
};

struct Kept {
  Weight weight;
  Range range;
  int parts = 1;  // of each block in scratch.block_parts
  Candidates candidates{};
  Cut cut = kKeepAll;
};

// The logits of the candidates into scratch.weights, and where each block's start. Returns how
// many.
inline int32_t pick_range(const float *logits, int32_t vocab, const Range &r, Scratch &scratch) {
  const int32_t blocks = (vocab + kBlock - 1) / kBlock;
  float *values = room(scratch.weights, vocab + kUnit);
  int32_t *first = room(scratch.block_first, blocks + 1), count = 0;
  for (int32_t b = 0; b < blocks; ++b) {
    const int32_t start = b * kBlock, size = std::min(kBlock, vocab - start);
    first[b] = count;
    count += pick(logits + start, size, r.low, r.high, values + count);
  }
  return first[blocks] = count;
}
// low: what they lie above.
inline Candidates weigh_picked(int32_t count, float low, const Weight &weight, Scratch &scratch) {
  float *x = scratch.weights.data();
  const int32_t padded = pad(count, kUnit);
  std::fill(x + count, x + padded, -kInfinity);
  vf most = vf_zero();
  for (int32_t i = 0; i < padded; i += kWide) {
    const vf w = weight(vf_load(x + i));
    vf_store(x + i, w);
    most = vf_max(w, most);
  }
  // Rounding may give a logit just above the weight of low, or a little less.
  const float least = 0.99999f * vf_reduce_max(weight(vf_set1(low)));
  return {x, count, padded, least, vf_reduce_max(most)};
}

// The mass that top-p keeps of `mass`; more than nothing, so that there is a last token.
inline double goal_of(const kt_sampling &p, double mass) {
  return std::max(double{p.top_p} * mass, 1e-300);
}

// top-p of `mass`, and min-p.
inline void filter(Kept &k, double mass, const kt_sampling &p, Scratch &scratch) {
  const Candidates &c = k.candidates;
  if (p.top_p < 1.0f)
    k.cut = stricter(k.cut, cut_at<Mass>(c, k.range.before, goal_of(p, mass), scratch));
  if (p.min_p > 0.0f) k.cut = stricter(k.cut, {p.min_p * c.largest, kKeepAll.place});
}

// top-k, then top-p of what that leaves, then min-p. All that is kept lies above a logit which the
// sample suggests.
inline Kept keep_top(const float *logits, int32_t vocab, float base, const kt_sampling &p,
                     Scratch &scratch) {
  Range r;
  if (sampled(vocab)) r.low = mark_of_top(p.top_k, vocab, Weight(base, p.temperature), scratch);
  int32_t count = pick_range(logits, vocab, r, scratch);
  if (count < p.top_k && r.low > -kInfinity) {
    r = Range();
    count = pick_range(logits, vocab, r, scratch);
  }
  Kept k{Weight(maximum(scratch.weights.data(), count), p.temperature), r};
  const Candidates &c = k.candidates = weigh_picked(count, k.range.low, k.weight, scratch);
  k.cut = cut_at<Count>(c, 0, p.top_k, scratch);
  double mass = 0;
  for (size_t b = 0; int64_t(b) * kBlock < vocab; ++b)
    mass += kept_mass(c, scratch.block_first[b], scratch.block_first[b + 1], k.cut);
  filter(k, mass, p, scratch);
  return k;
}

// Between which two marks the mass reaches `goal`.
inline Range range_of(const Masses &m, const float (&marks)[kMarks], double goal) {
  Range r;
  for (int j = 0; j < kMarks; ++j) {
    if (m.over[j] >= goal) r.low = std::max(r.low, marks[j]);
    if (m.over[j] < goal && marks[j] < r.high) r = {r.low, marks[j], m.over[j], j};
  }
  return r;
}

// top-p, min-p, both or neither.
inline Kept keep_mass(const float *logits, int32_t vocab, float base, const kt_sampling &p,
                      Scratch &scratch) {
  Kept k{Weight(base, p.temperature), Range()};
  float marks[kMarks];
  Masses m;
  if (p.top_p < 1.0f && sampled(vocab)) {
    place_marks(p.top_p, k.weight, scratch, marks);
    m = weigh_row<kMarks>(logits, vocab, k.weight, marks, scratch);
    k.range = range_of(m, marks, goal_of(p, m.all));
    k.parts = kMarks + 1;
  } else {
    m = weigh_row<0>(logits, vocab, k.weight, marks, scratch);
  }
  if (p.min_p > 0.0f) {
    // All that is kept is a candidate. The cut is by weight; this is a little below it.
    const float least = p.temperature * (std::log(p.min_p) - 1e-3f);
    k.range = {std::max(k.range.low, m.top + least - 1e-5f * std::fabs(m.top)), kInfinity, 0, -1};
  } else if (p.top_p >= 1.0f) {
    k.range = {-kInfinity, -kInfinity, m.all, 0};
    return k;
  }
  const int32_t count = pick_range(logits, vocab, k.range, scratch);
  k.candidates = weigh_picked(count, k.range.low, k.weight, scratch);
  filter(k, m.all, p, scratch);
  return k;
}

}  // namespace sampling
}  // namespace kt
