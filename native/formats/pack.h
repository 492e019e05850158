// Packing one panel: 16 source rows to lines and scale records.
#pragma once
#include <algorithm>

#include "iq.h"
#include "search.h"

namespace kt {

// Row n's part of the record of block b, for a source whose scales lie apart.
template <class S>
inline void put_scales(const kt_source &s, int64_t n, int64_t k, int64_t b, int r, uint8_t *meta) {
  if (b % S::kSuper) return;
  uint8_t *record = meta + b / S::kSuper * S::kBytes;
  const int64_t row = n / s.scale_rows * s.scale_stride;
  for (int g = 0; g < 32 / S::kGroup; g++) {
    const int64_t first = b * 32 + g * S::kGroup;
    if (first >= k) return;  // the second 16 K of a last block may not exist
    const int64_t at = row + first / s.scale_k;
    const uint8_t *scales = static_cast<const uint8_t *>(s.scales);
    if constexpr (S::kStored == KT_SCALE_BYTE) {
      record[g * 16 + r] = scales[at];
    } else {
      const float scale = load_float(s.scale_type, scales, at);
      if constexpr (S::kStored == KT_SCALE_F16) store_u16(record + r * 2, float_to_half(scale));
      if constexpr (S::kStored == KT_SCALE_BF16) store_u16(record + r * 2, float_to_bf16(scale));
      if constexpr (S::kStored == KT_SCALE_F32) store_f32(record + r * 4, scale);
      if constexpr (S::kZeros) record[S::kBytes - 16 + r] = s.zeros ? s.zeros[at] : 8;
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

// A panel of codes from floats, group by group: to nearest, or by search.
template <class F>
inline void pack_rounded(const kt_source &source, int64_t n, int rows, int64_t k, uint8_t *panel) {
  constexpr int G = group_of<F>(), kBlocks = F::Scales::kSuper;
  const PanelLayout p = panel_layout<F>(k);
  std::memset(panel, 0, size_t(p.bytes));
  for (int64_t b = 0; b < p.blocks; b += kBlocks) {
    const int64_t first = b * 32, end = std::min(k, first + G);
    Group<G> group = {};  // what lies beyond k is zero and counts nothing
    for (int64_t i = first; i < end; i++)
      group.weight[i - first] = source.importance ? source.importance[i] : 1;
    for (int r = 0; r < rows; r++) {
      float x[G] = {};
      load_floats(source, n + r, first, end, x);
      for (int i = 0; i < G; i++) group.x[i][r] = x[i];
    }
    uint8_t q[kBlocks][kPanel][32] = {};
    uint8_t *record = panel + records_offset<F>(b) + b / kBlocks * F::Scales::kBytes;
    const bool search = F::kBits == 4 && source.search;
    if constexpr (F::kBits == 4) {
      if (search) search_group<F>(group, rows, record, q);
    }
    for (int r = 0; r < rows && !search; r++) round_row<F>(group, r, record, q);
    for (int i = 0; i < kBlocks && b + i < p.blocks; i++)
      F::Codes::store(panel + p.first_lines + lines_offset<F>(b + i, p.blocks), q[i]);
  }
}

// Codes of rows n .. n + rows of the source; the rows and columns beyond it are zero.
template <class F>
inline void pack_panel(const kt_source &source, int64_t n, int rows, int64_t k, uint8_t *panel) {
  const bool floats = is_float_source(source.encoding);
  if constexpr (is_rounded<F>())
    if (floats) return pack_rounded<F>(source, n, rows, k, panel);
  const PanelLayout p = panel_layout<F>(k);
  const BlockSource *blocks = block_source(source.encoding);
  std::memset(panel, 0, size_t(p.bytes));
  for (int64_t b = 0; b < p.blocks; b++) {
    uint8_t *lines = panel + p.first_lines + lines_offset<F>(b, p.blocks), *meta = panel,
            *head = panel;
    if constexpr (has_scales<F>()) meta += records_offset<F>(b), head += head_offset<F>(b);
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
        if (blocks && blocks->grid)
          decode_grid_block(*blocks, source.grid, row, b, r, meta, head, q);
        else if (blocks)
          decode_block(*blocks, row, b, r, meta, head, q);
      }
      if constexpr (has_scales<F>()) {
        if (floats || blocks) continue;
        load_codes(source, n + r, b * 32, end, q);
        put_scales<typename F::Scales>(source, n + r, k, b, r, meta);
      }
    }
    if constexpr (F::kKind == Kind::kFp8) {
      for (int r = 0; r < rows; r++)
        for (int i = 0; i < 32; i++) {
          lines[i / 4 * 64 + r * 4 + fp8_byte(i % 4)] = codes[r][i];
          if ((codes[r][i] & 0x7f) == 0x7f) F::Scales::put_nan(meta, b, r);
        }
    } else if constexpr (F::kKind == Kind::kInt) {
      F::Codes::store(lines, codes);
    }
  }
}

// Whether codes with scales apart can be packed into F: codes of the same bits, groups that are
// F's or made of F's, scales that F stores as they are.
template <class F>
inline bool can_pack_apart(const kt_source &s, int64_t k) {
  using S = typename F::Scales;
  const bool four =
      s.encoding == KT_SRC_U4 || s.encoding == KT_SRC_GPTQ || s.encoding == KT_SRC_AWQ;
  if constexpr (F::kKind == Kind::kFp8) {
    if (s.encoding != KT_SRC_E4M3 || s.zeros) return false;
  } else {
    if (F::kBits == 8 ? s.encoding != KT_SRC_I8 : F::kBits != 4 || !four) return false;
    if ((s.zeros && !S::kZeros) || (F::Codes::kTable && S::kStored != KT_SCALE_BYTE)) return false;
  }
  const bool bytes = s.scale_type == KT_SCALE_BYTE;
  if (S::kStored == kBlocksOnly || bytes != (S::kStored == KT_SCALE_BYTE)) return false;
  if (!bytes && S::kStored != KT_SCALE_F32 && S::kStored != s.scale_type) return false;
  return s.scale_k >= k || s.scale_k % (S::kGroup * int64_t(S::kSuper)) == 0;
}

// Whether a source can be packed into a format.
inline bool can_pack(int format, const kt_source &s, int64_t k) {
  if (is_float_source(s.encoding)) {
    bool rounded = false;
    with_format(format, [&](auto f) { rounded = is_rounded<decltype(f)>(); });
    return rounded || format == KT_F32 || format == KT_F16 || format == KT_BF16 ||
           format == KT_F8_G128;
  }
  if (const BlockSource *blocks = block_source(s.encoding))
    return blocks->format == format && k % blocks->k == 0 && (s.grid || !blocks->grid);
  if (!s.scales || s.scale_rows < 1 || s.scale_k < 1) return false;
  bool can = false;
  with_format(format, [&](auto f) {
    if constexpr (has_scales<decltype(f)>()) can = can_pack_apart<decltype(f)>(s, k);
  });
  return can;
}

}  // namespace kt
