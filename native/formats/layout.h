// Packed weights: where every byte of W[n, k] lies. The bytes are the same for all variants.
//
// n is padded to panels of 16 rows, k to blocks of 32 (codes of the padding are zero-valued). A
// panel is
//   lines:  64 bytes each = consecutive K of each of the 16 rows, row by row:
//             F32 1 K; BF16 2 K; 8-bit codes 4 K; 4-bit codes 8 K (dword of a row: K j in the low
//             nibble of byte j, K 4 + j in the high nibble, j < 4); F16 is 16 halves of K 2i, then
//             of K 2i + 1
//   meta:   the scales of all blocks, per block 16 rows (see each Scales below)
// and its size is rounded up to 64 bytes.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "../include/kt.h"

namespace kt {

constexpr int kPanel = 16;  // rows
constexpr int kBlock = 32;  // K

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
inline uint16_t float_to_half(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
inline float bf16_to_float(uint16_t b) {
  const uint32_t u = uint32_t(b) << 16;
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}
inline uint16_t float_to_bf16(float x) {  // to nearest even; NaN stays NaN
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return uint16_t((u >> 16) | 0x40);
  return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
inline uint16_t load_u16(const uint8_t *p) {
  uint16_t x;
  std::memcpy(&x, p, 2);
  return x;
}
inline void store_u16(uint8_t *p, uint16_t x) { std::memcpy(p, &x, 2); }

// What the scales of one block of 32 K say about row r: w = scale * (code - zero) + minimum, one
// pair per `group` K (16 or 32).
struct BlockScales {
  float scale[2];
  float minimum;
};

// float16 scale per 32 K: 32 bytes per block.
struct ScalesF16 {
  static constexpr bool kMin = false;
  static constexpr int kGroup = 32;
  static constexpr int kSuper = 1;  // blocks that share one meta record
  static constexpr int kBytes = 32;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    return {{half_to_float(load_u16(meta + b * 32 + r * 2)), 0}, 0};
  }
};

// float16 scale, float16 minimum per 32 K: 64 bytes per block.
struct ScalesF16Min {
  static constexpr bool kMin = true;
  static constexpr int kGroup = 32;
  static constexpr int kSuper = 1;
  static constexpr int kBytes = 64;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    const uint8_t *m = meta + b * 64 + r * 2;
    return {{half_to_float(load_u16(m)), 0}, half_to_float(load_u16(m + 32))};
  }
};

// Per 256 K: d[16] and dmin[16] float16, then per 32 K sc[16] and m[16] bytes.
// scale = d * sc, minimum = -(dmin * m).
struct ScalesK32Min {
  static constexpr bool kMin = true;
  static constexpr int kGroup = 32;
  static constexpr int kSuper = 8;
  static constexpr int kBytes = 320;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    const uint8_t *m = meta + b / 8 * kBytes;
    const uint8_t *s = m + 64 + b % 8 * 32;
    const float d = half_to_float(load_u16(m + r * 2)),
                dmin = half_to_float(load_u16(m + 32 + r * 2));
    return {{d * s[r], 0}, -(dmin * s[16 + r])};
  }
};

// Per 256 K: d[16] float16, then per 16 K sc[16] signed bytes. scale = d * sc.
struct ScalesK16 {
  static constexpr bool kMin = false;
  static constexpr int kGroup = 16;
  static constexpr int kSuper = 8;
  static constexpr int kBytes = 288;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    const uint8_t *m = meta + b / 8 * kBytes;
    const int8_t *s = reinterpret_cast<const int8_t *>(m) + 32 + b % 8 * 32;
    const float d = half_to_float(load_u16(m + r * 2));
    return {{d * s[r], d * s[16 + r]}, 0};
  }
};

enum class Kind { kF32, kF16, kBf16, kInt };

template <int Bits, int ZeroLog2, class S>
struct IntFormat {
  static constexpr Kind kKind = Kind::kInt;
  static constexpr int kBits = Bits;
  static constexpr int kZeroLog2 = ZeroLog2;  // zero point 2^n; -1: none
  static constexpr int kZero = ZeroLog2 < 0 ? 0 : 1 << ZeroLog2;
  using Scales = S;
};
template <Kind K, int Bits>
struct FloatFormat {
  static constexpr Kind kKind = K;
  static constexpr int kBits = Bits;
};

