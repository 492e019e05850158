// One draw from a row.
#pragma once
#include "keep.h"
#include "philox.h"

namespace kt {
namespace sampling {

constexpr float kGreedy = 1e-5f;  // temperatures below are greedy: the quotient would overflow

// Fills scratch.block_sums: the mass kept of each block. Returns that of all.
inline double sum_blocks(int32_t vocab, const Kept &k, Scratch &scratch) {
  const int32_t blocks = (vocab + kBlock - 1) / kBlock, *first = scratch.block_first.data();
  double *sums = room(scratch.block_sums, blocks), total = 0;
  for (int32_t b = 0; b < blocks; ++b) {
    sums[b] =
        k.range.part < 0 ? 0.0 : vf_sum(scratch.block_parts[size_t(b * k.parts + k.range.part)]);
    if (k.candidates.count) sums[b] += kept_mass(k.candidates, first[b], first[b + 1], k.cut);
    total += sums[b];
  }
  return total;
}

// Inverts the cumulative weights in order of id: first by blocks, then inside one.
inline int32_t draw(const float *logits, int32_t vocab, const Kept &k, double chance,
                    Scratch &scratch) {
  double left = chance * sum_blocks(vocab, k, scratch);
  const double *sums = scratch.block_sums.data();
  int32_t block = -1;  // rounding may run past the end: then the last one with a weight
  for (int32_t b = 0; b * kBlock < vocab; ++b) {
    if (sums[b] <= 0) continue;
    if (block >= 0) left -= sums[block];
    block = b;
    if (left < sums[b]) break;
  }
  if (block < 0) return 0;
  const int32_t start = block * kBlock, end = std::min(start + kBlock, vocab);
  alignas(64) float weights[kBlock];
  for_each_wide(logits, start, end,
                [&](int32_t i, vf v) { vf_store(weights + i - start, k.weight(v)); });
  int32_t last = 0, place = k.candidates.count ? scratch.block_first[size_t(block)] : 0;
  for (int32_t i = start; i < end; ++i) {
    const float x = logits[i], w = weights[i - start];
    const bool candidate = x > k.range.low && !(x > k.range.high);
    const bool keep = candidate ? kept(w, place++, k.cut) : x > k.range.high;
    if (!keep || w == 0) continue;
    last = i;
    if (left < w) break;
    left -= w;
  }
  return last;
}

inline int32_t choose(const float *logits, int32_t vocab, const kt_sampling &p, Scratch &scratch) {
  if (p.temperature < kGreedy || p.top_k == 1) return argmax(logits, vocab);
  const float base = base_of(logits, vocab, scratch);
  if (base == -kInfinity) return 0;
  const bool top = p.top_k > 0 && p.top_k < vocab;
  const Kept k = (top ? keep_top : keep_mass)(logits, vocab, base, p, scratch);
  return draw(logits, vocab, k, uniform(p.seed, p.position), scratch);
}

}  // namespace sampling
}  // namespace kt
