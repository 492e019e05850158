// Packing one panel: 16 source rows to lines and scale records.
#pragma once
#include <algorithm>

#include "search.h"

namespace kt {

// Row n's part of the record of block b, for a source whose scales lie apart.
template <class S>
inline void put_scales(const kt_source &s, int64_t n, int64_t k, int64_t b, int r, uint8_t *meta) {
  if (b % S::kSuper) return;
  uint8_t *record = meta + b / S::kSuper * S::kBytes;
  const int64_t row = n / s.scale_rows * s.scale_stride;
  for (int g = 0; g < 32 / std::min(S::kGroup, 32); g++) {
    const int64_t first = b * 32 + g * S::kGroup;
    if (first >= k) return;  // the second 16 K of a last block may not exist
    const int64_t at = row + first / s.scale_k;
    const uint8_t *scales = static_cast<const uint8_t *>(s.scales);
    if (s.scale_type == KT_SCALE_BYTE) {
      record[g * 16 + r] = scales[at];
    } else if (S::kBytes == 32) {  // bfloat16
      store_u16(record + r * 2, float_to_bf16(load_float(s.scale_type, scales, at)));
    } else {
      store_f32(record + r * 4, load_float(s.scale_type, scales, at));
      if (S::kMin) record[64 + r] = s.zeros ? s.zeros[at] : 8;
    }
  }
}

template <class F>
inline void pack_floats(const float *x, uint8_t *lines, int r) {
  for (int i = 0; i < 32; i++) {
    if constexpr (F::kKind == Kind::kF32)
      store_f32(lines + i * 64 + r * 4, x[i]);
    else if constexpr (F::kKind == Kind::kF16)
      store_u16(lines + i / 2 * 64 + i % 2 * 32 + r * 2, float_to_half(x[i]));
    else
      store_u16(lines + i / 2 * 64 + r * 4 + i % 2 * 2, float_to_bf16(x[i]));
  }
}

inline void load_floats(const kt_source &s, int64_t n, int64_t first, int64_t end, float *x) {
  const uint8_t *row = static_cast<const uint8_t *>(s.data) + n * s.row_bytes;
  for (int64_t k = first; k < end; k++) x[k - first] = load_float(s.encoding, row, k);
}

// FP8 codes of 32 K of row n; a scale per 128 K puts their largest value on 448.
inline void quantise_fp8(const kt_source &s, int64_t n, int64_t b, int64_t k, int r, uint8_t *meta,
                         uint8_t *q) {
  uint8_t *record = meta + b / 4 * ScalesF32<4>::kBytes + r * 4;
  if (b % 4 == 0) {
    float x[128] = {}, peak = 0;
    load_floats(s, n, b * 32, std::min(k, b * 32 + 128), x);
    for (float v : x) peak = std::fabs(v) > peak ? std::fabs(v) : peak;
    store_f32(record, peak / 448);
  }
  const float scale = load_f32(record), inverse = scale > 0 ? 1 / scale : 0;
  float x[32] = {};
  load_floats(s, n, b * 32, std::min(k, b * 32 + 32), x);
  for (int i = 0; i < 32; i++) q[i] = float_to_e4m3(x[i] * inverse);
}

// A panel of 4-bit codes from floats, by search.
template <class F>
inline void pack_searched(int format, const kt_source &source, int64_t n, int rows, int64_t k,
                          uint8_t *panel) {
  const PanelLayout p = panel_layout<F>(k);
  std::memset(panel, 0, size_t(p.bytes));
  for (int64_t b = 0; b < p.blocks; b++) {
    const int64_t end = std::min(k, b * 32 + 32);
    SearchBlock block = {};
    for (int64_t i = b * 32; i < end; i++)
      block.weight[i - b * 32] = source.importance ? source.importance[i] : 1;
    for (int r = 0; r < rows; r++) {
      float x[32] = {};
      load_floats(source, n + r, b * 32, end, x);
      for (int i = 0; i < 32; i++) block.x[i][r] = x[i];
    }
    uint8_t q[kPanel][32] = {};
    search_block(format, block, b, rows, panel + p.line_bytes, q);
    F::Codes::store(panel + b * F::kBlockBytes, q);
  }
}

// Codes of rows n .. n + rows of the source; the rows and columns beyond it are zero.
template <class F>
inline void pack_panel(int format, const kt_source &source, int64_t n, int rows, int64_t k,
                       uint8_t *panel) {
  const bool floats = is_float_source(source.encoding);
  if constexpr (F::kKind == Kind::kInt)
    if (floats && source.search && format != KT_I8_G32)
      return pack_searched<F>(format, source, n, rows, k, panel);
  const PanelLayout p = panel_layout<F>(k);
  const BlockSource *blocks = block_source(source.encoding);
  uint8_t *meta = panel + p.line_bytes;
  std::memset(panel, 0, size_t(p.bytes));
  for (int64_t b = 0; b < p.blocks; b++) {
    uint8_t *lines = panel + b * F::kBlockBytes;
    const int64_t end = std::min(k, b * 32 + 32);
    uint8_t codes[kPanel][32] = {};
    for (int r = 0; r < rows; r++) {
      const uint8_t *row = static_cast<const uint8_t *>(source.data) + (n + r) * source.row_bytes;
      if (F::kKind == Kind::kBf16 && source.encoding == SRC_BF16 && end == b * 32 + 32) {
        for (int i = 0; i < 16; i++) std::memcpy(lines + i * 64 + r * 4, row + b * 64 + i * 4, 4);
        continue;
      }
      float x[32] = {};
      uint8_t *q = codes[r];
      if (floats) load_floats(source, n + r, b * 32, end, x);
      if constexpr (!has_scales<F>()) {
        pack_floats<F>(x, lines, r);
        continue;
      } else if constexpr (F::kKind == Kind::kFp8) {
        if (floats) quantise_fp8(source, n + r, b, k, r, meta, q);
      } else {
        std::memset(q, F::kZeroLog2 > 0 && !F::Codes::kTable ? F::kZero : 0, 32);
        if (floats) quantise_block(format, x, b, r, meta, q);
        if (blocks) decode_block(*blocks, row, b, r, meta, q);
      }
      if constexpr (has_scales<F>()) {
        if (floats || blocks) continue;
        load_codes(source, n + r, b * 32, end, q);
        put_scales<typename F::Scales>(source, n + r, k, b, r, meta);
      }
    }
    if constexpr (F::kKind == Kind::kFp8) {
      for (int r = 0; r < rows; r++)
        for (int i = 0; i < 32; i++) lines[i / 4 * 64 + r * 4 + fp8_byte(i % 4)] = codes[r][i];
    } else if constexpr (F::kKind == Kind::kInt) {
      F::Codes::store(lines, codes);
    }
  }
}

// Whether a source can be packed into a format.
inline bool can_pack(int format, const kt_source &s, int64_t k) {
  if (is_float_source(s.encoding))
    return format == KT_F32 || format == KT_F16 || format == KT_BF16 || format == KT_F8_G128 ||
           format == KT_I8_G32 || format == KT_I4_G32 || format == KT_I4_G32M;
  if (const BlockSource *blocks = block_source(s.encoding))
    return blocks->format == format && k % blocks->k == 0;
  if (!s.scales || s.scale_rows < 1 || s.scale_k < 1) return false;
  const bool bytes = s.scale_type == KT_SCALE_BYTE, whole = s.scale_k >= k;
  const auto groups = [&](int of) { return whole || s.scale_k % of == 0; };
  if (s.encoding == KT_SRC_I8) return format == KT_I8_ROW && !bytes && whole && !s.zeros;
  if (s.encoding == KT_SRC_E4M3)
    return bytes ? format == KT_F8_MX && groups(32)
                 : (format == KT_F8_ROW && whole) || (format == KT_F8_G128 && groups(128));
  if (s.encoding != KT_SRC_U4 && s.encoding != KT_SRC_GPTQ && s.encoding != KT_SRC_AWQ)
    return false;
  if (bytes) return (format == KT_F4_MX && groups(32)) || (format == KT_F4_NV && groups(16));
  if (format == KT_I4_B32) return s.scale_type == KT_SCALE_BF16 && !s.zeros && groups(32);
  return (format == KT_I4_Z32 && groups(32)) || (format == KT_I4_Z64 && groups(64)) ||
         (format == KT_I4_Z128 && groups(128));
}

}  // namespace kt
