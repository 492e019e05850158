// The products of attention on AMX tiles, through the tiles of the weight formats.
#pragma once
#include "attention_tile.h"

namespace kt {

inline int64_t packed_queries(int64_t) { return 0; }
inline void pack_queries(const void *const *, int, int64_t, uint8_t *) {}

inline void score_halves(const KvHead &h, const QueryTile &q, const uint8_t *keys, float *out,
                         const uint8_t *ahead) {
  run_tiles(KT_BF16,
            panel_tile(keys, h.panel_bytes, h.padded / 32, out, ahead, h.bytes - h.values()),
            q.rows, q.count);
}
// Sums over the pages' products with `lines` of rows that lie row_bytes apart, page after page.
inline void sum_pages(int format, const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                      const uint8_t *probs, int64_t page_bytes, int64_t row_bytes, int count,
                      bool more, bool fetch, float *out) {
  alignas(64) static constexpr float kOnes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const int64_t step = h.values() / (h.padded / 32);
  const void *rows[kQueryTile];
  for (int p = from; p < to; p++) {
    for (int r = 0; r < count; r++) rows[r] = probs + r * row_bytes + p * page_bytes;
    const uint8_t *ahead = fetch && s.next_keys[p] ? s.next_keys[p] + d * step : nullptr;
    TileArgs args = panel_tile(s.keys[p] + h.values() + d * 2 * h.value_panel(), h.value_panel(), 1,
                               out, ahead, step);
    args.meta[0] = args.meta[1] = reinterpret_cast<const uint8_t *>(kOnes);
    args.accumulate = more || p > from;
    run_tiles(format, args, rows, count);
  }
}
inline void sum_halves(const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                       const uint8_t *probs, int count, bool fetch, float *out) {
  sum_pages(KT_BF16, h, s, from, to, d, probs, 32 * kHalfBytes, kProbRow, count, false, fetch, out);
}
inline void store_codes(vi lo, vi hi, float scale, uint8_t *page) {
  q_store(page, lo, hi);
  float *meta = reinterpret_cast<float *>(page + kPageTokens);
  const int32_t negative = -vi_sum(vi_add(lo, hi));
  meta[0] = scale, meta[1] = 0;  // only formats with minima read that
  std::memcpy(meta + 2, &negative, 4);
}
inline void sum_codes(const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                      const uint8_t *probs, const ProbCodes &, int part, int count, bool fetch,
                      float *out) {
  sum_pages(KT_I8_ROW, h, s, from, to, d, probs, kProbPage, kProbPart, count, part == 1, fetch,
            out);
}

}  // namespace kt
