// Filters. Each keeps the start of the row in order of falling weight and then rising index, so it
// is a cut: the last weight and index kept. It is closed in on with a pass a step over the weights
// of the candidates; only what is left between the bounds is sorted.
#pragma once
#include "../../include/kt.h"
#include "rows.h"

namespace kt {
namespace sampling {

constexpr int kBlock = 1024;  // elements summed in float32 before they join a double
constexpr int kSmall = 256;  // elements between two bounds that are worth sorting

// The last one kept. place: among the candidates, which are in order of their index.
struct Cut {
  float weight;
  int32_t place;
};
constexpr Cut kKeepAll = {0.0f, std::numeric_limits<int32_t>::max()};

inline Cut stricter(Cut a, Cut b) {
  if (a.weight != b.weight) return a.weight > b.weight ? a : b;
  return a.place < b.place ? a : b;
}
inline bool kept(float weight, int32_t place, Cut cut) {
  return weight > cut.weight || (weight == cut.weight && place <= cut.place);
}

// What a filter counts up to: elements, or their weight.
struct Count {
  static vf of(vf) { return vf_set1(1.0f); }
  static double one(float) { return 1.0; }
  static double most(double amount, float) { return amount; }
};
struct Mass {
  static vf of(vf v) { return v; }
  static double one(float weight) { return double{weight}; }
  static double most(double amount, float least) { return amount / double{least}; }
};

// The amount of what weighs more than `bound`. n is a multiple of kUnit.
template <class Measure>
double above(const float *weights, int32_t n, float bound) {
  const vf least = vf_set1(bound);
  double total = 0;
  for (int32_t start = 0; start < n; start += kBlock) {
    const int32_t end = std::min(start + kBlock, n);
    vf part[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int32_t i = start; i < end; i += kUnit) {
      for (int j = 0; j < 4; ++j) {
        const vf v = vf_load(weights + i + j * kWide);
        part[j] = vf_add_where(part[j], Measure::of(v), vm_greater(v, least));
      }
    }
    total += vf_sum(vf_add(vf_add(part[0], part[1]), vf_add(part[2], part[3])));
  }
  return total;
}

// Bounds of a cut among n weights: the amount above low reaches the goal, that above high does not.
// Positive floats sort like their bits.
template <class Measure>
struct Bracket {
  const float *weights;
  int32_t n;
  double goal;
  double before;  // the amount of what weighs more than all of these
  double over_low;  // at first `before` and the amount of all of these
  uint32_t high;  // at first the bits of the largest weight or more
  uint32_t low = 0;
  double over_high = before;

  // Whether more than `few` elements may lie between the bounds, and a bound can be moved.
  bool open(double few) const {
    return high > low + 1 &&
           (low == 0 || Measure::most(over_low - over_high, from_bits(low)) > few);
  }
  void close_in(uint32_t probe) {
    const double over = before + above<Measure>(weights, n, from_bits(probe));
    const bool reached = over >= goal;
    (reached ? low : high) = probe;
    (reached ? over_low : over_high) = over;
  }
  // The amounts at the bounds say where between them the goal is met. Every third step halves.
  void close_in_to(double few) {
    for (int step = 0; open(few); ++step) {
      const double met = (over_low - goal) / (over_low - over_high);
      const double at = step % 3 == 2 ? 0.5 : met + (step % 3 == 0 ? -0.02 : 0.02);
      const double probe = low + (high - low) * std::min(std::max(at, 0.0), 1.0);
      close_in(std::min(std::max(static_cast<uint32_t>(probe), low + 1), high - 1));
    }
  }
};

// Weights that a filter may keep or drop; what weighs more than they is kept.
struct Candidates {
  const float *weights;
  int32_t count, padded;
  float least, largest;  // all weigh more than least
};

// The shortest start of the sorted candidates that reaches `goal`, behind `before`.
template <class Measure>
Cut cut_at(const Candidates &c, double before, double goal, Scratch &scratch) {
  const double all = before + above<Measure>(c.weights, c.padded, 0.0f);
  if (all < goal) return kKeepAll;
  Bracket<Measure> b{c.weights, c.padded, goal, before, all, to_bits(c.largest), to_bits(c.least)};
  b.close_in_to(kSmall);
  float *weights = room(scratch.near_weights, c.padded + kWide);
  int32_t *places = room(scratch.near_places, c.padded + kWide);
  const int32_t n = pick(c.weights, c.padded, from_bits(b.low), from_bits(b.high), weights, places);
  double reached = b.over_high;
  if (b.high <= b.low + 1) {  // equal weights
    for (int32_t i = 0; i < n; ++i) {
      reached += Measure::one(weights[i]);
      if (reached >= goal) return {weights[i], places[i]};
    }
  } else {
    scratch.sorted.clear();
    for (int32_t i = 0; i < n; ++i) scratch.sorted.emplace_back(-weights[i], places[i]);
    std::sort(scratch.sorted.begin(), scratch.sorted.end());
    for (const auto &[negative, place] : scratch.sorted) {
      reached += Measure::one(-negative);
      if (reached >= goal) return {-negative, place};
    }
  }
  return {from_bits(b.low + 1), kKeepAll.place};  // rounding: all of them are needed
}

// The mass that a cut keeps of the candidates [from, to), at most kBlock of them.
inline double kept_mass(const Candidates &c, int32_t from, int32_t to, Cut cut) {
  // Equal weights are kept up to the cut's place.
  const int32_t equal_to = std::clamp(cut.place, from - 1, to - 1) + 1;
  const vf below = vf_set1(cut.weight > 0 ? from_bits(to_bits(cut.weight) - 1) : 0.0f);
  const vf at = vf_set1(cut.weight);
  vf sum = vf_zero();
  for_each_wide(c.weights, from, equal_to,
                [&](int32_t, vf w) { sum = vf_add_where(sum, w, vm_greater(w, below)); });
  for_each_wide(c.weights, equal_to, to,
                [&](int32_t, vf w) { sum = vf_add_where(sum, w, vm_greater(w, at)); });
  return double{vf_sum(sum)};
}

}  // namespace sampling
}  // namespace kt
