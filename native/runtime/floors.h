// Rate of the dot instruction each kind of kernel uses, on registers: the arithmetic floor of
// bench.
#pragma once
#include "../kernels/encode.h"
#include "pool.h"

namespace kt {

// One dot product from registers, as a tile does; the compiler may not skip or merge it.
template <int Kind, class Sum>
inline Sum peak_step(Sum sum, QLine &q, BLine &b, vf &x, const uint8_t *act) {
  if constexpr (Kind == KT_PEAK_DOT_INT8) {
    q_keep(q);
    sum = q_dot(sum, q, act);
    vi_keep(sum);
  } else {
    if constexpr (Kind == KT_PEAK_DOT_BF16) {
      b_keep(b);
      sum = b_dot(sum, b, act);
    } else {
      vf_keep(x);
      sum = vf_fma(x, x, sum);
    }
    vf_keep(sum);
  }
  return sum;
}

// Operations (multiply and add count 2) per second of one thread. Every sum is a variable of its
// own: elements of an array would be written to memory at every step.
template <int Kind, int... C>
__attribute__((flatten)) inline double peak_rate_of(double seconds,
                                                    std::integer_sequence<int, C...>) {
  using Sum = std::conditional_t<Kind == KT_PEAK_DOT_INT8, vi, vf>;
  constexpr int kRounds = 16384;
  constexpr int kOperations = Kind == KT_PEAK_DOT_INT8 ? 128 : Kind == KT_PEAK_DOT_BF16 ? 64 : 32;
  alignas(64) uint8_t act[64] = {};
  vf x = vf_zero();
  QLine q = q_line(vi_zero());
  BLine b = b_line(vi_zero());
  double operations = 0;
  const int64_t start = now_ns(), end = start + int64_t(seconds * 1e9);
  const auto rounds = [&](auto... sum) {
    for (int r = 0; r < kRounds; r++) ((sum = peak_step<Kind>(sum, q, b, x, act)), ...);
  };
  while (now_ns() < end) {
    asm volatile("" : : "r"(act) : "memory");  // the activations could be anything
    rounds(((void)C, Sum{})...);
    operations += double(kRounds) * sizeof...(C) * kOperations;
  }
  return operations / (double(now_ns() - start) * 1e-9);
}
template <int Kind>
inline double peak_rate_of(double seconds) {
  return peak_rate_of<Kind>(seconds, std::make_integer_sequence<int, kPeakChains>());
}
inline double peak_rate(int kind, double seconds) {
  if (kind == KT_PEAK_DOT_INT8) return peak_rate_of<KT_PEAK_DOT_INT8>(seconds);
  if (kind == KT_PEAK_DOT_BF16) return peak_rate_of<KT_PEAK_DOT_BF16>(seconds);
  return peak_rate_of<KT_PEAK_FMA_F32>(seconds);
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
