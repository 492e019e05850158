/* One token from one row of logits.
 *
 * Order of operations: mask, logit bias, penalties, temperature, top-k, top-p, min-p, one draw. Log
 * probabilities are those of the logits as given. Every filter keeps the start of the row sorted by
 * falling weight (lowest index first among equals), so a filter is a cut: the last weight and index
 * kept. A cut is estimated from a sample of the row, closed in on with a streaming pass a step, and
 * never found by sorting the row.
 *
 * Everything is summed in one fixed order; the draw depends on seed and position alone. Compiler
 * vectors, as wide as the variant's registers.
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
#include "math.h"

namespace kt {
namespace sampling {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t ints __attribute__((vector_size(4 * kLanes)));
typedef double doubles __attribute__((vector_size(8 * kLanes)));

constexpr int kUnit = 4 * kLanes; /* rows of weights are padded to this */
constexpr int kBlock = 1024; /* elements summed in float32 before they join a double */
constexpr int kSmall = 256; /* elements between two bounds that are worth sorting */
constexpr int kStride = 64; /* elements passed over at once when none of them matters */
constexpr int kSample = 4096; /* elements that a cut is first looked for in */
constexpr uint32_t kFar = 0x37800000u; /* bits of 2^-16: what filters keep mostly weighs more */
constexpr int kFew = 256; /* less than 1 / kFew of a row is worth picking out of it */
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
inline floats load(const float *from) {
  floats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline int32_t pad(int32_t n, int32_t multiple) { return (n + multiple - 1) / multiple * multiple; }

inline void add(doubles &total, floats v) { total += __builtin_convertvector(v, doubles); }

inline double sum(const doubles &lanes) {
  doubles v = lanes;
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return v[0];
}

constexpr int kWide = 16; /* lanes of vf, the arithmetic of the other kernels */

/* e^x for x <= 0 within 2 ulp; 0 below -87.7, -infinity included. x = n ln 2 + r, a polynomial in r
 * (Cephes expf), times 2^n, whose exponent field is empty for the smallest n. */
inline vf exp(vf x) {
  x = vf_max(x, vf_set1(-88.03f));
  const vi n = vi_round(vf_mul(x, vf_set1(1.44269504f)));
  const vf nf = vf_from(n);
  const vf r = vf_fma(nf, vf_set1(2.12194440e-4f), vf_fma(nf, vf_set1(-0.693359375f), x));
  vf p = vf_fma(r, vf_set1(1.9875691500e-4f), vf_set1(1.3981999507e-3f));
  p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
  p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
  p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
  p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
  p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
  return vf_mul(p, vf_bits(vi_shl<23>(vi_add(n, vi_set1(127)))));
}

inline void add(doubles &total, vf v) {
  float lanes[kWide];
  vf_store(lanes, v);
  for (int i = 0; i < kWide; i += kLanes) add(total, load(lanes + i));
}

/* Calls each(i, v) for vectors of kWide elements x[i] ..; the last is filled up with -infinity. */
template <class Each>
void for_each_wide(const float *x, int32_t start, int32_t end, Each each) {
  int32_t i = start;
  for (; i + kWide <= end; i += kWide) each(i, vf_load(x + i));
  if (i == end) return;
  float rest[kWide];
  std::fill(rest, rest + kWide, -kInfinity);
  std::memcpy(rest, x + i, static_cast<size_t>(end - i) * sizeof(float));
  each(i, vf_load(rest));
}

inline float maximum(const float *x, int32_t n) {
  floats m[4];
  for (floats &v : m) v = -kInfinity - floats{};
  int32_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const floats v = load(x + i + j * kLanes);
      m[j] = v > m[j] ? v : m[j];
    }
  }
  float best = -kInfinity;
  for (const floats &v : m) {
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
  doubles total{};
  for (int32_t start = 0; start < n; start += kBlock) {
    const int32_t end = std::min(start + kBlock, n);
    vf part = vf_zero();
    for_each_wide(x, start, end,
                  [&](int32_t, vf v) { part = vf_add(part, exp(vf_sub(v, vf_set1(top)))); });
    add(total, part);
  }
  return double{top} + std::log(sum(total));
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
  std::vector<float> sample;
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

/* What a filter counts up to: elements, or their weight. */
struct Count {
  static floats of(floats) { return 1.0f - floats{}; }
  static double one(float) { return 1.0; }
  static double most(double amount, float) { return amount; }
};
struct Mass {
  static floats of(floats v) { return v; }
  static double one(float weight) { return double{weight}; }
  static double most(double amount, float least) { return amount / double{least}; }
};

/* The amount of what weighs more than `bound`. n is a multiple of 4 vectors. */
template <class Measure>
double above(const float *weights, int32_t n, float bound) {
  doubles total{};
  for (int32_t start = 0; start < n; start += kBlock) {
    const int32_t end = std::min(start + kBlock, n);
    floats part[4] = {};
    for (int32_t i = start; i < end; i += 4 * kLanes) {
      for (int j = 0; j < 4; ++j) {
        const floats v = load(weights + i + j * kLanes);
        part[j] += v > bound ? Measure::of(v) : floats{};
      }
    }
    add(total, (part[0] + part[1]) + (part[2] + part[3]));
  }
  return sum(total);
}

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/* Whether any lane is set. */
inline bool any(ints lanes) {
  uint64_t words[kLanes / 2], all = 0;
  std::memcpy(words, &lanes, sizeof words);
  for (const uint64_t word : words) all |= word;
  return all != 0;
}

/* Calls take(i) for the elements in (low, high], in order. n is a multiple of kUnit. */
template <class Take>
void for_each_between(const float *weights, int32_t n, float low, float high, Take take) {
  for (int32_t start = 0; start < n; start += kUnit) {
    ints found[4];
    for (int j = 0; j < 4; ++j) {
      const floats v = load(weights + start + j * kLanes);
      found[j] = (v > low) & (v <= high);
    }
    if (!any((found[0] | found[1]) | (found[2] | found[3]))) continue;
    for (int j = 0; j < 4; ++j) {
      if (!any(found[j])) continue;
      for (int i = 0; i < kLanes; ++i) {
        if (found[j][i]) take(start + j * kLanes + i);
      }
    }
  }
}

/* Bounds of a cut: the amount above low reaches the goal, that above high does not. Positive floats
 * sort like their bits, and weights lie in [0, 1]. */
template <class Measure>
struct Bracket {
  const float *weights;
  int32_t n;
  double goal, over_low; /* at first the amount of everything */
  double over_high = 0;
  uint32_t low = 0, high = 0x3F800000u;

  /* Whether more than `few` elements may lie between the bounds, and a bound can be moved. */
  bool open(double few) const {
    return high - low > 1 &&
           (low == 0 || Measure::most(over_low - over_high, from_bits(low)) > few);
  }
  void close_in(uint32_t probe) {
    const double over = above<Measure>(weights, n, from_bits(probe));
    const bool reached = over >= goal;
    (reached ? low : high) = probe;
    (reached ? over_low : over_high) = over;
  }
  uint32_t middle() const { return low + (high - low) / 2; }
};

/* Where the cut lies in an evenly spread sample of the row, as the bits of a weight. share: the
 * goal's part of everything. */
template <class Measure>
uint32_t estimate(const float *weights, int32_t n, double share, Scratch &scratch) {
  scratch.sample.clear();
  const int32_t step = std::max(n / (kSample / kUnit) / kUnit, 1) * kUnit;
  for (int32_t start = 0; start < n; start += step)
    scratch.sample.insert(scratch.sample.end(), weights + start, weights + start + kUnit);
  const float *sample = scratch.sample.data();
  const int32_t size = static_cast<int32_t>(scratch.sample.size());
  const double all = above<Measure>(sample, size, 0.0f);
  Bracket<Measure> b{sample, size, share * all, all};
  while (b.open(2)) b.close_in(b.middle());
  return b.middle();
}

/* The shortest start of the sorted row that reaches `goal`. all: the amount of the whole row. */
template <class Measure>
Cut cut_at(const float *weights, int32_t n, double all, double goal, Scratch &scratch) {
  Bracket<Measure> b{weights, n, goal, all};
  if (all < goal) return kKeepAll;
  if (n > kSample) {
    /* Steps of 6 % around the estimate, growing, until it is between two of them. */
    const uint32_t from = estimate<Measure>(weights, n, goal / all, scratch);
    if (from > b.low && from < b.high) b.close_in(from);
    const bool up = b.low == from;
    for (uint32_t step = 1u << 19; b.open(kSmall) && (up ? b.over_high == 0 : b.low == 0);
         step *= 4) {
      if (step >= (up ? b.high - b.low : b.high)) break;
      b.close_in(up ? b.low + step : b.high - step);
    }
  }
  /* The amounts at the bounds say where between them the goal is met. Every third step halves. */
  for (int step = 0; b.open(kSmall); ++step) {
    const double met = (b.over_low - goal) / (b.over_low - b.over_high);
    const double at = step % 3 == 2 ? 0.5 : met + (step % 3 == 0 ? -0.02 : 0.02);
    const double probe = b.low + (b.high - b.low) * std::min(std::max(at, 0.0), 1.0);
    b.close_in(std::min(std::max(static_cast<uint32_t>(probe), b.low + 1), b.high - 1));
  }
  scratch.sorted.clear();
  for_each_between(weights, n, from_bits(b.low), from_bits(b.high),
                   [&](int32_t i) { scratch.sorted.emplace_back(-weights[i], i); });
  if (b.high - b.low > 1) std::sort(scratch.sorted.begin(), scratch.sorted.end());
  double reached = b.over_high;
  for (const auto &[negative, index] : scratch.sorted) {
    reached += Measure::one(-negative);
    if (reached >= goal) return {-negative, index};
  }
  /* Rounding: all of them are needed. */
  return {from_bits(b.low + 1), std::numeric_limits<int32_t>::max()};
}

/* top-k, then top-p of what that leaves, then min-p. Of the weights [n], `all` is the mass; of the
 * whole row, `mass`. */
inline Cut filters(const float *weights, int32_t n, double all, double mass, const kt_sampling &p,
                   Scratch &scratch) {
  Cut cut = kKeepAll;
  if (p.top_k > 0) {
    cut = cut_at<Count>(weights, n, n, p.top_k, scratch);
    if (cut.weight > 0) {
      mass = above<Mass>(weights, n, cut.weight);
      for (int32_t i = 0; i < n && i <= cut.index; ++i) {
        if (weights[i] == cut.weight) mass += weights[i];
      }
    }
  }
  if (p.top_p < 1.0f)
    cut = stricter(cut, cut_at<Mass>(weights, n, all, double{p.top_p} * mass, scratch));
  if (p.min_p > 0.0f) cut = stricter(cut, {p.min_p, std::numeric_limits<int32_t>::max()});
  return cut;
}

/* ---- the draw
 * ------------------------------------------------------------------------------------*/
/* Mass of a row's weights; mass and count of those above 2^-16. */
struct Weighed {
  double all, near;
  int32_t near_count;
};

/* weights[i] = e^((logits[i] - top) / temperature), zeros up to `padded`. */
inline Weighed weigh(const float *logits, int32_t vocab, int32_t padded, float top,
                     float temperature, float *weights) {
  const vf scale = vf_set1(1.0f / temperature), most = vf_set1(top);
  const float far = from_bits(kFar);
  doubles all{}, near{};
  ints count{};
  for (int32_t start = 0; start < vocab; start += kBlock) {
    vf part = vf_zero();
    floats near_part{};
    for_each_wide(logits, start, std::min(start + kBlock, vocab), [&](int32_t i, vf v) {
      const vf w = exp(vf_mul(vf_sub(v, most), scale));
      vf_store(weights + i, w);
      part = vf_add(part, w);
      floats lanes[kWide / kLanes];
      std::memcpy(lanes, &w, sizeof lanes);
      for (const floats &x : lanes) {
        const ints over = x > far;
        near_part += over ? x : floats{};
        count -= over;
      }
    });
    add(all, part);
    add(near, near_part);
  }
  const int32_t filled = pad(vocab, kWide);
  std::fill(weights + filled, weights + padded, 0.0f);
  int32_t near_count = 0;
  for (int i = 0; i < kLanes; ++i) near_count += count[i];
  return {sum(all), sum(near), near_count};
}

inline bool kept(float weight, int32_t index, Cut cut) {
  return weight > cut.weight || (weight == cut.weight && index <= cut.index);
}

/* Sum of what the cut keeps of weights[start..end). Equal weights are kept up to the cut's index,
 * so the comparison changes once on the way. */
inline double kept_sum(const float *weights, int32_t start, int32_t end, Cut cut) {
  if (start <= cut.index && cut.index < end) {
    double total = 0;
    for (int32_t i = start; i < end; ++i) total += kept(weights[i], i, cut) ? weights[i] : 0.0f;
    return total;
  }
  const bool ties = start <= cut.index;
  floats total[4] = {};
  for (int32_t i = start; i < end; i += kUnit) {
    for (int j = 0; j < 4; ++j) {
      const floats v = load(weights + i + j * kLanes);
      const ints keep = ties ? v >= cut.weight : v > cut.weight;
      total[j] += keep ? v : floats{};
    }
  }
  doubles all{};
  add(all, (total[0] + total[1]) + (total[2] + total[3]));
  return sum(all);
}

/* Inverts the cumulative weights in order of index: first by blocks, then inside one. */
inline int32_t draw(const float *weights, int32_t n, Cut cut, double chance, Scratch &scratch) {
  scratch.block_sums.clear();
  double total = 0;
  for (int32_t start = 0; start < n; start += kBlock) {
    scratch.block_sums.push_back(kept_sum(weights, start, std::min(start + kBlock, n), cut));
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
    if (weights[i] == 0 || !kept(weights[i], i, cut)) continue;
    last = i;
    if (left < weights[i]) break;
    left -= weights[i];
  }
  return last;
}

/* Moves what weighs more than 2^-16 into scratch.near_*, if the filters are certain to keep nothing
 * else and it is a small part of the row. */
inline bool narrow(const float *weights, int32_t n, const Weighed &mass, const kt_sampling &p,
                   Scratch &scratch) {
  const int32_t count = mass.near_count;
  if (count > n / kFew || p.top_k > count) return false;
  if (p.top_k <= 0 && p.top_p * mass.all > mass.near) return false;
  scratch.near_weights.clear();
  scratch.near_ids.clear();
  for_each_between(weights, n, from_bits(kFar), 1.0f, [&](int32_t i) {
    scratch.near_weights.push_back(weights[i]);
    scratch.near_ids.push_back(i);
  });
  scratch.near_weights.resize(static_cast<size_t>(pad(count, kUnit)), 0.0f);
  return true;
}

inline int32_t choose(const float *logits, int32_t vocab, const kt_sampling &p, Scratch &scratch) {
  const float top = maximum(logits, vocab);
  if (p.temperature < kGreedy || p.top_k == 1 || top == -kInfinity) return argmax(logits, vocab);
  int32_t n = pad(vocab, kUnit);
  if (scratch.weights.size() < static_cast<size_t>(n))
    scratch.weights.resize(static_cast<size_t>(n));
  float *weights = scratch.weights.data();
  const Weighed mass = weigh(logits, vocab, n, top, p.temperature, weights);
  const double chance = uniform(p.seed, p.position);
  const bool filtered = (p.top_k > 0 && p.top_k < vocab) || p.top_p < 1.0f;
  if (filtered && narrow(weights, n, mass, p, scratch)) {
    weights = scratch.near_weights.data();
    n = static_cast<int32_t>(scratch.near_weights.size());
    const Cut cut = filters(weights, n, mass.near, mass.all, p, scratch);
    return scratch.near_ids[static_cast<size_t>(draw(weights, n, cut, chance, scratch))];
  }
  return draw(weights, n, filters(weights, n, mass.all, mass.all, p, scratch), chance, scratch);
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
