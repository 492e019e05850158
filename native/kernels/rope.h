// Rotary position embedding (Su et al. 2021) of one head, in place.
#pragma once
#include <cmath>

namespace kt {

// cos and sin [dims/2] of a position.
inline void rope_angles(const kt_rope &rope, int32_t position, float *cosine, float *sine) {
  for (int i = 0; i < rope.dims / 2; i++) {
    const float angle = float(position) * rope.inv_freq[i];
    cosine[i] = std::cos(angle) * rope.attention_factor;
    sine[i] = std::sin(angle) * rope.attention_factor;
  }
}

inline void rotate(const kt_rope &rope, const float *cosine, const float *sine, float *head) {
  const int half = rope.dims / 2, step = rope.interleaved ? 2 : 1,
            other = rope.interleaved ? 1 : half;
  for (int i = 0; i < half; i++) {
    const float a = head[i * step], b = head[i * step + other];
    head[i * step] = a * cosine[i] - b * sine[i];
    head[i * step + other] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace kt
