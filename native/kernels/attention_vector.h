// The products of attention on vectors, with tiles of their own: more rows than those of weights.
#pragma once
#include "attention_tile.h"

namespace kt {

constexpr int kPairBytes = 2 * kHalfBytes;  // of two activations

// Heights of vector tiles: the least that holds `count` rows. f(std::integral_constant).
template <class F>
inline void with_height(int count, F &&f) {
  if constexpr (kQueryTile == 12) {
    if (count > 8) return f(std::integral_constant<int, 12>());
    if (count > 6) return f(std::integral_constant<int, 8>());
    if (count > 4) return f(std::integral_constant<int, 6>());
  }
  if (count > 2) return f(std::integral_constant<int, 4>());
  if (count > 1) return f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 1>());
}
inline int padded_rows(int count) {
  int height = 0;
  with_height(count, [&](auto t) { height = t; });
  return height;
}

// Bytes of a packed tile.
inline int64_t packed_queries(int64_t hp) { return kQueryTile * hp * kHalfBytes; }
// [pair of dims][row], rows up to the tile's height zero.
inline void pack_queries(const void *const *rows, int count, int64_t hp, uint8_t *out) {
  const int height = padded_rows(count);
  for (int64_t k = 0; k < hp / 2; k++)
    for (int r = 0; r < height; r++, out += kPairBytes) {
      if (r < count)
        std::memcpy(out, static_cast<const uint8_t *>(rows[r]) + k * kPairBytes, kPairBytes);
      else
        std::memset(out, 0, kPairBytes);
    }
}

// Adds a line of both panels' two K to the sums. acts: of the first row.
template <int P, int T>
inline void dot_pair(const uint8_t *lines, int64_t panel_bytes, const uint8_t *acts,
                     int64_t row_bytes, vf (&sum)[P][T]) {
  BLine w[P];
#pragma GCC unroll 2
  for (int p = 0; p < P; p++) w[p] = b_line(vi_load(lines + p * panel_bytes));
#pragma GCC unroll 12
  for (int t = 0; t < T; t++)
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) sum[p][t] = b_dot(sum[p][t], w[p], acts + t * row_bytes);
}
// The same for four K of codes.
template <int P, int T>
inline void dot_quad(const uint8_t *lines, int64_t panel_bytes, const uint8_t *acts,
                     int64_t row_bytes, vi (&sum)[P][T]) {
  QLine w[P];
#pragma GCC unroll 2
  for (int p = 0; p < P; p++) w[p] = q_line(vi_load(lines + p * panel_bytes));
#pragma GCC unroll 12
  for (int t = 0; t < T; t++)
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) sum[p][t] = q_dot(sum[p][t], w[p], acts + t * row_bytes);
}

inline void store_codes(vi lo, vi hi, float, uint8_t *page) { q_store(page, lo, hi); }

inline void fetch_lines(const uint8_t *at) {
  _mm_prefetch(reinterpret_cast<const char *>(at), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char *>(at) + 64, _MM_HINT_T0);
}

template <int T>
__attribute__((flatten)) void half_scores(const KvHead &h, const QueryTile &q, const uint8_t *keys,
                                          float *out, const uint8_t *ahead) {
  constexpr int P = kTilePanels;
  for (int first = 0; first < 2; first += P) {
    vf sum[P][T];
#pragma GCC unroll 24
    for (int i = 0; i < P * T; i++) sum[i % P][i / P] = vf_zero();
    const uint8_t *lines = keys + first * h.panel_bytes, *acts = q.packed;
    for (int64_t k = 0; k < h.padded / 2; k++, acts += T * kPairBytes) {
      if (ahead && first == 0) fetch_lines(ahead + k * 128);
      dot_pair<P, T>(lines + k * 64, h.panel_bytes, acts, kPairBytes, sum);
    }
#pragma GCC unroll 12
    for (int t = 0; t < T; t++)
      if (t < q.count)
        for (int p = 0; p < P; p++) vf_store(out + t * 32 + (first + p) * 16, sum[p][t]);
  }
}

