// 16-lane vectors on AVX-512: one zmm register. Every simd header defines the same names.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kt {

struct vf {  // 16 float32
  __m512 v;
};
struct vi {  // 16 int32
  __m512i v;
};

inline vf vf_zero() { return {_mm512_setzero_ps()}; }
inline vf vf_set1(float x) { return {_mm512_set1_ps(x)}; }
inline vf vf_load(const float *p) { return {_mm512_loadu_ps(p)}; }
inline void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x.v); }
inline vf vf_add(vf x, vf y) { return {_mm512_add_ps(x.v, y.v)}; }
inline vf vf_sub(vf x, vf y) { return {_mm512_sub_ps(x.v, y.v)}; }
inline vf vf_mul(vf x, vf y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline vf vf_div(vf x, vf y) { return {_mm512_div_ps(x.v, y.v)}; }
inline vf vf_max(vf x, vf y) { return {_mm512_max_ps(x.v, y.v)}; }
inline vf vf_min(vf x, vf y) { return {_mm512_min_ps(x.v, y.v)}; }
inline vf vf_fma(vf x, vf y, vf z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
inline vf vf_abs(vf x) { return {_mm512_abs_ps(x.v)}; }
// 16 IEEE halves.
inline vf vf_load_f16(const void *p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i *>(p)))};
}
inline vf vf_from(vi x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline vf vf_bits(vi x) { return {_mm512_castsi512_ps(x.v)}; }
// The one order of summation: lane i + lane i + 8, then quarters, then pairs.
inline float vf_sum(vf x) {
  const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  t = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
inline float vf_reduce_max(vf x) { return _mm512_reduce_max_ps(x.v); }

inline vi vi_zero() { return {_mm512_setzero_si512()}; }
inline vi vi_set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline vi vi_load(const void *p) { return {_mm512_loadu_si512(p)}; }
inline void vi_store(void *p, vi x) { _mm512_storeu_si512(p, x.v); }
inline vi vi_add(vi x, vi y) { return {_mm512_add_epi32(x.v, y.v)}; }
inline vi vi_sub(vi x, vi y) { return {_mm512_sub_epi32(x.v, y.v)}; }
inline vi vi_or(vi x, vi y) { return {_mm512_or_si512(x.v, y.v)}; }
inline vi vi_andnot(vi x, vi y) { return {_mm512_andnot_si512(x.v, y.v)}; }  // ~x & y
inline vi vi_max(vi x, vi y) { return {_mm512_max_epi32(x.v, y.v)}; }
inline vi vi_equal(vi x, vi y) {  // all ones where equal
  return {_mm512_movm_epi32(_mm512_cmpeq_epi32_mask(x.v, y.v))};
}
inline vi vi_less(vi x, vi y) { return {_mm512_movm_epi32(_mm512_cmplt_epi32_mask(x.v, y.v))}; }
inline vi vi_bits(vf x) { return {_mm512_castps_si512(x.v)}; }
// Bytes from a table of 16 by the low nibble of each byte (bit 7 clear).
inline vi vi_lookup(const uint8_t *table, vi x) {
  const __m512i t =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
  return {_mm512_shuffle_epi8(t, x.v)};
}
inline vi vi_sar1(vi x) { return {_mm512_srai_epi32(x.v, 1)}; }
inline vi vi_and(vi x, vi y) { return {_mm512_and_si512(x.v, y.v)}; }
template <int N>
inline vi vi_shl(vi x) {
  return {_mm512_slli_epi32(x.v, N)};
}
template <int N>
inline vi vi_shr(vi x) {
  return {_mm512_srli_epi32(x.v, N)};
}
template <int N>
inline vi vi_shr16(vi x) {  // within 16-bit lanes
  return {_mm512_srli_epi16(x.v, N)};
}
template <int N>
inline vi vi_shl16(vi x) {  // within 16-bit lanes
  return {_mm512_slli_epi16(x.v, N)};
}
template <int N>
inline vi vi_sar16(vi x) {  // within 16-bit lanes, with copies of the sign
  return {_mm512_srai_epi16(x.v, N)};
}
inline vi vi_round(vf x) { return {_mm512_cvtps_epi32(x.v)}; }
inline vi vi_load_u8(const void *p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i *>(p)))};
}
inline vi vi_load_i8(const void *p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i *>(p)))};
}
inline vi vi_load_u16(const void *p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i *>(p)))};
}
// Low 8 bits of 16 lanes, in order.
inline void vi_store_i8(void *p, vi x) {
  _mm_storeu_si128(static_cast<__m128i *>(p), _mm512_cvtsepi32_epi8(x.v));
}
inline int32_t vi_sum(vi x) { return _mm512_reduce_add_epi32(x.v); }

// The compiler must compute x here and now, and knows nothing of its value afterwards.
inline void vf_keep(vf &x) { asm volatile("" : "+v"(x.v)); }
inline void vi_keep(vi &x) { asm volatile("" : "+v"(x.v)); }

