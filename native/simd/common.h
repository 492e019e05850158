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

// 16-bit sums + 4 K of small codes; act: 4 signed bytes.
inline vi q_dot_narrow(vi sum, vi codes, const uint8_t *act) {
  int32_t four;
  std::memcpy(&four, act, 4);
  sum = vi_add16(sum, vi_maddubs(codes, vi_set1(four)));
  vi_keep(sum);  // in this order: another one would need more registers than there are
  return sum;
}
// acc + 16-bit sums.
inline vi q_widen(vi acc, vi sum) { return vi_add(acc, vi_maddwd(sum, vi_set1(0x00010001))); }

// A line of 4 K of FP8 (bytes K 0, 2, 1, 3) as two lines of 2 K of bfloat16.
inline void f8_lines(vi x, vi &first, vi &second) {
  vi hi, lo;
  f8_bytes(x, hi, lo);
  first = vi_or(vi_and(lo, vi_set1(0x00ff00ff)), vi_shl16<8>(hi));
  second = vi_or(vi_shr16<8>(lo), vi_and(hi, vi_set1(static_cast<int32_t>(0xff00ff00u))));
}

}  // namespace kt
