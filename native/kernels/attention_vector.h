// The products of attention on vectors, with tiles of their own: more rows than those of weights.
#pragma once
#include "attention_tile.h"

namespace kt {

constexpr int kPairBytes = 2 * kHalfBytes;  // of two activations
constexpr int kQuadBytes = 4 * kActBytes;  // of four codes

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

// Bytes of a packed tile of either kind.
inline int64_t packed_queries(int64_t hp) { return kQueryTile * hp * kHalfBytes; }

// Copies `bytes` of every row, and zeros for rows up to the tile's height.
inline uint8_t *pack_column(const void *const *rows, int count, int64_t at, int64_t bytes,
                            uint8_t *out) {
  const int height = padded_rows(count);
  for (int r = 0; r < height; r++, out += bytes) {
    if (r < count)
      std::memcpy(out, static_cast<const uint8_t *>(rows[r]) + at, size_t(bytes));
    else
      std::memset(out, 0, size_t(bytes));
  }
  return out;
}
// bfloat16: [pair of dims][row].
// int8: for each block of 32 dims [quad of dims][row], then scale[row], and negative sum[row] times
// the zero of codes.
inline void pack_queries(int format, const void *const *rows, int count, int64_t hp, uint8_t *out) {
  if (format == KT_KV_BF16) {
    for (int64_t k = 0; k < hp / 2; k++)
      out = pack_column(rows, count, k * kPairBytes, kPairBytes, out);
    return;
  }
  const int64_t blocks = hp / 32, scales = hp * kActBytes, sums = scales + 2 * blocks * 4;
  for (int64_t b = 0; b < blocks; b++) {
    for (int64_t k = b * 8; k < b * 8 + 8; k++)
      out = pack_column(rows, count, k * kQuadBytes, kQuadBytes, out);
    out = pack_column(rows, count, scales + b * 4, 4, out);
    int32_t *zeros = reinterpret_cast<int32_t *>(out);
    out = pack_column(rows, count, sums + b * 4, 4, out);
    for (int r = 0; r < padded_rows(count); r++) zeros[r] *= 1 << KeyFormat::kZeroLog2;
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

inline void end_codes(float, uint8_t *) {}

template <int T>
__attribute__((flatten)) void half_scores(const KvHead &h, const QueryTile &q, const SplitPages &s,
                                          int from, int to, PageStream &fetch, float *out) {
  constexpr int P = kTilePanels;
  PageStream ahead = fetch;
  for (int i = 2 * from; i < 2 * to; i += P) {
    const int first = i % 2;
    vf sum[P][T];
#pragma GCC unroll 24
    for (int j = 0; j < P * T; j++) sum[j % P][j / P] = vf_zero();
    const uint8_t *lines = s.keys[i / 2] + first * h.panel_bytes, *acts = q.packed;
    for (int64_t k = 0; k < h.padded / 2; k++, acts += T * kPairBytes) {
      if (first == 0) ahead.step();
      dot_pair<P, T>(lines + k * 64, h.panel_bytes, acts, kPairBytes, sum);
    }
    float *to_row = out + i / 2 * q.count * 32 + first * 16;
#pragma GCC unroll 12
    for (int t = 0; t < T; t++)
      if (t < q.count)
        for (int p = 0; p < P; p++) vf_store(to_row + t * 32 + p * 16, sum[p][t]);
  }
  fetch = ahead;
}

// Exact integer sums over 32 dims, each multiplied by the scales of key and query. A tall tile is
// taken in two parts, so that the float sums of one fit into registers beside the integer ones.
template <int T>
__attribute__((flatten)) void code_scores(const KvHead &h, const QueryTile &q, const SplitPages &s,
                                          int from, int to, PageStream &fetch, float *out) {
  constexpr int P = kTilePanels, kParts = T < 8 ? 1 : 2, R = T / kParts;
  PageStream ahead = fetch;
  const auto part_scores = [&](const uint8_t *lines, bool fetching, int row, float *to_row) {
    const uint8_t *scales = lines + h.padded * 16, *acts = q.packed + row * kQuadBytes;
    vf sum[P][R];
#pragma GCC unroll 24
    for (int j = 0; j < P * R; j++) sum[j % P][j / P] = vf_zero();
    for (int64_t b = 0; b < h.padded / 32; b++, lines += 512, scales += 32, acts += T * 8) {
      const uint8_t *meta = acts + 8 * T * kQuadBytes + row * (4 - kQuadBytes);
      const float *act_scale = reinterpret_cast<const float *>(meta);
      const int32_t *zero = reinterpret_cast<const int32_t *>(meta) + T;
      vi acc[P][R];
#pragma GCC unroll 12
      for (int t = 0; t < R; t++)
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) acc[p][t] = vi_set1(zero[t]), vi_keep(acc[p][t]);
#pragma GCC unroll 8
      for (int k = 0; k < 8; k++, acts += T * kQuadBytes) {
        if (fetching && k % kParts == 0) ahead.step();
        dot_quad<P, R>(lines + k * 64, h.panel_bytes, acts, kQuadBytes, acc);
      }
      vf key_scale[P];
#pragma GCC unroll 2
      for (int p = 0; p < P; p++) key_scale[p] = vf_load_f16(scales + p * h.panel_bytes);
#pragma GCC unroll 12
      for (int t = 0; t < R; t++)
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) {
          const vf scale = vf_mul(key_scale[p], vf_set1(act_scale[t]));
          sum[p][t] = vf_fma(vf_from(acc[p][t]), scale, sum[p][t]);
        }
    }
#pragma GCC unroll 12
    for (int t = 0; t < R; t++)
      if (row + t < q.count)
        for (int p = 0; p < P; p++) vf_store(to_row + t * 32 + p * 16, sum[p][t]);
  };
  for (int page = from; page < to; page++)
    for (int first = 0; first < 2; first += P)
      for (int row = 0; row < T; row += R)
        part_scores(s.keys[page] + first * h.panel_bytes, first == 0, row,
                    out + (page * q.count + row) * 32 + first * 16);
  fetch = ahead;
}

template <int T>
__attribute__((flatten)) void half_sums(const KvHead &h, const SplitPages &s, int from, int to,
                                        int64_t d, const uint8_t *probs, int count,
                                        PageStream &fetch, float *out) {
  constexpr int P = kTilePanels;
  PageStream ahead = fetch;
  for (int first = 0; first < 2; first += P) {
    vf sum[P][T];
#pragma GCC unroll 24
    for (int i = 0; i < P * T; i++) sum[i % P][i / P] = vf_zero();
    for (int page = from; page < to; page++) {
      const uint8_t *lines = s.keys[page] + h.values() + d * 2048 + first * 1024;
      const uint8_t *acts = probs + page * 32 * kHalfBytes;
      for (int k = 0; k < 16; k++) {
        if (first == 0) ahead.step();
        dot_pair<P, T>(lines + k * 64, 1024, acts + k * kPairBytes, kProbRow, sum);
      }
    }
#pragma GCC unroll 12
    for (int t = 0; t < T; t++)
      if (t < count)
        for (int p = 0; p < P; p++) vf_store(out + t * 32 + (first + p) * 16, sum[p][t]);
  }
  fetch = ahead;
}

// Exact integer sums over the split, of the high parts and then of the low ones: 32 bits hold both
// together. Then one multiplication by the scale of the low parts.
template <int T>
__attribute__((flatten)) void code_sums(const KvHead &h, const SplitPages &s, int from, int to,
                                        int64_t d, const uint8_t *probs, const ProbCodes &codes,
                                        int count, PageStream &fetch, float *out) {
  constexpr int P = kTilePanels;
  PageStream ahead = fetch;
  for (int first = 0; first < 2; first += P) {
    vi sum[P][T];
#pragma GCC unroll 24
    for (int i = 0; i < P * T; i++) sum[i % P][i / P] = vi_zero();
    for (int part = 0; part < 2; part++) {
      if (part) {
#pragma GCC unroll 24
        for (int i = 0; i < P * T; i++) sum[i % P][i / P] = vi_shl<8>(sum[i % P][i / P]);
      }
      for (int page = from; page < to; page++) {
        const uint8_t *lines = s.keys[page] + h.values() + d * 1024 + first * 512;
        const uint8_t *acts = probs + part * kQueryTile * kProbPart + page * kProbPage;
        for (int k = 0; k < 8; k++) {
          if (first == 0 && k % 2 == 0) ahead.step();
          dot_quad<P, T>(lines + k * 64, 512, acts + k * 4 * kActBytes, kProbPart, sum);
        }
      }
    }
#pragma GCC unroll 12
    for (int t = 0; t < T; t++)
      if (t < count) {
        const vi zero = vi_shl<KeyFormat::kZeroLog2>(vi_set1(codes.negative[t]));
        for (int p = 0; p < P; p++)
          vf_store(out + t * 32 + (first + p) * 16,
                   vf_mul(vf_from(vi_add(sum[p][t], zero)), vf_set1(codes.scale[t])));
      }
  }
  fetch = ahead;
}

inline void score_halves(const KvHead &h, const QueryTile &q, const SplitPages &s, int from, int to,
                         PageStream &ahead, float *out) {
  with_height(q.count, [&](auto t) { half_scores<t>(h, q, s, from, to, ahead, out); });
}
inline void score_codes(const KvHead &h, const QueryTile &q, const SplitPages &s, int from, int to,
                        PageStream &ahead, float *out) {
  with_height(q.count, [&](auto t) { code_scores<t>(h, q, s, from, to, ahead, out); });
}
inline void sum_halves(const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                       const uint8_t *probs, int count, PageStream &ahead, float *out) {
  with_height(count, [&](auto t) { half_sums<t>(h, s, from, to, d, probs, count, ahead, out); });
}
inline void sum_codes(const KvHead &h, const SplitPages &s, int from, int to, int64_t d,
                      const uint8_t *probs, const ProbCodes &codes, int count, PageStream &ahead,
                      float *out) {
  with_height(count,
              [&](auto t) { code_sums<t>(h, s, from, to, d, probs, codes, count, ahead, out); });
}

}  // namespace kt
