// Panels as tiles read them: packed, or decoded for tall tiles: 8-bit codes, bfloat16 and float32
// scales. A unit's first tile decodes them amid its products, when the ports that do so are idle,
// and leaves them for all others. Short tiles only decode: they use a line once or twice.
#pragma once
#include "encode.h"

namespace kt {

// out [count, 32] float32. The second panel may equal the first (an odd last panel).
struct TileArgs {
  const uint8_t *lines[2];  // of block 0, as are the records
  const uint8_t *meta[2];
  uint8_t *decoded[2];  // Pass::kFirst: gets lines, and after them scales if formats decode them
  int64_t blocks;
  const void *const *rows;
  float *out;
  int count;  // rows, at most the tile's height
  bool accumulate;  // out is added to
  // Memory that a later call reads, and how much of it this call fetches; NULL: none.
  const uint8_t *ahead;
  int64_t ahead_bytes;
};
using TileFn = void (*)(const TileArgs &);

// A tile's pass over packed panels: the only kind, or the first of several, which leaves the panels
// decoded; or a later one, over decoded panels.
enum class Pass { kOnly, kFirst, kLater };

// Scales of a decoded panel, per block: float32[16] for each group, then as many minima.
template <bool Min, int Group>
struct ScalesDecoded {
  static constexpr bool kMin = Min, kZeros = false;
  static constexpr int kGroup = Group, kSuper = 1, kHead = 0, kGroups = 32 / Group;
  static constexpr int kBytes = 64 * kGroups * (Min ? 2 : 1);
  static VScales load(const uint8_t *meta, int64_t b) {
    const float *at = reinterpret_cast<const float *>(meta + b * kBytes);
    VScales v;
    for (int g = 0; g < kGroups; g++) {
      v.scale[g] = vf_load(at + g * 16);
      if (Min) v.minimum[g] = vf_load(at + (kGroups + g) * 16);
    }
    return v;
  }
  static void store(uint8_t *meta, int64_t b, const VScales &v) {
    float *at = reinterpret_cast<float *>(meta + b * kBytes);
    for (int g = 0; g < kGroups; g++) {
      vf_store(at + g * 16, v.scale[g]);
      if (Min) vf_store(at + (kGroups + g) * 16, v.minimum[g]);
    }
  }
};
// Scales that take arithmetic, not only a conversion.
template <class S>
constexpr bool kSlowScales = S::kGroup == 16 || S::kHead > 0 || S::kZeros;

// Whether tall tiles take 4-bit codes apart in registers: the ports that do so idle beside dot
// products of one instruction. AMX tiles read bytes.
#ifdef KT_AMX
constexpr bool kTallNibbles = false;
#else
constexpr bool kTallNibbles = kTilePanels == 2 && kActBytes == 1;
#endif

// What tall tiles want decoded: lines, or at least the scales of integer codes.
template <class F>
constexpr bool decodes_lines() {
  if constexpr (F::kKind == Kind::kFp8) return true;
  if constexpr (F::kKind == Kind::kInt)
    return !F::Codes::kPlain && !(kTallNibbles && F::Codes::kNibbles);
  return false;
}
template <class F>
constexpr bool decodes() {
  if constexpr (F::kKind == Kind::kInt)
    return !F::Codes::kPlain && (decodes_lines<F>() || kSlowScales<typename F::Scales>);
  else
    return decodes_lines<F>();
}

// What a panel of integer codes becomes. All formats with the same zero point and kind of scales
// share decoded lines. FP8 keeps its scale records; its lines become bfloat16.
template <class F>
using DecodedScales = ScalesDecoded<F::Scales::kMin, F::Scales::kGroup>;
template <int ZeroLog2, class S, int Top>
struct DecodedInt : IntFormat<8, 0, ZeroLog2, S> {
  static constexpr int kTop = Top;  // of a code
  static constexpr int kChunk = kWholeRow, kSection = kWholeRow;
};
template <class F>
using DecodedLines = DecodedInt<F::kZeroLog2, DecodedScales<F>, kNarrowDots ? F::kTop : 255>;

// Bytes of a decoded block.
template <class F>
constexpr int64_t decoded_block_bytes() {
  return !decodes_lines<F>() ? 0 : F::kKind == Kind::kFp8 ? 1024 : 512;
}
template <class F>
constexpr int64_t decoded_meta_bytes() {
  if constexpr (F::kKind == Kind::kInt) return DecodedScales<F>::kBytes;
  return 0;
}

template <class F, int... Q>
inline void decode_codes(const uint8_t *lines, uint8_t *out, std::integer_sequence<int, Q...>) {
  (vi_store(out + Q * 64, F::Codes::template quad<Q>(lines)), ...);
}
template <class F>
inline void expand_block(const uint8_t *lines, uint8_t *out) {
  if constexpr (F::kKind == Kind::kFp8) {
    for (int l = 0; l < 8; l++) {
      vi first, second;
      f8_lines(vi_load(lines + l * 64), first, second);
      vi_store(out + l * 128, first);
      vi_store(out + l * 128 + 64, second);
    }
  } else if constexpr (F::kKind == Kind::kInt) {
    decode_codes<F>(lines, out, std::make_integer_sequence<int, 8>());
  }
}

// Lines of packed codes.
template <class F, int P>
struct CodeBlock {
  const uint8_t *lines[P];
  template <int Q>
  vi quad(int p) const {
    return F::Codes::template quad<Q>(lines[p]);
  }
};

// Block b of P panels from `first` on, as a pass reads it; the first pass leaves it decoded.
template <class F, Pass K, int P>
struct PanelBlock {
  static constexpr bool kFp8 = F::kKind == Kind::kFp8, kInt = F::kKind == Kind::kInt;
  static constexpr bool kLeaves = K == Pass::kFirst;
  const TileArgs &g;
  const int first;
  const int64_t b;
  const uint8_t *lines[P];
  uint8_t *decoded[P];

  PanelBlock(const TileArgs &args, int from, int64_t block) : g(args), first(from), b(block) {
    constexpr int64_t kDecoded = decoded_block_bytes<F>();
    const int64_t at =
        K == Pass::kLater && decodes_lines<F>() ? b * kDecoded : lines_offset<F>(b, g.blocks);
    for (int p = 0; p < P; p++) {
      lines[p] = g.lines[first + p] + at;
      if (!kLeaves) continue;
      decoded[p] = g.decoded[first + p] + b * kDecoded;
      if (!kFp8) continue;
      // Not in registers: the operands of float32 products would leave too few.
      expand_block<F>(lines[p], decoded[p]);
      lines[p] = decoded[p];
    }
  }
  VScales scales(int p) const {
    const uint8_t *meta = g.meta[first + p];
    if constexpr (kInt && K == Pass::kLater) return DecodedScales<F>::load(meta, b);
    const VScales s = load_scales<F>(meta, b);
    if constexpr (kInt && kLeaves)
      DecodedScales<F>::store(g.decoded[first + p] + g.blocks * decoded_block_bytes<F>(), b, s);
    return s;
  }
  template <int Q>
  vi quad(int p) const {
    const vi codes = F::Codes::template quad<Q>(lines[p]);
    if constexpr (kLeaves && decodes_lines<F>()) vi_store(decoded[p] + Q * 64, codes);
    return codes;
  }
  // Of 2 K: bfloat16 line l, decoded from FP8 in registers where nobody has.
  BLine operand(int p, int l) const {
    if constexpr (kFp8 && K == Pass::kOnly)
      return f8_operand(vi_load(lines[p] + l / 2 * 64), l % 2);
    return b_line(vi_load(lines[p] + l * 64));
  }
};

}  // namespace kt
