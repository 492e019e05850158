// FP8 E4M3 to bfloat16 with 16-byte lookups: 64 codes give the high and low bytes of 64 bfloat16.
#pragma once

namespace kt {

// Exact for all codes: subnormals (size below 8) come from a table, NaN (size 0x7f) gets its
// exponent. A lookup gives 0 where bit 7 of the index is set, so size + 0x78 selects entries 8 ..
// 15 for subnormals and nothing for the rest.
inline void f8_bytes(vi x, vi &hi, vi &lo) {
  alignas(16) static constexpr uint8_t kOnes[16] = {255, 255, 255, 255, 255, 255, 255, 255,
                                                    255, 255, 255, 255, 255, 255, 255, 255};
  alignas(16) static constexpr uint8_t kSmallHi[16] = {0, 0,    0,    0,    0,    0,    0,    0,
                                                       0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c};
  alignas(16) static constexpr uint8_t kSmallLo[16] = {0, 0,    0,    0,    0, 0,    0,    0,
                                                       0, 0x00, 0x80, 0xc0, 0, 0x20, 0x40, 0x60};
  const vi size = vi_and(x, vi_set1(0x7f7f7f7f));
  const vi index = vi_add(size, vi_set1(0x78787878));
  const vi small = vi_lookup(kOnes, index);
  const vi number = vi_lookup(kOnes, vi_add(size, vi_set1(0x01010101)));
  // Otherwise the exponent is rebiased from 7 to 127: (size << 4) + (120 << 7).
  const vi high = vi_add(vi_and(vi_shr16<4>(size), vi_set1(0x07070707)), vi_set1(0x3c3c3c3c));
  const vi low = vi_and(vi_shl16<4>(size), vi_set1(static_cast<int32_t>(0xf0f0f0f0u)));
  hi = vi_or(vi_andnot(small, high), vi_lookup(kSmallHi, index));
  hi = vi_or(hi, vi_andnot(number, vi_set1(0x3c3c3c3c)));
  hi = vi_or(hi, vi_and(x, vi_set1(static_cast<int32_t>(0x80808080u))));
  lo = vi_or(vi_andnot(small, low), vi_lookup(kSmallLo, index));
}

}  // namespace kt
