// Scale records: what stands beside the codes of a panel. Each kind says how many bytes a record of
// 16 rows takes, how many blocks of 32 K share it (kSuper), and what it means:
//   w = scale * (code - zero) + minimum, one scale (and minimum) per kGroup K, 16 or at least 32.
// kHead: bytes of what all records of 256 K share, which lies apart; get and load are told where.
// get is the exact meaning for one row, load the same for 16 rows at once. put_nan (of FP8): a code
// of row r is NaN, and kernels learn of it by the scale.
#pragma once
#include <cmath>

#include "numbers.h"

namespace kt {

struct BlockScales {  // of one row and 32 K; entry 1 where kGroup is 16
  float scale[2] = {};
  float minimum[2] = {};
};
struct VScales {
  vf scale[2];
  vf minimum[2];
};

// What scales that lie apart are stored as: kt_scale_type, or kBlocksOnly for records that only
// blocks of GGUF fill. kZeros: the record ends with 16 zero points.
constexpr int kBlocksOnly = -1;

// Blocks that share a head.
constexpr int kHeadBlocks = 8;

// The record that block b shares with Super - 1 others; unsigned, so that it is only a shift.
template <int Super>
inline int64_t record(int64_t b) {
  return int64_t(uint64_t(b) / Super);
}

// float16 per 32 * Super K.
template <int Super>
struct ScalesF16 {
  static constexpr bool kMin = false, kZeros = false;
  static constexpr int kGroup = 32, kSuper = Super, kHead = 0, kBytes = 32, kStored = KT_SCALE_F16;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    return {{half_to_float(load_u16(meta + record<Super>(b) * 32 + r * 2))}, {}};
  }
  static VScales load(const uint8_t *meta, int64_t b) {
    VScales v;
    v.scale[0] = vf_load_f16(meta + record<Super>(b) * 32);
    return v;
  }
};

// float16 scale and minimum per 32 * Super K.
template <int Super>
struct ScalesF16Min {
  static constexpr bool kMin = true, kZeros = false;
  static constexpr int kGroup = 32, kSuper = Super, kHead = 0, kBytes = 64, kStored = kBlocksOnly;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    const uint8_t *m = meta + record<Super>(b) * 64 + r * 2;
    return {{half_to_float(load_u16(m))}, {half_to_float(load_u16(m + 32))}};
  }
  static VScales load(const uint8_t *meta, int64_t b) {
    const uint8_t *m = meta + record<Super>(b) * 64;
    VScales v;
    v.scale[0] = vf_load_f16(m);
    v.minimum[0] = vf_load_f16(m + 32);
    return v;
  }
};

// bfloat16 per 32 * Super K.
template <int Super>
struct ScalesBf16 {
  static constexpr bool kMin = false, kZeros = false;
  static constexpr int kGroup = 32, kSuper = Super, kHead = 0, kBytes = 32, kStored = KT_SCALE_BF16;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    return {{bf16_to_float(load_u16(meta + record<Super>(b) * 32 + r * 2))}, {}};
  }
  static VScales load(const uint8_t *meta, int64_t b) {
    VScales v;
    v.scale[0] = vf_bits(vi_shl<16>(vi_load_u16(meta + record<Super>(b) * 32)));
    return v;
  }
};

// float32 per 32 * Super K; Super 2^30: one per row.
template <int Super>
struct ScalesF32 {
  static constexpr bool kMin = false, kZeros = false;
  static constexpr int kGroup = 32, kSuper = Super, kHead = 0, kBytes = 64, kStored = KT_SCALE_F32;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    return {{load_f32(meta + record<Super>(b) * 64 + r * 4)}, {}};
  }
  static VScales load(const uint8_t *meta, int64_t b) {
    VScales v;
    v.scale[0] = vf_load(reinterpret_cast<const float *>(meta + record<Super>(b) * 64));
    return v;
  }
  static void put_nan(uint8_t *meta, int64_t b, int r) {
    store_f32(meta + record<Super>(b) * 64 + r * 4, NAN);
  }
};
constexpr int kWholeRow = 1 << 30;

// float32 (or float16: Half) scale[16], zero point byte[16] per 32 * Super K:
// w = scale * (code - zero).
template <int Super, bool Half = false>
struct ScalesZero {
  static constexpr bool kMin = true, kZeros = true;
  static constexpr int kGroup = 32, kSuper = Super, kHead = 0, kBytes = Half ? 48 : 80;
  static constexpr int kStored = Half ? KT_SCALE_F16 : KT_SCALE_F32;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    const uint8_t *m = meta + record<Super>(b) * kBytes;
    const float scale = Half ? half_to_float(load_u16(m + r * 2)) : load_f32(m + r * 4);
    return {{scale}, {-(scale * m[kBytes - 16 + r])}};
  }
  static VScales load(const uint8_t *meta, int64_t b) {
    const uint8_t *m = meta + record<Super>(b) * kBytes;
    VScales v;
    v.scale[0] = Half ? vf_load_f16(m) : vf_load(reinterpret_cast<const float *>(m));
    const vf zero = vf_from(vi_load_u8(m + kBytes - 16));
    v.minimum[0] = vf_mul(vf_sub(vf_zero(), v.scale[0]), zero);
    return v;
  }
};

