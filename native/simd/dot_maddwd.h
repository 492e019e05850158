// 8-bit dot products without VNNI: bytes are widened to 16 bits, where u8 * s8 sums are exact
// (vpmaddubsw would saturate). Activations are stored as 16-bit even and odd halves: k0 k2 | k1 k3,
// 8 bytes per 4 K. Codes of fewer bits go through vpmaddubsw, with activations of 8 bits.
#pragma once

namespace kt {

constexpr int kActBytes = 2;  // per quantised activation
constexpr bool kNarrowDots = true;

struct QLine {  // 16 rows x 4 K codes as 16-bit even and odd bytes
  vi even, odd;
};
inline QLine q_line(vi bytes) { return {vi_and(bytes, vi_set1(0x00ff00ff)), vi_shr16<8>(bytes)}; }
inline vi q_dot(vi acc, QLine w, const uint8_t *act) {
  int32_t even, odd;  // loaded apart: halves of one load would go through general registers
  std::memcpy(&even, act, 4);
  std::memcpy(&odd, act + 4, 4);
  acc = vi_add(acc, vi_maddwd(w.even, vi_set1(even)));
  acc = vi_add(acc, vi_maddwd(w.odd, vi_set1(odd)));
  vi_keep(acc);  // in this order: another one would need more registers than there are
  return acc;
}
inline void q_keep(QLine &w) { vi_keep(w.even), vi_keep(w.odd); }
// 32 quantised activations (two vectors of int32) to their stored form.
inline void q_store(uint8_t *dst, vi lo, vi hi) {
  int8_t q[32];
  vi_store_i8(q, lo);
  vi_store_i8(q + 16, hi);
  int16_t *out = reinterpret_cast<int16_t *>(dst);
  for (int i = 0; i < 32; i += 4) {
    out[i] = q[i], out[i + 1] = q[i + 2];
    out[i + 2] = q[i + 1], out[i + 3] = q[i + 3];
  }
}

// 32 integers 256 * high + low, parts of 8 bits, both stored.
inline void q_store_parts(uint8_t *high, uint8_t *low, vi lo, vi hi) {
  const vi round = vi_set1(128);
  const vi lo_high = vi_shr<8>(vi_add(lo, round)), hi_high = vi_shr<8>(vi_add(hi, round));
  q_store(high, lo_high, hi_high);
  q_store(low, vi_sub(lo, vi_shl<8>(lo_high)), vi_sub(hi, vi_shl<8>(hi_high)));
}

}  // namespace kt
