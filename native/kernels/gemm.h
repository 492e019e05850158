// Matrix products over packed weights: units of one panel pair times a block of tokens.
#pragma once
#include <algorithm>

#include "../runtime/memory.h"
#include "tiles.h"

namespace kt {

// One packed matrix.
struct Matrix {
  const uint8_t *data;
  int format;
  int encoding;
  int64_t n, k;
  PanelLayout panel;
  const float *bias;
  float scale;

  int64_t pairs() const { return ceil_div(panels(n), 2); }
};

inline Matrix matrix_of(const kt_weight &w, int64_t index) {
  Matrix m{};
  m.data = static_cast<const uint8_t *>(w.data) + index * w.stride;
  m.format = w.format;
  m.n = w.n, m.k = w.k;
  m.bias = w.bias ? w.bias + index * w.n : nullptr;
  m.scale = w.scale ? w.scale[index] : 1.0f;
  with_format(w.format, [&](auto f) {
    m.panel = panel_layout<decltype(f)>(w.k);
    m.encoding = encoding_of<decltype(f)>();
  });
  return m;
}

// Encoded rows [count] with a stride, or those that `index` picks.
struct Rows {
  const uint8_t *base;
  int64_t stride;
  const int32_t *index;
  const void *operator[](int64_t i) const { return base + (index ? index[i] : i) * stride; }
};

// Room for a decoded panel pair, per thread; it grows to the widest matrix and stays.
inline uint8_t *decoded_panels(int64_t bytes) {
  thread_local Memory memory;
  if (memory.bytes() < bytes && !memory.grow(bytes)) return nullptr;
  return memory.data();
}

// A panel pair of a matrix: what a unit of work reads. NULL past the last one.
inline const uint8_t *pair_memory(const Matrix &m, int64_t pair) {
  return pair < m.pairs() ? m.data + 2 * pair * m.panel.bytes : nullptr;
}

// Columns 32 pair .. 32 pair + 31 of rows [from, to): each(row, float32[32]) gets them. Columns
// past n hold garbage. ahead: the pair_memory of this worker's next call, fetched meanwhile.
template <class Each>
inline void multiply(const Matrix &m, int64_t pair, Rows rows, int64_t from, int64_t to,
                     const uint8_t *ahead, Each &&each) {
  const TileSet &tiles = kTiles[m.format];
  alignas(64) float out[kMaxTileRows * 32];
  const void *row[kMaxTileRows];
  TileArgs packed{}, decoded{};
  packed.blocks = m.panel.blocks;
  packed.rows = row, packed.out = out;
  for (int p = 0; p < 2; p++) {
    const int64_t panel = std::min(2 * pair + p, panels(m.n) - 1);
    packed.meta[p] = m.data + panel * m.panel.bytes;
    packed.lines[p] = packed.meta[p] + m.panel.first_lines;
  }
  decoded = packed;
  const int64_t total = to - from, first = from;
  if (total == 1 && !tiles.fetches_one) ahead = nullptr;
  const bool decode = tiles.decodes && total >= tiles.decode_rows;
  if (decode) {
    const int64_t line_bytes = m.panel.blocks * tiles.decoded_block;
    const int64_t bytes = line_bytes + m.panel.blocks * tiles.decoded_meta;
    uint8_t *panel = decoded_panels(2 * bytes);
    for (int p = 0; p < 2; p++, panel += bytes) {
      packed.decoded[p] = panel;
      if (tiles.decoded_block) decoded.lines[p] = panel;
      if (tiles.decoded_meta) decoded.meta[p] = panel + line_bytes;
    }
  }
  int64_t fetched = 0;  // bytes from `ahead` on: every call takes its share
  while (from < to) {
    const int height = tile_height(to - from);
    const int count = int(std::min<int64_t>(to - from, kTileRows[height]));
    for (int i = 0; i < count; i++) row[i] = rows[from + i];
    Pass pass = !decode ? Pass::kOnly : from == first ? Pass::kFirst : Pass::kLater;
    if (!tiles.fn[int(pass)][height]) pass = Pass::kOnly;
    TileArgs &args = pass == Pass::kLater ? decoded : packed;
    args.count = count;
    if (ahead) {
      const int64_t until = 2 * m.panel.bytes * (from + count - first) / total;
      args.ahead = ahead + fetched;
      args.ahead_bytes = until - fetched;
      fetched = until;
    }
    tiles.fn[int(pass)][height](args);
    if (m.scale != 1.0f)
      for (int i = 0; i < count * 32; i++) out[i] *= m.scale;
    if (m.bias) {
      const int64_t columns = std::min<int64_t>(32, m.n - pair * 32);
      for (int i = 0; i < count; i++)
        for (int64_t c = 0; c < columns; c++) out[i * 32 + c] += m.bias[pair * 32 + c];
    }
    for (int i = 0; i < count; i++) each(from + i, out + i * 32);
    from += count;
  }
}

// Rows of a unit, at most. Many, so that panels are seldom decoded and seldom read, even where the
// rows exceed the second-level cache: they come from the third fast enough for tall tiles.
constexpr int64_t kUnitRows = 240;

// Rows of each unit, when all are shared out evenly; never 0, even of no rows.
inline int64_t unit_rows(int64_t rows) {
  rows = std::max<int64_t>(rows, 1);
  const int64_t units = ceil_div(rows, kUnitRows);
  return std::min(kUnitRows, round_up(ceil_div(rows, units), kMaxTileRows));
}

}  // namespace kt