// Bits of 2^(i/32) less i << 18, which comes with the exponent.
struct Roots {
  alignas(64) int32_t bits[32] = {};
  constexpr Roots() {
    double root = 1;
    for (int i = 0; i < 32; i++, root *= 1.0218971486541166)
      bits[i] = 0x3f800000 + int32_t((root - 1) * 0x1p23 + 0.5) - (i << 18);
  }
};
inline constexpr Roots kRoots;
// y becomes 2^(y * scale + offset), whose exponent shall be e, to 2.5e-7 of itself; offset is whole
// and at most 2^16. 0 where y is `least`, at which e is -127, or less, or NaN; below 2^-126 from
// there to e = -126; nothing useful from 127.9 on. A table has the roots, a polynomial the rest of
// e in [-1/64, 1/64]. Vectors go through each step side by side, so that none waits for the one
// before.
template <int N>
inline void vf_power2(vf (&y)[N], float scale, float offset, float least) {
  const vf slope = vf_set1(scale), whole = vf_set1(0x1.8p18f + offset);  // the lowest bit is 1/32
  const vi low = vi_load(kRoots.bits), high = vi_load(kRoots.bits + 16);
  vf n[N], r[N], p[N];
  for (int j = 0; j < N; j++) y[j] = vf_max(y[j], vf_set1(least));
  for (int j = 0; j < N; j++) n[j] = vf_fma(y[j], slope, whole);
  for (int j = 0; j < N; j++) r[j] = vf_fma(y[j], slope, vf_sub(whole, n[j]));
  for (int j = 0; j < N; j++) p[j] = vf_fma(vf_set1(0.24022651f), r[j], vf_set1(0.69315734f));
  for (int j = 0; j < N; j++) p[j] = vf_fma(p[j], r[j], vf_set1(1.0f));
  for (int j = 0; j < N; j++) {
    const vi root = {_mm512_permutex2var_epi32(low.v, vi_bits(n[j]).v, high.v)};
    y[j] = vf_mul(p[j], vf_bits(vi_add(root, vi_shl<18>(vi_bits(n[j])))));
  }
}

// Lanes that are chosen. Comparisons with NaN choose none.
struct vm {
  __mmask16 v;
};
inline vm vm_greater(vf x, vf y) { return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ)}; }
inline vm vm_equal(vf x, vf y) { return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_EQ_OQ)}; }
inline vm vm_or(vm x, vm y) { return {_kor_mask16(x.v, y.v)}; }
inline vm vm_andnot(vm x, vm y) { return {_kandn_mask16(x.v, y.v)}; }  // not x, and y
inline bool vm_any(vm x) { return !_kortestz_mask16_u8(x.v, x.v); }
inline vf vf_add_where(vf x, vf y, vm m) { return {_mm512_mask_add_ps(x.v, m.v, x.v, y.v)}; }
// Bits of a byte. (The instruction for it is a level that no variant asks for.)
struct BitCounts {
  uint8_t of[256] = {};
  constexpr BitCounts() {
    for (int i = 1; i < 256; i++) of[i] = uint8_t(of[i / 2] + i % 2);
  }
};
inline constexpr BitCounts kBitCounts;
// The chosen lanes, side by side; writes all 64 bytes. Returns how many they are.
inline int vm_pack(void *p, vi x, vm m) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(m.v, x.v));
  return kBitCounts.of[m.v & 255] + kBitCounts.of[m.v >> 8];
}
// Moves p on by as many floats as lanes are chosen: they get those, the others 0. Reads 64 bytes.
inline vf vf_unpack(const float *&p, vm m) {
  const vf x = {_mm512_maskz_expand_ps(m.v, _mm512_loadu_ps(p))};
  p += kBitCounts.of[m.v & 255] + kBitCounts.of[m.v >> 8];
  return x;
}
inline uint64_t vm_bits4(const vm (&m)[4]) {  // of 64 lanes, the first lowest
  return _cvtmask64_u64(
      _mm512_kunpackd(_mm512_kunpackw(m[3].v, m[2].v), _mm512_kunpackw(m[1].v, m[0].v)));
}
// vm_pack of 4 vectors. Bits are counted in parts of a word, whose prefix sums are a product.
inline int vm_pack4(float *p, const vf (&x)[4], const vm (&m)[4]) {
  uint64_t n = vm_bits4(m);
  n -= n >> 1 & 0x5555555555555555;
  n = (n & 0x3333333333333333) + (n >> 2 & 0x3333333333333333);
  n = (n + (n >> 4)) & 0x0f0f0f0f0f0f0f0f;
  n = ((n + (n >> 8)) & 0x001f001f001f001f) * 0x0001000100010001;
  const uint64_t before[] = {0, n & 63, n >> 16 & 63, n >> 32 & 63};
  for (int j = 0; j < 4; j++)
    _mm512_storeu_ps(p + before[j], _mm512_maskz_compress_ps(m[j].v, x[j].v));
  return int(n >> 48);
}

// vpmaddwd: products of 16-bit pairs, summed into 32 bits.
inline vi vi_maddwd(vi x, vi y) { return {_mm512_madd_epi16(x.v, y.v)}; }

// vpmaddubsw: products of unsigned bytes of x and signed ones of y, pairs summed into 16 bits.
inline vi vi_maddubs(vi x, vi y) { return {_mm512_maddubs_epi16(x.v, y.v)}; }
inline vi vi_add16(vi x, vi y) { return {_mm512_add_epi16(x.v, y.v)}; }

// Token rows and panels of a register tile: 2 panels x 6 rows keep 12 integer and 12 float sums in
// registers.
constexpr int kTilePanels = 2;
constexpr int kPeakChains = 12;  // sums that fit beside their operands
constexpr int kVectorTileRows[] = {6, 5, 4, 3, 2, 1};

}  // namespace kt