// A power of two per 32 K (OCP microscaling, E8M0): 2^(e - 127). 255 stands for NaN.
struct ScalesE8M0 {
  static constexpr bool kMin = false, kZeros = false;
  static constexpr int kGroup = 32, kSuper = 1, kHead = 0, kBytes = 16, kStored = KT_SCALE_BYTE;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    const int e = meta[b * 16 + r];
    return {{e == 255 ? NAN : std::ldexp(1.0f, e - 127)}, {}};
  }
  static VScales load(const uint8_t *meta, int64_t b) {
    const vi e = vi_load_u8(meta + b * 16);
    // Exponent 0 is 2^-127, a subnormal; exponent 255 gets a mantissa, which makes it NaN.
    const vi bits = vi_max(vi_shl<23>(e), vi_set1(0x00400000));
    VScales v;
    v.scale[0] = vf_bits(vi_or(bits, vi_and(vi_equal(e, vi_set1(255)), vi_set1(0x00400000))));
    return v;
  }
  static void put_nan(uint8_t *meta, int64_t b, int r) { meta[b * 16 + r] = 255; }
};

// The same for codes of twice their value: 2^(e - 128). Here 255 is 2^127, as in GGUF; the kernels
// take exponents 0 and 1 (below 1e-38) for 0.
struct ScalesE8M0Half {
  static constexpr bool kMin = false, kZeros = false;
  static constexpr int kGroup = 32, kSuper = 1, kHead = 0, kBytes = 16, kStored = KT_SCALE_BYTE;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    return {{std::ldexp(0.5f, meta[b * 16 + r] - 127)}, {}};
  }
  static VScales load(const uint8_t *meta, int64_t b) {
    const vi e = vi_sub(vi_load_u8(meta + b * 16), vi_set1(1));
    VScales v;
    v.scale[0] = vf_bits(vi_max(vi_shl<23>(e), vi_zero()));
    return v;
  }
};

// FP8 E4M3 per 16 K (NVFP4), divided by Divisor.
template <int Divisor>
struct ScalesE4M3 {
  static constexpr bool kMin = false, kZeros = false;
  static constexpr int kGroup = 16, kSuper = 1, kHead = 0, kBytes = 32, kStored = KT_SCALE_BYTE;
  static BlockScales get(const uint8_t *meta, int64_t b, int r) {
    return {
        {e4m3_to_float(meta[b * 32 + r]) / Divisor, e4m3_to_float(meta[b * 32 + 16 + r]) / Divisor},
        {}};
  }
  static VScales load(const uint8_t *meta, int64_t b) {
    VScales v;
    for (int g = 0; g < 2; g++) {
      const vi code = vi_load_u8(meta + b * 32 + g * 16), size = vi_and(code, vi_set1(0x7f));
      const vf normal = vf_bits(vi_add(vi_shl<20>(size), vi_set1(120 << 23)));
      const vf small = vf_mul(vf_from(size), vf_set1(1.0f / 512));
      const vf value = vf_bits(vi_or(vi_and(vi_less(size, vi_set1(8)), vi_bits(small)),
                                     vi_andnot(vi_less(size, vi_set1(8)), vi_bits(normal))));
      const vi sign = vi_shl<24>(vi_and(code, vi_set1(0x80)));
      const vi nan = vi_and(vi_equal(size, vi_set1(0x7f)), vi_set1(0x7fc00000));
      v.scale[g] =
          vf_mul(vf_bits(vi_or(vi_or(vi_bits(value), sign), nan)), vf_set1(1.0f / Divisor));
    }
    return v;
  }
};

// Head: d[16] and dmin[16] float16. Per 32 K sc[16] and m[16] bytes (Q4_K, Q5_K).
// scale = d * sc, minimum = -(dmin * m).
struct ScalesK32Min {
  static constexpr bool kMin = true, kZeros = false;
  static constexpr int kGroup = 32, kSuper = 1, kHead = 64, kBytes = 32, kStored = kBlocksOnly;
  static BlockScales get(const uint8_t *meta, int64_t b, int r, const uint8_t *head) {
    const uint8_t *s = meta + b * kBytes;
    const float d = half_to_float(load_u16(head + r * 2));
    const float dmin = half_to_float(load_u16(head + 32 + r * 2));
    return {{d * s[r]}, {-(dmin * s[16 + r])}};
  }
  static VScales load(const uint8_t *meta, int64_t b, const uint8_t *head) {
    const uint8_t *s = meta + b * kBytes;
    VScales v;
    v.scale[0] = vf_mul(vf_load_f16(head), vf_from(vi_load_u8(s)));
    v.minimum[0] = vf_mul(vf_sub(vf_zero(), vf_load_f16(head + 32)), vf_from(vi_load_u8(s + 16)));
    return v;
  }
};

