// The products of attention on AMX tiles, through the tiles of the weight formats.
#pragma once
#include "attention_tile.h"

namespace kt {

inline int64_t packed_queries(int64_t) { return 0; }
inline void pack_queries(int, const void *const *, int, int64_t, uint8_t *) {}

inline void score_tiles(const TileSet &tiles, const KvHead &h, const QueryTile &q,
                        const SplitPages &s, int from, int to, PageStream &ahead, float *out) {
  const int64_t bytes = h.bytes / 2;
  for (int p = from; p < to; p++)
    run_tiles(tiles,
              panel_tile(s.keys[p], h.panel_bytes, h.padded / 32, out + p * q.count * 32,
                         ahead.take(bytes), bytes),
              q.rows, q.count);
}
static constexpr TileSet kKeyTiles = tile_set<KeyFormat>();

inline void score_halves(const KvHead &h, const QueryTile &q, const SplitPages &s, int from, int to,
                         PageStream &ahead, float *out) {
  score_tiles(kTiles[KT_BF16], h, q, s, from, to, ahead, out);
}
inline void score_codes(const KvHead &h, const QueryTile &q, const SplitPages &s, int from, int to,
                        PageStream &ahead, float *out) {
  score_tiles(kKeyTiles, h, q, s, from, to, ahead, out);
}
// Sums over the pages' products with `lines` of rows that lie row_bytes apart, page after page.
inline void sum_pages(int format, const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                      const uint8_t *probs, int64_t page_bytes, int64_t row_bytes, int count,
                      bool more, PageStream &ahead, float *out) {
  alignas(64) static constexpr float kOnes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  // A quarter of two parts, half of one.
  const int64_t step = h.bytes / 2 / (h.padded / 32) / (h.format == KT_KV_INT8 ? 2 : 1);
  const void *rows[kQueryTile];
  for (int p = from; p < to; p++) {
    for (int r = 0; r < count; r++) rows[r] = probs + r * row_bytes + p * page_bytes;
    TileArgs args = panel_tile(s.keys[p] + h.values() + d * 2 * h.value_panel(), h.value_panel(), 1,
                               out, ahead.take(step), step);
    args.meta[0] = args.meta[1] = reinterpret_cast<const uint8_t *>(kOnes);
    args.accumulate = more || p > from;
    run_tiles(kTiles[format], args, rows, count);
  }
}
inline void sum_halves(const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                       const uint8_t *probs, int count, PageStream &ahead, float *out) {
  sum_pages(KT_BF16, h, s, from, to, d, probs, 32 * kHalfBytes, kProbRow, count, false, ahead, out);
}
// What a row of one block (ENC_INT) has after its codes.
inline void end_codes(float scale, uint8_t *page) {
  float *meta = reinterpret_cast<float *>(page + kPageTokens);
  const int32_t negative = -vi_sum(vi_add(vi_load_i8(page), vi_load_i8(page + 16)));
  meta[0] = scale, meta[1] = 0;  // only formats with minima read that
  std::memcpy(meta + 2, &negative, 4);
}
inline void sum_codes(const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                      const uint8_t *probs, const ProbCodes &, int count, PageStream &ahead,
                      float *out) {
  for (int part = 0; part < 2; part++)
    sum_pages(KT_I8_ROW, h, s, from, to, d, probs + part * kQueryTile * kProbPart, kProbPage,
              kProbPart, count, part == 1, ahead, out);
}

}  // namespace kt
