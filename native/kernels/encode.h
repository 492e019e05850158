// Activations in the form that a weight format's kernel reads: one row per token.
//
//   F32   float32, K padded to 32 with zeros (the slot row itself)
//   HALF  for bfloat16 weights: bfloat16 pairs, or float32 where the CPU has no bfloat16 dot
//   product INT   signed 8-bit per block of 32 K with a scale:
//           codes (kActBytes each) | scale[nb] | scale * sum[nb] | -sum32[nb] | -sum16[2 nb]
//           | where kNarrowDots: codes once more, as bytes
//         y = s_w * s_a * (sum u * a - zero * sum a) + min * (s_a * sum a)
#pragma once
#include "../formats/layout.h"
#include "math.h"

namespace kt {

enum Encoding { ENC_F32 = 0, ENC_HALF = 1, ENC_INT = 2, ENC_COUNT = 3 };

template <class F>
constexpr Encoding encoding_of() {
  if constexpr (F::kKind == Kind::kInt) return ENC_INT;
  if constexpr (F::kKind == Kind::kBf16 || F::kKind == Kind::kFp8)
    return kHalfIsF32 ? ENC_F32 : ENC_HALF;
  return ENC_F32;
}
inline int encoding_of_format(int format) {
  int e = -1;
  with_format(format, [&](auto f) { e = encoding_of<decltype(f)>(); });
  return e;
}

inline int64_t encoded_row_bytes(int encoding, int64_t k) {
  const int64_t nb = ceil_div(k, kBlock);
  if (encoding == ENC_F32) return nb * kBlock * 4;
  if (encoding == ENC_HALF) return nb * kBlock * kHalfBytes;
  return round_up(nb * (kBlock * kActBytes + 20 + (kNarrowDots ? kBlock : 0)), 64);
}

// Pointers into an INT row.
struct IntRow {
  const uint8_t *codes;
  const float *scale;
  const float *scaled_sum;
  const int32_t *neg_sum32;
  const int32_t *neg_sum16;
  const uint8_t *bytes;
};
inline IntRow int_row(const void *row, int64_t nb) {
  const uint8_t *p = static_cast<const uint8_t *>(row);
  const float *meta = reinterpret_cast<const float *>(p + nb * kBlock * kActBytes);
  return {p,
          meta,
          meta + nb,
          reinterpret_cast<const int32_t *>(meta + 2 * nb),
          reinterpret_cast<const int32_t *>(meta + 3 * nb),
          reinterpret_cast<const uint8_t *>(meta + 5 * nb)};
}

// sum + one group's products: integer sum * (s_w * s_a), then min * (s_a * sum a).
template <class F, int Group>
inline vf join_group(vf product, const VScales &s, const IntRow &a, int64_t b, vf sum) {
  using S = typename F::Scales;
  sum = vf_fma(product, vf_mul(s.scale[Group], vf_set1(a.scale[b])), sum);
  if constexpr (S::kMin) {
    const float activations =
        S::kGroup == 16 ? -float(a.neg_sum16[2 * b + Group]) * a.scale[b] : a.scaled_sum[b];
    sum = vf_fma(s.minimum[Group], vf_set1(activations), sum);
  }
  return sum;
}

// Encodes block b (32 values) into a row of nb blocks.
inline void encode_block(int encoding, void *row, int64_t nb, int64_t b, vf lo, vf hi) {
  uint8_t *p = static_cast<uint8_t *>(row);
  if (encoding == ENC_F32) {
    vf_store(reinterpret_cast<float *>(p) + b * 32, lo);
    vf_store(reinterpret_cast<float *>(p) + b * 32 + 16, hi);
  } else if (encoding == ENC_HALF) {
    b_store(p + b * 32 * kHalfBytes, lo, hi);
  } else {
    const float peak = vf_reduce_max(vf_max(vf_abs(lo), vf_abs(hi)));
    const float inverse = peak > 0 ? 127.0f / peak : 0.0f;
    const vi a = vi_round(vf_mul(lo, vf_set1(inverse))), c = vi_round(vf_mul(hi, vf_set1(inverse)));
    q_store(p + b * 32 * kActBytes, a, c);
    float *meta = reinterpret_cast<float *>(p + nb * kBlock * kActBytes);
    int32_t *sums = reinterpret_cast<int32_t *>(meta + 2 * nb);
    const int32_t sum_lo = vi_sum(a), sum_hi = vi_sum(c);
    // NaN if a value is NaN or infinite, else 0: codes cannot say so, the scale can.
    const float broken = vf_sum(vf_add(vf_mul(lo, vf_zero()), vf_mul(hi, vf_zero())));
    const float scale = peak / 127.0f + broken;
    meta[b] = scale;
    meta[nb + b] = scale * float(sum_lo + sum_hi);
    sums[b] = -(sum_lo + sum_hi);
    sums[nb + 2 * b] = -sum_lo;
    sums[nb + 2 * b + 1] = -sum_hi;
    if (kNarrowDots) {
      uint8_t *bytes = reinterpret_cast<uint8_t *>(meta + 5 * nb) + b * kBlock;
      vi_store_i8(bytes, a), vi_store_i8(bytes + 16, c);
    }
  }
}

}  // namespace kt
