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

// What the integer probabilities of a tile's rows are multiplied by, and their negative sums.
struct ProbCodes {
  float scale[kQueryTile];
  int32_t negative[kQueryTile];
};

// The pages of a split, for one KV head.
struct SplitPages {
  const uint8_t *keys[kSplitPages];
};

// The pages of one KV head that are read next. They are fetched in the order of their addresses,
// evenly over the steps of what is computed meanwhile: memory is then busy all the time, and the
// processor's own prefetcher sees one stream.
class PageStream {
 public:
  PageStream() = default;  // nothing
  // From page `page` of the table on.
  PageStream(const KvLayer &kv, const int32_t *table, int head, int64_t page)
      : kv_(&kv), table_(table), head_(head), page_(page) {}
  // Before each split: fetch up to page `due` here and now, where that has not been done, and then
  // up to page `end` step by step; `rate`: so many times a step's share.
  void until(int64_t due, int64_t end, int rate) {
    end_ = due, rate_ = 1;
    while (at_ < stop_ || page_ < due) step();
    end_ = end, rate_ = rate;
  }
  // A step's share: two lines.
  void step() {
    for (int i = 0; i < rate_; i++) {
      if (at_ >= stop_ && !turn_page()) return;
      _mm_prefetch(reinterpret_cast<const char *>(at_), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char *>(at_) + 64, _MM_HINT_T0);
      at_ += 128;
    }
  }
  // The next `bytes` of a page, for whoever fetches them himself; NULL: there are none.
  const uint8_t *take(int64_t bytes) {
    if (at_ >= stop_ && !turn_page()) return nullptr;
    at_ += bytes;
    return at_ - bytes;
  }

 private:
  bool turn_page() {
    if (page_ == end_) return false;
    at_ = kv_->at(table_[page_++], head_), stop_ = at_ + kv_->head.bytes;
    return true;
  }
  const KvLayer *kv_ = nullptr;
  const int32_t *table_ = nullptr;
  int head_ = 0, rate_ = 0;
  int64_t page_ = 0, end_ = 0;
  const uint8_t *at_ = nullptr, *stop_ = nullptr;
};

// Encoded query rows, and their copy in the order in which a vector tile reads them.
struct QueryTile {
  const void *const *rows;
  const uint8_t *packed;
  int count;
};

// One tile call over `count` rows of any number; out [count][32].
inline void run_tiles(const TileSet &tiles, TileArgs args, const void *const *rows, int count) {
  for (int from = 0; from < count;) {
    const int height = tile_height(count - from);
    args.rows = rows + from;
    args.count = std::min(count - from, kTileRows[height]);
    tiles.fn[int(Pass::kOnly)][height](args);
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

// Scores with the keys of pages [from, to); out [page][count][32].
inline void scores(const KvHead &h, const QueryTile &q, const SplitPages &s, int from, int to,
                   PageStream &ahead, float *out) {
  (h.format == KT_KV_BF16 ? score_halves : score_codes)(h, q, s, from, to, ahead, out);
}

// Sums of dims 32 d .. 32 d + 31 over the values of pages [from, to), weighted by a tile's
// probabilities; out [count][32].
inline void sum_values(const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                       const uint8_t *probs, const ProbCodes &codes, int count, PageStream &ahead,
                       float *out) {
  if (h.format == KT_KV_BF16) return sum_halves(h, s, from, to, d, probs, count, ahead, out);
  sum_codes(h, s, from, to, d, probs, codes, count, ahead, out);
}

}  // namespace kt
