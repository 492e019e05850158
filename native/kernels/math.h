// Elementwise functions, 16 lanes at a time; every lane's result depends on that lane alone.
#pragma once

namespace kt {

// e^x to about 1 ulp for x <= 88; 0 below -103.9; NaN stays NaN (max and min return their second
// operand then). Range reduction by log 2 and a degree-6
// polynomial.
inline vf vf_exp(vf x) {
  const vf clipped = vf_max(vf_set1(-104.0f), vf_min(vf_set1(88.0f), x));
  const vi n = vi_round(vf_mul(clipped, vf_set1(1.44269504f)));
  const vf nf = vf_from(n);
  vf r = vf_fma(nf, vf_set1(-0.693145752f), clipped);
  r = vf_fma(nf, vf_set1(-1.42860677e-6f), r);
  vf p = vf_set1(1.0f / 720);
  p = vf_fma(p, r, vf_set1(1.0f / 120));
  p = vf_fma(p, r, vf_set1(1.0f / 24));
  p = vf_fma(p, r, vf_set1(1.0f / 6));
  p = vf_fma(p, r, vf_set1(0.5f));
  p = vf_fma(p, r, vf_set1(1.0f));
  p = vf_fma(p, r, vf_set1(1.0f));
  // 2^n in two factors, so that n below -126 goes through the subnormals to 0.
  const vi half = vi_sar1(n);
  const vi rest = vi_sub(n, half);
  const vi bias = vi_set1(127);
  const vf a = vf_bits(vi_shl<23>(vi_add(half, bias))), b = vf_bits(vi_shl<23>(vi_add(rest, bias)));
  return vf_mul(vf_mul(p, a), b);
}

// 2^x to about 2 ulp for x <= 0, and 1 for 0; 0 below -126.5; NaN stays NaN. A polynomial of degree
// 5 for the fraction, its largest relative error made least.
// Vectors go through each step side by side, so that none waits for the one before.
template <int N>
inline void vf_exp2_all(vf (&x)[N]) {
  constexpr float kC[] = {0.00132647273f, 0.00967151299f, 0.0555073358f,
                          0.240222424f,   0.693147004f,   1.0f};
  const vf whole = vf_set1(0x1.8p23f + 127);  // a sum has its integer and the bias in the low bits
  vf n[N], p[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) x[j] = vf_max(vf_set1(-127.0f), x[j]);
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) n[j] = vf_add(x[j], whole);
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) x[j] = vf_sub(x[j], vf_sub(n[j], whole)), p[j] = vf_set1(kC[0]);
#pragma GCC unroll 8
  for (int c = 1; c < 6; c++) {
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) p[j] = vf_fma(p[j], x[j], vf_set1(kC[c]));
  }
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) x[j] = vf_mul(p[j], vf_bits(vi_shl<23>(vi_bits(n[j]))));
}
inline vf vf_exp2(vf x) {
  vf one[1] = {x};
  vf_exp2_all(one);
  return one[0];
}

inline vf vf_silu(vf x) { return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x)))); }

}  // namespace kt
