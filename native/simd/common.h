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

// 16 rows x 2 K as float32.
struct FloatLine {
  vf even, odd;
};
// The same of bfloat16.
inline FloatLine widen_bf16(vi x) {
  return {vf_bits(vi_shl<16>(x)), vf_bits(vi_and(x, vi_set1(static_cast<int32_t>(0xffff0000u))))};
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

}  // namespace kt