// Head: d[16] and dmin[16] float16. Per 16 K a byte[16]: scale in the low nibble, minimum in the
// high one (Q2_K). scale = d * low, minimum = -(dmin * high).
struct ScalesK16Min {
  static constexpr bool kMin = true, kZeros = false;
  static constexpr int kGroup = 16, kSuper = 1, kHead = 64, kBytes = 32, kStored = kBlocksOnly;
  static BlockScales get(const uint8_t *meta, int64_t b, int r, const uint8_t *head) {
    const uint8_t *s = meta + b * kBytes;
    const float d = half_to_float(load_u16(head + r * 2));
    const float dmin = half_to_float(load_u16(head + 32 + r * 2));
    return {{d * (s[r] & 15), d * (s[16 + r] & 15)},
            {-(dmin * (s[r] >> 4)), -(dmin * (s[16 + r] >> 4))}};
  }
  static VScales load(const uint8_t *meta, int64_t b, const uint8_t *head) {
    const uint8_t *s = meta + b * kBytes;
    const vf d = vf_load_f16(head), dmin = vf_sub(vf_zero(), vf_load_f16(head + 32));
    VScales v;
    for (int g = 0; g < 2; g++) {
      const vi both = vi_load_u8(s + g * 16);
      v.scale[g] = vf_mul(d, vf_from(vi_and(both, vi_set1(15))));
      v.minimum[g] = vf_mul(dmin, vf_from(vi_shr16<4>(both)));
    }
    return v;
  }
};

// Head: d[16] float16. Per 16 K sc[16] signed bytes (Q3_K, Q6_K, some of IQ).
// scale = d * sc / Divisor.
template <int Divisor = 1>
struct ScalesK16 {
  static constexpr bool kMin = false, kZeros = false;
  static constexpr int kGroup = 16, kSuper = 1, kHead = 32, kBytes = 32, kStored = kBlocksOnly;
  static BlockScales get(const uint8_t *meta, int64_t b, int r, const uint8_t *head) {
    const int8_t *s = reinterpret_cast<const int8_t *>(meta) + b * kBytes;
    const float d = half_to_float(load_u16(head + r * 2)) / Divisor;
    return {{d * s[r], d * s[16 + r]}, {}};
  }
  static VScales load(const uint8_t *meta, int64_t b, const uint8_t *head) {
    const uint8_t *s = meta + b * kBytes;
    vf d = vf_load_f16(head);
    if constexpr (Divisor != 1) d = vf_mul(d, vf_set1(1.0f / Divisor));
    VScales v;
    v.scale[0] = vf_mul(d, vf_from(vi_load_i8(s)));
    v.scale[1] = vf_mul(d, vf_from(vi_load_i8(s + 16)));
    return v;
  }
};

// Head: d[16] float16. Per 32 K sc[16] signed bytes (IQ4_XS, some of IQ).
// scale = d * sc / Divisor.
template <int Divisor = 1>
struct ScalesK32 {
  static constexpr bool kMin = false, kZeros = false;
  static constexpr int kGroup = 32, kSuper = 1, kHead = 32, kBytes = 16, kStored = kBlocksOnly;
  static BlockScales get(const uint8_t *meta, int64_t b, int r, const uint8_t *head) {
    const int8_t *s = reinterpret_cast<const int8_t *>(meta) + b * kBytes;
    return {{half_to_float(load_u16(head + r * 2)) / Divisor * s[r]}, {}};
  }
  static VScales load(const uint8_t *meta, int64_t b, const uint8_t *head) {
    vf d = vf_load_f16(head);
    if constexpr (Divisor != 1) d = vf_mul(d, vf_set1(1.0f / Divisor));
    VScales v;
    v.scale[0] = vf_mul(d, vf_from(vi_load_i8(meta + b * kBytes)));
    return v;
  }
};

// Head: d[16] float16. Per 32 K a byte[16]: an odd number sc of 4 bits, and bit 7 (IQ1_S).
// scale = d * sc; minimum = -scale * 9 / 8 where bit 7 is set, else -scale * 7 / 8.
struct ScalesIq1 {
  static constexpr bool kMin = true, kZeros = false;
  static constexpr int kGroup = 32, kSuper = 1, kHead = 32, kBytes = 16, kStored = kBlocksOnly;
  static BlockScales get(const uint8_t *meta, int64_t b, int r, const uint8_t *head) {
    const uint8_t byte = meta[b * kBytes + r];
    const float scale = half_to_float(load_u16(head + r * 2)) * float(byte & 15);
    return {{scale}, {scale * (byte & 0x80 ? -1.125f : -0.875f)}};
  }
  static VScales load(const uint8_t *meta, int64_t b, const uint8_t *head) {
    const vi byte = vi_load_u8(meta + b * kBytes), eighths = vi_shr16<6>(byte);  // 2 or 0
    VScales v;
    v.scale[0] = vf_mul(vf_load_f16(head), vf_from(vi_and(byte, vi_set1(15))));
    const vf less = vf_from(vi_sub(vi_set1(-7), vi_and(eighths, vi_set1(2))));
    v.minimum[0] = vf_mul(v.scale[0], vf_mul(less, vf_set1(0.125f)));
    return v;
  }
};

}  // namespace kt
