// 16-lane vectors on AVX2: two ymm registers. Every simd header defines the same names.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kt {

struct vf {  // 16 float32
  __m256 a, b;
};
struct vi {  // 16 int32
  __m256i a, b;
};

inline vf vf_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline vf vf_set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline vf vf_load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void vf_store(float *p, vf x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline vf vf_add(vf x, vf y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline vf vf_sub(vf x, vf y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline vf vf_mul(vf x, vf y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline vf vf_div(vf x, vf y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline vf vf_max(vf x, vf y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline vf vf_min(vf x, vf y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline vf vf_fma(vf x, vf y, vf z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline vf vf_abs(vf x) {
  const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
// 16 IEEE halves.
inline vf vf_load_f16(const void *p) {
  const __m128i *h = static_cast<const __m128i *>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
inline vf vf_from(vi x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline vf vf_bits(vi x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
// The one order of summation: lane i + lane i + 8, then quarters, then pairs.
inline float vf_sum(vf x) {
  const __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  t = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
inline float vf_reduce_max(vf x) {
  const __m256 s = _mm256_max_ps(x.a, x.b);
  __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  t = _mm_max_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}

inline vi vi_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline vi vi_set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline vi vi_load(const void *p) {
  const __m256i *q = static_cast<const __m256i *>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline void vi_store(void *p, vi x) {
  _mm256_storeu_si256(static_cast<__m256i *>(p), x.a);
  _mm256_storeu_si256(static_cast<__m256i *>(p) + 1, x.b);
}
inline vi vi_add(vi x, vi y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline vi vi_sub(vi x, vi y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline vi vi_or(vi x, vi y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline vi vi_andnot(vi x, vi y) {  // ~x & y
  return {_mm256_andnot_si256(x.a, y.a), _mm256_andnot_si256(x.b, y.b)};
}
inline vi vi_max(vi x, vi y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
inline vi vi_equal(vi x, vi y) {  // all ones where equal
  return {_mm256_cmpeq_epi32(x.a, y.a), _mm256_cmpeq_epi32(x.b, y.b)};
}
inline vi vi_less(vi x, vi y) {
  return {_mm256_cmpgt_epi32(y.a, x.a), _mm256_cmpgt_epi32(y.b, x.b)};
}
inline vi vi_bits(vf x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
// Bytes from a table of 16 by the low nibble of each byte (bit 7 clear).
inline vi vi_lookup(const uint8_t *table, vi x) {
  const __m256i t =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
  return {_mm256_shuffle_epi8(t, x.a), _mm256_shuffle_epi8(t, x.b)};
}
inline vi vi_sar1(vi x) { return {_mm256_srai_epi32(x.a, 1), _mm256_srai_epi32(x.b, 1)}; }
inline vi vi_and(vi x, vi y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
template <int N>
inline vi vi_shl(vi x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
inline vi vi_shr(vi x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
template <int N>
inline vi vi_shr16(vi x) {  // within 16-bit lanes
  return {_mm256_srli_epi16(x.a, N), _mm256_srli_epi16(x.b, N)};
}
template <int N>
inline vi vi_shl16(vi x) {  // within 16-bit lanes
  return {_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)};
}
template <int N>
inline vi vi_sar16(vi x) {  // within 16-bit lanes, with copies of the sign
  return {_mm256_srai_epi16(x.a, N), _mm256_srai_epi16(x.b, N)};
}
inline vi vi_round(vf x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline vi vi_load_u8(const void *p) {
  const __m128i q = _mm_loadu_si128(static_cast<const __m128i *>(p));
  return {_mm256_cvtepu8_epi32(q), _mm256_cvtepu8_epi32(_mm_srli_si128(q, 8))};
}
inline vi vi_load_i8(const void *p) {
  const __m128i q = _mm_loadu_si128(static_cast<const __m128i *>(p));
  return {_mm256_cvtepi8_epi32(q), _mm256_cvtepi8_epi32(_mm_srli_si128(q, 8))};
}
inline vi vi_load_u16(const void *p) {
  const __m128i *q = static_cast<const __m128i *>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
// Low 8 bits of 16 lanes, in order.
inline void vi_store_i8(void *p, vi x) {
  const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  const __m128i b = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
  _mm_storeu_si128(static_cast<__m128i *>(p), b);
}
// Sum of 16 lanes.
inline int32_t vi_sum(vi x) {
  const __m256i s = _mm256_add_epi32(x.a, x.b);
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}

// y becomes 2^(y * scale + offset), whose exponent shall be e, to 2e-7 of itself; offset is whole.
// 0 where y is `least`, at which e is -127, or less, or NaN; nothing useful from 127.5 on. The
// polynomial for the fraction in [-1/2, 1/2] has the least relative error of its degree.
template <int N>
inline void vf_power2(vf (&y)[N], float scale, float offset, float least) {
  constexpr float kC[] = {1.32647261e-3f, 9.67151299e-3f, 5.55073358e-2f,
                          2.40222424e-1f, 6.93147004e-1f, 1.0f};
  const vf slope = vf_set1(scale);
  const vf whole = vf_set1(0x1.8p23f + 127 + offset);  // low bits: an integer, and the bias
  for (int j = 0; j < N; j++) {
    const vf x = vf_max(y[j], vf_set1(least)), n = vf_fma(x, slope, whole);
    const vf r = vf_fma(x, slope, vf_sub(whole, n));
    vf p = vf_set1(kC[0]);
    for (int c = 1; c < 6; c++) p = vf_fma(p, r, vf_set1(kC[c]));
    y[j] = vf_mul(p, vf_bits(vi_shl<23>(vi_bits(n))));
  }
}

// Lanes that are chosen. Comparisons with NaN choose none.
struct vm {
  __m256 a, b;
};
inline vm vm_greater(vf x, vf y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)};
}
inline vm vm_equal(vf x, vf y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)};
}
inline vm vm_or(vm x, vm y) { return {_mm256_or_ps(x.a, y.a), _mm256_or_ps(x.b, y.b)}; }
inline vm vm_andnot(vm x, vm y) {  // not x, and y
  return {_mm256_andnot_ps(x.a, y.a), _mm256_andnot_ps(x.b, y.b)};
}
inline bool vm_any(vm x) { return _mm256_movemask_ps(_mm256_or_ps(x.a, x.b)) != 0; }
inline vf vf_add_where(vf x, vf y, vm m) {
  return {_mm256_add_ps(x.a, _mm256_and_ps(y.a, m.a)), _mm256_add_ps(x.b, _mm256_and_ps(y.b, m.b))};
}
// Of 8 lanes, by the bits of those chosen: their numbers in order, and how many they are.
struct Packings {
  alignas(64) uint8_t lanes[256][8] = {};
  uint8_t count[256] = {};
  constexpr Packings() {
    for (int bits = 0; bits < 256; bits++)
      for (int i = 0; i < 8; i++)
        if (bits >> i & 1) lanes[bits][count[bits]++] = uint8_t(i);
  }
};
inline constexpr Packings kPackings;
inline int pack8(void *p, __m256i x, int bits) {
  const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(kPackings.lanes[bits]));
  _mm256_storeu_si256(static_cast<__m256i *>(p),
                      _mm256_permutevar8x32_epi32(x, _mm256_cvtepu8_epi32(lanes)));
  return kPackings.count[bits];
}
// The chosen lanes, side by side; may write up to 64 bytes. Returns how many they are.
inline int vm_pack(void *p, vi x, vm m) {
  const int first = pack8(p, x.a, _mm256_movemask_ps(m.a));
  return first + pack8(static_cast<char *>(p) + 4 * first, x.b, _mm256_movemask_ps(m.b));
}
// Moves p on by as many floats as lanes are chosen: they get those, the others 0.
inline vf vf_unpack(const float *&p, vm m) {
  alignas(32) float lanes[16] = {};
  const int low = _mm256_movemask_ps(m.a), high = _mm256_movemask_ps(m.b);
  const float *from = p;
  for (int bits = low | high << 8; bits; bits &= bits - 1) lanes[__builtin_ctz(bits)] = *from++;
  p += kPackings.count[low] + kPackings.count[high];  // counted by the loop, it became POPCNT
  return vf_load(lanes);
}
inline uint64_t vm_bits4(const vm (&m)[4]) {  // of 64 lanes, the first lowest
  uint64_t bits = 0;
  for (int j = 0; j < 4; j++)
    bits |= uint64_t(_mm256_movemask_ps(m[j].a) | _mm256_movemask_ps(m[j].b) << 8) << 16 * j;
  return bits;
}
// vm_pack of 4 vectors.
inline int vm_pack4(float *p, const vf (&x)[4], const vm (&m)[4]) {
  int count = 0;
  for (int j = 0; j < 4; j++) count += vm_pack(p + count, vi_bits(x[j]), m[j]);
  return count;
}

// vpmaddwd: products of 16-bit pairs, summed into 32 bits.
inline vi vi_maddwd(vi x, vi y) {
  return {_mm256_madd_epi16(x.a, y.a), _mm256_madd_epi16(x.b, y.b)};
}

// vpmaddubsw: products of unsigned bytes of x and signed ones of y, pairs summed into 16 bits.
inline vi vi_maddubs(vi x, vi y) {
  return {_mm256_maddubs_epi16(x.a, y.a), _mm256_maddubs_epi16(x.b, y.b)};
}
inline vi vi_add16(vi x, vi y) { return {_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)}; }

// The compiler must compute x here and now, and knows nothing of its value afterwards.
inline void vf_keep(vf &x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); }
inline void vi_keep(vi &x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); }

// Token rows and panels of a register tile: 16 registers hold one panel.
constexpr int kTilePanels = 1;
constexpr int kPeakChains = 5;  // sums that fit beside their operands
constexpr int kVectorTileRows[] = {4, 3, 2, 1};

}  // namespace kt
