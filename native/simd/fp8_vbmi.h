// FP8 E4M3 to bfloat16 with AVX512-VBMI: tables of 128 bytes, one lookup per output byte.
#pragma once

namespace kt {

struct F8Tables {
  alignas(64) uint8_t hi[128], lo[128];
  constexpr F8Tables() : hi(), lo() {
    constexpr uint16_t kSmall[8] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    for (int size = 0; size < 128; size++) {
      const int v = size < 8 ? kSmall[size] : size == 127 ? 0x7fc0 : (size << 4) + (120 << 7);
      hi[size] = uint8_t(v >> 8), lo[size] = uint8_t(v);
    }
  }
};
inline void f8_bytes(vi x, vi &hi, vi &lo) {
  static constexpr F8Tables kTables;
  const auto look = [&](const uint8_t *table) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), x.v, _mm512_load_si512(table + 64));
  };
  hi = {_mm512_or_si512(look(kTables.hi), _mm512_and_si512(x.v, _mm512_set1_epi8(-128)))};
  lo = {look(kTables.lo)};
}

// A line of 4 K of FP8 (bytes K 0, 2, 1, 3) as two lines of 2 K of bfloat16.
inline void f8_lines(vi x, vi &first, vi &second) {
  vi hi, lo;
  f8_bytes(x, hi, lo);
  first = vi_or(vi_and(lo, vi_set1(0x00ff00ff)), vi_shl16<8>(hi));
  second = vi_or(vi_shr16<8>(lo), vi_and(hi, vi_set1(static_cast<int32_t>(0xff00ff00u))));
}

// The same as operands: of K 0 and 1, or of K 2 and 3.
inline BLine f8_operand(vi x, bool second) {
  vi lines[2];
  f8_lines(x, lines[0], lines[1]);
  return b_line(lines[second]);
}

}  // namespace kt
