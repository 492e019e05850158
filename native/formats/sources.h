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
  SRC_Q2_K = 10,
  SRC_Q3_K = 11,
  SRC_Q4_K = 12,
  SRC_Q5_K = 13,
  SRC_Q6_K = 14,
  SRC_IQ2_XXS = 16,
  SRC_IQ2_XS = 17,
  SRC_IQ3_XXS = 18,
  SRC_IQ1_S = 19,
  SRC_IQ4_NL = 20,
  SRC_IQ3_S = 21,
  SRC_IQ2_S = 22,
  SRC_IQ4_XS = 23,
  SRC_IQ1_M = 29,
  SRC_BF16 = 30,
  SRC_MXFP4 = 39
};

// Values from .. from + count of a float row, or of a row of scales.
inline float load_float(int type, const uint8_t *row, int64_t i) {
  if (type == SRC_F32) return load_f32(row + i * 4);
  return type == SRC_F16 ? half_to_float(load_u16(row + i * 2))
                         : bf16_to_float(load_u16(row + i * 2));
}
inline bool is_float_source(int s) { return s == SRC_F32 || s == SRC_F16 || s == SRC_BF16; }

// Block sources: bytes and K of a block, and the packed format of its codes and scales; entries of
// the grid that its codes come from (iq.h), or 0.
struct BlockSource {
  int source, bytes, k, format, grid = 0;
};
constexpr BlockSource kBlockSources[] = {
    {SRC_Q4_0, 18, 32, KT_I4_G32},
    {SRC_Q4_1, 20, 32, KT_I4_G32M},
    {SRC_Q5_0, 22, 32, KT_I5_G32},
    {SRC_Q5_1, 24, 32, KT_I5_G32M},
    {SRC_Q8_0, 34, 32, KT_I8_G32},
    {SRC_Q2_K, 84, 256, KT_I2_K16M},
    {SRC_Q3_K, 110, 256, KT_I3_K16},
    {SRC_Q4_K, 144, 256, KT_I4_K32M},
    {SRC_Q5_K, 176, 256, KT_I5_K32M},
    {SRC_Q6_K, 210, 256, KT_I6_K16},
    {SRC_IQ4_NL, 18, 32, KT_I4_NL},
    {SRC_IQ4_XS, 136, 256, KT_I4_NLK},
    {SRC_MXFP4, 17, 32, KT_F4_MX},
    {SRC_IQ1_S, 50, 256, KT_I2_IQ1S, 2048},
    {SRC_IQ1_M, 56, 256, KT_I3_IQ1M, 2048},
    {SRC_IQ2_XXS, 66, 256, KT_I3_IQ2XXS, 256},
    {SRC_IQ2_XS, 74, 256, KT_I3_IQ2, 512},
    {SRC_IQ2_S, 82, 256, KT_I3_IQ2, 1024},
    {SRC_IQ3_XXS, 98, 256, KT_I4_IQ3XXS, 256},
    {SRC_IQ3_S, 110, 256, KT_I4_IQ3S, 512},
};
inline const BlockSource *block_source(int source) {
  for (const BlockSource &b : kBlockSources)
    if (b.source == source) return &b;
  return nullptr;
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

// 6-bit scale j (0 .. 15), minus 32, of the 12 packed bytes of Q3_K.
inline int8_t q3_scale(const uint8_t *s, int j) {
  const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
  return int8_t((low | (s[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32);
}

// Raw codes of 32 K (block b of the row) of a block source without a grid, and row r's part of the
// scale record and head.
inline void decode_block(const BlockSource &source, const uint8_t *row, int64_t b, int r,
                         uint8_t *meta, uint8_t *head, uint8_t *q) {
  const uint8_t *s = row + (source.k == 32 ? b : b / 8) * source.bytes;
  const int sub = int(b % 8);  // in a super-block
  const auto nibbles = [&](const uint8_t *p) {
    for (int i = 0; i < 16; i++) q[i] = p[i] & 15, q[i + 16] = p[i] >> 4;
  };
  const auto fifth_bits = [&](const uint8_t *p) {
    uint32_t h;
    std::memcpy(&h, p, 4);
    for (int i = 0; i < 32; i++) q[i] |= uint8_t(((h >> i) & 1) << 4);
  };
  const auto scale_f16 = [&](const uint8_t *from) { std::memcpy(meta + b * 32 + r * 2, from, 2); };
  const auto scale_min_f16 = [&] {
    std::memcpy(meta + b * 64 + r * 2, s, 2);
    std::memcpy(meta + b * 64 + 32 + r * 2, s + 2, 2);
  };
  switch (source.source) {
    case SRC_Q4_0:
      nibbles(s + 2);
      return scale_f16(s);
    case SRC_IQ4_NL:
      nibbles(s + 2);
      return scale_f16(s);
    case SRC_Q4_1:
      nibbles(s + 4);
      return scale_min_f16();
    case SRC_Q5_0:
      nibbles(s + 6);
      fifth_bits(s + 2);
      return scale_f16(s);
    case SRC_Q5_1:
      nibbles(s + 8);
      fifth_bits(s + 4);
      return scale_min_f16();
    case SRC_Q8_0:
      for (int i = 0; i < 32; i++) q[i] = s[2 + i] ^ 0x80;
      return scale_f16(s);
    case SRC_MXFP4:
      nibbles(s + 1);
      meta[b * 16 + r] = s[0];
      return;
    case SRC_Q2_K: {
      const uint8_t *p = s + 16 + sub / 4 * 32;
      for (int i = 0; i < 32; i++) q[i] = p[i] >> (sub % 4 * 2) & 3;
      uint8_t *m = meta + b * ScalesK16Min::kBytes;
      std::memcpy(head + r * 2, s + 80, 2);
      std::memcpy(head + 32 + r * 2, s + 82, 2);
      for (int g = 0; g < 2; g++) m[g * 16 + r] = s[sub * 2 + g];
      return;
    }
    case SRC_Q3_K: {
      const uint8_t *p = s + 32 + sub / 4 * 32;  // the first 32 bytes: third bits
      for (int i = 0; i < 32; i++)
        q[i] = uint8_t((p[i] >> (sub % 4 * 2) & 3) | (s[i] >> sub & 1) << 2);
      uint8_t *m = meta + b * ScalesK16<>::kBytes;
      std::memcpy(head + r * 2, s + 108, 2);
      for (int g = 0; g < 2; g++) m[g * 16 + r] = uint8_t(q3_scale(s + 96, sub * 2 + g));
      return;
    }
    case SRC_Q4_K:
    case SRC_Q5_K: {
      const bool five = source.source == SRC_Q5_K;
      const uint8_t *p = s + (five ? 48 : 16) + sub / 2 * 32;
      for (int i = 0; i < 32; i++) {
        q[i] = (p[i] >> (sub % 2 * 4)) & 15;
        if (five) q[i] |= uint8_t(((s[16 + i] >> sub) & 1) << 4);
      }
      uint8_t *m = meta + b * ScalesK32Min::kBytes;
      std::memcpy(head + r * 2, s, 2);
      std::memcpy(head + 32 + r * 2, s + 2, 2);
      k_scale_min(s + 4, sub, m + r, m + 16 + r);
      return;
    }
    case SRC_Q6_K: {
      const uint8_t *lo = s + sub / 4 * 64 + sub % 2 * 32, *hi = s + 128 + sub / 4 * 32;
      const int low_shift = sub % 4 / 2 * 4, high_shift = sub % 4 * 2;
      for (int i = 0; i < 32; i++)
        q[i] = uint8_t(((lo[i] >> low_shift) & 15) | (((hi[i] >> high_shift) & 3) << 4));
      uint8_t *m = meta + b * ScalesK16<>::kBytes;
      std::memcpy(head + r * 2, s + 208, 2);
      m[r] = s[192 + sub * 2];
      m[16 + r] = s[192 + sub * 2 + 1];
      return;
    }
    case SRC_IQ4_XS: {
      nibbles(s + 8 + sub * 16);
      std::memcpy(head + r * 2, s, 2);
      const int low = s[4 + sub / 2] >> (sub % 2 * 4) & 15, high = load_u16(s + 2) >> (2 * sub) & 3;
      meta[b * ScalesK32<>::kBytes + r] = uint8_t(int8_t((low | high << 4) - 32));
      return;
    }
  }
}

// Raw codes of 32 K of row n of a source whose scales lie apart; K from `end` on is left as it is.
inline void load_codes(const kt_source &s, int64_t n, int64_t first, int64_t end, uint8_t *q) {
  static constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // of row n % 8 among the nibbles
  const uint8_t *data = static_cast<const uint8_t *>(s.data), *row = data + n * s.row_bytes;
  const int count = int(end - first);
  switch (s.encoding) {
    case KT_SRC_I8:
      for (int i = 0; i < count; i++) q[i] = row[first + i] ^ 0x80;
      return;
    case KT_SRC_E4M3:
      std::memcpy(q, row + first, size_t(count));
      return;
    case KT_SRC_U4:
      row += first / 2;
      for (int i = 0; i < count / 2; i++) q[2 * i] = row[i] & 15, q[2 * i + 1] = row[i] >> 4;
      if (count % 2) q[count - 1] = row[count / 2] & 15;
      return;
    case KT_SRC_GPTQ:
      for (int i = 0; i < count; i++) {
        const uint8_t *word = data + (first + i) / 8 * s.row_bytes + n * 4;
        q[i] = word[i % 8 / 2] >> (i % 2 * 4) & 15;
      }
      return;
    case KT_SRC_AWQ: {
      const int place = kAwqPlace[n % 8];
      const uint8_t *at = data + first * s.row_bytes + n / 8 * 4 + place / 2;
      for (int i = 0; i < count; i++) q[i] = at[i * s.row_bytes] >> (place % 2 * 4) & 15;
      return;
    }
  }
}

}  // namespace kt
