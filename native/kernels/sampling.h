/* One token from one row of logits.
 *
 * Order of operations: mask, logit bias, penalties, temperature, top-k, top-p, min-p, one draw. Log
 * probabilities are those of the logits as given. Every filter keeps the start of the row sorted by
 * falling weight (lowest index first among equals), so a filter is a cut: the last weight and index
 * kept. A cut is found by bisecting on the weight, with one streaming pass a step, and never by
 * sorting the row.
 *
 * Everything is summed in one fixed order; the draw depends on seed and position alone. Vectors are
 * 8 floats wide in every variant (AVX2 is the floor), written with compiler vectors.
 */
#ifndef KT_SAMPLING_H
#define KT_SAMPLING_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "../include/kt.h"

namespace kt {
namespace sampling {

typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));

constexpr int kLanes = 8;
constexpr int kUnit = 4 * kLanes; /* rows of weights are padded to this */
constexpr int kBlock = 1024; /* elements summed in float32 before they join a double */
constexpr int kSmall = 512; /* elements between two bisection bounds that are worth sorting */
constexpr int kStride = 64; /* elements passed over at once when none of them matters */
constexpr uint32_t kFar = 0x37800000u; /* bits of 2^-16: what filters keep mostly weighs more */
constexpr int kMaxBest = 20; /* room per row in kt_sample's best_ids */
constexpr float kGreedy = 1e-5f; /* temperatures below are greedy: the quotient would overflow */
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/* ---- random numbers
 * ------------------------------------------------------------------------------ Philox4x32-10:
 * Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). */
inline void philox4x32(uint32_t (&counter)[4], uint64_t seed) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    const uint32_t next0 = static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key0;
    const uint32_t next2 = static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key1;
    counter[0] = next0;
    counter[1] = static_cast<uint32_t>(b);
    counter[2] = next2;
    counter[3] = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/* In [0, 1), 53 bits: the first two words of the stream's block `position`, high word first. */
