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
constexpr int kBlock = 2048;  // elements summed in float32 before they join a double
constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline int32_t pad(int32_t n, int32_t multiple) { return (n + multiple - 1) / multiple * multiple; }

inline int32_t blocks_of(int32_t vocab) { return (vocab + kBlock - 1) / kBlock; }

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
  float rare;  // a logit: about 1 in 64 of the sample lies above
  std::vector<float> block_over;  // [blocks] the mass of what weighs more than the candidates
  std::vector<double> block_sums;  // [blocks]
  std::vector<float> weights;  // of the candidates; those of a block are padded to a vector
  std::vector<int32_t> block_first;  // [blocks + 1] candidates before a block
  std::vector<float> block_low;  // [blocks] the logit that a block's candidates lie above
  std::vector<float> near_weights;  // of the few around a cut
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

// n logits, or a vector of them if there are more; the rest is -infinity.
inline vf load_part(const float *x, int32_t n) {
  if (n >= kWide) return vf_load(x);
  float part[kWide];
  std::fill(std::copy(x, x + n, part), part + kWide, -kInfinity);
  return vf_load(part);
}
// Calls each(i, v) for vectors of x[start, end); the last is filled up with -infinity.
template <class Each>
inline void for_each_wide(const float *x, int32_t start, int32_t end, Each each) {
  int32_t i = start;
  for (; i + kWide <= end; i += kWide) each(i, vf_load(x + i));
  if (i < end) each(i, load_part(x + i, end - i));
}

// n logits, and -infinity up to kUnit.
__attribute__((noinline)) inline const float *padded(const float *x, int32_t n,
                                                     float (&rest)[kUnit]) {
  std::fill(std::copy(x, x + n, rest), rest + kUnit, -kInfinity);
  return rest;
}

// The largest of 4, lane by lane; -infinity for NaN, of which vf_max takes its second operand.
inline vf largest(const vf (&v)[4]) {
  vf most = vf_set1(-kInfinity);
  for (const vf &x : v) most = vf_max(x, most);
  return most;
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

// e^((x - base()) / temperature) to 2.5e-7 of itself; 0 below 2^-127 and for NaN. base() lies at
// `base` or a factor of 2 below, where its exponent is whole: then it costs no subtraction.
class Weight {
 public:
  Weight(float base, float temperature)
      : temperature_(temperature), scale_(kLog2E / temperature), base_(base) {
    const double exponent = base_ * scale_;
    far_ = !(std::fabs(exponent) < kFar);
    if (!far_) whole_ = std::floor(exponent), base_ = whole_ / scale_;
    least_ = static_cast<float>((whole_ - 127) / scale_);
  }

  template <int N>
  void operator()(const vf (&x)[N], vf (&weights)[N]) const {
    for (int j = 0; j < N; ++j) weights[j] = x[j];
    if (far_) {
      for (int j = 0; j < N; ++j) weights[j] = vf_sub(x[j], vf_set1(static_cast<float>(base_)));
    }
    vf_power2(weights, scale_, -static_cast<float>(whole_), least_);
  }
  vf operator()(vf x) const {
    vf weight[1];
    (*this)({x}, weight);
    return weight[0];
  }

  double base() const { return base_; }
  float temperature() const { return temperature_; }
  float logit(float weight) const {
    return static_cast<float>(base_ + temperature_ * std::log(weight));
  }

 private:
  static constexpr float kLog2E = 1.44269504f;
  static constexpr double kFar = 0x1p16;  // exponents from which on float32 has no 32nds of them
  float temperature_, scale_, least_;
  double base_, whole_ = 0;
  bool far_;
};

inline vi lane_numbers() {
  alignas(64) static constexpr int32_t kNumbers[kWide] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                          8, 9, 10, 11, 12, 13, 14, 15};
  return vi_load(kNumbers);
}

// Copies the elements in (low, high] to values and, if wanted, their places to places, in order;
// both have room for a vector more. Returns how many.
inline int32_t pick(const float *x, int32_t n, float low, float high, float *values,
                    int32_t *places = nullptr) {
  const vf above = vf_set1(low), below = vf_set1(high);
  const vi iota = lane_numbers();
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
    if (!vm_any(vm_greater(largest(v), above))) continue;
    for (int j = 0; j < 4; ++j) take(i + j * kWide, v[j]);
  }
  for_each_wide(x, i, n, take);
  return count;
}

// What is packed from a row block by block. Each block's are padded to a vector.
struct Packed {
  float *values;
  int32_t *first, count = 0;  // [blocks + 1] where each block's start; count: with the padding
  int32_t picked = 0;  // without
  Packed(int32_t vocab, Scratch &scratch)
      : values(room(scratch.weights, vocab + (blocks_of(vocab) + 5) * int64_t{kWide})),
        first(room(scratch.block_first, blocks_of(vocab) + 1)) {
    first[0] = 0;
  }
  // Those of kUnit that lie above `low`: mostly one or two.
  void take(const float *x, vf low) {
    vf v[4];
    vm above[4];
    for (int j = 0; j < 4; ++j) v[j] = vf_load(x + j * kWide), above[j] = vm_greater(v[j], low);
    constexpr uint64_t kLast = uint64_t{1} << 63;
    const uint64_t bits = vm_bits4(above), rest = bits & (bits - 1);
    if (rest & (rest - 1)) {
      count += vm_pack4(values + count, v, above);
    } else {
      values[count] = x[__builtin_ctzll(bits | kLast)];
      values[count + 1] = x[__builtin_ctzll(rest | kLast)];
      count += (bits != 0) + (rest != 0);
    }
  }
  void end_block(int32_t block, float filler) {
    picked += count - first[block];
    vf_store(values + count, vf_set1(filler));
    first[block + 1] = count = pad(count, kWide);
  }
};

// The sum of 4 sums, which start again from 0.
inline float take_sum(vf (&sums)[4]) {
  const float sum = vf_sum(vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])));
  for (vf &s : sums) s = vf_zero();
  return sum;
}

}  // namespace sampling
}  // namespace kt
