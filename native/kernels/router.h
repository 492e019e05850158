// From router logits to experts and weights: one router for every family.
#pragma once
#include <cmath>

namespace kt {

// Indices of the `count` largest of n values, best first; ties go to the lowest index.
inline void top_indices(const float *x, int n, int count, int32_t *out) {
  int filled = 0;
  for (int i = 0; i < n; i++) {
    int at = filled;
    while (at > 0 && x[i] > x[out[at - 1]]) at--;
    if (at >= count) continue;
    if (filled < count) filled++;
    for (int j = filled - 1; j > at; j--) out[j] = out[j - 1];
    out[at] = i;
  }
}

// Softmax in place, in double: once per token, over a few hundred values.
inline void softmax(float *x, int n) {
  float peak = x[0];
  for (int i = 1; i < n; i++) peak = std::max(peak, x[i]);
  double total = 0;
  for (int i = 0; i < n; i++) total += std::exp(double(x[i] - peak));
  for (int i = 0; i < n; i++) x[i] = float(std::exp(double(x[i] - peak)) / total);
}

// Groups other than the best `top_groups` get -infinity in `choice`.
inline void keep_groups(const kt_router &r, float *choice) {
  const int size = r.n_experts / r.n_groups;
  float score[64];
  int32_t best[64];
  for (int g = 0; g < r.n_groups; g++) {
    int32_t two[2];
    const float *x = choice + g * size;
    top_indices(x, size, 2, two);
    score[g] = r.group_top2 ? x[two[0]] + x[two[1]] : x[two[0]];
  }
  top_indices(score, r.n_groups, r.top_groups, best);
  for (int g = 0; g < r.n_groups; g++)
    if (std::find(best, best + r.top_groups, g) == best + r.top_groups)
      std::fill(choice + g * size, choice + (g + 1) * size, -INFINITY);
}

// logits [n_experts] -> ids, weights [top_k]. scratch [2 * n_experts].
inline void route(const kt_router &r, const float *logits, float *scratch, int32_t *ids,
                  float *weights) {
  float *score = scratch, *choice = scratch + r.n_experts;
  std::copy(logits, logits + r.n_experts, score);
  if (r.score == KT_SOFTMAX && !r.softmax_after) softmax(score, r.n_experts);
  for (int i = 0; i < r.n_experts && r.score != KT_SOFTMAX; i++) {
    const double x = score[i];
    score[i] = float(r.score == KT_SIGMOID ? 1 / (1 + std::exp(-x))
                                           : std::sqrt(x > 30 ? x : std::log1p(std::exp(x))));
  }
  for (int i = 0; i < r.n_experts; i++)
    choice[i] = score[i] + (r.selection_bias ? r.selection_bias[i] : 0);
  if (r.n_groups > 1) keep_groups(r, choice);
  top_indices(choice, r.n_experts, r.top_k, ids);
  for (int j = 0; j < r.top_k; j++) weights[j] = score[ids[j]];
  if (r.softmax_after) softmax(weights, r.top_k);
  if (r.normalise) {
    float total = 1e-20f;  // sigmoid scores may all vanish
    for (int j = 0; j < r.top_k; j++) total += weights[j];
    for (int j = 0; j < r.top_k; j++) weights[j] /= total;
  }
  for (int j = 0; j < r.top_k; j++) weights[j] *= r.scale;
}

}  // namespace kt
