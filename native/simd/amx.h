// AMX tiles: eight registers of up to 16 rows x 64 bytes. With KT_TILE_MODEL they are modelled in
// memory, operation by operation as the instruction set manual defines them, so that the tiling
// runs and is counted on CPUs without AMX.
#pragma once
#include <atomic>

namespace kt {

// Tile numbers: four accumulators (2 token tiles x 2 panels), two token tiles, two panels.
enum Tile { T_SUM = 0, T_TOKENS = 4, T_PANEL = 6 };

// What the kernels need the token tiles and panels to look like: bytes of K per token row, and the
// lines of a panel that hold as many K.
struct TileShape {
  int token_bytes;
  int panel_lines;
};

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};

  explicit TileConfig(TileShape s) {
    for (int t = 0; t < 8; t++) {
      rows[t] = uint8_t(t >= T_PANEL ? s.panel_lines : 16);
      column_bytes[t] = uint16_t(t >= T_TOKENS && t < T_PANEL ? s.token_bytes : 64);
    }
  }
};

struct TileCounts {
  std::atomic<int64_t> multiplies{0}, loads{0};
};
inline TileCounts &tile_counts() {
  static TileCounts counts;
  return counts;
}

#ifdef KT_TILE_MODEL

struct TileState {
  alignas(64) uint8_t data[8][16][64];
  int rows[8], column_bytes[8];
};
inline TileState &tile_state() {
  thread_local TileState state;
  return state;
}
inline void tile_configure(const TileConfig &c) {
  TileState &s = tile_state();
  std::memset(s.data, 0, sizeof s.data);
  for (int t = 0; t < 8; t++) s.rows[t] = c.rows[t], s.column_bytes[t] = c.column_bytes[t];
}
inline void tile_release() { std::memset(&tile_state(), 0, sizeof(TileState)); }
template <int T>
inline void tile_zero() {
  std::memset(tile_state().data[T], 0, 1024);
}
template <int T>
inline void tile_load(const void *from, int64_t stride) {
  tile_counts().loads++;
  TileState &s = tile_state();
  std::memset(s.data[T], 0, 1024);
  for (int r = 0; r < s.rows[T]; r++)
    std::memcpy(s.data[T][r], static_cast<const uint8_t *>(from) + r * stride,
                size_t(s.column_bytes[T]));
}
template <int T>
inline void tile_store(void *to, int64_t stride) {
  const TileState &s = tile_state();
  for (int r = 0; r < s.rows[T]; r++)
    std::memcpy(static_cast<uint8_t *>(to) + r * stride, s.data[T][r], size_t(s.column_bytes[T]));
}
// C[m][n] += sum of 4 signed bytes of A[m][k] times unsigned bytes of B[k][n].
template <int C, int A, int B>
inline void tile_dot_int8() {
  tile_counts().multiplies++;
  TileState &s = tile_state();
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
  tile_counts().multiplies++;
  TileState &s = tile_state();
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

#else

// The intrinsics do not tell the compiler which memory they read.
inline void tile_memory_fence() { asm volatile("" : : : "memory"); }
inline void tile_configure(const TileConfig &c) {
  tile_memory_fence();
  _tile_loadconfig(&c);
}
inline void tile_release() { _tile_release(); }
// The intrinsics take the tile's number as a literal.
#define KT_TILE_CASES(T, DO)     \
  if constexpr (T == 0) {        \
    DO(0);                       \
  } else if constexpr (T == 1) { \
    DO(1);                       \
  } else if constexpr (T == 2) { \
    DO(2);                       \
  } else if constexpr (T == 3) { \
    DO(3);                       \
  } else if constexpr (T == 4) { \
    DO(4);                       \
  } else if constexpr (T == 5) { \
    DO(5);                       \
  } else if constexpr (T == 6) { \
    DO(6);                       \
  } else {                       \
    DO(7);                       \
  }
template <int T>
inline void tile_zero() {
#define KT_DO(t) _tile_zero(t)
  KT_TILE_CASES(T, KT_DO)
#undef KT_DO
}
template <int T>
inline void tile_load(const void *from, int64_t stride) {
  tile_memory_fence();
#define KT_DO(t) _tile_loadd(t, from, stride)
  KT_TILE_CASES(T, KT_DO)
#undef KT_DO
}
template <int T>
inline void tile_store(void *to, int64_t stride) {
#define KT_DO(t) _tile_stored(t, to, stride)
  KT_TILE_CASES(T, KT_DO)
#undef KT_DO
  tile_memory_fence();
}
// Products happen between sums 0..3, tokens 4..5 and panels 6..7: sum number = 2 * token tile +
// panel.
template <int C, int A, int B>
inline void tile_dot_int8() {
  static_assert(C == 2 * (A - T_TOKENS) + (B - T_PANEL), "one sum per token tile and panel");
  if constexpr (C == 0) _tile_dpbsud(0, 4, 6);
  if constexpr (C == 1) _tile_dpbsud(1, 4, 7);
  if constexpr (C == 2) _tile_dpbsud(2, 5, 6);
  if constexpr (C == 3) _tile_dpbsud(3, 5, 7);
}
template <int C, int A, int B>
inline void tile_dot_bf16() {
  static_assert(C == 2 * (A - T_TOKENS) + (B - T_PANEL), "one sum per token tile and panel");
  if constexpr (C == 0) _tile_dpbf16ps(0, 4, 6);
  if constexpr (C == 1) _tile_dpbf16ps(1, 4, 7);
  if constexpr (C == 2) _tile_dpbf16ps(2, 5, 6);
  if constexpr (C == 3) _tile_dpbf16ps(3, 5, 7);
}

#endif

// The shape that this thread's tiles are configured for.
inline TileShape &tile_shape() {
  thread_local TileShape shape{0, 0};
  return shape;
}
inline void tile_want(TileShape s) {
  TileShape &now = tile_shape();
  if (now.token_bytes == s.token_bytes && now.panel_lines == s.panel_lines) return;
  now = s;
  tile_configure(TileConfig(s));
}
// At the end of a job: parked threads hold no tile state that the kernel would have to save.
inline void tile_leave() {
  if (!tile_shape().token_bytes) return;
  tile_shape() = {0, 0};
  tile_release();
}

}  // namespace kt
