// The table of register tiles: one row per format, one column per tile height.
#pragma once
#ifdef KT_AMX
#include "tile_amx.h"
#else
#include "tile.h"
#endif

namespace kt {

// Token rows of the tiles, tallest first.
#ifdef KT_AMX
constexpr int kTileRows[] = {32, 16, 4, 2, 1};
#else
constexpr auto &kTileRows = kVectorTileRows;
#endif
constexpr int kTileHeights = sizeof(kTileRows) / sizeof(kTileRows[0]);
constexpr int kMaxTileRows = kTileRows[0];

// The tile for the next of `rows` rows: an index into kTileRows. It takes min(rows, kTileRows[i]).
inline int tile_height(int64_t rows) {
#ifdef KT_AMX
  constexpr int kFewest[] = {17, 5, 4, 2, 1};  // that each is chosen for
  int i = 0;
  while (kFewest[i] > rows) i++;
  return i;
#else
  // Rows are shared out evenly: a short tile at the end would take as long as a tall one.
  static_assert(kTileHeights == kMaxTileRows, "every height up to the tallest");
  const int64_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  return int(kMaxTileRows - (rows + tiles - 1) / tiles);
#endif
}

// Lines are decoded once for this many rows and more; fewer decode them on the way: one AMX tile a
// block ahead, vectors in registers, where integer codes are quick enough for two tiles.
template <class F>
constexpr int decode_rows() {
#ifdef KT_AMX
  return kMaxTileRows + 1;
#else
  if (kTilePanels == 1) return 4;
  return F::kKind == Kind::kInt ? 9 : 5;
#endif
}

// F's tile of T rows. Late: over lines that were decoded; NULL where heights of that kind do not
// come up.
template <class F, int T, bool Late>
constexpr TileFn tile_fn() {
  using G = std::conditional_t<Late, Decoded<F>, F>;
#ifdef KT_AMX
  constexpr bool kTall = T >= 16;
  if constexpr (Late && !(kTall && decodes<F>())) return nullptr;
  if constexpr (F::kKind == Kind::kBf16 || F::kKind == Kind::kFp8) return tile_amx<G, Late>;
  if constexpr (F::kKind == Kind::kInt && kTall) return tile_amx<G, Late>;
  if constexpr (kTall) return tile_in_parts<F, T>;
#else
  // Even shares of decode_rows rows and more are at least half of the tallest tile.
  if constexpr (Late && !(decodes<F>() && 2 * T >= kMaxTileRows)) return nullptr;
  if constexpr (!Late && decodes<F>() && T >= decode_rows<F>()) return nullptr;
#endif
  return tile<G, Late, T>;
}

// decode is NULL for a format whose lines are plain. Where decoded_fn is NULL, fn takes those rows.
struct TileSet {
  void (*decode)(const uint8_t *lines, const uint8_t *meta, int64_t blocks, uint8_t *out);
  int64_t decoded_block, decoded_meta;  // bytes per block; meta 0: the packed records stay
  int decode_rows;
  TileFn fn[kTileHeights];
  TileFn decoded_fn[kTileHeights];
};

template <class F, size_t... I>
constexpr TileSet tile_set(std::index_sequence<I...>) {
  return {decodes<F>() ? decode_panel<F> : nullptr,
          decoded_block_bytes<F>(),
          decoded_meta_bytes<F>(),
          decode_rows<F>(),
          {tile_fn<F, kTileRows[I], false>()...},
          {tile_fn<F, kTileRows[I], true>()...}};
}
template <class F>
constexpr TileSet tile_set() {
  return tile_set<F>(std::make_index_sequence<kTileHeights>());
}

#define KT_TILE_SET(name, ...) tile_set<__VA_ARGS__>(),
static constexpr TileSet kTiles[KT_FORMATS] = {KT_FORMAT_TABLE(KT_TILE_SET)};
#undef KT_TILE_SET

// What a worker does when a job ends.
inline void leave_job() {
#ifdef KT_AMX
  tile_leave();
#endif
}

}  // namespace kt
