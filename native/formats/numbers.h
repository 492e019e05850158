// Small float formats, exactly: float16, bfloat16, FP8 E4M3.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace kt {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
inline uint16_t float_to_half(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
inline float bf16_to_float(uint16_t b) {
  const uint32_t u = uint32_t(b) << 16;
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}
inline uint16_t float_to_bf16(float x) {  // to nearest even; NaN stays NaN
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return uint16_t((u >> 16) | 0x40);
  return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
// OCP FP8 E4M3: bias 7, subnormals m / 8 * 2^-6, no infinities, 0x7f and 0xff are NaN.
inline float e4m3_to_float(uint8_t code) {
  const int e = code >> 3 & 15, m = code & 7;
  const float size = (code & 0x7f) == 0x7f ? NAN
                     : e                   ? std::ldexp(1.0f + float(m) / 8, e - 7)
                                           : std::ldexp(float(m), -9);
  return code & 0x80 ? -size : size;
}
inline uint8_t float_to_e4m3(float x) {  // to nearest even; what is too large becomes 448
  uint32_t u;
  std::memcpy(&u, &x, 4);
  const uint8_t sign = uint8_t(u >> 24 & 0x80);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return sign | 0x7f;
  const float size = std::fabs(x);
  if (size < 0.015625f) return uint8_t(sign | int(std::nearbyint(size * 512)));
  if (size >= 448) return sign | 0x7e;
  u += 0x7ffff + (u >> 20 & 1);
  return uint8_t(sign | (((u >> 23) - 120) << 3 | (u >> 20 & 7)));
}
inline uint16_t load_u16(const uint8_t *p) {
  uint16_t x;
  std::memcpy(&x, p, 2);
  return x;
}
inline void store_u16(uint8_t *p, uint16_t x) { std::memcpy(p, &x, 2); }
inline float load_f32(const uint8_t *p) {
  float x;
  std::memcpy(&x, p, 4);
  return x;
}
inline void store_f32(uint8_t *p, float x) { std::memcpy(p, &x, 4); }

}  // namespace kt
