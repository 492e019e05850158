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
  int count;
};

// Pages that are read next. They are fetched in the order of their addresses, evenly over the steps
// of what is computed meanwhile: memory is then busy all the time, and the processor's own
// prefetcher sees one stream.
class PageStream {
 public:
  PageStream() = default;  // nothing
  explicit PageStream(int64_t page_bytes) : page_bytes_(page_bytes) {}
  // Fetches what is left here and now, and goes on to the pages [next, end); `rate`: so many times
  // a step's share.
  void follow(const uint8_t *const *next, const uint8_t *const *end, int rate) {
    rate_ = 1;
    while (at_ < stop_ || next_ < end_) step();
    next_ = next, end_ = end, rate_ = rate;
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
    if (next_ == end_) return false;
    at_ = *next_++, stop_ = at_ + page_bytes_;
    return true;
  }
  const uint8_t *at_ = nullptr, *stop_ = nullptr;
  const uint8_t *const *next_ = nullptr, *const *end_ = nullptr;
  int64_t page_bytes_ = 0;
  int rate_ = 0;
};

// A worker's way through splits: while one is computed, the next is fetched; at first that one,
// too.
class SplitStream {
 public:
  explicit SplitStream(int64_t page_bytes) : pages(page_bytes) {}
  PageStream pages;

  // Before `split` is computed, and then `next`, which may be empty.
  void begin(const SplitPages &split, const SplitPages &next) {
    constexpr int kAtOnce = 2;  // more would be dropped
    const bool fetched = fetched_ == split.keys[0];
    pages.follow(nullptr, nullptr, 1);
    const uint8_t **end = queue_;
    if (!fetched) end = std::copy(split.keys, split.keys + split.count, end);
    end = std::copy(next.keys, next.keys + next.count, end);
    const uint8_t **rest = fetched ? queue_ : std::min(queue_ + kAtOnce, end);
    pages.follow(queue_, rest, 1);
    pages.follow(rest, end, fetched ? 1 : 2);
    fetched_ = next.count ? next.keys[0] : nullptr;
  }

 private:
  const uint8_t *queue_[2 * kSplitPages];
  const uint8_t *fetched_ = nullptr;  // the first page of a split that has been, or is on its way
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
