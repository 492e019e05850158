// One pass over a row for its largest logit and the mass of its weights, and the candidates for the
// last token that a filter keeps.
//
// A sample of the row says about where that one lies. The pass adds up what lies above three logits
// around it, so afterwards it is certain between which two it lies, however odd the sample was; a
// second pass picks out what lies there.
#pragma once
#include "cut.h"

namespace kt {
namespace sampling {

constexpr int kSampleUnits = 64;  // a sample: so many runs of kUnit logits
constexpr int32_t kSampleSize = kSampleUnits * kUnit;
constexpr int kMarks = 3;  // logits above which masses are added up
constexpr float kMostOver = 60.0f;  // weights up to e^60 are added up in float32
constexpr int kAhead = 4096;  // elements; the caches' own fetching stops at each page

inline bool sampled(int32_t vocab) { return vocab >= 2 * kSampleSize; }

// Evenly spread runs of a row that is `sampled`. Returns the largest.
inline float take_sample(const float *logits, int32_t vocab, Scratch &scratch) {
  float *sample = room(scratch.sample, kSampleSize);
  const int64_t runs = vocab / kUnit;
  for (int64_t i = 0; i < kSampleUnits; ++i)
    std::memcpy(sample + i * kUnit, logits + i * runs / kSampleUnits * kUnit,
                kUnit * sizeof(float));
  return maximum(sample, kSampleSize);
}
inline void weigh_sample(const Weight &weight, Scratch &scratch) {
  float *x = scratch.sample.data();
  for (int32_t i = 0; i < kSampleSize; i += kWide) vf_store(x + i, weight(vf_load(x + i)));
}

// The logit above which there is about `amount` of the sample's weights.
template <class Measure>
float mark_at(double amount, const Weight &weight, const Scratch &scratch) {
  const float *sample = scratch.sample.data();
  const double all = above<Measure>(sample, kSampleSize, 0.0f);
  if (!(amount > 0 && amount <= all)) return -kInfinity;
  Bracket<Measure> b{sample, kSampleSize, amount, 0, all, to_bits(1.0f)};
  b.close_in_to(16);
  return weight.logit(from_bits(b.low + (b.high - b.low) / 2));
}

// The square of the sample's mass over the sum of squares: as many equal weights would tell as
// much.
inline double equal_weights(const Scratch &scratch) {
  vf mass = vf_zero(), squares = vf_zero();
  for (int32_t i = 0; i < kSampleSize; i += kWide) {
    const vf w = vf_load(scratch.sample.data() + i);
    mass = vf_add(mass, w), squares = vf_fma(w, w, squares);
  }
  return std::pow(double{vf_sum(mass)}, 2) / double{vf_sum(squares)};
}

// Marks for the cut of top-p: where the sample sees the tail that is dropped, and where that tail
// is as much larger and smaller as the sample may err. If few tokens have most of the mass, a
// sample says nothing of the tail: then marks of some hundred, thousand and ten thousand tokens.
inline void place_marks(float top_p, const Weight &weight, Scratch &scratch,
                        float (&marks)[kMarks]) {
  weigh_sample(weight, scratch);
  const double told = equal_weights(scratch), tail = 1.0 - top_p;
  if (told < 8) {
    const int ranks[kMarks] = {8, 96, 1024};
    for (int j = 0; j < kMarks; ++j) marks[j] = mark_at<Count>(ranks[j], weight, scratch);
    return;
  }
  const double all = above<Mass>(scratch.sample.data(), kSampleSize, 0.0f);
  const double width = std::min(1 + 4 * std::sqrt(top_p / (tail * told)), 2.0);
  const double tails[kMarks] = {tail / width, tail, tail * width};
  for (int j = 0; j < kMarks; ++j)
    marks[j] = mark_at<Mass>(all * (1.0 - tails[j]), weight, scratch);
}

// A logit above which there are top_k, as far as a sample tells.
inline float mark_of_top(int32_t top_k, int32_t vocab, const Weight &weight, Scratch &scratch) {
  const double expected = double(top_k) * kSampleSize / vocab;
  const double enough = expected + 4 * std::sqrt(expected) + 4;
  if (enough > kSampleSize / 2) return -kInfinity;
  weigh_sample(weight, scratch);
  return mark_at<Count>(enough, weight, scratch);
}

struct Masses {
  float top;
  double all, over[kMarks];
};

// Fills scratch.block_parts: per block the masses over `marks` (the first N are used), then that of
// everything.
template <int N>
Masses weigh(const float *logits, int32_t vocab, const Weight &weight, const float (&marks)[kMarks],
             Scratch &scratch) {
  const int64_t blocks = (vocab + kBlock - 1) / kBlock;
  vf *parts = room(scratch.block_parts, blocks * (N + 1));
  vf mark[N + 1], most = vf_set1(-kInfinity);
  for (int j = 0; j < N; ++j) mark[j] = vf_set1(marks[j]);
  double total[N + 1] = {};
  for (int64_t block = 0; block < blocks; ++block, parts += N + 1) {
    const int32_t start = static_cast<int32_t>(block) * kBlock;
    vf sums[N + 1];
    for (vf &sum : sums) sum = vf_zero();
    for_each_wide(logits, start, std::min(start + kBlock, vocab), [&](int32_t i, vf v) {
      __builtin_prefetch(logits + i + kAhead);
      most = vf_max(v, most);  // NaN: most stays
      const vf w = weight(v);
      for (int j = 0; j < N; ++j) sums[j] = vf_add_where(sums[j], w, vm_greater(v, mark[j]));
      sums[N] = vf_add(sums[N], w);
    });
    for (int j = 0; j <= N; ++j) {
      parts[j] = sums[j];
      total[j] += vf_sum(sums[j]);
    }
  }
  Masses m{vf_reduce_max(most), total[N], {}};
  std::copy(total, total + N, m.over);
  return m;
}

// A logit near the row's largest: what its weights are relative to. -infinity if there is none.
// Takes the sample of a row that has one.
inline float base_of(const float *logits, int32_t vocab, Scratch &scratch) {
  const float base = sampled(vocab) ? take_sample(logits, vocab, scratch) : -kInfinity;
  return base > -kInfinity ? base : maximum(logits, vocab);
}

// weigh(), again with another base if the row's largest logit lies too far above.
template <int N>
Masses weigh_row(const float *logits, int32_t vocab, Weight &weight, const float (&marks)[kMarks],
                 Scratch &scratch) {
  const Masses m = weigh<N>(logits, vocab, weight, marks, scratch);
  if ((m.top - weight.base()) / weight.temperature() <= kMostOver) return m;
  weight = Weight(m.top, weight.temperature());
  return weigh<N>(logits, vocab, weight, marks, scratch);
}

}  // namespace sampling
}  // namespace kt
