// A software model of AMX tiles: each operation as the instruction set manual defines it, and
// counts of what a kernel asks of the tile unit.
//
// The unit starts a multiply every 16 cycles; a loaded tile comes after about 45, a product after
// 52 (Intel 64 and IA-32 Optimization Reference Manual, table 20-2). So a multiply should find
// operands that were asked for before the multiply ahead of it, and a store a sum that another
// multiply has followed. The model counts those that do not.
#pragma once
#include <atomic>

namespace kt {

struct TileCounts {
  std::atomic<int64_t> multiplies{0}, loads{0}, stores{0}, zeros{0};
  std::atomic<int64_t> late_loads{0};  // multiplies right behind the load of an operand
  std::atomic<int64_t> early_stores{0};  // stores right behind the last multiply of their sum
};
inline TileCounts &tile_counts() {
  static TileCounts counts;
  return counts;
}

struct TileState {
  alignas(64) uint8_t data[8][16][64];
  int rows[8], column_bytes[8];
  int64_t multiplies = 1;  // by this thread
  int64_t loaded[8], multiplied[8];  // multiplies before a tile's last load or product
};
inline TileState &tile_state() {
  thread_local TileState state{};
  return state;
}
inline void tile_configure(const TileConfig &c) {
  TileState &s = tile_state();
  std::memset(s.data, 0, sizeof s.data);
  for (int t = 0; t < 8; t++) s.rows[t] = c.rows[t], s.column_bytes[t] = c.column_bytes[t];
}
inline void tile_release() {
  TileState &s = tile_state();
  std::memset(s.data, 0, sizeof s.data);
  for (int t = 0; t < 8; t++) s.rows[t] = s.column_bytes[t] = 0;
}
template <int T>
inline void tile_zero() {
  tile_counts().zeros++;
  std::memset(tile_state().data[T], 0, 1024);
}
template <int T>
inline void tile_load(const void *from, int64_t stride) {
  tile_counts().loads++;
  TileState &s = tile_state();
  s.loaded[T] = s.multiplies;
  std::memset(s.data[T], 0, 1024);
  for (int r = 0; r < s.rows[T]; r++)
    std::memcpy(s.data[T][r], static_cast<const uint8_t *>(from) + r * stride,
                size_t(s.column_bytes[T]));
}
template <int T>
inline void tile_store(void *to, int64_t stride) {
  const TileState &s = tile_state();
  tile_counts().stores++;
  tile_counts().early_stores += s.multiplied[T] + 1 == s.multiplies;
  for (int r = 0; r < s.rows[T]; r++)
    std::memcpy(static_cast<uint8_t *>(to) + r * stride, s.data[T][r], size_t(s.column_bytes[T]));
}
template <int C, int A, int B>
inline TileState &tile_multiply() {
  TileState &s = tile_state();
  tile_counts().multiplies++;
  tile_counts().late_loads += s.loaded[A] == s.multiplies || s.loaded[B] == s.multiplies;
  s.multiplied[C] = s.multiplies++;
  return s;
}
// C[m][n] += sum of 4 signed bytes of A[m][k] times unsigned bytes of B[k][n].
template <int C, int A, int B>
inline void tile_dot_int8() {
  TileState &s = tile_multiply<C, A, B>();
  for (int m = 0; m < s.rows[C]; m++)
    for (int k = 0; k < s.column_bytes[A] / 4; k++) {
      int32_t *c = reinterpret_cast<int32_t *>(s.data[C][m]);
      const int8_t *a = reinterpret_cast<const int8_t *>(s.data[A][m]) + 4 * k;
      const uint8_t *b = s.data[B][k];
      for (int n = 0; n < 16; n++)
        for (int i = 0; i < 4; i++) c[n] += int32_t(a[i]) * b[4 * n + i];
    }
}
// C[m][n] += (sum over k of even products) + (sum over k of odd products), each product fused into
// its sum; denormals count as zero.
inline float tile_flush(float x) { return std::fabs(x) < 1.17549435e-38f ? 0.0f : x; }
template <int C, int A, int B>
inline void tile_dot_bf16() {
  TileState &s = tile_multiply<C, A, B>();
  const auto value = [](const uint8_t *p) { return tile_flush(bf16_to_float(load_u16(p))); };
  for (int m = 0; m < s.rows[C]; m++)
    for (int n = 0; n < 16; n++) {
      float even = 0, odd = 0;
      for (int k = 0; k < s.column_bytes[A] / 4; k++) {
        const uint8_t *a = s.data[A][m] + 4 * k, *b = s.data[B][k] + 4 * n;
        even = tile_flush(std::fma(value(a), value(b), even));
        odd = tile_flush(std::fma(value(a + 2), value(b + 2), odd));
      }
      float *c = reinterpret_cast<float *>(s.data[C][m]) + n;
      *c = tile_flush(tile_flush(*c) + tile_flush(even + odd));
    }
}

}  // namespace kt
