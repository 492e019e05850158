// One token from one row of logits.
//
// Order of operations: mask, logit bias, penalties, temperature, top-k, top-p, min-p, one draw. Log
// probabilities are those of the logits as given. Everything is summed in one fixed order; the draw
// depends on seed and position alone.
#pragma once
#include "sampling/adjust.h"
#include "sampling/draw.h"

namespace kt {
namespace sampling {

constexpr int kMaxBest = 20;  // room per row in kt_sample's best_ids
constexpr int kStride = 64;  // elements passed over at once when none of them matters

inline double log_sum_exp(const float *logits, int32_t vocab, Scratch &scratch) {
  Weight weight(base_of(logits, vocab, scratch), 1.0f);
  const double mass = weigh_row(logits, vocab, weight, Blind()).all;
  return weight.base() + std::log(mass);
}

// Ids of the `count` largest, best first, lowest index first among equals.
inline void best_ids_of(const float *x, int32_t n, int32_t count, int32_t *ids) {
  int32_t held = 0;
  for (int32_t start = 0; start < n && count > 0; start += kStride) {
    const int32_t end = std::min(start + kStride, n);
    if (held == count && !(maximum(x + start, end - start) > x[ids[held - 1]])) continue;
    for (int32_t i = start; i < end; ++i) {
      if (held == count && !(x[i] > x[ids[held - 1]])) continue;
      int32_t at = held < count ? held++ : held - 1;
      for (; at > 0 && x[i] > x[ids[at - 1]]; --at) ids[at] = ids[at - 1];
      ids[at] = i;
    }
  }
}

}  // namespace sampling

// Draws one id from logits [vocab], which it changes. chosen_logprob, best_ids and best_logprobs
// [n_logprobs] are written when p.n_logprobs >= 0; fields as in kt_sampling. Ids in history and
// bias must be below vocab.
inline void sample_row(float *logits, int32_t vocab, const kt_sampling &p, int32_t *id,
                       float *chosen_logprob, int32_t *best_ids, float *best_logprobs) {
  static thread_local sampling::Scratch scratch;
  const bool wants_logprobs = p.n_logprobs >= 0;
  const int32_t n_best = std::min({p.n_logprobs, vocab, int32_t{sampling::kMaxBest}});
  double normaliser = 0;
  if (wants_logprobs) {
    normaliser = sampling::log_sum_exp(logits, vocab, scratch);
    sampling::best_ids_of(logits, vocab, n_best, best_ids);
    for (int32_t i = 0; i < n_best; ++i)
      best_logprobs[i] = static_cast<float>(logits[best_ids[i]] - normaliser);
  }
  if (p.given >= 0) {
    *id = p.given;
    if (wants_logprobs) *chosen_logprob = static_cast<float>(logits[p.given] - normaliser);
    return;
  }
  sampling::adjust(logits, vocab, p, scratch);
  *id = sampling::choose(logits, vocab, p, scratch);
  if (wants_logprobs)
    *chosen_logprob = static_cast<float>(sampling::raw_logit(logits, *id, scratch) - normaliser);
}

}  // namespace kt
