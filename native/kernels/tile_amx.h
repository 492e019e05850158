// The register tile on AMX: 32 tokens x 2 panels in four accumulators, straight from the packed
// lines (a panel's lines of 4 or 2 K are the rows of a B tile). Integer sums are exact within a
// block and joined in the order of tile_int, so these tiles and the VNNI ones give the same bits;
// bfloat16 goes through tiles at every height, since their order of summation is their own.
#pragma once
#include "../simd/amx.h"
#include "tile.h"

namespace kt {

// Up to 16 token rows as one tile's memory: in place when they are evenly spaced, else copied.
struct TokenRows {
  const uint8_t *base;
  int64_t stride;
  bool copied;
};
inline TokenRows token_rows(const void *const *rows, int count) {
  const uint8_t *first = static_cast<const uint8_t *>(rows[0]);
  if (count < 16) return {nullptr, 0, true};  // a tile reads 16 rows
  const int64_t stride = static_cast<const uint8_t *>(rows[1]) - first;
  for (int i = 2; i < count; i++)
    if (static_cast<const uint8_t *>(rows[i]) - first != i * stride) return {nullptr, 0, true};
  return {first, stride, false};
}
template <int T>
inline void load_tokens(const TokenRows &r, const void *const *rows, int count, int64_t at,
                        int bytes, uint8_t *staging) {
  if (!r.copied) {
    tile_load<T>(r.base + at, r.stride);
    return;
  }
  for (int i = 0; i < count; i++)
    std::memcpy(staging + i * 64, static_cast<const uint8_t *>(rows[i]) + at, size_t(bytes));
  tile_load<T>(staging, 64);
}

// Integer formats, from decoded lines (or those of an 8-bit format).
template <class F>
void tile_amx_int(const TileArgs &g) {
  using S = typename F::Scales;
  constexpr int kGroups = 32 / S::kGroup;
  constexpr int kGroupLines = S::kGroup / 4;
  const int first = std::min(g.count, 16), second = g.count - first;
  const TokenRows tokens[2] = {token_rows(g.rows, first), token_rows(g.rows + first, second)};
  alignas(64) uint8_t staging[2][16 * 64] = {};
  alignas(64) int32_t products[4][16 * 16];
  IntRow a[32];
  for (int t = 0; t < g.count; t++) {
    a[t] = int_row(g.rows[t], g.blocks);
    if (!g.accumulate) std::memset(g.out + t * 32, 0, 128);
  }
  tile_want({S::kGroup, kGroupLines});
  const auto group_of = [&](auto group, int64_t b, const VScales(&s)[2]) {
    constexpr int kGroup = decltype(group)::value;
    const int64_t at = b * 32 + kGroup * S::kGroup;
    tile_load<T_PANEL>(g.lines[0] + b * 512 + kGroup * kGroupLines * 64, 64);
    tile_load<T_PANEL + 1>(g.lines[1] + b * 512 + kGroup * kGroupLines * 64, 64);
    load_tokens<T_TOKENS>(tokens[0], g.rows, first, at, S::kGroup, staging[0]);
    tile_zero<0>(), tile_zero<1>();
    tile_dot_int8<0, T_TOKENS, T_PANEL>();
    tile_dot_int8<1, T_TOKENS, T_PANEL + 1>();
    tile_store<0>(products[0], 64), tile_store<1>(products[1], 64);
    if (second) {
      load_tokens<T_TOKENS + 1>(tokens[1], g.rows + 16, second, at, S::kGroup, staging[1]);
      tile_zero<2>(), tile_zero<3>();
      tile_dot_int8<2, T_TOKENS + 1, T_PANEL>();
      tile_dot_int8<3, T_TOKENS + 1, T_PANEL + 1>();
      tile_store<2>(products[2], 64), tile_store<3>(products[3], 64);
    }
    for (int t = 0; t < g.count; t++)
      for (int p = 0; p < 2; p++) {
        vi acc = vi_load(products[t / 16 * 2 + p] + t % 16 * 16);
        if constexpr (F::kZeroLog2 >= 0)
          acc = vi_add(
              acc, vi_shl<F::kZeroLog2>(
                       vi_set1(kGroups == 1 ? a[t].neg_sum32[b] : a[t].neg_sum16[2 * b + kGroup])));
        float *sum = g.out + t * 32 + p * 16;
        vf_store(sum, join_group<F, kGroup>(vf_from(acc), s[p], a[t], b, vf_load(sum)));
      }
  };
  for (int64_t b = 0; b < g.blocks; b++) {
    fetch_ahead(g, b);
    const VScales s[2] = {S::load(g.meta[0], b), S::load(g.meta[1], b)};
    group_of(std::integral_constant<int, 0>(), b, s);
    if constexpr (kGroups == 2) group_of(std::integral_constant<int, 1>(), b, s);
  }
}

// bfloat16 and FP8: tiles at every height. FP8 sums a scale's K in a tile of its own.
template <class F, bool Decoded>
void tile_amx_half(const TileArgs &g) {
  constexpr bool kFp8 = F::kKind == Kind::kFp8;
  const int first = std::min(g.count, 16), second = g.count - first;
  const TokenRows tokens[2] = {token_rows(g.rows, first), token_rows(g.rows + first, second)};
  alignas(64) uint8_t staging[2][16 * 64] = {};
  alignas(64) uint8_t expanded[2][1024];
  alignas(64) float sums[4][16 * 16] = {};
  tile_want({64, 16});
  const auto each_row = [&](auto &&f) {
    for (int t = 0; t < g.count; t++)
      for (int p = 0; p < 2; p++) f(sums[t / 16 * 2 + p] + t % 16 * 16, g.out + t * 32 + p * 16, p);
  };
  const auto store = [&] {
    tile_store<0>(sums[0], 64), tile_store<1>(sums[1], 64);
    if (second) tile_store<2>(sums[2], 64), tile_store<3>(sums[3], 64);
  };
  const auto block = [&](int64_t b) {
    fetch_ahead(g, b);
    const uint8_t *lines[2];
    for (int p = 0; p < 2; p++) {
      lines[p] = g.lines[p] + b * (Decoded ? 1024 : F::kBlockBytes);
      if constexpr (kFp8 && !Decoded) {
        decode_lines<F>(lines[p], 1, expanded[p]);
        lines[p] = expanded[p];
      }
    }
    tile_load<T_PANEL>(lines[0], 64);
    tile_load<T_PANEL + 1>(lines[1], 64);
    load_tokens<T_TOKENS>(tokens[0], g.rows, first, b * 64, 64, staging[0]);
    tile_dot_bf16<0, T_TOKENS, T_PANEL>();
    tile_dot_bf16<1, T_TOKENS, T_PANEL + 1>();
    if (second) {
      load_tokens<T_TOKENS + 1>(tokens[1], g.rows + 16, second, b * 64, 64, staging[1]);
      tile_dot_bf16<2, T_TOKENS + 1, T_PANEL>();
      tile_dot_bf16<3, T_TOKENS + 1, T_PANEL + 1>();
    }
  };
  if constexpr (!kFp8) {
    if (g.accumulate) each_row([](float *sum, float *out, int) { vf_store(sum, vf_load(out)); });
    tile_load<0>(sums[0], 64), tile_load<1>(sums[1], 64);
    if (second) tile_load<2>(sums[2], 64), tile_load<3>(sums[3], 64);
    for (int64_t b = 0; b < g.blocks; b++) block(b);
    store();
    each_row([](float *sum, float *out, int) { vf_store(out, vf_load(sum)); });
  } else {
    if (!g.accumulate) each_row([](float *, float *out, int) { vf_store(out, vf_zero()); });
    constexpr int64_t kSuper = F::Scales::kSuper;
    for (int64_t from = 0; from < g.blocks; from += kSuper) {
      tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
      for (int64_t b = from; b < std::min(g.blocks, from + kSuper); b++) block(b);
      store();
      const vf scale[2] = {F::Scales::load(g.meta[0], from).scale[0],
                           F::Scales::load(g.meta[1], from).scale[0]};
      each_row([&](float *sum, float *out, int p) {
        vf_store(out, vf_fma(vf_load(sum), scale[p], vf_load(out)));
      });
    }
  }
}

}  // namespace kt
