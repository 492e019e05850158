// One draw from a row.
#pragma once
#include "keep.h"
#include "philox.h"

namespace kt {
namespace sampling {

constexpr float kGreedy = 1e-5f;  // temperatures below are greedy: the quotient would overflow

// Fills scratch.block_sums: the mass kept of each block. Returns that of all.
inline double sum_blocks(int32_t vocab, const Kept &k, Scratch &scratch) {
  const int32_t blocks = blocks_of(vocab);
  double *sums = room(scratch.block_sums, blocks), total = 0;
  for (int32_t b = 0; b < blocks; ++b) {
    sums[b] = k.over ? double{scratch.block_over[size_t(b)]} : 0.0;
    if (k.candidates.count) sums[b] += mass_of_block(k.candidates, b, scratch);
    total += sums[b];
  }
  return total;
}

// The weights of a block's logits, 0 for those that are dropped.
inline void weigh_block(const float *logits, int32_t size, Range r, const float *candidates,
                        const Kept &k, float (&kept)[kBlock]) {
  const vf low = vf_set1(r.low), high = vf_set1(r.high);
  std::fill(kept, kept + kBlock, 0.0f);
  for_each_wide(logits, 0, size, [&](int32_t i, vf x) {
    const vm over = vm_greater(x, high), within = vm_andnot(over, vm_greater(x, low));
    const vf w = vf_unpack(candidates, within);
    vf_store(kept + i, k.over ? vf_add_where(w, k.weight(x), over) : w);
  });
}

// Inverts the cumulative weights in order of id inside a block, behind `left` of its mass: by runs
// of kUnit, then inside one.
inline int32_t draw_in(const float (&kept)[kBlock], double left) {
  for (int32_t first = 0; first < kBlock; first += kUnit) {
    vf v[4];
    for (int j = 0; j < 4; ++j) v[j] = vf_load(kept + first + j * kWide);
    const double sum = take_sum(v);
    if (left >= sum) {
      left -= sum;
      continue;
    }
    for (int32_t i = first; i < first + kUnit; ++i) {
      if (left < kept[i]) return i;
      left -= kept[i];
    }
  }
  int32_t last = kBlock - 1;  // rounding ran past the end
  while (last > 0 && kept[last] == 0) --last;
  return last;
}

// Inverts the cumulative weights in order of id: first by blocks, then inside one.
inline int32_t draw(const float *logits, int32_t vocab, const Kept &k, double chance,
                    Scratch &scratch) {
  double left = chance * sum_blocks(vocab, k, scratch);
  const double *sums = scratch.block_sums.data();
  int32_t block = -1;  // rounding may run past the end: then the last one with a weight
  for (int32_t b = 0; b < blocks_of(vocab); ++b) {
    if (sums[b] <= 0) continue;
    if (block >= 0) left -= sums[block];
    block = b;
    if (left < sums[b]) break;
  }
  if (block < 0) return 0;
  const int32_t start = block * kBlock;
  alignas(64) float kept[kBlock];
  const float *candidates = kept;  // of which none is taken if there are none
  if (k.candidates.count) candidates = k.candidates.weights + scratch.block_first[size_t(block)];
  Range r = k.range;
  if (k.by_block) r.low = scratch.block_low[size_t(block)];
  weigh_block(logits + start, std::min(kBlock, vocab - start), r, candidates, k, kept);
  return start + draw_in(kept, left);
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
