// bfloat16 weights without AVX512-BF16: widened to float32 by a shift and a mask, activations stay
// float32.
#pragma once

namespace kt {

constexpr bool kHalfIsF32 = true;
constexpr int kHalfBytes = 4;  // per activation

using BLine = FloatLine;
inline BLine b_line(vi x) { return widen_bf16(x); }
inline vf b_dot(vf acc, const BLine &w, const uint8_t *act) {
  float pair[2];
  std::memcpy(pair, act, 8);
  return vf_fma(w.odd, vf_set1(pair[1]), vf_fma(w.even, vf_set1(pair[0]), acc));
}
inline void b_keep(BLine &w) { vf_keep(w.even), vf_keep(w.odd); }
inline void b_store(uint8_t *dst, vf lo, vf hi) {  // 32 activations
  vf_store(reinterpret_cast<float *>(dst), lo);
  vf_store(reinterpret_cast<float *>(dst) + 16, hi);
}

}  // namespace kt
