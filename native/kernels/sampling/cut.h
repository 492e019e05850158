// Filters. Each keeps the start of the row in order of falling weight and then rising index, so it
// is a cut: the last weight and index kept. It is closed in on with a pass a step over the weights
// of the candidates; only what is left between the bounds is sorted.
#pragma once
#include "../../include/kt.h"
#include "rows.h"

namespace kt {
namespace sampling {

constexpr int kSmall = 32;  // elements between two bounds that are worth sorting

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

  // No fewer than there are elements between the bounds.
  double between() const {
    return low == 0 ? double(n) : Measure::most(over_low - over_high, from_bits(low));
  }
  void close_in(uint32_t probe) {
    const double over = before + above<Measure>(weights, n, from_bits(probe));
    const bool reached = over >= goal;
    (reached ? low : high) = probe;
    (reached ? over_low : over_high) = over;
  }
  // Until there are `few` elements at most between the bounds, or no bound can be moved. The
  // amounts at the bounds say about where the goal is met: a bound moves there from either side in
  // turn. A step halves where the two before it were of little use.
  void close_in_to(double few) {
    uint32_t width_before = high - low;
    for (int step = 0; high > low + 1 && between() > few; ++step) {
      const double met = (over_low - goal) / (over_low - over_high);
      const double margin = std::max(0.01, 8 / between());
      double at = met + (step % 2 ? margin : -margin);
      const uint32_t width = high - low;
      if (step % 3 == 2) {
        if (width > width_before / 2) at = 0.5;
        width_before = width;
      }
      const double probe = low + width * std::min(std::max(at, 0.0), 1.0);
      close_in(std::min(std::max(static_cast<uint32_t>(probe), low + 1), high - 1));
    }
  }
};

// Weights that a filter may keep or drop; what weighs more than they is kept. Those of a block are
// padded with zeros to a vector, all of them to kUnit.
struct Candidates {
  float *weights;
  int32_t count;
  float least, largest;  // what may be the last one kept weighs more than least
};

// What block `b` of the row has of the candidates' mass.
inline double mass_of_block(const Candidates &c, int32_t b, const Scratch &scratch) {
  vf sum = vf_zero();
  for (int32_t i = scratch.block_first[size_t(b)]; i < scratch.block_first[size_t(b) + 1];
       i += kWide)
    sum = vf_add(sum, vf_load(c.weights + i));
  return double{vf_sum(sum)};
}

// The shortest start of the sorted candidates that reaches `goal`, behind `before`.
template <class Measure>
Cut cut_at(const Candidates &c, double before, double goal, Scratch &scratch) {
  const double all = before + above<Measure>(c.weights, c.count, c.least);
  if (all < goal) return kKeepAll;
  Bracket<Measure> b{c.weights, c.count, goal, before, all, to_bits(c.largest), to_bits(c.least)};
  b.close_in_to(kSmall);
  float *weights = room(scratch.near_weights, c.count + kWide);
  int32_t *places = room(scratch.near_places, c.count + kWide);
  const int32_t n = pick(c.weights, c.count, from_bits(b.low), from_bits(b.high), weights, places);
  scratch.sorted.clear();
  for (int32_t i = 0; i < n; ++i) scratch.sorted.emplace_back(-weights[i], places[i]);
  if (b.high > b.low + 1)  // else they weigh the same
    std::sort(scratch.sorted.begin(), scratch.sorted.end());
  double reached = b.over_high;
  for (const auto &[negative, place] : scratch.sorted) {
    reached += Measure::one(-negative);
    if (reached >= goal) return {-negative, place};
  }
  return {from_bits(b.low + 1), kKeepAll.place};  // rounding: all of them are needed
}

// Sets the weights that a cut drops to 0.
inline void drop(const Candidates &c, Cut cut) {
  float *weights = c.weights;
  const int32_t equal_to = cut.place < c.count ? cut.place + 1 : c.count;  // equal ones are kept
  const float below = cut.weight > 0 ? from_bits(to_bits(cut.weight) - 1) : 0.0f;
  const auto keep = [&](int32_t from, int32_t to, float bound) {
    for (int32_t i = from; i < to; i += kWide) {
      const vf w = vf_load(weights + i);
      vf_store(weights + i, vf_add_where(vf_zero(), w, vm_greater(w, vf_set1(bound))));
    }
  };
  const int32_t split = equal_to / kWide * kWide;
  keep(0, split, below);
  for (int32_t i = split; i < equal_to; ++i)
    if (!(weights[i] > below)) weights[i] = 0.0f;
  const int32_t rest = std::min(pad(equal_to, kWide), c.count);
  for (int32_t i = equal_to; i < rest; ++i)
    if (!(weights[i] > cut.weight)) weights[i] = 0.0f;
  keep(rest, c.count, cut.weight);
}

}  // namespace sampling
}  // namespace kt
