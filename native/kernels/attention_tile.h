// The two products of attention: scores of some query rows with the keys of a page, and the sums of
// a split's values. Every sum runs over its dims or keys in one order, whatever the tile's height.
#pragma once
#include "gemm.h"
#include "kv_pages.h"

namespace kt {

constexpr int kSplitPages = 8;
constexpr int kSplit = kSplitPages * kPageTokens;
constexpr int64_t kProbRow = kSplit * kHalfBytes;  // bytes of a row of probabilities

// Query rows that a tile takes together.
#ifdef KT_AMX
constexpr int kQueryTile = kTileRows[0];
#else
constexpr int kQueryTile = kTilePanels == 2 ? 12 : 4;
#endif

// The pages of a split, for one KV head.
struct SplitPages {
  const uint8_t *keys[kSplitPages];
  const uint8_t *values[kSplitPages];  // bfloat16 panels
  const uint8_t *scales[kSplitPages];  // of int8 values, or NULL
  // What is read after the scores and after the values, fetched meanwhile; or NULL.
  const uint8_t *after_keys[kSplitPages];
  const uint8_t *after_values[kSplitPages];
};

// Encoded query rows, and their copy in the order in which a vector tile reads them.
struct QueryTile {
  const void *const *rows;
  const uint8_t *packed;
  int count;
};

// One tile call over `count` rows of any number; out [count][32].
inline void run_tiles(int format, TileArgs args, const void *const *rows, int count) {
  for (int from = 0; from < count;) {
    const int height = tile_height(count - from);
    args.rows = rows + from;
    args.count = std::min(count - from, kTileRows[height]);
    kTiles[format].fn[height](args);
    args.ahead = nullptr;
    args.out += args.count * 32;
    from += args.count;
  }
}

inline TileArgs page_tile(const uint8_t *lines, int64_t panel_bytes, int64_t blocks, float *out,
                          const uint8_t *ahead, int64_t ahead_step) {
  TileArgs args{};
  for (int p = 0; p < 2; p++) {
    args.lines[p] = lines + p * panel_bytes;
    args.meta[p] = args.lines[p] + blocks * KeyFormat::kBlockBytes;
  }
  args.blocks = blocks, args.out = out, args.ahead = ahead, args.ahead_step = ahead_step;
  return args;
}

#ifdef KT_AMX
inline int64_t packed_queries(int64_t) { return 0; }
inline void pack_queries(const void *const *, int, int64_t, uint8_t *) {}

inline void score_page(const KvHead &h, const QueryTile &q, const uint8_t *keys, float *out,
                       const uint8_t *ahead) {
  run_tiles(KT_BF16, page_tile(keys, h.panel_bytes, h.padded / 32, out, ahead, 2048), q.rows,
            q.count);
}
inline void sum_values(const SplitPages &s, int from, int to, int64_t d, const uint8_t *probs,
                       int count, bool fetch, float *out) {
  const void *rows[kQueryTile];
  for (int p = from; p < to; p++) {
    for (int r = 0; r < count; r++) rows[r] = probs + r * kProbRow + p * 32 * kHalfBytes;
    TileArgs args = page_tile(s.values[p] + d * 2048, 1024, 1, out, nullptr, 2048);
    if (fetch && s.after_values[p]) args.ahead = s.after_values[p] + d * 2048;
    args.accumulate = p > from;
    run_tiles(KT_BF16, args, rows, count);
  }
}
#else

constexpr int kPairBytes = 2 * kHalfBytes;  // of two activations

// Heights of vector tiles: the least that holds `count` rows. f(std::integral_constant).
template <class F>
inline void with_height(int count, F &&f) {
  if constexpr (kQueryTile == 12) {
    if (count > 8) return f(std::integral_constant<int, 12>());
    if (count > 6) return f(std::integral_constant<int, 8>());
    if (count > 4) return f(std::integral_constant<int, 6>());
  }
  if (count > 2) return f(std::integral_constant<int, 4>());
  if (count > 1) return f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 1>());
}
inline int padded_rows(int count) {
  int height = 0;
  with_height(count, [&](auto t) { height = t; });
  return height;
}

// Bytes of a packed tile.
inline int64_t packed_queries(int64_t hp) { return kQueryTile * hp * kHalfBytes; }
// [pair of dims][row], rows up to the tile's height zero.
inline void pack_queries(const void *const *rows, int count, int64_t hp, uint8_t *out) {
  const int height = padded_rows(count);
  for (int64_t k = 0; k < hp / 2; k++)
    for (int r = 0; r < height; r++, out += kPairBytes) {
      if (r < count)
        std::memcpy(out, static_cast<const uint8_t *>(rows[r]) + k * kPairBytes, kPairBytes);
      else
        std::memset(out, 0, kPairBytes);
    }
}

