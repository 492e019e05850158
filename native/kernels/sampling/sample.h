// What a sample of a row says about where the last token that a filter keeps may lie.
#pragma once
#include "../../include/kt.h"
#include "cut.h"

namespace kt {
namespace sampling {

constexpr int kSampleUnits = 64;  // a sample: so many runs of kUnit logits
constexpr int32_t kSampleSize = kSampleUnits * kUnit;
constexpr float kLikelyMark = 1e-3f;  // a weight where the search for a mark starts
constexpr double kMarkError = 32;  // elements of the sample that marks of a band may be off
constexpr double kErrors = 2;  // standard deviations that marks are kept away
constexpr double kTold = 32;  // equal weights that would tell as much as a sample must

inline bool sampled(int32_t vocab) { return vocab >= 2 * kSampleSize; }

// Evenly spread runs of a row that is `sampled`. Returns the largest.
inline float take_sample(const float *logits, int32_t vocab, Scratch &scratch) {
  float *sample = room(scratch.sample, kSampleSize);
  const int64_t runs = vocab / kUnit;
  vf most = vf_set1(-kInfinity);
  for (int64_t i = 0; i < kSampleUnits; ++i) {
    const float *run = logits + i * runs / kSampleUnits * kUnit;
    vf v[4];
    for (int j = 0; j < 4; ++j) v[j] = vf_load(run + j * kWide);
    for (int j = 0; j < 4; ++j) vf_store(sample + i * kUnit + j * kWide, v[j]);
    most = vf_max(largest(v), most);
  }
  // Each lane holds the largest of 256. As many lie above the least of them as it takes until every
  // lane has had its share, if they fall into lanes by chance: 16 (1 + 1/2 + ... + 1/16) = 54.
  scratch.rare = -vf_reduce_max(vf_sub(vf_zero(), most));
  return vf_reduce_max(most);
}

// A logit near the row's largest: what its weights are relative to. -infinity if there is none.
// Takes the sample of a row that has one.
inline float base_of(const float *logits, int32_t vocab, Scratch &scratch) {
  const float base = sampled(vocab) ? take_sample(logits, vocab, scratch) : -kInfinity;
  return base > -kInfinity ? base : maximum(logits, vocab);
}

struct Sums {
  double mass = 0, squares = 0;
};
// The sample's logits become weights.
inline Sums weigh_sample(const Weight &weight, Scratch &scratch) {
  float *x = scratch.sample.data();
  vf mass[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()},
     squares[4] = {mass[0], mass[0], mass[0], mass[0]};
  for (int32_t i = 0; i < kSampleSize; i += kUnit) {
    vf v[4], w[4];
    for (int j = 0; j < 4; ++j) v[j] = vf_load(x + i + j * kWide);
    weight(v, w);
    for (int j = 0; j < 4; ++j) {
      vf_store(x + i + j * kWide, w[j]);
      mass[j] = vf_add(mass[j], w[j]), squares[j] = vf_fma(w[j], w[j], squares[j]);
    }
  }
  return {double{take_sum(mass)}, double{take_sum(squares)}};
}

// The weight above which there is about `amount` of the sample's weights, but for `error` elements;
// 0 if there is not.
template <class Measure>
float mark_at(double amount, double error, const Scratch &scratch, float guess = kLikelyMark) {
  const float *sample = scratch.sample.data();
  const double all = above<Measure>(sample, kSampleSize, 0.0f);
  if (!(amount > 0 && amount <= all)) return 0.0f;
  Bracket<Measure> b{sample, kSampleSize, amount, 0, all, to_bits(2.0f)};
  b.close_in(to_bits(guess));
  b.close_in_to(error);
  return from_bits(b.low + (b.high - b.low) / 2);
}

// A weight above which there are top_k, as far as a sample tells; 0 if it does not.
inline float mark_of_top(int32_t top_k, int32_t vocab, const Scratch &scratch) {
  const double expected = double(top_k) * kSampleSize / vocab;
  const double enough = expected + 4 * std::sqrt(expected) + 4;
  return enough > kSampleSize / 2 ? 0.0f : mark_at<Count>(enough, enough / 4, scratch);
}

// A logit that all lie above which top-p and min-p keep. It rises while a pass over the row sees
// more of its mass: the sample tells how much lies below each of some levels, but not what the few
// likeliest tokens weigh, which it hardly ever holds.
class Floor {
 public:
  // top_p or min_p of 1 and 0 say nothing.
  Floor(const kt_sampling &p, const Weight &weight)
      : dropped_(1.0 - p.top_p),
        gap_(p.min_p > 0.0f ? p.temperature * (std::log(p.min_p) - 1e-3f) : -kInfinity) {
    raised(vf_set1(static_cast<float>(weight.base())), 0, 1);
  }
  // Levels from a logit that is rare in the sample to its largest, evenly. all: its mass.
  void set_levels(double all, int32_t vocab, const Weight &weight, Scratch &scratch) {
    const float base = static_cast<float>(weight.base());
    const float rare = std::max(scratch.rare, base - kDeepest * weight.temperature());
    const vf step = vf_set1((base - rare) / kLevels);
    const vf logits = vf_fma(vf_from(lane_numbers()), step, vf_set1(rare)), level = weight(logits);
    vf above = vf_zero();
    float *top = room(scratch.near_weights, kSampleSize + kWide);
    const float lowest = vf_reduce_max(weight(vf_set1(rare)));
    const int32_t n = pick(scratch.sample.data(), kSampleSize, lowest, kInfinity, top);
    for (int32_t i = 0; i < n; ++i) {
      const vf w = vf_set1(top[i]);
      above = vf_add_where(above, w, vm_greater(w, level));
    }
    float weights[kLevels], masses[kLevels];
    vf_store(logits_, logits), vf_store(weights, level), vf_store(masses, above);
    const double rows = double(vocab) / kSampleSize;
    for (int i = 0; i < kLevels; ++i) {
      const double below = std::max(all - masses[i], 0.0);
      const double error = kErrors * std::sqrt(below * weights[i]);
      below_[i] = rows * (below + error);
      if (i == 0) bulk_ = rows * std::max(below - error, 0.0);
    }
    by_mass_ = rare;
    levels_ = kLevels;
    raised(vf_set1(base), 0, 1);
  }
  // top: of what has been seen; seen: its mass; left: the share of the row that has not been seen.
  float raised(vf top, double seen, double left) {
    for (; next_ < levels_ && below_[next_] <= dropped_ * (seen + left * bulk_); ++next_)
      by_mass_ = logits_[next_];
    if (gap_ > -kInfinity) {
      const float most = vf_reduce_max(top);
      by_top_ = std::max(by_top_, most + gap_ - 1e-5f * std::fabs(most));
    }
    return low();
  }
  float low() const { return std::max(by_mass_, by_top_); }
  float by_top() const { return by_top_; }
  // Whether min-p sets it: then there is no doubt that it is low enough.
  bool certain() const { return by_top_ >= by_mass_; }

