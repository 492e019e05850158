// Rate of the dot instruction each kind of kernel uses, on registers: the arithmetic floor of
// bench.
#pragma once
#include "../kernels/encode.h"
#include "pool.h"

namespace kt {

constexpr int kPeakChains = 12;  // independent sums: enough to hide the latency of two pipes

// Operations (multiply and add count 2) per second of one thread.
inline double peak_rate(int kind, double seconds) {
  constexpr int kRounds = 4096;
  alignas(64) uint8_t line[64], act[64] = {};
  for (int i = 0; i < 64; i++) line[i] = uint8_t(i & 1);
  vf f[kPeakChains];
  vi n[kPeakChains];
  for (int c = 0; c < kPeakChains; c++) f[c] = vf_zero(), n[c] = vi_zero();
  const QLine q = q_line(vi_load(line));
  const BLine b = b_line(line);
  const vf x = vf_zero(), y = vf_set1(0.5f);
  double operations = 0;
  const int64_t start = now_ns(), end = start + int64_t(seconds * 1e9);
  while (now_ns() < end) {
    for (int r = 0; r < kRounds; r++) {
#pragma GCC unroll 12
      for (int c = 0; c < kPeakChains; c++) {
        if (kind == KT_PEAK_DOT_INT8)
          n[c] = q_dot(n[c], q, act);
        else if (kind == KT_PEAK_DOT_BF16)
          f[c] = b_dot(f[c], b, act);
        else
          f[c] = vf_fma(x, y, f[c]);
      }
      // The compiler may not hoist or merge the rounds.
      for (int c = 0; c < kPeakChains; c++) asm volatile("" : "+m"(act) : : "memory");
    }
    operations += double(kRounds) * kPeakChains *
                  (kind == KT_PEAK_DOT_INT8   ? 128
                   : kind == KT_PEAK_DOT_BF16 ? 64
                                              : 32);
  }
  const double elapsed = double(now_ns() - start) * 1e-9;
  alignas(64) float sink[16];
  for (int c = 0; c < kPeakChains; c++) {
    vf_store(sink, vf_add(f[c], vf_from(n[c])));
    asm volatile("" : : "m"(sink) : "memory");
  }
  return operations / elapsed;
}

// Bytes per second of plain reads over [from, from + bytes).
inline double read_rate(const uint8_t *from, int64_t bytes, double seconds) {
  vi a = vi_zero(), b = vi_zero();
  double done = 0;
  const int64_t start = now_ns(), end = start + int64_t(seconds * 1e9);
  do {
    for (int64_t i = 0; i + 256 <= bytes; i += 256) {
      _mm_prefetch((const char *)from + i + 4096, _MM_HINT_T0);
      a = vi_add(a, vi_add(vi_load(from + i), vi_load(from + i + 64)));
      b = vi_add(b, vi_add(vi_load(from + i + 128), vi_load(from + i + 192)));
    }
    done += double(bytes);
  } while (now_ns() < end);
  const double elapsed = double(now_ns() - start) * 1e-9;
  int32_t sum = vi_sum(vi_add(a, b));
  asm volatile("" : "+r"(sum));
  return done / elapsed;
}

}  // namespace kt