// Adds `pairs` lines of both panels' two K to the sums. acts: of the first row and pair.
template <int P, int T>
inline void dot_pair(const uint8_t *lines, int64_t panel_bytes, const uint8_t *acts,
                     int64_t row_bytes, vf (&sum)[P][T]) {
  BLine w[P];
#pragma GCC unroll 2
  for (int p = 0; p < P; p++) w[p] = b_line(vi_load(lines + p * panel_bytes));
#pragma GCC unroll 12
  for (int t = 0; t < T; t++)
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) sum[p][t] = b_dot(sum[p][t], w[p], acts + t * row_bytes);
}

inline void fetch_lines(const uint8_t *at, int64_t pair) {
  _mm_prefetch(reinterpret_cast<const char *>(at) + pair * 128, _MM_HINT_T1);
  _mm_prefetch(reinterpret_cast<const char *>(at) + pair * 128 + 64, _MM_HINT_T1);
}

template <int T>
__attribute__((flatten)) void score_tile(const KvHead &h, const uint8_t *packed,
                                         const uint8_t *keys, float *out, int count,
                                         const uint8_t *ahead) {
  constexpr int P = kTilePanels;
  for (int first = 0; first < 2; first += P) {
    vf sum[P][T];
#pragma GCC unroll 24
    for (int i = 0; i < P * T; i++) sum[i % P][i / P] = vf_zero();
    const uint8_t *lines = keys + first * h.panel_bytes, *acts = packed;
    for (int64_t k = 0; k < h.padded / 2; k++, acts += T * kPairBytes) {
      if (ahead && first == 0) fetch_lines(ahead, k);
      dot_pair<P, T>(lines + k * 64, h.panel_bytes, acts, kPairBytes, sum);
    }
#pragma GCC unroll 12
    for (int t = 0; t < T; t++)
      if (t < count)
        for (int p = 0; p < P; p++) vf_store(out + t * 32 + (first + p) * 16, sum[p][t]);
  }
}

template <int T>
__attribute__((flatten)) void value_tile(const SplitPages &s, int from, int to, int64_t d,
                                         const uint8_t *probs, int count, bool fetch, float *out) {
  constexpr int P = kTilePanels;
  for (int first = 0; first < 2; first += P) {
    vf sum[P][T];
#pragma GCC unroll 24
    for (int i = 0; i < P * T; i++) sum[i % P][i / P] = vf_zero();
    for (int page = from; page < to; page++) {
      const uint8_t *lines = s.values[page] + d * 2048 + first * 1024;
      const uint8_t *ahead = fetch && first == 0 ? s.after_values[page] : nullptr;
      const uint8_t *acts = probs + page * 32 * kHalfBytes;
      for (int k = 0; k < 16; k++) {
        if (ahead) fetch_lines(ahead + d * 2048, k);
        dot_pair<P, T>(lines + k * 64, 1024, acts + k * kPairBytes, kProbRow, sum);
      }
    }
#pragma GCC unroll 12
    for (int t = 0; t < T; t++)
      if (t < count)
        for (int p = 0; p < P; p++) vf_store(out + t * 32 + (first + p) * 16, sum[p][t]);
  }
}

inline void score_page(const KvHead &h, const QueryTile &q, const uint8_t *keys, float *out,
                       const uint8_t *ahead) {
  with_height(q.count, [&](auto t) { score_tile<t>(h, q.packed, keys, out, q.count, ahead); });
}
// Sums of dims 32 d .. 32 d + 31 over the values of pages [from, to); out [count][32].
inline void sum_values(const SplitPages &s, int from, int to, int64_t d, const uint8_t *probs,
                       int count, bool fetch, float *out) {
  with_height(count, [&](auto t) { value_tile<t>(s, from, to, d, probs, count, fetch, out); });
}
#endif

// Scores with the keys of a page; out [count][32].
inline void scores(const KvHead &h, const QueryTile &q, const uint8_t *keys, float *out,
                   const uint8_t *ahead) {
  if (h.format == KT_KV_BF16) return score_page(h, q, keys, out, ahead);
  run_tiles(KT_I8_G32, page_tile(keys, h.panel_bytes, h.padded / 32, out, ahead, 1024), q.rows,
            q.count);
}

}  // namespace kt