inline double uniform(uint64_t seed, uint64_t position) {
  uint32_t block[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0,
                       0};
  philox4x32(block, seed);
  const uint64_t bits = (uint64_t{block[0]} << 32) | block[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/* ---- vectors
 * -------------------------------------------------------------------------------------*/
inline f32x8 load(const float *from) {
  f32x8 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline int32_t pad(int32_t n, int32_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/* The last, incomplete vector of n elements at `from`, filled up with `rest`. */
inline f32x8 load_tail(const float *from, int n, float rest) {
  f32x8 v = rest - f32x8{};
  std::memcpy(&v, from, static_cast<size_t>(n) * sizeof(float));
  return v;
}

inline double sum(f32x8 v) {
  return ((double{v[0]} + v[4]) + (double{v[1]} + v[5])) +
         ((double{v[2]} + v[6]) + (double{v[3]} + v[7]));
}

/* e^x for x <= 0 within 2 ulp; 0 below -87, -infinity included. x = n ln 2 + r, a polynomial in r
 * (Cephes expf), and n added to the exponent. */
inline f32x8 exp(f32x8 x) {
  const i32x8 underflow = x < -87.0f;
  x = underflow ? f32x8{} : x;
  const f32x8 shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds, n in the low bits */
  const f32x8 n = shifted - 12582912.0f;
  const f32x8 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  f32x8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  i32x8 bits, exponent;
  std::memcpy(&bits, &p, sizeof p);
  std::memcpy(&exponent, &shifted, sizeof exponent);
  bits += exponent << 23;
  std::memcpy(&p, &bits, sizeof p);
  return underflow ? f32x8{} : p;
}

inline float maximum(const float *x, int32_t n) {
  f32x8 m[4];
  for (f32x8 &v : m) v = -kInfinity - f32x8{};
  int32_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const f32x8 v = load(x + i + j * kLanes);
      m[j] = v > m[j] ? v : m[j];
    }
  }
  float best = -kInfinity;
  for (const f32x8 &v : m) {
    for (int j = 0; j < kLanes; ++j) best = std::max(best, v[j]);
  }
  for (; i < n; ++i) best = std::max(best, x[i]);
  return best;
}

/* Lowest index of the maximum. */
inline int32_t argmax(const float *x, int32_t n) {
  const float best = maximum(x, n);
  const float *found = std::find(x, x + n, best);
  return found == x + n ? 0 : static_cast<int32_t>(found - x);
}

/* ---- log probabilities of the raw logits
 * ---------------------------------------------------------*/
inline double log_sum_exp(const float *x, int32_t n) {
  const float top = maximum(x, n);
  double total = 0;
  for (int32_t start = 0; start < n; start += kBlock) {
    const int32_t end = std::min(start + kBlock, n);
    f32x8 part{};
    int32_t i = start;
    for (; i + kLanes <= end; i += kLanes) part += exp(load(x + i) - top);
    if (i < end) part += exp(load_tail(x + i, end - i, -kInfinity) - top);
    total += sum(part);
  }
  return double{top} + std::log(total);
}

/* Ids of the `count` largest, best first, lowest index first among equals. */
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

/* ---- bias and penalties
 * --------------------------------------------------------------------------*/
/* What a thread keeps from row to row, so that sampling does not allocate. */
struct Scratch {
  std::vector<float> weights; /* [vocab padded] */
  std::vector<float> near_weights; /* those that a filter can still keep, padded */
  std::vector<int32_t> near_ids;
  std::vector<double> block_sums;
  std::vector<int32_t> uses; /* [vocab] 0, or 1 + uses in the output; all 0 between rows */
  std::vector<int32_t> seen; /* ids with uses > 0 */
  std::vector<std::pair<int32_t, float>> raw; /* logits before they were changed */
  std::vector<std::pair<float, int32_t>> sorted;
};

/* What the mask forbids gets the logit -infinity. */
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

inline void adjust(float *logits, int32_t vocab, const kt_sampling &p, Scratch &scratch) {
  scratch.raw.clear();
  if (p.mask != nullptr) forbid(logits, vocab, p.mask);
  const auto remember = [&](int32_t id) { scratch.raw.emplace_back(id, logits[id]); };
  for (int32_t i = 0; i < p.n_bias; ++i) {
    remember(p.bias_ids[i]);
    logits[p.bias_ids[i]] += p.bias_values[i];
  }
  if (p.repetition_penalty == 1.0f && p.presence_penalty == 0.0f && p.frequency_penalty == 0.0f)
    return;
  if (scratch.uses.size() < static_cast<size_t>(vocab))
    scratch.uses.resize(static_cast<size_t>(vocab), 0);
  scratch.seen.clear();
  for (int32_t i = 0; i < p.n_history; ++i) {
    int32_t &uses = scratch.uses[static_cast<size_t>(p.history[i])];
    if (uses == 0) {
      scratch.seen.push_back(p.history[i]);
      uses = 1;
    }
    uses += i >= p.n_prompt;
  }
  for (const int32_t id : scratch.seen) {
    int32_t &uses = scratch.uses[static_cast<size_t>(id)];
    remember(id);
    float &logit = logits[id];
    logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    if (uses > 1) logit -= p.presence_penalty + p.frequency_penalty * static_cast<float>(uses - 1);
    uses = 0;
  }
}

/* The logit of `id` before adjust(). */
inline float raw_logit(const float *logits, int32_t id, const Scratch &scratch) {
  for (const auto &[changed, value] : scratch.raw) {
    if (changed == id) return value; /* the first entry is the oldest */
  }
  return logits[id];
}

/* ---- cuts
 * ---------------------------------------------------------------------------------------- The last
 * element kept, in order of falling weight and then rising index. */
struct Cut {
  float weight;
  int32_t index;
};
constexpr Cut kKeepAll = {0.0f, std::numeric_limits<int32_t>::max()};

inline Cut stricter(Cut a, Cut b) {
  if (a.weight != b.weight) return a.weight > b.weight ? a : b;
  return a.index < b.index ? a : b;
}

struct Amount {
  double mass;
  int32_t count;
};

/* Of the elements above `bound`. n is a multiple of 4 vectors. */
inline Amount above(const float *weights, int32_t n, float bound) {
  Amount total = {0.0, 0};
  for (int32_t start = 0; start < n; start += kBlock) {
    const int32_t end = std::min(start + kBlock, n);
    f32x8 mass[4] = {};
    i32x8 count[4] = {};
    for (int32_t i = start; i < end; i += 4 * kLanes) {
      for (int j = 0; j < 4; ++j) {
        const f32x8 v = load(weights + i + j * kLanes);
        const i32x8 over = v > bound;
        mass[j] += over ? v : f32x8{};
        count[j] -= over;
      }
    }
    total.mass += sum((mass[0] + mass[1]) + (mass[2] + mass[3]));
    const i32x8 counts = (count[0] + count[1]) + (count[2] + count[3]);
    for (int j = 0; j < kLanes; ++j) total.count += counts[j];
  }
  return total;
}

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/* Calls take(i) for the elements in (low, high], in order. */
template <class Take>
void for_each_between(const float *weights, int32_t n, float low, float high, Take take) {
  for (int32_t start = 0; start < n; start += kStride) {
    const int32_t end = std::min(start + kStride, n);
    if (!(maximum(weights + start, end - start) > low)) continue;
    for (int32_t i = start; i < end; ++i) {
      if (weights[i] > low && weights[i] <= high) take(i);
    }
  }
}

/* The shortest start of the sorted row that reaches `goal`, which is measured by `measure` (mass or
 * count of an Amount) and by `worth` (of one element). Weights lie in [0, 1]; positive floats sort
 * like their bits. */
template <class Measure, class Worth>
Cut cut_at(const float *weights, int32_t n, double goal, Measure measure, Worth worth,
           Scratch &scratch) {
  /* What lies above low reaches the goal, what lies above high does not. */
  uint32_t low = 0, high = 0x3F800000u, middle = kFar;
  Amount over_low = above(weights, n, 0.0f), over_high = {0.0, 0};
  if (measure(over_low) < goal) return kKeepAll;
  while (high - low > 1 && over_low.count - over_high.count > kSmall) {
    const Amount over = above(weights, n, from_bits(middle));
    const bool reached = measure(over) >= goal;
    (reached ? low : high) = middle;
    (reached ? over_low : over_high) = over;
    middle = low + (high - low) / 2;
  }
  scratch.sorted.clear();
  for_each_between(weights, n, from_bits(low), from_bits(high),
                   [&](int32_t i) { scratch.sorted.emplace_back(-weights[i], i); });
  std::sort(scratch.sorted.begin(), scratch.sorted.end());
  double reached = measure(over_high);
  for (const auto &[negative, index] : scratch.sorted) {
    reached += worth(-negative);
    if (reached >= goal) return {-negative, index};
  }
  /* Rounding: all of them are needed. */
  return {from_bits(low + 1), std::numeric_limits<int32_t>::max()};
}

inline double mass_of(const Amount &amount) { return amount.mass; }
inline double count_of(const Amount &amount) { return amount.count; }

/* top-k, then top-p of what that leaves (of `mass` without top-k), then min-p. */
inline Cut filters(const float *weights, int32_t n, double mass, const kt_sampling &p,
                   Scratch &scratch) {
  Cut cut = kKeepAll;
  if (p.top_k > 0) {
    cut = cut_at(weights, n, p.top_k, count_of, [](float) { return 1.0; }, scratch);
    if (cut.weight > 0) {
      mass = above(weights, n, cut.weight).mass;
      for (int32_t i = 0; i < n && i <= cut.index; ++i) {
        if (weights[i] == cut.weight) mass += weights[i];
      }
    }
  }
  if (p.top_p < 1.0f) {
    const auto worth = [](float w) { return double{w}; };
    cut = stricter(cut, cut_at(weights, n, double{p.top_p} * mass, mass_of, worth, scratch));
  }
  if (p.min_p > 0.0f) cut = stricter(cut, {p.min_p, std::numeric_limits<int32_t>::max()});
  return cut;
}

/* ---- the draw
 * ------------------------------------------------------------------------------------*/
/* weights[i] = e^((logits[i] - top) / temperature), zeros up to `padded`. Returns their sum. */
inline double weigh(const float *logits, int32_t vocab, int32_t padded, float top,
                    float temperature, float *weights) {
  const float scale = 1.0f / temperature;
  double total = 0;
  for (int32_t start = 0; start < vocab; start += kBlock) {
    const int32_t end = std::min(start + kBlock, vocab);
    f32x8 part{};
    for (int32_t i = start; i < end; i += kLanes) {
      const f32x8 logit =
          i + kLanes <= end ? load(logits + i) : load_tail(logits + i, end - i, -kInfinity);
      const f32x8 w = exp((logit - top) * scale);
      std::memcpy(weights + i, &w, sizeof w);
      part += w;
    }
    total += sum(part);
  }
  const int32_t filled = pad(vocab, kLanes);
  std::fill(weights + filled, weights + padded, 0.0f);
  return total;
}

inline bool kept(float weight, int32_t index, Cut cut) {
  return weight > cut.weight || (weight == cut.weight && index <= cut.index);
}

/* Zeroes what the cut leaves out of weights[start..end) and sums the rest. Equal weights are kept
 * up to the cut's index, so the comparison changes once on the way. */
inline double apply(float *weights, int32_t start, int32_t end, Cut cut) {
  if (start <= cut.index && cut.index < end) {
    double total = 0;
    for (int32_t i = start; i < end; ++i) {
      if (!kept(weights[i], i, cut)) weights[i] = 0;
      total += weights[i];
    }
    return total;
  }
  const bool ties = start <= cut.index;
  f32x8 total[4] = {};
  for (int32_t i = start; i < end; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      f32x8 v = load(weights + i + j * kLanes);
      const i32x8 keep = ties ? v >= cut.weight : v > cut.weight;
      v = keep ? v : f32x8{};
      total[j] += v;
      std::memcpy(weights + i + j * kLanes, &v, sizeof v);
    }
  }
  return sum((total[0] + total[1]) + (total[2] + total[3]));
}

/* Inverts the cumulative weights in order of index: first by blocks, then inside one. */
inline int32_t draw(float *weights, int32_t n, Cut cut, double chance, Scratch &scratch) {
  scratch.block_sums.clear();
  double total = 0;
  for (int32_t start = 0; start < n; start += kBlock) {
    scratch.block_sums.push_back(apply(weights, start, std::min(start + kBlock, n), cut));
    total += scratch.block_sums.back();
  }
  double left = chance * total;
  size_t block = 0,
         last_block = 0; /* rounding may run past the end: then the last element with a weight */
  for (; block < scratch.block_sums.size() && left >= scratch.block_sums[block]; ++block) {
    left -= scratch.block_sums[block];
    if (scratch.block_sums[block] > 0) last_block = block;
  }
  if (block == scratch.block_sums.size()) block = last_block;
  int32_t last = 0;
  const int32_t start = static_cast<int32_t>(block) * kBlock;
  for (int32_t i = start; i < std::min(start + kBlock, n); ++i) {
    if (weights[i] == 0) continue;
    last = i;
    if (left < weights[i]) break;
    left -= weights[i];
  }
  return last;
}

/* Moves what weighs more than 2^-16 into scratch.near_*, if the filters are certain to keep nothing
 * else and it is a small part of the row. */
inline bool narrow(const float *weights, int32_t n, double mass, const kt_sampling &p,
                   Scratch &scratch) {
  const float far = from_bits(kFar);
  const Amount near = above(weights, n, far);
  const bool by_rank = p.top_k > 0 && p.top_k <= near.count;
  const bool by_mass = p.top_p < 1.0f && p.top_p * mass <= near.mass;
  if (near.count > n / 8 || !(by_rank || (by_mass && p.top_k <= 0))) return false;
  scratch.near_weights.clear();
  scratch.near_ids.clear();
  for_each_between(weights, n, far, 1.0f, [&](int32_t i) {
    scratch.near_weights.push_back(weights[i]);
    scratch.near_ids.push_back(i);
  });
  scratch.near_weights.resize(static_cast<size_t>(pad(near.count, kUnit)), 0.0f);
  return true;
}

inline int32_t choose(const float *logits, int32_t vocab, const kt_sampling &p, Scratch &scratch) {
  const float top = maximum(logits, vocab);
  if (p.temperature < kGreedy || p.top_k == 1 || top == -kInfinity) return argmax(logits, vocab);
  int32_t n = pad(vocab, kUnit);
  if (scratch.weights.size() < static_cast<size_t>(n))
    scratch.weights.resize(static_cast<size_t>(n));
  float *weights = scratch.weights.data();
  const double mass = weigh(logits, vocab, n, top, p.temperature, weights);
  const double chance = uniform(p.seed, p.position);
  const bool filtered = (p.top_k > 0 && p.top_k < vocab) || p.top_p < 1.0f;
  if (filtered && narrow(weights, n, mass, p, scratch)) {
    weights = scratch.near_weights.data();
    n = static_cast<int32_t>(scratch.near_weights.size());
    const Cut cut = filters(weights, n, mass, p, scratch);
    return scratch.near_ids[static_cast<size_t>(draw(weights, n, cut, chance, scratch))];
  }
  return draw(weights, n, filters(weights, n, mass, p, scratch), chance, scratch);
}

}  // namespace sampling

/* Draws one id from logits [vocab], which it changes. chosen_logprob, best_ids and best_logprobs
 * [n_logprobs] are written when p.n_logprobs >= 0; fields as in kt_sampling. Ids in history and
 * bias must be below vocab. */
inline void sample_row(float *logits, int32_t vocab, const kt_sampling &p, int32_t *id,
                       float *chosen_logprob, int32_t *best_ids, float *best_logprobs) {
  static thread_local sampling::Scratch scratch;
  const bool wants_logprobs = p.n_logprobs >= 0;
  const int32_t n_best = std::min({p.n_logprobs, vocab, int32_t{sampling::kMaxBest}});
  double normaliser = 0;
  if (wants_logprobs) {
    normaliser = sampling::log_sum_exp(logits, vocab);
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

#endif
