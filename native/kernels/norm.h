// Root-mean-square norm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * gain.
#pragma once

namespace kt {

// 1 / sqrt(mean(x^2) + eps) of n values; x is padded to 32 with zeros.
inline float rms_scale(const float *x, int64_t n, float eps) {
  vf lo = vf_zero(), hi = vf_zero();
  for (int64_t i = 0; i < n; i += 32) {
    const vf a = vf_load(x + i), b = vf_load(x + i + 16);
    lo = vf_fma(a, a, lo);
    hi = vf_fma(b, b, hi);
  }
  return 1.0f / std::sqrt(vf_sum(vf_add(lo, hi)) / float(n) + eps);
}

}  // namespace kt
