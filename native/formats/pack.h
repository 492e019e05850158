// Packing one panel: 16 source rows to lines and meta.
#pragma once
#include <cmath>

#include "sources.h"

namespace kt {

// Row r's 32 codes into the lines of block b.
template <class F>
inline void scatter_codes(uint8_t *lines, int r, const Codes &c) {
  uint32_t four[8];
  std::memcpy(four, c.q, 32);
  if constexpr (F::kBits == 8) {
    for (int j = 0; j < 8; j++) std::memcpy(lines + j * 64 + r * 4, four + j, 4);
  } else {
    for (int j = 0; j < 4; j++) {
      const uint32_t both = four[2 * j] | four[2 * j + 1] << 4;
      std::memcpy(lines + j * 64 + r * 4, &both, 4);
    }
  }
}

// rows: up to 16 source rows. k_used columns hold data, the rest of the last block is zero.
template <class F>
inline void pack_panel(int format, int source, const uint8_t *src, int64_t row_bytes, int rows,
                       int64_t k, uint8_t *panel) {
  const PanelLayout p = panel_layout<F>(k);
  std::memset(panel, 0, size_t(p.bytes));
  for (int r = 0; r < rows; r++) {
    const uint8_t *row = src + r * row_bytes;
    for (int64_t b = 0; b < p.blocks; b++) {
      uint8_t *lines = panel + b * block_bytes<F>();
      float x[32] = {};
      const bool floats = is_float_source(source);
      if (floats) load_floats(source, row, b * 32, std::min<int64_t>(32, k - b * 32), x);
      if constexpr (F::kKind == Kind::kF32) {
        for (int i = 0; i < 32; i++) std::memcpy(lines + i * 64 + r * 4, x + i, 4);
      } else if constexpr (F::kKind == Kind::kF16) {
        for (int i = 0; i < 32; i++)
          store_u16(lines + i / 2 * 64 + i % 2 * 32 + r * 2, float_to_half(x[i]));
      } else if constexpr (F::kKind == Kind::kBf16) {
        for (int i = 0; i < 32; i++)
          store_u16(lines + i / 2 * 64 + r * 4 + i % 2 * 2, float_to_bf16(x[i]));
      } else {
        Codes c;
        if (floats)
          quantise_block(format, x, b, r, panel + p.line_bytes, c);
        else
          decode_block(source, row, b, r, panel + p.line_bytes, c);
        scatter_codes<F>(lines, r, c);
      }
    }
  }
}

// Whether a source can be packed into a format.
inline bool can_pack(int format, int source, int64_t k) {
  if (is_float_source(source))
    return format == KT_F32 || format == KT_F16 || format == KT_BF16 || format == KT_I8_G32 ||
           format == KT_I4_G32 || format == KT_I4_G32M;
  return source_format(source) == format && k % source_block_k(source) == 0;
}

}  // namespace kt
