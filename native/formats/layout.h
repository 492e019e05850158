// Packed weights: where every byte of W[n, k] lies. The bytes are the same for all variants.
//
// n is padded to panels of 16 rows, k to blocks of 32 (the padding is zero). A panel is
//   lines:  64 bytes each, one dword per row. Per block of 32 K:
//             F32      32 lines of 1 K
//             F16      16 lines: 16 halves of K 2i, then of K 2i + 1
//             BF16     16 lines of 2 K
//             FP8      8 lines of 4 K; the bytes of a dword are K 0, 2, 1, 3, so that its even and
//                      its odd bytes are the pairs of two BF16 lines
//             codes    low lines, then high lines. With quad q = K 4q .. 4q + 3 in bytes 0 .. 3:
//                      8 low bits: line q. 4: line q / 2, nibble q % 2. 2: line q / 4, 2-bit field
//                      q % 4. high bits lie above the low ones; 1: one line, bit q. 2: line q / 4,
//                      field q % 4
//   records: the scales (scales.h)
// Codes and their records take turns, so that a product over one row reads a panel in the order of
// its addresses: chunks of kChunk blocks, the records first, padded to 64 bytes in a short last
// chunk. FP8, and one scale for a whole row, are a single chunk. Heads come a line at a time: each
// section of kSection blocks begins with theirs.
#pragma once
#include <algorithm>

#include "../include/kt.h"
#include "codes.h"
#include "scales.h"

