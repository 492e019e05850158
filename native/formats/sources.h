// Source encodings, block by block, to codes and scales or to floats. Numbers are GGUF's.
// The block layouts are those of the GGUF types (ggml's quantisation formats).
#pragma once
#include "layout.h"

namespace kt {

enum Source {
  SRC_F32 = 0,
  SRC_F16 = 1,
  SRC_Q4_0 = 2,
  SRC_Q4_1 = 3,
  SRC_Q5_0 = 6,
  SRC_Q5_1 = 7,
  SRC_Q8_0 = 8,
  SRC_Q4_K = 12,
  SRC_Q5_K = 13,
  SRC_Q6_K = 14,
  SRC_BF16 = 30
};

// One row's 32 codes and what its scale record holds for them.
struct Codes {
  uint8_t q[32];
};

inline void load_floats(int source, const uint8_t *row, int64_t from, int64_t count, float *out) {
  for (int64_t i = 0; i < count; i++) {
    const int64_t j = from + i;
    if (source == SRC_F32)
      std::memcpy(out + i, row + j * 4, 4);
    else if (source == SRC_F16)
      out[i] = half_to_float(load_u16(row + j * 2));
    else
      out[i] = bf16_to_float(load_u16(row + j * 2));
  }
}
inline bool is_float_source(int s) { return s == SRC_F32 || s == SRC_F16 || s == SRC_BF16; }

// Bytes of a block of 32 (or of a super-block of 256) and its K.
inline int64_t source_block_bytes(int s) {
  switch (s) {
    case SRC_Q4_0:
      return 18;
    case SRC_Q4_1:
      return 20;
    case SRC_Q5_0:
      return 22;
    case SRC_Q5_1:
      return 24;
    case SRC_Q8_0:
      return 34;
    case SRC_Q4_K:
      return 144;
    case SRC_Q5_K:
      return 176;
    case SRC_Q6_K:
      return 210;
    default:
      return 0;
  }
}
inline int source_block_k(int s) {
  return s == SRC_Q4_K || s == SRC_Q5_K || s == SRC_Q6_K ? 256 : 32;
}

// The packed format a block source goes into; -1: not a block source.
inline int source_format(int s) {
  switch (s) {
    case SRC_Q4_0:
      return KT_I4_G32;
    case SRC_Q4_1:
      return KT_I4_G32M;
    case SRC_Q5_0:
      return KT_I5_G32;
    case SRC_Q5_1:
      return KT_I8_G32M;
    case SRC_Q8_0:
      return KT_I8_G32;
    case SRC_Q4_K:
      return KT_I4_K32M;
    case SRC_Q5_K:
      return KT_I8_K32M;
    case SRC_Q6_K:
      return KT_I8_K16;
    default:
      return -1;
  }
}

// 6-bit scale and minimum j of the 12 packed bytes of Q4_K and Q5_K.
inline void k_scale_min(const uint8_t *s, int j, uint8_t *scale, uint8_t *minimum) {
  if (j < 4) {
    *scale = s[j] & 63, *minimum = s[j + 4] & 63;
  } else {
    *scale = uint8_t((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
    *minimum = uint8_t((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
  }
}

// Codes of 32 K (block b of the row) of a block source; meta of row r is written in the packed
// form.
inline void decode_block(int source, const uint8_t *row, int64_t b, int r, uint8_t *meta,
                         Codes &c) {
  const int64_t bytes = source_block_bytes(source);
  const int k = source_block_k(source);
  const uint8_t *s = row + (k == 32 ? b : b / 8) * bytes;
  const int sub = int(b % 8);  // in a super-block
  const auto nibbles = [&](const uint8_t *p) {
    for (int i = 0; i < 16; i++) c.q[i] = p[i] & 15, c.q[i + 16] = p[i] >> 4;
  };
  const auto fifth_bits = [&](const uint8_t *p) {
    uint32_t h;
    std::memcpy(&h, p, 4);
    for (int i = 0; i < 32; i++) c.q[i] |= uint8_t(((h >> i) & 1) << 4);
  };
  switch (source) {
    case SRC_Q4_0:
      nibbles(s + 2);
      break;
    case SRC_Q4_1:
      nibbles(s + 4);
      break;
    case SRC_Q5_0:
      nibbles(s + 6);
      fifth_bits(s + 2);
      break;
    case SRC_Q5_1:
      nibbles(s + 8);
      fifth_bits(s + 4);
      break;
    case SRC_Q8_0:
      for (int i = 0; i < 32; i++) c.q[i] = s[2 + i] ^ 0x80;
      break;
    case SRC_Q4_K:
    case SRC_Q5_K: {
      const bool five = source == SRC_Q5_K;
      const uint8_t *q = s + (five ? 48 : 16) + sub / 2 * 32;
      const int shift = sub % 2 * 4;
      for (int i = 0; i < 32; i++) {
        c.q[i] = (q[i] >> shift) & 15;
        if (five) c.q[i] |= uint8_t(((s[16 + i] >> sub) & 1) << 4);
      }
      break;
    }
    case SRC_Q6_K: {
      const uint8_t *lo = s + sub / 4 * 64 + sub % 2 * 32, *hi = s + 128 + sub / 4 * 32;
      const int low_shift = sub % 4 / 2 * 4, high_shift = sub % 4 * 2;
      for (int i = 0; i < 32; i++)
        c.q[i] = uint8_t(((lo[i] >> low_shift) & 15) | (((hi[i] >> high_shift) & 3) << 4));
      break;
    }
  }
  switch (source) {
    case SRC_Q4_0:
    case SRC_Q5_0:
    case SRC_Q8_0:
      std::memcpy(meta + b * 32 + r * 2, s, 2);
      break;
    case SRC_Q4_1:
    case SRC_Q5_1:
      std::memcpy(meta + b * 64 + r * 2, s, 2);
      std::memcpy(meta + b * 64 + 32 + r * 2, s + 2, 2);
      break;
    case SRC_Q4_K:
    case SRC_Q5_K: {
      uint8_t *m = meta + b / 8 * ScalesK32Min::kBytes;
      std::memcpy(m + r * 2, s, 2);
      std::memcpy(m + 32 + r * 2, s + 2, 2);
      k_scale_min(s + 4, sub, m + 64 + sub * 32 + r, m + 64 + sub * 32 + 16 + r);
      break;
    }
    case SRC_Q6_K: {
      uint8_t *m = meta + b / 8 * ScalesK16::kBytes;
      std::memcpy(m + r * 2, s + 208, 2);
      m[32 + sub * 32 + r] = s[192 + sub * 2];
      m[32 + sub * 32 + 16 + r] = s[192 + sub * 2 + 1];
      break;
    }
  }
}

// Rounds 32 floats to nearest codes of a float16-scaled format; writes row r's meta.
inline void quantise_block(int format, const float *x, int64_t b, int r, uint8_t *meta, Codes &c) {
  float low = x[0], high = x[0], peak = x[0];
  for (int i = 1; i < 32; i++) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
    peak = std::fabs(x[i]) > std::fabs(peak) ? x[i] : peak;
  }
  const auto code = [](float v, int top) {
    const float q = std::nearbyint(v);
    return uint8_t(q < 0 ? 0 : q > top ? top : q);
  };
  if (format == KT_I4_G32M) {
    const uint16_t d = float_to_half((high - low) / 15), m = float_to_half(low);
    const float scale = half_to_float(d), inverse = scale > 0 ? 1 / scale : 0;
    for (int i = 0; i < 32; i++) c.q[i] = code((x[i] - half_to_float(m)) * inverse, 15);
    store_u16(meta + b * 64 + r * 2, d);
    store_u16(meta + b * 64 + 32 + r * 2, m);
    return;
  }
  const int zero = format == KT_I8_G32 ? 128 : 8;
  // 4 bits: the largest value sits on code 0, so its sign decides the scale's.
  const uint16_t d = float_to_half(format == KT_I8_G32 ? std::fabs(peak) / 127 : peak / -8);
  const float scale = half_to_float(d), inverse = scale != 0 ? 1 / scale : 0;
  for (int i = 0; i < 32; i++) c.q[i] = code(x[i] * inverse + zero, 2 * zero - 1);
  store_u16(meta + b * 32 + r * 2, d);
}

}  // namespace kt
