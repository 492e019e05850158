// The register tile: two panels of weights (32 outputs) times T encoded rows. Every output sums its
// K blocks in one order, whatever T is, so a token's numbers do not depend on its neighbours.
//
// Tall tiles read decoded lines: 8-bit codes or bfloat16, written once per panel for all rows of a
// unit (decode_panel). Short ones decode in registers, since each line is used only once or twice.
#pragma once
#include "encode.h"

namespace kt {

// out [count, 32] float32. The second panel may equal the first (an odd last panel).
struct TileArgs {
  const uint8_t *lines[2];  // of block 0, as are the records
  const uint8_t *meta[2];
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

template <class F>
constexpr bool decodes() {
  if constexpr (F::kKind == Kind::kFp8) return true;
  if constexpr (F::kKind == Kind::kInt) return !F::Codes::kPlain;
  return false;
}

// What a pass fetches, block by block. A core drops fetches while many are under way, so they are
// spread evenly.
template <int T>
struct Ahead {
  const char *at;
  int64_t step;  // bytes per block

  void fetch_block() {
    // One row has used a line of weights when it has read it, and waits for the next one: close by.
    constexpr _mm_hint kHint = T == 1 ? _MM_HINT_T0 : _MM_HINT_T1;
    for (const char *end = at + step; at != end; at += 64) _mm_prefetch(at, kHint);
  }
};
template <int T, int P>
inline Ahead<T> ahead_of(const TileArgs &g, int first) {
  const uint8_t *from = g.ahead;
  if (!from) return {nullptr, 0};
  const int64_t bytes = g.ahead_bytes * P / 2;
  from += first / P * bytes;
  return {reinterpret_cast<const char *>(from), round_up(ceil_div(bytes, g.blocks), 64)};
}

// Scales of a decoded panel, per block: float32[16] for each group, then as many minima.
template <bool Min, int Group>
struct ScalesDecoded {
  static constexpr bool kMin = Min;
  static constexpr int kGroup = Group, kSuper = 1, kGroups = 32 / Group;
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
// How many quads of 4 K can be summed in 16 bits: products of a code and of at most 127, each sum
// of two. 0: none, or the variant has a faster way.
template <class F>
constexpr int narrow_quads() {
  constexpr int kMost = kNarrowDots ? 32767 / (2 * 127 * F::kTop) : 0;
  return kMost >= 8 ? 8 : kMost >= 4 ? 4 : kMost >= 2 ? 2 : kMost;
}
template <int ZeroLog2, class S, int Top>
struct DecodedInt : IntFormat<8, 0, ZeroLog2, S> {
  static constexpr int kTop = Top;  // of a code
  static constexpr int kChunk = kWholeRow;
};
// What a format's tile reads after decoding: all integer formats with the same zero point and kind
// of scales share one. FP8 keeps its scale records; its lines become bfloat16.
template <class F, bool Int>
struct DecodedOf {
  using Type = F;
};
template <class F>
struct DecodedOf<F, true> {
  using Type = DecodedInt<F::kZeroLog2, ScalesDecoded<F::Scales::kMin, F::Scales::kGroup>,
                          kNarrowDots ? F::kTop : 255>;
};
template <class F>
using Decoded = typename DecodedOf<F, F::kKind == Kind::kInt>::Type;

// Bytes of a decoded block.
template <class F>
constexpr int64_t decoded_block_bytes() {
  return F::kKind == Kind::kFp8 ? 1024 : 512;
}
template <class F>
constexpr int64_t decoded_meta_bytes() {
  if constexpr (F::kKind == Kind::kInt) return Decoded<F>::Scales::kBytes;
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
// Lines, and after them the scales if decoded_meta_bytes says so.
template <class F>
void decode_panel(const uint8_t *lines, const uint8_t *meta, int64_t blocks, uint8_t *out) {
  uint8_t *scales = out + blocks * decoded_block_bytes<F>();
  for (int64_t b = 0; b < blocks; b++) {
    expand_block<F>(lines + lines_offset<F>(b, blocks), out);
    out += decoded_block_bytes<F>();
    if constexpr (F::kKind == Kind::kInt)
      Decoded<F>::Scales::store(scales, b, F::Scales::load(meta + records_offset<F>(b), b));
  }
}

template <int P, int T>
inline void start_sums(const TileArgs &g, int first, vf (&sum)[P][T]) {
  for (int p = 0; p < P; p++)
    for (int t = 0; t < T; t++)
      sum[p][t] = g.accumulate ? vf_load(g.out + t * 32 + (first + p) * 16) : vf_zero();
}
template <int P, int T>
inline void store_sums(const TileArgs &g, int first, const vf (&sum)[P][T]) {
  for (int t = 0; t < T; t++)
    for (int p = 0; p < P; p++) vf_store(g.out + t * 32 + (first + p) * 16, sum[p][t]);
}

// Adds quads From .. To of a block to the integer sums.
template <class F, int P, int T, int Q, int To>
inline void dot_quads(const uint8_t *const (&lines)[P], const IntRow (&a)[T], int64_t b,
                      vi (&acc)[P][T]) {
  if constexpr (Q < To) {
    QLine w[P];
    for (int p = 0; p < P; p++) w[p] = q_line(F::Codes::template quad<Q>(lines[p]));
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
      for (int p = 0; p < P; p++)
        acc[p][t] = q_dot(acc[p][t], w[p], a[t].codes + (b * 32 + Q * 4) * kActBytes);
    dot_quads<F, P, T, Q + 1, To>(lines, a, b, acc);
  }
}

// The same for small codes, Step quads at a time in sums of 16 bits.
template <class F, int P, int T, int Q, int To, int Step>
inline void dot_narrow(const uint8_t *const (&lines)[P], const IntRow (&a)[T], int64_t b,
                       vi (&acc)[P][T], vi (&sum)[P][T]) {
  if constexpr (Q < To) {
    vi w[P];
    for (int p = 0; p < P; p++) w[p] = F::Codes::template quad<Q>(lines[p]);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
      for (int p = 0; p < P; p++) {
        sum[p][t] =
            q_dot_narrow(Q % Step ? sum[p][t] : vi_zero(), w[p], a[t].bytes + b * kBlock + Q * 4);
        if ((Q + 1) % Step == 0) acc[p][t] = q_widen(acc[p][t], sum[p][t]);
      }
    dot_narrow<F, P, T, Q + 1, To, Step>(lines, a, b, acc, sum);
  }
}

template <class F, int P, int T, int Group>
inline void dot_group(const uint8_t *const (&lines)[P], const IntRow (&a)[T], int64_t b,
                      const VScales (&s)[P], vf (&sum)[P][T]) {
  using S = typename F::Scales;
  constexpr bool kHalves = S::kGroup == 16;
  vi acc[P][T];
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) {
    vi init = vi_zero();
    if constexpr (F::kZeroLog2 >= 0)
      init = vi_shl<F::kZeroLog2>(
          vi_set1(kHalves ? a[t].neg_sum16[2 * b + Group] : a[t].neg_sum32[b]));
    for (int p = 0; p < P; p++) acc[p][t] = init;
  }
  constexpr int kQuads = kHalves ? 4 : 8, kStep = std::min(narrow_quads<F>(), kQuads);
  if constexpr (kStep > 0) {
    vi narrow[P][T];
    dot_narrow<F, P, T, Group * kQuads, (Group + 1) * kQuads, kStep>(lines, a, b, acc, narrow);
  } else {
    dot_quads<F, P, T, Group * kQuads, (Group + 1) * kQuads>(lines, a, b, acc);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; t++)
    for (int p = 0; p < P; p++)
      sum[p][t] = join_group<F, Group>(vf_from(acc[p][t]), s[p], a[t], b, sum[p][t]);
}

template <class F, int P, int T>
inline void tile_int(const TileArgs &g, int first) {
  using S = typename F::Scales;
  IntRow a[T];
  for (int t = 0; t < T; t++) a[t] = int_row(g.rows[t], g.blocks);
  Ahead<T> ahead = ahead_of<T, P>(g, first);
  vf sum[P][T];
  start_sums(g, first, sum);
  for (int64_t b = 0; b < g.blocks; b++) {
    ahead.fetch_block();
    const int64_t lines_at = lines_offset<F>(b, g.blocks), meta_at = records_offset<F>(b);
    VScales s[P];
    const uint8_t *lines[P];
    for (int p = 0; p < P; p++) {
      s[p] = S::load(g.meta[first + p] + meta_at, b);
      lines[p] = g.lines[first + p] + lines_at;
    }
    dot_group<F, P, T, 0>(lines, a, b, s, sum);
    if constexpr (S::kGroup == 16) dot_group<F, P, T, 1>(lines, a, b, s, sum);
  }
  store_sums(g, first, sum);
}

// Operands of 2 K: bfloat16 line l of a block, from memory or decoded from FP8 in registers.
template <class F, bool Expanded>
inline BLine half_operand(const uint8_t *lines, int l) {
  if constexpr (F::kKind == Kind::kFp8 && !Expanded)
    return f8_operand(vi_load(lines + l / 2 * 64), l % 2);
  return b_line(vi_load(lines + l * 64));
}

template <class F, bool Expanded, int P, int T>
inline void dot_half_block(const uint8_t *const (&lines)[P], const TileArgs &g, int64_t b,
                           vf (&sum)[P][T]) {
#pragma GCC unroll 16
  for (int l = 0; l < 16; l++) {
    BLine w[P];
    for (int p = 0; p < P; p++) w[p] = half_operand<F, Expanded>(lines[p], l);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
      for (int p = 0; p < P; p++)
        sum[p][t] = b_dot(sum[p][t], w[p],
                          static_cast<const uint8_t *>(g.rows[t]) + (b * 32 + l * 2) * kHalfBytes);
  }
}

template <class F, bool Expanded, int P, int T>
inline void tile_half(const TileArgs &g, int first) {
  constexpr int64_t kBytes = Expanded ? 1024 : F::kBlockBytes;
  Ahead<T> ahead = ahead_of<T, P>(g, first);
  vf sum[P][T];
  start_sums(g, first, sum);
  const auto block = [&](int64_t b, vf(&into)[P][T]) {
    ahead.fetch_block();
    const uint8_t *lines[P];
    for (int p = 0; p < P; p++) lines[p] = g.lines[first + p] + b * kBytes;
    dot_half_block<F, Expanded, P, T>(lines, g, b, into);
  };
  if constexpr (F::kKind == Kind::kBf16) {
    for (int64_t b = 0; b < g.blocks; b++) block(b, sum);
  } else {
    constexpr int64_t kSuper = F::Scales::kSuper;
    for (int64_t from = 0; from < g.blocks; from += kSuper) {
      vf part[P][T];
      for (int p = 0; p < P; p++)
        for (int t = 0; t < T; t++) part[p][t] = vf_zero();
      const int64_t to = from + kSuper < g.blocks ? from + kSuper : g.blocks;
      for (int64_t b = from; b < to; b++) block(b, part);
      for (int p = 0; p < P; p++) {
        const vf scale = F::Scales::load(g.meta[first + p], from).scale[0];
        for (int t = 0; t < T; t++) sum[p][t] = vf_fma(part[p][t], scale, sum[p][t]);
      }
    }
  }
  store_sums(g, first, sum);
}

template <class F, int P, int T>
inline void tile_float(const TileArgs &g, int first) {
  Ahead<T> ahead = ahead_of<T, P>(g, first);
  vf sum[P][T];
  start_sums(g, first, sum);
  constexpr bool kHalf = F::kKind == Kind::kF16;
#pragma GCC unroll 2
  for (int64_t k = 0; k < g.blocks * kBlock; k++) {
    if (k % kBlock == 0) ahead.fetch_block();
    vf w[P];
    for (int p = 0; p < P; p++) {
      const uint8_t *at = g.lines[first + p] + k * (kHalf ? 32 : 64);
      w[p] = kHalf ? vf_load_f16(at) : vf_load(reinterpret_cast<const float *>(at));
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
      const vf x = vf_set1(static_cast<const float *>(g.rows[t])[k]);
      for (int p = 0; p < P; p++) sum[p][t] = vf_fma(w[p], x, sum[p][t]);
    }
  }
  store_sums(g, first, sum);
}

}  // namespace kt
