// The table of register tiles: one row per format, one column per tile height.
#pragma once
#include "tile.h"

namespace kt {

constexpr int kTileHeights = sizeof(kTileRows) / sizeof(kTileRows[0]);
constexpr int kMaxTileRows = kTileRows[0];

struct TileSet {
  TileFn fn[kTileHeights];
};

template <class F, size_t... I>
constexpr TileSet tile_set(std::index_sequence<I...>) {
  return {{tile<F, kTileRows[I]>...}};
}
template <class F>
constexpr TileSet tile_set() {
  return tile_set<F>(std::make_index_sequence<kTileHeights>());
}

#define KT_TILE_SET(name, ...) tile_set<__VA_ARGS__>(),
static constexpr TileSet kTiles[KT_FORMATS] = {KT_FORMAT_TABLE(KT_TILE_SET)};
#undef KT_TILE_SET

// The tile for up to `rows` rows: index into kTileRows.
inline int tile_height(int64_t rows) {
  int i = 0;
  while (kTileRows[i] > rows) i++;
  return i;
}

}  // namespace kt
