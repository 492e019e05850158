// 8-bit dot products with AVX512-VNNI: vpdpbusd, unsigned codes times signed activations, exact.
#pragma once

namespace kt {

constexpr int kActBytes = 1;  // per quantised activation
constexpr bool kNarrowDots = false;  // no faster

using QLine = vi;  // 16 rows x 4 K codes
inline QLine q_line(vi bytes) { return bytes; }
inline vi q_dot(vi acc, QLine w, const uint8_t *act) {
  int32_t four;
  std::memcpy(&four, act, 4);
  return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(four))};
}
inline void q_keep(QLine &w) { vi_keep(w); }
// 32 quantised activations (two vectors of int32) to their stored form.
inline void q_store(uint8_t *dst, vi lo, vi hi) {
  vi_store_i8(dst, lo);
  vi_store_i8(dst + 16, hi);
}

}  // namespace kt