// The table of formats: X(kt.h name, traits), in kt.h's order.
#define KT_FORMAT_TABLE(X)                      \
  X(KT_F32, FloatFormat<Kind::kF32, 32>)        \
  X(KT_F16, FloatFormat<Kind::kF16, 16>)        \
  X(KT_BF16, FloatFormat<Kind::kBf16, 16>)      \
  X(KT_I8_G32, IntFormat<8, 7, ScalesF16>)      \
  X(KT_I8_G32M, IntFormat<8, -1, ScalesF16Min>) \
  X(KT_I8_K16, IntFormat<8, 5, ScalesK16>)      \
  X(KT_I8_K32M, IntFormat<8, -1, ScalesK32Min>) \
  X(KT_I4_G32, IntFormat<4, 3, ScalesF16>)      \
  X(KT_I4_G32M, IntFormat<4, -1, ScalesF16Min>) \
  X(KT_I4_K32M, IntFormat<4, -1, ScalesK32Min>) \
  X(KT_I5_G32, IntFormat<8, 4, ScalesF16>)

template <int Format>
struct FormatOf;
#define KT_FORMAT_OF(name, ...) \
  template <>                   \
  struct FormatOf<name> {       \
    using type = __VA_ARGS__;   \
  };
KT_FORMAT_TABLE(KT_FORMAT_OF)
#undef KT_FORMAT_OF

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
constexpr bool is_int() {
  return F::kKind == Kind::kInt;
}

struct PanelLayout {
  int64_t blocks;  // of 32 K
  int64_t line_bytes;  // codes of a panel
  int64_t bytes;  // of a panel
};

template <class F>
inline PanelLayout panel_layout(int64_t k) {
  const int64_t blocks = ceil_div(k, kBlock);
  const int64_t lines = blocks * kBlock * kPanel * F::kBits / 8;
  int64_t meta = 0;
  if constexpr (is_int<F>()) meta = ceil_div(blocks, F::Scales::kSuper) * F::Scales::kBytes;
  return {blocks, lines, round_up(lines + meta, 64)};
}

inline int64_t panels(int64_t n) { return ceil_div(n, kPanel); }

// Bytes of one block of 32 K's lines in a panel.
template <class F>
constexpr int64_t block_bytes() {
  return int64_t(kBlock) * kPanel * F::kBits / 8;
}

// 32 exact values of row r, block b.
template <class F>
inline void unpack_block(const uint8_t *panel, const PanelLayout &p, int64_t b, int r, float *out) {
  const uint8_t *lines = panel + b * block_bytes<F>();
  if constexpr (F::kKind == Kind::kF32) {
    for (int i = 0; i < 32; i++) std::memcpy(out + i, lines + i * 64 + r * 4, 4);
  } else if constexpr (F::kKind == Kind::kF16) {
    for (int i = 0; i < 32; i++)
      out[i] = half_to_float(load_u16(lines + i / 2 * 64 + i % 2 * 32 + r * 2));
  } else if constexpr (F::kKind == Kind::kBf16) {
    for (int i = 0; i < 32; i++)
      out[i] = bf16_to_float(load_u16(lines + i / 2 * 64 + r * 4 + i % 2 * 2));
  } else {
    const BlockScales s = F::Scales::get(panel + p.line_bytes, b, r);
    for (int i = 0; i < 32; i++) {
      const uint8_t *dword;
      int code;
      if constexpr (F::kBits == 8) {
        dword = lines + i / 4 * 64 + r * 4;
        code = dword[i % 4];
      } else {
        dword = lines + i / 8 * 64 + r * 4;
        code = (dword[i % 4] >> (i % 8 / 4 * 4)) & 15;
      }
      const float scale = s.scale[F::Scales::kGroup == 16 ? i / 16 : 0];
      if constexpr (F::Scales::kMin)
        out[i] = scale * float(code) + s.minimum;
      else
        out[i] = scale * float(code - F::kZero);
    }
  }
}

}  // namespace kt
