// Floats to codes with float16 scales, to nearest.
#pragma once
#include <type_traits>

#include "layout.h"

namespace kt {

// G K of 16 rows that share their scales, and what the squared error of each K counts.
template <int G>
struct Group {
  float x[G][kPanel];
  float weight[G];
};

template <class S>
struct HalfScales : std::false_type {};
template <int Super>
struct HalfScales<ScalesF16<Super>> : std::true_type {};
template <int Super>
struct HalfScales<ScalesF16Min<Super>> : std::true_type {};

// Whether floats can be rounded to a format of codes.
template <class F>
constexpr bool is_rounded() {
  if constexpr (F::kKind == Kind::kInt)
    return HalfScales<typename F::Scales>::value && !F::Codes::kTable &&
           (F::kBits == 8 || F::kBits == 4);
  return false;
}
template <class F>
constexpr int group_of() {  // K that share a scale
  return F::Scales::kSuper * kBlock;
}

// Row r's codes, q[block][row][K], and its part of the scale record.
template <class F, int G>
inline void round_row(const Group<G> &group, int r, uint8_t *record, uint8_t (*q)[kPanel][32]) {
  float low = group.x[0][r], high = low, peak = low;
  for (int i = 1; i < G; i++) {
    const float x = group.x[i][r];
    low = x < low ? x : low;
    high = x > high ? x : high;
    peak = std::fabs(x) > std::fabs(peak) ? x : peak;
  }
  const auto code = [](float v, int top) {
    const float near = std::nearbyint(v);
    return uint8_t(near < 0 ? 0 : near > top ? top : near);
  };
  if constexpr (F::Scales::kMin) {
    const uint16_t d = float_to_half((high - low) / 15), m = float_to_half(low);
    const float scale = half_to_float(d), inverse = scale > 0 ? 1 / scale : 0;
    for (int i = 0; i < G; i++)
      q[i / 32][r][i % 32] = code((group.x[i][r] - half_to_float(m)) * inverse, 15);
    store_u16(record + r * 2, d);
    store_u16(record + 32 + r * 2, m);
  } else {
    // 4 bits: the largest value sits on code 0, so its sign decides the scale's.
    const uint16_t d = float_to_half(F::kBits == 8 ? std::fabs(peak) / 127 : peak / -8);
    const float scale = half_to_float(d), inverse = scale != 0 ? 1 / scale : 0;
    for (int i = 0; i < G; i++)
      q[i / 32][r][i % 32] = code(group.x[i][r] * inverse + F::kZero, 2 * F::kZero - 1);
    store_u16(record + r * 2, d);
  }
}

}  // namespace kt
