// What follows from the vectors of any instruction set.
#pragma once

namespace kt {

// Within 16-bit lanes: right by N, or left by -N.
template <int N>
inline vi vi_shift_right(vi x) {
  if constexpr (N > 0) return vi_shr16<N>(x);
  if constexpr (N < 0) return vi_shl16<-N>(x);
  return x;
}

// A line of 4 K of FP8 (bytes K 0, 2, 1, 3) as two lines of 2 K of bfloat16.
inline void f8_lines(vi x, vi &first, vi &second) {
  vi hi, lo;
  f8_bytes(x, hi, lo);
  first = vi_or(vi_and(lo, vi_set1(0x00ff00ff)), vi_shl16<8>(hi));
  second = vi_or(vi_shr16<8>(lo), vi_and(hi, vi_set1(static_cast<int32_t>(0xff00ff00u))));
}

}  // namespace kt
