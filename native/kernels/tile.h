// The register tile: two panels of weights (32 outputs) times T encoded rows. Every output sums its
// K blocks in one order, whatever T is, so a token's numbers do not depend on its neighbours.
#pragma once
#include "panels.h"

namespace kt {

// What a pass fetches, block by block. A core drops fetches while many are under way, so they are
// spread evenly.
template <int T>
struct Ahead {
  const char *at;
  int64_t step;  // bytes per block

  void fetch_block() {
    // One row has used a line of weights when it has read it, and waits for the next one: close by.
    constexpr _mm_hint kHint = T == 1 ? _MM_HINT_T0 : _MM_HINT_T1;
    for (const char *end = at + step; at != end; at += 64) _mm_prefetch(at, kHint);
  }
};
template <int T, int P>
inline Ahead<T> ahead_of(const TileArgs &g, int first) {
  const uint8_t *from = g.ahead;
  if (!from) return {nullptr, 0};
  const int64_t bytes = g.ahead_bytes * P / 2;
  from += first / P * bytes;
  return {reinterpret_cast<const char *>(from), round_up(ceil_div(bytes, g.blocks), 64)};
}

// How many quads of 4 K can be summed in 16 bits: products of a code and of at most 127, each sum
// of two. 0: none, or the variant has a faster way.
template <class F>
constexpr int narrow_quads() {
  constexpr int kMost = kNarrowDots ? 32767 / (2 * 127 * F::kTop) : 0;
  return kMost >= 8 ? 8 : kMost >= 4 ? 4 : kMost >= 2 ? 2 : kMost;
}
template <int P, int T>
inline void start_sums(const TileArgs &g, int first, vf (&sum)[P][T]) {
  for (int p = 0; p < P; p++)
    for (int t = 0; t < T; t++)
      sum[p][t] = g.accumulate ? vf_load(g.out + t * 32 + (first + p) * 16) : vf_zero();
}
template <int P, int T>
inline void store_sums(const TileArgs &g, int first, const vf (&sum)[P][T]) {
  for (int t = 0; t < T; t++)
    for (int p = 0; p < P; p++) vf_store(g.out + t * 32 + (first + p) * 16, sum[p][t]);
}

// Adds quads From .. To of a block to the integer sums.
template <int Q, int To, class Block, int P, int T>
inline void dot_quads(const Block &block, const IntRow (&a)[T], int64_t b, vi (&acc)[P][T]) {
  if constexpr (Q < To) {
    QLine w[P];
    for (int p = 0; p < P; p++) w[p] = q_line(block.template quad<Q>(p));
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
      for (int p = 0; p < P; p++)
        acc[p][t] = q_dot(acc[p][t], w[p], a[t].codes + (b * 32 + Q * 4) * kActBytes);
    dot_quads<Q + 1, To>(block, a, b, acc);
  }
}

// The same for small codes, Step quads at a time in sums of 16 bits.
template <int Q, int To, int Step, class Block, int P, int T>
inline void dot_narrow(const Block &block, const IntRow (&a)[T], int64_t b, vi (&acc)[P][T],
                       vi (&sum)[P][T]) {
  if constexpr (Q < To) {
    vi w[P];
    for (int p = 0; p < P; p++) w[p] = block.template quad<Q>(p);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
      for (int p = 0; p < P; p++) {
        sum[p][t] =
            q_dot_narrow(Q % Step ? sum[p][t] : vi_zero(), w[p], a[t].bytes + b * kBlock + Q * 4);
        if ((Q + 1) % Step == 0) acc[p][t] = q_widen(acc[p][t], sum[p][t]);
      }
    dot_narrow<Q + 1, To, Step>(block, a, b, acc, sum);
  }
}

template <class F, int Group, class Block, int P, int T>
inline void dot_group(const Block &block, const IntRow (&a)[T], int64_t b, const VScales (&s)[P],
                      vf (&sum)[P][T]) {
  using S = typename F::Scales;
  constexpr bool kHalves = S::kGroup == 16;
  vi acc[P][T];
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) {
    vi init = vi_zero();
    if constexpr (F::kZeroLog2 >= 0)
      init = vi_shl<F::kZeroLog2>(
          vi_set1(kHalves ? a[t].neg_sum16[2 * b + Group] : a[t].neg_sum32[b]));
    for (int p = 0; p < P; p++) acc[p][t] = init;
  }
  constexpr int kQuads = kHalves ? 4 : 8, kStep = std::min(narrow_quads<F>(), kQuads);
  if constexpr (kStep > 0) {
    vi narrow[P][T];
    dot_narrow<Group * kQuads, (Group + 1) * kQuads, kStep>(block, a, b, acc, narrow);
  } else {
    dot_quads<Group * kQuads, (Group + 1) * kQuads>(block, a, b, acc);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; t++)
    for (int p = 0; p < P; p++)
      sum[p][t] = join_group<F, Group>(vf_from(acc[p][t]), s[p], a[t], b, sum[p][t]);
}