template <int T>
__attribute__((flatten)) void half_sums(const KvHead &h, const SplitPages &s, int from, int to,
                                        int64_t d, const uint8_t *probs, int count, bool fetch,
                                        float *out) {
  constexpr int P = kTilePanels;
  for (int first = 0; first < 2; first += P) {
    vf sum[P][T];
#pragma GCC unroll 24
    for (int i = 0; i < P * T; i++) sum[i % P][i / P] = vf_zero();
    for (int page = from; page < to; page++) {
      const uint8_t *lines = s.keys[page] + h.values() + d * 2048 + first * 1024;
      const uint8_t *ahead = fetch && first == 0 ? s.next_keys[page] : nullptr;
      const uint8_t *acts = probs + page * 32 * kHalfBytes;
      for (int k = 0; k < 16; k++) {
        if (ahead) fetch_lines(ahead + d * 2048 + k * 128);
        dot_pair<P, T>(lines + k * 64, 1024, acts + k * kPairBytes, kProbRow, sum);
      }
    }
#pragma GCC unroll 12
    for (int t = 0; t < T; t++)
      if (t < count)
        for (int p = 0; p < P; p++) vf_store(out + t * 32 + (first + p) * 16, sum[p][t]);
  }
}

// Exact integer sums over the split, then one multiplication by the part's scale.
template <int T>
__attribute__((flatten)) void code_sums(const KvHead &h, const SplitPages &s, int from, int to,
                                        int64_t d, const uint8_t *probs, const ProbCodes &codes,
                                        int part, int count, bool fetch, float *out) {
  constexpr int P = kTilePanels;
  const int64_t step = h.values() / (h.padded / 32);  // bytes fetched for a page
  for (int first = 0; first < 2; first += P) {
    vi sum[P][T];
#pragma GCC unroll 24
    for (int i = 0; i < P * T; i++) sum[i % P][i / P] = vi_zero();
    for (int page = from; page < to; page++) {
      const uint8_t *lines = s.keys[page] + h.values() + d * 1024 + first * 512;
      const uint8_t *ahead = first == 0 ? s.next_keys[page] : nullptr;
      const uint8_t *acts = probs + page * kProbPage;
      for (int k = 0; k < 8; k++) {
        if (ahead && fetch) fetch_lines(ahead + d * step + (part * 8 + k) * step / 16);
        dot_quad<P, T>(lines + k * 64, 512, acts + k * 4 * kActBytes, kProbPart, sum);
      }
    }
#pragma GCC unroll 12
    for (int t = 0; t < T; t++)
      if (t < count) {
        const vi zero = vi_shl<KeyFormat::kZeroLog2>(vi_set1(codes.negative[part][t]));
        for (int p = 0; p < P; p++) {
          float *at = out + t * 32 + (first + p) * 16;
          vf_store(at, vf_fma(vf_from(vi_add(sum[p][t], zero)), vf_set1(codes.scale[part][t]),
                              part ? vf_load(at) : vf_zero()));
        }
      }
  }
}

inline void score_halves(const KvHead &h, const QueryTile &q, const uint8_t *keys, float *out,
                         const uint8_t *ahead) {
  with_height(q.count, [&](auto t) { half_scores<t>(h, q, keys, out, ahead); });
}
inline void sum_halves(const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                       const uint8_t *probs, int count, bool fetch, float *out) {
  with_height(count, [&](auto t) { half_sums<t>(h, s, from, to, d, probs, count, fetch, out); });
}
inline void sum_codes(const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                      const uint8_t *probs, const ProbCodes &codes, int part, int count, bool fetch,
                      float *out) {
  with_height(count, [&](auto t) {
    code_sums<t>(h, s, from, to, d, probs, codes, part, count, fetch, out);
  });
}

}  // namespace kt
