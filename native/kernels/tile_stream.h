// One row over integer codes or 16-bit floats: nothing but a stream from memory.
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
  // From `distance` bytes after the start of a panel on.
  StreamAhead(const uint8_t *panel, int64_t panel_bytes, int64_t distance, const uint8_t *end,
              const uint8_t *next)
      : at_(panel + std::min(distance, panel_bytes)),
        end_(end),
        next_(next ? next : end),
        distance_(distance) {}
  template <int64_t Bytes>
  void fetch() {
    if (at_ >= end_) at_ = next_ + (at_ - end_), end_ = next_ + distance_;
#pragma GCC unroll 32
    for (int64_t i = 0; i < Bytes; i += 64)
      _mm_prefetch(reinterpret_cast<const char *>(at_ + i), _MM_HINT_T0);
    at_ += Bytes;
  }

 private:
  const uint8_t *at_, *end_, *next_;
  int64_t distance_;
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
  StreamAhead ahead(at, bytes, kStreamAhead, g.meta[1] + bytes, g.ahead);
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

// The K 2 l and 2 l + 1 of a block.
template <class F>
inline FloatLine float_line(const uint8_t *block, int l) {
  const uint8_t *at = block + l * 64;
  if constexpr (F::kKind == Kind::kF16) return {vf_load_f16(at), vf_load_f16(at + 32)};
  return widen_bf16(vi_load(at));
}

// Blocks `first` to `first + Count - 1`, each to a sum of its own.
template <class F, int Count>
inline void stream_floats(const TileArgs &g, int p, int64_t first, StreamAhead &ahead, vf *sum) {
  const uint8_t *lines = g.lines[p] + first * F::kBlockBytes;
  const float *x = static_cast<const float *>(g.rows[0]) + first * kBlock;
#pragma GCC unroll 16
  for (int l = 0; l < 16; l++) {
    ahead.fetch<Count * 64>();
#pragma GCC unroll 4
    for (int i = 0; i < Count; i++) {
      const FloatLine w = float_line<F>(lines + i * F::kBlockBytes, l);
      sum[i] = vf_fma(w.even, vf_set1(x[i * kBlock + 2 * l]), sum[i]);
      sum[i] = vf_fma(w.odd, vf_set1(x[i * kBlock + 2 * l + 1]), sum[i]);
    }
  }
}

template <class F>
__attribute__((noinline, flatten, aligned(64))) void stream_float_panel(const TileArgs &g, int p) {
  constexpr int kSums = kFloatSums<F>;
  constexpr int64_t kDistance = kStreamAhead + (kSums - 1) * F::kBlockBytes;
  const int64_t bytes = g.blocks * F::kBlockBytes;
  StreamAhead ahead(g.lines[p], bytes, kDistance, g.lines[1] + bytes, g.ahead);
  vf total[1][1], sum[kSums];
  start_sums(g, p, total);
  for (vf &x : sum) x = vf_zero();
  int64_t b = 0;
#pragma GCC unroll 1
  for (; b + kSums <= g.blocks; b += kSums) stream_floats<F, kSums>(g, p, b, ahead, sum);
#pragma GCC unroll 1
  for (int i = 0; b + i < g.blocks; i++) stream_floats<F, 1>(g, p, b + i, ahead, sum + i);
  for (const vf x : sum) total[0][0] = vf_add(total[0][0], x);
  store_sums(g, p, total);
}

template <class F>
void tile_stream(const TileArgs &g) {
  for (int p = 0; p < 2; p++)
    if constexpr (F::kKind == Kind::kInt)
      stream_panel<F>(g, p);
    else
      stream_float_panel<F>(g, p);
}

}  // namespace kt
