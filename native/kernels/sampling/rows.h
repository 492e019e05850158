// Rows of floats, 16 at a time: the largest, weights e^x, sums, and picking out.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace kt {
namespace sampling {

constexpr int kWide = 16;  // lanes of vf
constexpr int kUnit = 4 * kWide;  // arrays of weights are padded to this
constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline int32_t pad(int32_t n, int32_t multiple) { return (n + multiple - 1) / multiple * multiple; }

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// What a thread keeps from row to row, so that sampling does not allocate.
struct Scratch {
  std::vector<float> sample;
  std::vector<vf> block_parts;  // [blocks, measures] sums of a block, lane by lane
  std::vector<double> block_sums;  // [blocks]
  std::vector<float> weights;  // of the candidates, padded
  std::vector<int32_t> block_first;  // [blocks + 1] candidates before a block
  std::vector<float> near_weights;  // of the candidates around a cut
  std::vector<int32_t> near_places;
  std::vector<std::pair<float, int32_t>> sorted;
  std::vector<int32_t> uses;  // [vocab] 0, or 1 + uses in the output; all 0 between rows
  std::vector<int32_t> seen;  // ids with uses > 0
  std::vector<std::pair<int32_t, float>> raw;  // logits before they were changed
};

// Grows, never shrinks.
template <class T>
T *room(std::vector<T> &v, int64_t n) {
  if (v.size() < static_cast<size_t>(n)) v.resize(static_cast<size_t>(n));
  return v.data();
}

// Calls each(i, v) for vectors of x[start, end); the last is filled up with -infinity.
template <class Each>
inline void for_each_wide(const float *x, int32_t start, int32_t end, Each each) {
  int32_t i = start;
  for (; i + kWide <= end; i += kWide) each(i, vf_load(x + i));
  if (i == end) return;
  float rest[kWide];
  std::fill(rest, rest + kWide, -kInfinity);
  std::memcpy(rest, x + i, static_cast<size_t>(end - i) * sizeof(float));
  each(i, vf_load(rest));
}

// -infinity for a row without a number.
inline float maximum(const float *x, int32_t n) {
  vf m[4];
  for (vf &v : m) v = vf_set1(-kInfinity);
  int32_t i = 0;
  for (; i + kUnit <= n; i += kUnit) {
    for (int j = 0; j < 4; ++j) m[j] = vf_max(vf_load(x + i + j * kWide), m[j]);  // NaN: m stays
  }
  for_each_wide(x, i, n, [&](int32_t, vf v) { m[0] = vf_max(v, m[0]); });
  return vf_reduce_max(vf_max(vf_max(m[0], m[1]), vf_max(m[2], m[3])));
}

// Lowest index of the maximum; 0 in a row without a number.
inline int32_t argmax(const float *x, int32_t n) {
  const float best = maximum(x, n);
  const vf v = vf_set1(best);
  const auto at = [&](int32_t i) { return vm_equal(vf_load(x + i), v); };
  int32_t start = 0;
  while (start + 2 * kWide <= n && !vm_any(vm_or(at(start), at(start + kWide)))) start += 2 * kWide;
  const float *found = std::find(x + start, x + n, best);
  return found == x + n ? 0 : static_cast<int32_t>(found - x);
}

// e^((x - base) / temperature) to 2e-7 of itself, and 0 below 2^-126.
class Weight {
 public:
  Weight(float base, float temperature)
      : base_(base), temperature_(temperature), scale_(kLog2E / temperature) {}

  vf operator()(vf x) const {
    // 2^y = 2^n 2^r; the polynomial is the best of its degree for |r| <= 1/2.
    const vf y = vf_max(vf_mul(vf_sub(x, vf_set1(base_)), vf_set1(scale_)), vf_set1(-127.0f));
    const vi n = vi_round(y);
    const vf r = vf_sub(y, vf_from(n));
    vf p = vf_fma(r, vf_set1(1.32647261e-3f), vf_set1(9.67151299e-3f));
    p = vf_fma(p, r, vf_set1(5.55073358e-2f));
    p = vf_fma(p, r, vf_set1(2.40222424e-1f));
    p = vf_fma(p, r, vf_set1(6.93147004e-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_mul(p, vf_bits(vi_shl<23>(vi_add(n, vi_set1(127)))));
  }

  float base() const { return base_; }
  float temperature() const { return temperature_; }
  float logit(float weight) const { return base_ + temperature_ * std::log(weight); }

 private:
  static constexpr float kLog2E = 1.44269504f;
  float base_, temperature_, scale_;
};

// Copies the elements in (low, high] to values and, if wanted, their places to places, in order;
// both have room for a vector more. Returns how many.
inline int32_t pick(const float *x, int32_t n, float low, float high, float *values,
                    int32_t *places = nullptr) {
  alignas(64) static constexpr int32_t kIota[kWide] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                       8, 9, 10, 11, 12, 13, 14, 15};
  const vf above = vf_set1(low), below = vf_set1(high);
  const vi iota = vi_load(kIota);
  int32_t count = 0;
  const auto take = [&](int32_t i, vf v) {
    const vm m = vm_andnot(vm_greater(v, below), vm_greater(v, above));
    if (places) vm_pack(places + count, vi_add(iota, vi_set1(i)), m);
    count += vm_pack(values + count, vi_bits(v), m);
  };
  int32_t i = 0;
  for (; i + kUnit <= n; i += kUnit) {
    vf v[4];
    for (int j = 0; j < 4; ++j) v[j] = vf_load(x + i + j * kWide);
    const vf most = vf_max(vf_max(v[0], v[1]), vf_max(v[2], v[3]));
    if (!vm_any(vm_greater(most, above))) continue;
    for (int j = 0; j < 4; ++j) take(i + j * kWide, v[j]);
  }
  for_each_wide(x, i, n, take);
  return count;
}

}  // namespace sampling
}  // namespace kt