namespace kt {

// Blocks of a chunk: as few as have whole lines of records.
template <class S>
constexpr int chunk_blocks() {
  int blocks = S::kSuper;
  while (blocks < kWholeRow && blocks / S::kSuper * S::kBytes % 64) blocks *= 2;
  return blocks;
}

// Blocks whose heads fill a line.
template <class S>
constexpr int section_blocks() {
  return S::kHead > 0 ? 64 / S::kHead * kHeadBlocks : kWholeRow;
}

enum class Kind { kF32, kF16, kBf16, kFp8, kInt };

// low + high bits of a code; a zero point of 2^ZeroLog2 (-1: none); Table gives codes their values.
template <int Low, int High, int ZeroLog2, class S, class Table = NoTable>
struct IntFormat {
  static constexpr Kind kKind = Kind::kInt;
  using Codes = CodeLines<Low, High, Table>;
  static constexpr int kBlockBytes = Codes::kBytes;
  static constexpr int kBits = Low + High;
  static constexpr int kTop = Codes::top();
  static constexpr int kZeroLog2 = ZeroLog2;
  static constexpr int kZero = ZeroLog2 < 0 ? 0 : 1 << ZeroLog2;
  static constexpr int kChunk = chunk_blocks<S>(), kSection = section_blocks<S>();
  using Scales = S;
};
template <class S>
struct Fp8Format {
  static constexpr Kind kKind = Kind::kFp8;
  static constexpr int kBlockBytes = 8 * 64;
  static constexpr int kChunk = kWholeRow, kSection = kWholeRow;
  using Scales = S;
};
template <Kind K, int Bits>
struct FloatFormat {
  static constexpr Kind kKind = K;
  static constexpr int kBits = Bits;
  static constexpr int kBlockBytes = Bits * 64;
};

// The table of formats: X(kt.h name, traits), in kt.h's order.
#define KT_FORMAT_TABLE(X)                                       \
  X(KT_F32, FloatFormat<Kind::kF32, 32>)                         \
  X(KT_F16, FloatFormat<Kind::kF16, 16>)                         \
  X(KT_BF16, FloatFormat<Kind::kBf16, 16>)                       \
  X(KT_F8_G32, Fp8Format<ScalesF32<1>>)                          \
  X(KT_F8_G128, Fp8Format<ScalesF32<4>>)                         \
  X(KT_F8_ROW, Fp8Format<ScalesF32<kWholeRow>>)                  \
  X(KT_F8_MX, Fp8Format<ScalesE8M0>)                             \
  X(KT_I8_G32, IntFormat<8, 0, 7, ScalesF16<1>>)                 \
  X(KT_I8_G64, IntFormat<8, 0, 7, ScalesF16<2>>)                 \
  X(KT_I8_G128, IntFormat<8, 0, 7, ScalesF16<4>>)                \
  X(KT_I8_ROW, IntFormat<8, 0, 7, ScalesF32<kWholeRow>>)         \
  X(KT_I6_K16, IntFormat<4, 2, 5, ScalesK16<>>)                  \
  X(KT_I5_G32, IntFormat<4, 1, 4, ScalesF16<1>>)                 \
  X(KT_I5_G32M, IntFormat<4, 1, -1, ScalesF16Min<1>>)            \
  X(KT_I5_K32M, IntFormat<4, 1, -1, ScalesK32Min>)               \
  X(KT_I4_G32, IntFormat<4, 0, 3, ScalesF16<1>>)                 \
  X(KT_I4_G64, IntFormat<4, 0, 3, ScalesF16<2>>)                 \
  X(KT_I4_G128, IntFormat<4, 0, 3, ScalesF16<4>>)                \
  X(KT_I4_B32, IntFormat<4, 0, 3, ScalesBf16<1>>)                \
  X(KT_I4_B128, IntFormat<4, 0, 3, ScalesBf16<4>>)               \
  X(KT_I4_G32M, IntFormat<4, 0, -1, ScalesF16Min<1>>)            \
  X(KT_I4_G64M, IntFormat<4, 0, -1, ScalesF16Min<2>>)            \
  X(KT_I4_G128M, IntFormat<4, 0, -1, ScalesF16Min<4>>)           \
  X(KT_I4_K32M, IntFormat<4, 0, -1, ScalesK32Min>)               \
  X(KT_I4_Z32, IntFormat<4, 0, -1, ScalesZero<1>>)               \
  X(KT_I4_Z64, IntFormat<4, 0, -1, ScalesZero<2>>)               \
  X(KT_I4_Z128, IntFormat<4, 0, -1, ScalesZero<4>>)              \
  X(KT_I4_Z128H, IntFormat<4, 0, -1, ScalesZero<4, true>>)       \
  X(KT_I4_NL, IntFormat<4, 0, 7, ScalesF16<1>, TableNl>)         \
  X(KT_I4_NLK, IntFormat<4, 0, 7, ScalesK32<>, TableNl>)         \
  X(KT_F4_MX, IntFormat<4, 0, 4, ScalesE8M0Half, TableE2M1>)     \
  X(KT_F4_NV, IntFormat<4, 0, 4, ScalesE4M3<2>, TableE2M1>)      \
  X(KT_I4_IQ3XXS, IntFormat<4, 0, 6, ScalesK32<4>, TableIq3Xxs>) \
  X(KT_I4_IQ3S, IntFormat<4, 0, 4, ScalesK32<>, TableIq3S>)      \
  X(KT_I3_K16, IntFormat<2, 1, 2, ScalesK16<>>)                  \
  X(KT_I3_IQ2XXS, IntFormat<2, 1, 6, ScalesK32<8>, TableIq2>)    \
  X(KT_I3_IQ2, IntFormat<2, 1, 6, ScalesK16<8>, TableIq2>)       \
  X(KT_I3_IQ1M, IntFormat<2, 1, 4, ScalesK16<8>, TableIq1M>)     \
  X(KT_I2_K16M, IntFormat<2, 0, -1, ScalesK16Min>)               \
  X(KT_I2_IQ1S, IntFormat<2, 0, -1, ScalesIq1>)

// Calls f(traits) for a format number. Returns false if there is no such format.
template <class F>
inline bool with_format(int format, F &&f) {
  switch (format) {
#define KT_CASE(name, ...) \
  case name:               \
    f(__VA_ARGS__{});      \
    return true;
    KT_FORMAT_TABLE(KT_CASE)
#undef KT_CASE
    default:
      return false;
  }
}

template <class F>
constexpr bool has_scales() {
  return F::kKind == Kind::kInt || F::kKind == Kind::kFp8;
}

// Bytes of the records of `blocks` blocks that begin with a chunk, in whole lines.
template <class F>
constexpr int64_t record_bytes(int64_t blocks) {
  if constexpr (has_scales<F>())
    return round_up(ceil_div(blocks, F::Scales::kSuper) * F::Scales::kBytes, 64);
  return 0;
}
template <class F>
constexpr int64_t head_bytes(int64_t blocks) {
  if constexpr (has_scales<F>())
    return round_up(ceil_div(blocks, kHeadBlocks) * F::Scales::kHead, 64);
  return 0;
}
template <class F>
constexpr int64_t chunk_bytes() {
  return F::kChunk * int64_t(F::kBlockBytes) + record_bytes<F>(F::kChunk);
}

struct PanelLayout {
  int64_t blocks;  // of 32 K
  int64_t first_lines;  // where the lines of block 0 begin
  int64_t bytes;  // of a panel
};

template <class F>
inline PanelLayout panel_layout(int64_t k) {
  const int64_t blocks = ceil_div(k, kBlock);
  int64_t first = 0;
  if constexpr (has_scales<F>())
    first = head_bytes<F>(1) + record_bytes<F>(std::min<int64_t>(blocks, F::kChunk));
  return {blocks, first, blocks * F::kBlockBytes + record_bytes<F>(blocks) + head_bytes<F>(blocks)};
}

// The lines of block b of `blocks`, from those of block 0 on.
template <class F>
inline int64_t lines_offset(int64_t b, int64_t blocks) {
  if constexpr (has_scales<F>()) {
    if constexpr (F::kChunk < kWholeRow) {
      constexpr int64_t kRecords = record_bytes<F>(F::kChunk);
      const int64_t all = record_bytes<F>(blocks);
      return b * F::kBlockBytes + std::min((record<F::kChunk>(b) + 1) * kRecords, all) -
             std::min(kRecords, all) + record<F::kSection>(b) * head_bytes<F>(1);
    }
  }
  return b * F::kBlockBytes;
}
// What Scales::load and get take beside b, from the panel on: the records, and b's head.
template <class F>
inline int64_t records_offset(int64_t b) {
  const int64_t heads = (record<F::kSection>(b) + 1) * head_bytes<F>(1);
  if constexpr (F::kChunk < kWholeRow)
    return record<F::kChunk>(b) * F::kChunk * F::kBlockBytes + heads;
  return heads;
}
template <class F>
inline int64_t head_offset(int64_t b) {
  constexpr int64_t kSection = F::kSection;
  constexpr int64_t kBytes =
      kSection * F::kBlockBytes + record_bytes<F>(kSection) + head_bytes<F>(kSection);
  return record<kSection>(b) * kBytes + record<kHeadBlocks>(b % kSection) * F::Scales::kHead;
}

// Block b's scales for 16 rows, from its records, and for one, from a panel.
template <class S>
inline VScales load_scales(const uint8_t *records, int64_t b, const uint8_t *head) {
  if constexpr (S::kHead > 0)
    return S::load(records, b, head);
  else
    return S::load(records, b);
}
template <class F>
inline VScales load_scales(const uint8_t *panel, int64_t b) {
  return load_scales<typename F::Scales>(panel + records_offset<F>(b), b,
                                         panel + head_offset<F>(b));
}
template <class F>
inline BlockScales get_scales(const uint8_t *panel, int64_t b, int r) {
  const uint8_t *records = panel + records_offset<F>(b);
  if constexpr (F::Scales::kHead > 0)
    return F::Scales::get(records, b, r, panel + head_offset<F>(b));
  else
    return F::Scales::get(records, b, r);
}

inline int64_t panels(int64_t n) { return ceil_div(n, kPanel); }

// 32 exact values of row r, block b.
template <class F>
inline void unpack_block(const uint8_t *panel, const PanelLayout &p, int64_t b, int r, float *out) {
  const uint8_t *lines = panel + p.first_lines + lines_offset<F>(b, p.blocks);
  if constexpr (F::kKind == Kind::kF32) {
    for (int i = 0; i < 32; i++) out[i] = load_f32(lines + i * 64 + r * 4);
  } else if constexpr (F::kKind == Kind::kF16) {
    for (int i = 0; i < 32; i++)
      out[i] = half_to_float(load_u16(lines + i / 2 * 64 + i % 2 * 32 + r * 2));
  } else if constexpr (F::kKind == Kind::kBf16) {
    for (int i = 0; i < 32; i++)
      out[i] = bf16_to_float(load_u16(lines + i / 2 * 64 + r * 4 + i % 2 * 2));
  } else {
    const BlockScales s = get_scales<F>(panel, b, r);
    for (int i = 0; i < 32; i++) {
      const int group = F::Scales::kGroup == 16 ? i / 16 : 0;
      if constexpr (F::kKind == Kind::kFp8) {
        out[i] = s.scale[group] * e4m3_to_float(lines[i / 4 * 64 + r * 4 + fp8_byte(i % 4)]);
      } else {
        const int code = F::Codes::code(lines, r, i);
        if constexpr (F::Scales::kMin)
          out[i] = s.scale[group] * float(code) + s.minimum[group];
        else
          out[i] = s.scale[group] * float(code - F::kZero);
      }
    }
  }
}

}  // namespace kt
