// The table of register tiles: one row per format, one column per tile height.
#pragma once
#ifdef KT_AMX
#include "tile_amx.h"
#else
#include "tile.h"
#endif
#include "tile_stream.h"

namespace kt {

template <class F, Pass K, int T>
__attribute__((flatten)) void tile(const TileArgs &g) {
  // Panels that are passed over at once. One row would wait for its sums, of which a panel has one.
  constexpr int P = T == 1 ? 2 : kTilePanels;
#pragma GCC unroll 2
  for (int first = 0; first < 2; first += P) {
    if constexpr (F::kKind == Kind::kInt)
      tile_int<F, K, P, T>(g, first);
    else if constexpr (F::kKind == Kind::kF32 || F::kKind == Kind::kF16)
      tile_float<F, P, T>(g, first);
    else
      tile_half<F, K, P, T>(g, first);
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
    (part.count == 4 ? tile<F, Pass::kOnly, 4> : tile<F, Pass::kOnly, 1>)(part);
  }
}

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

// Panels are left decoded from this many rows on: lines if a later pass reads them; scales alone
// from five rows on, whoever reads them: a tall tile that stores them is no slower than one that
// does not.
template <class F>
constexpr int decode_rows() {
  return decodes_lines<F>() ? kMaxTileRows + 1 : 5;
}

// F's tile of T rows; NULL where a pass of that kind and height does not come up.
template <class F, int T, Pass K>
constexpr TileFn tile_fn() {
  if constexpr (K != Pass::kOnly && !decodes<F>()) return nullptr;
#ifdef KT_AMX
  constexpr bool kTall = T >= 16;
  if constexpr (K == Pass::kFirst && T != kMaxTileRows) return nullptr;
  if constexpr (K == Pass::kLater && !kTall) return nullptr;
#else
  // Even shares of so many rows are at least half of the tallest tile, the first is more.
  if constexpr (K == Pass::kFirst && 2 * T <= kMaxTileRows) return nullptr;
  if constexpr (K == Pass::kLater && 2 * T < kMaxTileRows) return nullptr;
  if constexpr (K == Pass::kOnly && decodes<F>() && T >= decode_rows<F>()) return nullptr;
#endif
  if constexpr (K == Pass::kLater && F::kKind == Kind::kInt && decodes_lines<F>())
    return tile_fn<DecodedLines<F>, T, Pass::kOnly>();
#ifdef KT_AMX
  if constexpr (F::kKind == Kind::kBf16 || F::kKind == Kind::kFp8) return tile_amx<F, K>;
  if constexpr (F::kKind == Kind::kInt && kTall) return tile_amx<F, K>;
  if constexpr (kTall) return tile_in_parts<F, T>;
#endif
  if constexpr (T == 1 && (F::kKind == Kind::kInt || kFloatSums<F> > 1))
    return tile_stream<F>;
  else
    return tile<F, K, T>;
}

// Whether one row's memory is fetched ahead: otherwise it is two plain streams, which the hardware
// fetches best itself.
template <class F>
constexpr bool fetches_one() {
  return F::kKind == Kind::kInt || F::kKind == Kind::kFp8 || kFloatSums<F> > 1;
}

struct TileSet {
  bool decodes, fetches_one;
  int64_t decoded_block, decoded_meta;  // bytes per block; meta 0: the packed records stay
  int decode_rows;
  TileFn fn[3][kTileHeights];  // of a Pass; where it is NULL, kOnly's takes those rows
};

template <class F, size_t... I>
constexpr TileSet tile_set(std::index_sequence<I...>) {
  return {decodes<F>(),
          fetches_one<F>(),
          decoded_block_bytes<F>(),
          decoded_meta_bytes<F>(),
          decode_rows<F>(),
          {{tile_fn<F, kTileRows[I], Pass::kOnly>()...},
           {tile_fn<F, kTileRows[I], Pass::kFirst>()...},
           {tile_fn<F, kTileRows[I], Pass::kLater>()...}}};
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