 private:
  static constexpr int kLevels = kWide;
  static constexpr float kDeepest = 60.0f;  // of the levels: e^-60 of the largest weight
  double dropped_, bulk_ = 0, below_[kLevels];
  float gap_, logits_[kLevels], by_mass_ = -kInfinity, by_top_ = -kInfinity;
  int levels_ = 0, next_ = 0;
};

// Logits above high are kept; those in (low, high] are candidates.
struct Range {
  float low = -kInfinity, high = kInfinity;
};

// Where the sample sees the tail that top-p drops, as much larger and smaller as it may err. An
// infinite `high`: few tokens have most of the mass, of which a sample says little.
inline Range band_of(float top_p, const Sums &sums, const Weight &weight, const Scratch &scratch) {
  const double told = sums.mass * sums.mass / sums.squares;  // so many equal weights tell as much
  if (!(told >= kTold)) return {};
  const double tail = 1.0 - top_p;
  const double width = std::min(1 + kErrors * std::sqrt(top_p / (tail * told)), 2.0);
  const double over_low = sums.mass * (1.0 - tail / width);
  const double over_high = sums.mass * (1.0 - tail * width);
  const float low = mark_at<Mass>(over_low, kMarkError, scratch);
  if (weight.logit(low) >= scratch.rare) return {};
  const float high = mark_at<Mass>(over_high, kMarkError, scratch, low);
  return {weight.logit(low), weight.logit(high)};
}

}  // namespace sampling
}  // namespace kt
