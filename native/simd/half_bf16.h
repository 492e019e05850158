// bfloat16 dot products with AVX512-BF16: vdpbf16ps on pairs of K; activations are rounded to
// bfloat16.
#pragma once

namespace kt {

constexpr bool kHalfIsF32 = false;
constexpr int kHalfBytes = 2;  // per activation

using BLine = vi;  // 16 rows x 2 K
inline BLine b_line(vi x) { return x; }
inline vf b_dot(vf acc, BLine w, const uint8_t *act) {
  int32_t pair;
  std::memcpy(&pair, act, 4);
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)w.v, (__m512bh)_mm512_set1_epi32(pair))};
}
inline void b_keep(BLine &w) { vi_keep(w); }
inline void b_store(uint8_t *dst, vf lo, vf hi) {  // 32 activations
  _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(hi.v, lo.v));
}

}  // namespace kt
