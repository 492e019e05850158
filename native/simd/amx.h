// AMX tiles: eight registers of up to 16 rows x 64 bytes. With KT_TILE_MODEL they are modelled in
// memory (amx_model.h), so that the tiling runs and is counted on CPUs without AMX.
#pragma once

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

}  // namespace kt

#ifdef KT_TILE_MODEL
#include "amx_model.h"
#else

namespace kt {

// Written out, because the intrinsics take a tile's number as a literal, and do not tell the
// compiler which memory they read.
inline void tile_configure(const TileConfig &c) {
  asm volatile("ldtilecfg %0" : : "m"(c) : "memory");
}
inline void tile_release() { asm volatile("tilerelease"); }
template <int T>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
inline void tile_load(const void *from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void tile_store(void *to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}
// C[m][n] += sum of 4 signed bytes of A[m][k] times unsigned bytes of B[k][n].
template <int C, int A, int B>
inline void tile_dot_int8() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
// The same of pairs of bfloat16; denormals count as zero.
template <int C, int A, int B>
inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

}  // namespace kt

#endif

namespace kt {

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
