// The table of register tiles: one row per format, one column per tile height.
#pragma once
#ifdef KT_AMX
#include "tile_amx.h"
#else
#include "tile.h"
#endif

namespace kt {

// Token rows of the tiles, tallest first, and the fewest rows that each is chosen for.
#ifdef KT_AMX
constexpr int kTileRows[] = {32, 16, 4, 2, 1};
constexpr int kTileMinRows[] = {17, 5, 4, 2, 1};
#else
constexpr auto &kTileRows = kVectorTileRows;
constexpr auto &kTileMinRows = kVectorTileRows;
#endif
constexpr int kTileHeights = sizeof(kTileRows) / sizeof(kTileRows[0]);
constexpr int kMaxTileRows = kTileRows[0];

template <class F, int T>
constexpr TileFn tile_fn() {
#ifdef KT_AMX
  if constexpr (F::kKind == Kind::kBf16) return tile_amx_bf16;
  if constexpr (is_int<F>() && T >= 16) return tile_amx_int<F>;
  if constexpr (T >= 16) return tile_in_parts<F, T>;
#endif
  return tile<F, T>;
}

struct TileSet {
  TileFn fn[kTileHeights];
};

template <class F, size_t... I>
constexpr TileSet tile_set(std::index_sequence<I...>) {
  return {{tile_fn<F, kTileRows[I]>()...}};
}
template <class F>
constexpr TileSet tile_set() {
  return tile_set<F>(std::make_index_sequence<kTileHeights>());
}

#define KT_TILE_SET(name, ...) tile_set<__VA_ARGS__>(),
static constexpr TileSet kTiles[KT_FORMATS] = {KT_FORMAT_TABLE(KT_TILE_SET)};
#undef KT_TILE_SET

// The tile for the next of `rows` rows: an index into kTileRows. It takes min(rows, kTileRows[i])
// of them.
inline int tile_height(int64_t rows) {
  int i = 0;
  while (kTileMinRows[i] > rows) i++;
  return i;
}

// What a worker does when a job ends.
inline void leave_job() {
#ifdef KT_AMX
  tile_leave();
#endif
}

}  // namespace kt