template <class F, Pass K, int P, int T>
inline void tile_int(const TileArgs &g, int first) {
  IntRow a[T];
  for (int t = 0; t < T; t++) a[t] = int_row(g.rows[t], g.blocks);
  Ahead<T> ahead = ahead_of<T, P>(g, first);
  vf sum[P][T];
  start_sums(g, first, sum);
  for (int64_t b = 0; b < g.blocks; b++) {
    ahead.fetch_block();
    const PanelBlock<F, K, P> block(g, first, b);
    VScales s[P];
    for (int p = 0; p < P; p++) s[p] = block.scales(p);
    dot_group<F, 0>(block, a, b, s, sum);
    if constexpr (F::Scales::kGroup == 16) dot_group<F, 1>(block, a, b, s, sum);
  }
  store_sums(g, first, sum);
}

// A sum of float32 products waits for the product before, and one row has no other sums to go on
// with. So blocks are dealt out to several: one row has them side by side, a taller tile one after
// the other, and both add them up in their order.
template <class F>
constexpr int kFloatSums =
    F::kKind == Kind::kF16 || (F::kKind == Kind::kBf16 && kHalfIsF32) ? 4 : 1;

// Calls each(block, sums to add it to) for all blocks.
template <class F, int P, int T, class Each>
inline void deal_blocks(int64_t blocks, vf (&total)[P][T], Each &&each) {
  if constexpr (kFloatSums<F> == 1) {
    for (int64_t b = 0; b < blocks; b++) each(b, total);
  } else {
    for (int64_t of = 0; of < kFloatSums<F>; of++) {
      vf sum[P][T];
      for (int p = 0; p < P; p++)
        for (int t = 0; t < T; t++) sum[p][t] = vf_zero();
      for (int64_t b = of; b < blocks; b += kFloatSums<F>) each(b, sum);
      for (int p = 0; p < P; p++)
        for (int t = 0; t < T; t++) total[p][t] = vf_add(total[p][t], sum[p][t]);
    }
  }
}

template <class Block, int P, int T>
inline void dot_half_block(const Block &block, const TileArgs &g, int64_t b, vf (&sum)[P][T]) {
#pragma GCC unroll 16
  for (int l = 0; l < 16; l++) {
    BLine w[P];
    for (int p = 0; p < P; p++) w[p] = block.operand(p, l);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
      for (int p = 0; p < P; p++)
        sum[p][t] = b_dot(sum[p][t], w[p],
                          static_cast<const uint8_t *>(g.rows[t]) + (b * 32 + l * 2) * kHalfBytes);
  }
}

template <class F, Pass K, int P, int T>
inline void tile_half(const TileArgs &g, int first) {
  Ahead<T> ahead = ahead_of<T, P>(g, first);
  vf sum[P][T];
  start_sums(g, first, sum);
  const auto block = [&](int64_t b, vf(&into)[P][T]) {
    ahead.fetch_block();
    dot_half_block(PanelBlock<F, K, P>(g, first, b), g, b, into);
  };
  if constexpr (F::kKind == Kind::kBf16) {
    deal_blocks<F>(g.blocks, sum, block);
  } else {
    constexpr int64_t kSuper = F::Scales::kSuper;
    for (int64_t from = 0; from < g.blocks; from += kSuper) {
      vf part[P][T];
      for (int p = 0; p < P; p++)
        for (int t = 0; t < T; t++) part[p][t] = vf_zero();
      const int64_t to = from + kSuper < g.blocks ? from + kSuper : g.blocks;
      for (int64_t b = from; b < to; b++) block(b, part);
      for (int p = 0; p < P; p++) {
        const vf scale = F::Scales::load(g.meta[first + p], from).scale[0];
        for (int t = 0; t < T; t++) sum[p][t] = vf_fma(part[p][t], scale, sum[p][t]);
      }
    }
  }
  store_sums(g, first, sum);
}

template <class F, int P, int T>
inline void tile_float(const TileArgs &g, int first) {
  Ahead<T> ahead = ahead_of<T, P>(g, first);
  vf sum[P][T];
  start_sums(g, first, sum);
  constexpr bool kHalf = F::kKind == Kind::kF16;
  deal_blocks<F>(g.blocks, sum, [&](int64_t b, vf(&into)[P][T]) {
    ahead.fetch_block();
#pragma GCC unroll 2
    for (int64_t k = b * kBlock; k < (b + 1) * kBlock; k++) {
      vf w[P];
      for (int p = 0; p < P; p++) {
        const uint8_t *at = g.lines[first + p] + k * (kHalf ? 32 : 64);
        w[p] = kHalf ? vf_load_f16(at) : vf_load(reinterpret_cast<const float *>(at));
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; t++) {
        const vf x = vf_set1(static_cast<const float *>(g.rows[t])[k]);
        for (int p = 0; p < P; p++) into[p][t] = vf_fma(w[p], x, into[p][t]);
      }
    }
  });
  store_sums(g, first, sum);
}

}  // namespace kt
