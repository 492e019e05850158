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
// 32 integers 256 * high + low, parts of 8 bits, both stored.
inline void q_store_parts(uint8_t *high, uint8_t *low, vi lo, vi hi) {
  alignas(64) static constexpr int16_t kEven[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                                    22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                                                    44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
  const __m512i words = _mm512_permutex2var_epi16(lo.v, _mm512_load_si512(kEven), hi.v);
  const __m512i rounded = _mm512_add_epi16(words, _mm512_set1_epi16(128));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(low), _mm512_cvtepi16_epi8(words));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(high),
                      _mm512_cvtepi16_epi8(_mm512_srli_epi16(rounded, 8)));
}

}  // namespace kt
