// The table of register tiles: one row per format, one column per tile height.
#pragma once
#ifdef KT_AMX
#include "tile_amx.h"
#else
#include "tile.h"
#endif

namespace kt {

// Token rows of the tiles, tallest first, and the fewest rows that each is chosen for. The first
// kDecoded of them read decoded lines.
#ifdef KT_AMX
constexpr int kTileRows[] = {32, 16, 4, 2, 1};
constexpr int kTileMinRows[] = {17, 5, 4, 2, 1};
constexpr int kDecoded = 2;
#else
constexpr auto &kTileRows = kVectorTileRows;
constexpr auto &kTileMinRows = kVectorTileRows;
constexpr int kDecoded = 1;
#endif
constexpr int kTileHeights = sizeof(kTileRows) / sizeof(kTileRows[0]);
constexpr int kMaxTileRows = kTileRows[0];

template <class F, int T>
constexpr TileFn tile_fn() {
  constexpr bool kFrom = decodes<F>() && T >= kTileRows[kDecoded - 1];
#ifdef KT_AMX
  if constexpr (F::kKind == Kind::kBf16 || F::kKind == Kind::kFp8) return tile_amx_half<F, kFrom>;
  if constexpr (F::kKind == Kind::kInt && T >= 16) return tile_amx_int<F>;
  if constexpr (T >= 16) return tile_in_parts<F, T>;
#endif
  return tile<F, kFrom, T>;
}

struct TileSet {
  void (*decode)(const uint8_t *lines, int64_t blocks, uint8_t *out);  // NULL: lines are plain
  int64_t decoded_block;  // bytes
  TileFn fn[kTileHeights];
};

template <class F, size_t... I>
constexpr TileSet tile_set(std::index_sequence<I...>) {
  return {decodes<F>() ? decode_panel<F> : nullptr,
          decoded_block_bytes<F>(),
          {tile_fn<F, kTileRows[I]>()...}};
}
template <class F>
constexpr TileSet tile_set() {
  return tile_set<F>(std::make_index_sequence<kTileHeights>());
}

#define KT_TILE_SET(name, ...) tile_set<__VA_ARGS__>(),
static constexpr TileSet kTiles[KT_FORMATS] = {KT_FORMAT_TABLE(KT_TILE_SET)};
#undef KT_TILE_SET

// The tile for the next of `rows` rows: an index into kTileRows. It takes min(rows, kTileRows[i]).
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
