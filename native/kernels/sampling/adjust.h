// What changes logits before a draw: a mask, biases, penalties. The row is touched at the ids that
// are named and where the mask forbids.
#pragma once
#include "../../include/kt.h"
#include "rows.h"

namespace kt {
namespace sampling {

// What the mask forbids gets the logit -infinity.
inline void forbid(float *logits, int32_t vocab, const uint32_t *mask) {
  for (int32_t start = 0; start < vocab; start += 32) {
    const uint32_t allowed = mask[start / 32];
    if (allowed == ~uint32_t{0}) continue;
    const int32_t end = std::min(start + 32, vocab);
    for (int32_t i = start; i < end; ++i) {
      if (!(allowed >> (i - start) & 1)) logits[i] = -kInfinity;
    }
  }
}

inline void penalise(float *logits, const kt_sampling &p, int32_t vocab, Scratch &scratch) {
  int32_t *uses = room(scratch.uses, vocab);
  scratch.seen.clear();
  for (int32_t i = 0; i < p.n_history; ++i) {
    const int32_t id = p.history[i];
    if (uses[id] == 0) {
      scratch.seen.push_back(id);
      uses[id] = 1;
    }
    uses[id] += i >= p.n_prompt;
  }
  for (const int32_t id : scratch.seen) {
    float &logit = logits[id];
    scratch.raw.emplace_back(id, logit);
    logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    if (uses[id] > 1)
      logit -= p.presence_penalty + p.frequency_penalty * static_cast<float>(uses[id] - 1);
    uses[id] = 0;
  }
}

inline void adjust(float *logits, int32_t vocab, const kt_sampling &p, Scratch &scratch) {
  scratch.raw.clear();
  if (p.mask != nullptr) forbid(logits, vocab, p.mask);
  for (int32_t i = 0; i < p.n_bias; ++i) {
    float &logit = logits[p.bias_ids[i]];
    scratch.raw.emplace_back(p.bias_ids[i], logit);
    logit += p.bias_values[i];
  }
  if (p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f)
    penalise(logits, p, vocab, scratch);
}

// The logit of `id` before adjust().
inline float raw_logit(const float *logits, int32_t id, const Scratch &scratch) {
  for (const auto &[changed, value] : scratch.raw) {
    if (changed == id) return value;  // the first entry is the oldest
  }
  return logits[id];
}

}  // namespace sampling
}  // namespace kt
