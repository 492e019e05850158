// The two products of attention: scores of some query rows with the keys of a page, and the sums of
// a split's values. Every sum runs over its dims or keys in one order, whatever the tile's height.
#pragma once
#include "gemm.h"
#include "kv_pages.h"

namespace kt {

constexpr int kSplitPages = 8;
constexpr int kSplit = kSplitPages * kPageTokens;

// Query rows that a tile takes together.
#ifdef KT_AMX
constexpr int kQueryTile = kTileRows[0];
#else
constexpr int kQueryTile = kTilePanels == 2 ? 12 : 4;
#endif

// Probabilities of a row and split. For bfloat16 values: encoded as their activations. For int8
// values: integers 256 * high + low in two parts, codes of one page after the other; the AMX tiles
// want each page as a row of one block (ENC_INT).
constexpr int64_t kProbRow = kSplit * kHalfBytes;
#ifdef KT_AMX
constexpr int64_t kProbPage = 64;
#else
constexpr int64_t kProbPage = kPageTokens * kActBytes;
#endif
constexpr int64_t kProbPart = kSplitPages * kProbPage;  // bytes of a row's part
constexpr int64_t kProbBytes = std::max(kProbRow, 2 * kProbPart);

// What the integer probabilities of a tile's rows, [part][row], are multiplied by, and their
// negative sums.
struct ProbCodes {
  float scale[2][kQueryTile];
  int32_t negative[2][kQueryTile];
};

// The pages of a split, for one KV head.
struct SplitPages {
  const uint8_t *keys[kSplitPages];
  const uint8_t *next_keys[kSplitPages];  // of the next split, fetched meanwhile; or NULL
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

// Lines and scales of two panels. ahead: memory fetched meanwhile, or NULL.
inline TileArgs panel_tile(const uint8_t *lines, int64_t panel_bytes, int64_t blocks, float *out,
                           const uint8_t *ahead, int64_t ahead_bytes) {
  TileArgs args{};
  for (int p = 0; p < 2; p++) {
    args.lines[p] = lines + p * panel_bytes;
    args.meta[p] = args.lines[p] + blocks * KeyFormat::kBlockBytes;
  }
  args.blocks = blocks, args.out = out;
  args.ahead = ahead, args.ahead_bytes = ahead_bytes;
  return args;
}

}  // namespace kt

#ifdef KT_AMX
#include "attention_amx.h"
#else
#include "attention_vector.h"
#endif

namespace kt {

// Scores with the keys of a page; out [count][32]. fetch: the page's values, which are read next.
inline void scores(const KvHead &h, const QueryTile &q, const uint8_t *keys, bool fetch,
                   float *out) {
  const uint8_t *ahead = fetch ? keys + h.values() : nullptr;
  if (h.format == KT_KV_BF16) return score_halves(h, q, keys, out, ahead);
  run_tiles(KT_I8_G32,
            panel_tile(keys, h.panel_bytes, h.padded / 32, out, ahead, h.bytes - h.values()),
            q.rows, q.count);
}

// Sums of dims 32 d .. 32 d + 31 over the values of pages [from, to), weighted by a tile's
// probabilities; out [count][32]. fetch: the next split's keys, which are read next.
inline void sum_values(const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                       const uint8_t *probs, const ProbCodes &codes, int count, bool fetch,
                       float *out) {
  if (h.format == KT_KV_BF16) return sum_halves(h, s, from, to, d, probs, count, fetch, out);
  for (int part = 0; part < 2; part++)
    sum_codes(h, s, from, to, d, probs + part * kQueryTile * kProbPart, codes, part, count, fetch,
              out);
}

}  // namespace kt
