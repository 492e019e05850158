// One row over integer codes: nothing but a stream from memory.
//
// Three things make it nearly as fast as memory (figures of two Zen 5 cores). A panel's bytes
// are used in the order of their addresses (layout.h): with all records before all lines it took 6
// to 20 % longer. The same few instructions meet all of it, at steps of about 1 KiB or less, which
// the processor's own fetching follows: not a copy of them for each panel, nor one for each block
// of a long chunk. And every line is asked for at a fixed distance, across the borders of panels.
#pragma once
#include "tile.h"

namespace kt {

// Bytes. What a core has under way fits; 8192 took 1 to 4 % longer, a whole panel more.
constexpr int64_t kStreamAhead = 5120;

// Blocks that a step takes: they end with a line of their records where chunks are short.
template <class F>
constexpr int stream_blocks() {
  return std::min(F::kChunk, 2);
}

// Lines at a fixed distance before the stream: to the end of the second panel, then from the memory
// of the next call on.
class StreamAhead {
 public:
  StreamAhead(const uint8_t *from, const uint8_t *end, const uint8_t *next)
      : at_(from), end_(end), next_(next ? next : end) {}
  template <int64_t Bytes>
  void fetch() {
    if (at_ >= end_) at_ = next_ + (at_ - end_), end_ = next_ + kStreamAhead;
#pragma GCC unroll 32
    for (int64_t i = 0; i < Bytes; i += 64)
      _mm_prefetch(reinterpret_cast<const char *>(at_ + i), _MM_HINT_T0);
    at_ += Bytes;
  }

 private:
  const uint8_t *at_, *end_, *next_;
};

// `Count` blocks: block `first` of the chunk on, which is block b of the panel.
template <class F, int Count>
inline void stream_step(const uint8_t *head, const uint8_t *meta, const uint8_t *lines,
                        int64_t first, const IntRow (&a)[1], int64_t b, vf (&sum)[1][1]) {
#pragma GCC unroll 2
  for (int i = 0; i < Count; i++) {
    const CodeBlock<F, 1> block{{lines + (first + i) * F::kBlockBytes}};
    const VScales s[1] = {load_scales<typename F::Scales>(meta, first + i, head)};
    dot_group<F, 0>(block, a, b + i, s, sum);
    if constexpr (F::Scales::kGroup == 16) dot_group<F, 1>(block, a, b + i, s, sum);
  }
}

// Aligned: where a loop lies makes 4 % and more, which code elsewhere shall not change.
template <class F>
__attribute__((noinline, flatten, aligned(64))) void stream_panel(const TileArgs &g, int p) {
  constexpr int kCount = stream_blocks<F>();
  constexpr int64_t kChunk = F::kChunk, kBytes = kChunk < kWholeRow ? chunk_bytes<F>() : 0;
  constexpr int64_t kStep =
      kChunk < kWholeRow ? kBytes * kCount / kChunk : kCount * int64_t(F::kBlockBytes);
  const IntRow a[1] = {int_row(g.rows[0], g.blocks)};
  const uint8_t *at = g.meta[p];
  const int64_t bytes =
      g.blocks * F::kBlockBytes + record_bytes<F>(g.blocks) + head_bytes<F>(g.blocks);
  StreamAhead ahead(at + std::min(kStreamAhead, bytes), g.meta[1] + bytes, g.ahead);
  vf sum[1][1];
  start_sums(g, p, sum);
  constexpr int kHeads = F::kSection / kHeadBlocks;  // of a section
  for (int64_t section = 0; section < g.blocks; section += F::kSection) {
    const uint8_t *heads = at;
    at += head_bytes<F>(1);
    ahead.fetch<head_bytes<F>(1)>();
    const int64_t end = std::min<int64_t>(section + F::kSection, g.blocks);
    for (int64_t b = section; b < end; b += kChunk, at += kBytes) {
      const int64_t count = std::min(kChunk, end - b);
      // One chunk: the lines of a KV page have their records elsewhere.
      const uint8_t *lines = kChunk < kWholeRow ? at + record_bytes<F>(count) : g.lines[p];
      const uint8_t *head = heads + (b - section) / kHeadBlocks % kHeads * F::Scales::kHead;
      int64_t i = 0;
#pragma GCC unroll 1
      for (; i + kCount <= count; i += kCount) {
        ahead.fetch<kStep>();
        stream_step<F, kCount>(head, at, lines, i, a, b + i, sum);
      }
      if (kCount > 1 && i < count) stream_step<F, 1>(head, at, lines, i, a, b + i, sum);
    }
  }
  store_sums(g, p, sum);
}

template <class F>
void tile_stream(const TileArgs &g) {
  for (int p = 0; p < 2; p++) stream_panel<F>(g, p);
}

}  // namespace kt
