// The register tile: two panels of weights (32 outputs) times T encoded rows. Every output sums its
// K blocks in one order, whatever T is, so a token's numbers do not depend on its neighbours.
#pragma once
#include "encode.h"

namespace kt {

// out [rows, 32] float32. panel1 may equal panel0 (an odd last panel). accumulate: out is added to.
struct TileArgs {
  const uint8_t *panel[2];
  int64_t blocks;
  int64_t line_bytes;
  const void *const *rows;
  float *out;
  int count;  // rows, at most the tile's height
  bool accumulate;
};
using TileFn = void (*)(const TileArgs &);

// Scales of one block for 16 rows.
struct VScales {
  vf scale[2];
  vf minimum;
};
template <class S>
inline VScales load_scales(const uint8_t *meta, int64_t b) {
  VScales v;
  if constexpr (S::kSuper == 1) {
    v.scale[0] = vf_load_f16(meta + b * S::kBytes);
    if constexpr (S::kMin) v.minimum = vf_load_f16(meta + b * S::kBytes + 32);
  } else {
    const uint8_t *m = meta + b / 8 * S::kBytes;
    const vf d = vf_load_f16(m);
    if constexpr (S::kMin) {
      const uint8_t *s = m + 64 + b % 8 * 32;
      v.scale[0] = vf_mul(d, vf_from(vi_load_u8(s)));
      v.minimum = vf_mul(vf_sub(vf_zero(), vf_load_f16(m + 32)), vf_from(vi_load_u8(s + 16)));
    } else {
      const uint8_t *s = m + 32 + b % 8 * 32;
      v.scale[0] = vf_mul(d, vf_from(vi_load_i8(s)));
      v.scale[1] = vf_mul(d, vf_from(vi_load_i8(s + 16)));
    }
  }
  return v;
}

// Bytes ahead that a panel's lines are fetched, for the stream from DRAM.
constexpr int64_t kPrefetch = 2048;

template <class F, int P, int T>
inline void tile_int(const TileArgs &g, int first) {
  using S = typename F::Scales;
  constexpr int kGroups = 32 / S::kGroup;
  constexpr int kLines = F::kBits == 8 ? 8 : 4;  // per block
  constexpr int kGroupLines = kLines / kGroups;
  const int64_t nb = g.blocks;
  IntRow a[T];
  for (int t = 0; t < T; t++) a[t] = int_row(g.rows[t], nb);
  vf sum[P][T];
  for (int p = 0; p < P; p++)
    for (int t = 0; t < T; t++)
      sum[p][t] = g.accumulate ? vf_load(g.out + t * 32 + (first + p) * 16) : vf_zero();
  for (int64_t b = 0; b < nb; b++) {
    VScales s[P];
    for (int p = 0; p < P; p++) s[p] = load_scales<S>(g.panel[first + p] + g.line_bytes, b);
#pragma GCC unroll 2
    for (int group = 0; group < kGroups; group++) {
      vi acc[P][T];
#pragma GCC unroll 8
      for (int t = 0; t < T; t++) {
        vi init = vi_zero();
        if constexpr (F::kZeroLog2 >= 0)
          init = vi_shl<F::kZeroLog2>(
              vi_set1(kGroups == 1 ? a[t].neg_sum32[b] : a[t].neg_sum16[2 * b + group]));
        for (int p = 0; p < P; p++) acc[p][t] = init;
      }
#pragma GCC unroll 8
      for (int l = group * kGroupLines; l < (group + 1) * kGroupLines; l++) {
        const int64_t at = b * block_bytes<F>() + l * 64;
        if constexpr (F::kBits == 8) {
          QLine w[P];
          for (int p = 0; p < P; p++) {
            if (T == 1)
              _mm_prefetch((const char *)g.panel[first + p] + at + kPrefetch, _MM_HINT_T0);
            w[p] = q_line(vi_load(g.panel[first + p] + at));
          }
#pragma GCC unroll 8
          for (int t = 0; t < T; t++)
            for (int p = 0; p < P; p++)
              acc[p][t] = q_dot(acc[p][t], w[p], a[t].codes + (b * 32 + l * 4) * kActBytes);
        } else {
          const vi low = vi_set1(0x0f0f0f0f);
          QLine w[P], v[P];
          for (int p = 0; p < P; p++) {
            if (T == 1)
              _mm_prefetch((const char *)g.panel[first + p] + at + kPrefetch, _MM_HINT_T0);
            const vi bytes = vi_load(g.panel[first + p] + at);
            w[p] = q_line(vi_and(bytes, low));
            v[p] = q_line(vi_and(vi_shr16<4>(bytes), low));
          }
#pragma GCC unroll 8
          for (int t = 0; t < T; t++)
            for (int p = 0; p < P; p++) {
              const uint8_t *act = a[t].codes + (b * 32 + l * 8) * kActBytes;
              acc[p][t] = q_dot(acc[p][t], w[p], act);
              acc[p][t] = q_dot(acc[p][t], v[p], act + 4 * kActBytes);
            }
        }
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; t++)
        for (int p = 0; p < P; p++) {
          const vf scale = vf_mul(s[p].scale[group], vf_set1(a[t].scale[b]));
          sum[p][t] = vf_fma(vf_from(acc[p][t]), scale, sum[p][t]);
        }
    }
    if constexpr (S::kMin) {
#pragma GCC unroll 8
      for (int t = 0; t < T; t++)
        for (int p = 0; p < P; p++)
          sum[p][t] = vf_fma(s[p].minimum, vf_set1(a[t].scaled_sum[b]), sum[p][t]);
    }
  }
  for (int t = 0; t < T; t++)
    for (int p = 0; p < P; p++) vf_store(g.out + t * 32 + (first + p) * 16, sum[p][t]);
}

template <class F, int P, int T>
inline void tile_float(const TileArgs &g, int first) {
  vf sum[P][T];
  for (int p = 0; p < P; p++)
    for (int t = 0; t < T; t++)
      sum[p][t] = g.accumulate ? vf_load(g.out + t * 32 + (first + p) * 16) : vf_zero();
  constexpr int kLineK = 32 / F::kBits;  // K per line: 1 or 2
  const int64_t lines = g.blocks * kBlock / kLineK;
#pragma GCC unroll 2
  for (int64_t l = 0; l < lines; l++) {
    if constexpr (F::kKind == Kind::kBf16) {
      BLine w[P];
      for (int p = 0; p < P; p++) {
        if (T == 1)
          _mm_prefetch((const char *)g.panel[first + p] + l * 64 + kPrefetch, _MM_HINT_T0);
        w[p] = b_line(g.panel[first + p] + l * 64);
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; t++)
        for (int p = 0; p < P; p++)
          sum[p][t] =
              b_dot(sum[p][t], w[p], static_cast<const uint8_t *>(g.rows[t]) + l * 2 * kHalfBytes);
    } else {
#pragma GCC unroll 2
      for (int i = 0; i < kLineK; i++) {
        vf w[P];
        for (int p = 0; p < P; p++) {
          const uint8_t *at = g.panel[first + p] + l * 64 + i * 32;
          w[p] = kLineK == 1 ? vf_load(reinterpret_cast<const float *>(at)) : vf_load_f16(at);
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
          const vf x = vf_set1(static_cast<const float *>(g.rows[t])[l * kLineK + i]);
          for (int p = 0; p < P; p++) sum[p][t] = vf_fma(w[p], x, sum[p][t]);
        }
      }
    }
  }
  for (int t = 0; t < T; t++)
    for (int p = 0; p < P; p++) vf_store(g.out + t * 32 + (first + p) * 16, sum[p][t]);
}

template <class F, int T>
void tile(const TileArgs &g) {
#pragma GCC unroll 2
  for (int first = 0; first < 2; first += kTilePanels) {
    if constexpr (is_int<F>())
      tile_int<F, kTilePanels, T>(g, first);
    else
      tile_float<F, kTilePanels, T>(g, first);
  }
}

// More rows than a vector tile holds, in vector tiles: for formats without a taller tile of their
// own.
template <class F, int T>
void tile_in_parts(const TileArgs &g) {
  TileArgs part = g;
  for (int t = 0; t < g.count; t += part.count) {
    part.rows = g.rows + t, part.out = g.out + t * 32;
    part.count = g.count - t >= 4 ? 4 : 1;
    (part.count == 4 ? tile<F, 4> : tile<F, 1>)(part);
  }
}

}  // namespace kt
