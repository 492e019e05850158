// GGUF's IQ1, IQ2 and IQ3 types: what a block holds are numbers of entries of a grid, each entry
// the sizes of 8 (IQ3: 4) consecutive values, and their signs. Packed, every value has a code of
// its own (codes.h): the entry's, with the sign above it. The layouts are ggml's.
#pragma once
#include "sources.h"

namespace kt {

// Seven signs of an IQ type; the eighth makes their number even.
inline uint8_t eight_signs(uint32_t seven) {
  seven &= 127;
  uint32_t parity = seven ^ seven >> 4;  // of few instructions that every CPU has
  parity ^= parity >> 2, parity ^= parity >> 1;
  return uint8_t(seven | parity << 7);
}

// Writes codes and scale bytes of 32 K: entries [8 or 4 numbers of the grid] of Width codes.
template <int Width>
inline void grid_codes(const uint8_t *grid, const int *entry, uint8_t *q) {
  for (int i = 0; i < 32 / Width; i++) std::memcpy(q + i * Width, grid + entry[i] * Width, Width);
}
template <int SignBit>
inline void add_signs(const uint8_t *signs, uint8_t *q) {
  for (int i = 0; i < 32; i++) q[i] |= uint8_t((signs[i / 8] >> i % 8 & 1) << SignBit);
}
inline uint32_t load_u32(const uint8_t *p) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  return x;
}

// As decode_block, for the types with a grid.
inline void decode_grid_block(const BlockSource &source, const uint8_t *grid, const uint8_t *row,
                              int64_t b, int r, uint8_t *meta, uint8_t *head, uint8_t *q) {
  const uint8_t *s = row + b / 8 * source.bytes;
  const int sub = int(b % 8);
  int entry[8];
  uint8_t signs[4];
  const auto odd = [](uint32_t scale) { return uint8_t(2 * scale + 1); };
  const auto record = [&](int bytes, const uint8_t *d) {
    std::memcpy(head + r * 2, d, 2);
    return meta + b * bytes + r;
  };
  switch (source.source) {
    case SRC_IQ1_S: {  // d, 32 low bytes of entries, 8 words: high bits, scale, sign of the shift
      const uint32_t high = load_u16(s + 34 + sub * 2);
      for (int l = 0; l < 4; l++) entry[l] = int(s[2 + sub * 4 + l] | (high >> 3 * l & 7) << 8);
      grid_codes<8>(grid, entry, q);
      *record(ScalesIq1::kBytes, s) = uint8_t(odd(high >> 12 & 7) | (high >> 15) << 7);
      return;
    }
    case SRC_IQ1_M: {  // 32 low bytes, 16 bytes of high bits and shifts, 4 words: scales and d
      for (int l = 0; l < 4; l++) {
        const uint32_t high = s[32 + sub * 2 + l / 2] >> l % 2 * 4 & 15;
        entry[l] = int(s[sub * 4 + l] | (high & 7) << 8);
        signs[l] = high & 8 ? 255 : 0;
      }
      grid_codes<8>(grid, entry, q);
      add_signs<2>(signs, q);
      uint8_t d[2] = {uint8_t(s[49] >> 4 | (s[51] & 0xf0)), uint8_t(s[53] >> 4 | (s[55] & 0xf0))};
      uint8_t *scale = record(ScalesK16<>::kBytes, d);
      for (int g = 0; g < 2; g++)
        scale[g * 16] = odd(load_u16(s + 48 + sub / 2 * 2) >> (sub % 2 * 6 + g * 3) & 7);
      return;
    }
    case SRC_IQ2_XXS: {  // d; per 32: 4 entries, and a word of signs and scale
      const uint8_t *p = s + 2 + sub * 8;
      const uint32_t word = load_u32(p + 4);
      for (int l = 0; l < 4; l++) entry[l] = p[l], signs[l] = eight_signs(word >> 7 * l);
      grid_codes<8>(grid, entry, q);
      add_signs<2>(signs, q);
      *record(ScalesK32<>::kBytes, s) = odd(word >> 28);
      return;
    }
    case SRC_IQ2_XS:  // d, 32 words: entry and signs; 8 bytes: two scales each
    case SRC_IQ2_S: {  // d, 32 low bytes, 32 bytes of signs, 8 of high bits, 8 of scales
      for (int l = 0; l < 4; l++)
        if (source.source == SRC_IQ2_XS) {
          const uint32_t word = load_u16(s + 2 + sub * 8 + l * 2);
          entry[l] = int(word & 511), signs[l] = eight_signs(word >> 9);
        } else {
          entry[l] = s[2 + sub * 4 + l] | (s[66 + sub] >> 2 * l & 3) << 8;
          signs[l] = s[34 + sub * 4 + l];
        }
      grid_codes<8>(grid, entry, q);
      add_signs<2>(signs, q);
      uint8_t *scale = record(ScalesK16<>::kBytes, s);
      const uint8_t both = s[source.bytes - 8 + sub];
      scale[0] = odd(both & 15), scale[16] = odd(both >> 4);
      return;
    }
    case SRC_IQ3_XXS: {  // d, 64 entries, 8 words of signs and scale
      const uint32_t word = load_u32(s + 66 + sub * 4);
      for (int l = 0; l < 8; l++) entry[l] = s[2 + sub * 8 + l];
      for (int l = 0; l < 4; l++) signs[l] = eight_signs(word >> 7 * l);
      grid_codes<4>(grid, entry, q);
      add_signs<3>(signs, q);
      *record(ScalesK32<>::kBytes, s) = odd(word >> 28);
      return;
    }
    case SRC_IQ3_S: {  // d, 64 low bytes, 8 bytes of high bits, 32 of signs, 4 of scales
      for (int l = 0; l < 8; l++) entry[l] = s[2 + sub * 8 + l] | (s[66 + sub] >> l & 1) << 8;
      grid_codes<4>(grid, entry, q);
      add_signs<3>(s + 74 + sub * 4, q);
      *record(ScalesK32<>::kBytes, s) = odd(s[106 + sub / 2] >> sub % 2 * 4 & 15);
      return;
    }
  }
}

}  // namespace kt
