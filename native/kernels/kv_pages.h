// KV pages. A page is 32 tokens of one layer, laid out as the packed matrices whose register tiles
// compute both products. Per KV head, with head_dim padded to 32:
//   bfloat16  K [32 keys, head_dim] as two panels of 16 keys
//             V^T [head_dim, 32 keys] as head_dim / 16 panels, 16 lines of 2 keys each
//   int8      K as two panels: codes as in KT_I8_G32, then a float16 scale per key and 32 dims
//             V^T as head_dim / 16 panels, 8 lines of 4 keys each, codes as in KT_I8_G32; then a
//             float32 scale per key, which multiplies the probabilities
#pragma once
#include "encode.h"

namespace kt {

constexpr int kPageTokens = 32;
struct KeyFormat : IntFormat<8, 0, 7, ScalesF16<1>> {
  static constexpr int kChunk = kWholeRow, kSection = kWholeRow;
};

inline int64_t padded_head(int64_t head_dim) { return round_up(head_dim, kBlock); }

// One KV head of a page.
struct KvHead {
  int format;
  int64_t padded;  // dims
  int64_t panel_bytes;  // of 16 keys
  int64_t bytes;
  int64_t values() const { return 2 * panel_bytes; }
  int64_t value_panel() const { return format == KT_KV_BF16 ? 1024 : 512; }
  int64_t value_scales() const { return values() + padded * kPageTokens; }  // int8
};
inline KvHead kv_head_of(int format, int64_t head_dim) {
  const int64_t hp = padded_head(head_dim);
  if (format == KT_KV_BF16) return {format, hp, hp * 32, hp * kPageTokens * 4};
  const int64_t panel = panel_layout<KeyFormat>(hp).bytes;
  return {format, hp, panel, 2 * panel + hp * kPageTokens + kPageTokens * 4};
}
// How queries are encoded for the keys.
inline int query_encoding(int kv_format) { return kv_format == KT_KV_BF16 ? ENC_HALF : ENC_INT; }

// One layer's pages: all pages of a head after each other, so that a long sequence is read nearly
// in the order of addresses.
struct KvLayer {
  uint8_t *base;
  int64_t n_pages;
  KvHead head;
  uint8_t *at(int64_t page, int64_t h) const { return base + (h * n_pages + page) * head.bytes; }
};

inline void write_bf16(const KvHead &h, uint8_t *page, int slot, const float *key,
                       const float *value) {
  uint8_t *k = page + slot / 16 * h.panel_bytes + slot % 16 * 4;
  for (int64_t d = 0; d < h.padded; d++)
    store_u16(k + d / 2 * 64 + d % 2 * 2, float_to_bf16(key[d]));
  uint8_t *v = page + h.values() + slot / 2 * 64 + slot % 2 * 2;
  for (int64_t d = 0; d < h.padded; d++)
    store_u16(v + d / 16 * 1024 + d % 16 * 4, float_to_bf16(value[d]));
}

// Signed 8-bit codes of 32 values.
inline void int8_codes(const float *x, float scale, int8_t *codes) {
  const vf inverse = vf_set1(scale > 0 ? 1.0f / scale : 0.0f), most = vf_set1(127.0f);
  for (int i = 0; i < 32; i += 16) {
    const vf scaled = vf_mul(vf_load(x + i), inverse);
    vi_store_i8(codes + i, vi_round(vf_max(vf_sub(vf_zero(), most), vf_min(most, scaled))));
  }
}
// The largest size of n values over 127; NaN if one of them is NaN or infinite, which codes cannot
// say.
inline float int8_scale(const float *x, int64_t n) {
  vf peak = vf_zero(), broken = vf_zero();
  for (int64_t i = 0; i < n; i += 16) {
    peak = vf_max(peak, vf_abs(vf_load(x + i)));
    broken = vf_add(broken, vf_mul(vf_load(x + i), vf_zero()));
  }
  return vf_reduce_max(peak) / 127.0f + vf_sum(broken);
}
inline void write_int8(const KvHead &h, uint8_t *page, int slot, const float *key,
                       const float *value) {
  int8_t codes[kBlock];
  uint8_t *panel = page + slot / 16 * h.panel_bytes;
  for (int64_t b = 0; b < h.padded / kBlock; b++) {
    const uint16_t scale = float_to_half(int8_scale(key + b * kBlock, kBlock));
    int8_codes(key + b * kBlock, half_to_float(scale), codes);
    store_u16(panel + h.padded * 16 + b * 32 + slot % 16 * 2, scale);
    for (int i = 0; i < kBlock; i++)
      panel[b * 512 + i / 4 * 64 + slot % 16 * 4 + i % 4] = uint8_t(codes[i] + 128);
  }
  const float scale = int8_scale(value, h.padded);
  uint8_t *v = page + h.values() + slot / 4 * 64 + slot % 4;
  for (int64_t b = 0; b < h.padded / kBlock; b++, v += 1024) {
    int8_codes(value + b * kBlock, scale, codes);
    for (int i = 0; i < kBlock; i++) v[i / 16 * 512 + i % 16 * 4] = uint8_t(codes[i] + 128);
  }
  std::memcpy(page + h.value_scales() + slot * 4, &scale, 4);
}

// Writes one token's key and value head (padded with zeros) into slot `slot` of a page. A page's
// first token clears the page's head, so that unused slots are zeros, never another sequence's
// leftovers.
inline void write_kv(const KvLayer &kv, int32_t page, int head, int slot, const float *key,
                     const float *value) {
  uint8_t *at = kv.at(page, head);
  if (slot == 0) std::memset(at, 0, size_t(kv.head.bytes));
  if (kv.head.format == KT_KV_BF16)
    write_bf16(kv.head, at, slot, key, value);
  else
    write_int8(kv.head, at, slot, key, value);
}

}  // namespace kt
