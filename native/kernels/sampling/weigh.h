// One pass over a row for its largest logit and the mass of its weights. A watch notes on the way
// what the filters need to know, so that the row is read from memory once.
#pragma once
#include "sample.h"

namespace kt {
namespace sampling {

constexpr float kMostOver = 60.0f;  // weights up to e^60 are added up in float32
constexpr int kAhead = 2048;  // elements; the caches' own fetching stops at each page

struct Masses {
  float top;
  double all;
};

// What a watch is shown: kUnit logits from `start` on, the largest of them lane by lane, weights.
struct Group {
  int32_t start;
  vf x[4], largest, weights[4];
};
// And where a block ends.
struct BlockEnd {
  int32_t block, end;
  float mass;
  vf largest;  // up to here
  double seen;  // mass up to here
};

// A watch's Notes change with every group; a pass keeps them in registers during a block.
struct Blind {
  struct Notes {
    void group(const Group &) {}
  } notes;
  void block(const BlockEnd &) {}
};

// Each block's mass.
struct BlockWatch : Blind {
  float *masses;
  BlockWatch(int32_t vocab, Scratch &scratch)
      : masses(room(scratch.block_over, blocks_of(vocab))) {}
  void block(const BlockEnd &b) { masses[b.block] = b.mass; }
};

// The logits above a floor, packed at each block's end. The floor rises with what the pass has
// seen.
struct FloorWatch {
  struct Notes {
    vf low;
    int32_t groups[kBlock / kUnit];  // that hold some, and a last one
    int32_t count = 0;
    void group(const Group &g) {
      groups[count] = g.start;
      count += vm_any(vm_greater(g.largest, low));
    }
  } notes;
  const float *logits;
  const int32_t vocab;
  Floor floor;
  Packed packed;
  float *block_low;
  FloorWatch(const float *logits, int32_t vocab, const Floor &floor, Scratch &scratch)
      : logits(logits),
        vocab(vocab),
        floor(floor),
        packed(vocab, scratch),
        block_low(room(scratch.block_low, blocks_of(vocab))) {
    notes.low = vf_set1(floor.low());
  }
  void block(const BlockEnd &b) {
    block_low[b.block] = floor.low();
    for (int32_t i = 0; i < notes.count; ++i) {
      const int32_t start = notes.groups[i];
      const float *x = logits + start;
      float rest[kUnit];
      packed.take(start + kUnit > vocab ? padded(x, vocab - start, rest) : x, notes.low);
    }
    notes.count = 0;
    packed.end_block(b.block, -kInfinity);
    const double left = double(vocab - b.end) / vocab;
    notes.low = vf_set1(floor.raised(b.largest, b.seen, left));
  }
};

// The weights of the logits in a band, packed, and the mass above it.
struct BandWatch {
  struct Notes {
    vf low, high, sums[4];
    float *values;
    int32_t count;
    void group(const Group &g) {
      vm within[4];
      for (int j = 0; j < 4; ++j) {
        const vm above = vm_greater(g.x[j], high);
        sums[j] = vf_add_where(sums[j], g.weights[j], above);
        within[j] = vm_andnot(above, vm_greater(g.x[j], low));
      }
      count += vm_pack4(values + count, g.weights, within);
    }
  } notes;
  Packed packed;
  float *block_over;
  double over = 0;
  BandWatch(int32_t vocab, Range band, Scratch &scratch)
      : packed(vocab, scratch), block_over(room(scratch.block_over, blocks_of(vocab))) {
    notes.low = vf_set1(band.low), notes.high = vf_set1(band.high);
    for (vf &sum : notes.sums) sum = vf_zero();
    notes.values = packed.values, notes.count = 0;
  }
  void block(const BlockEnd &b) {
    over += block_over[b.block] = take_sum(notes.sums);
    packed.count = notes.count;
    packed.end_block(b.block, 0.0f);
    notes.count = packed.count;
  }
};

template <class Watch>
Masses weigh(const float *logits, int32_t vocab, Weight weight, Watch &watch) {
  vf most = vf_set1(-kInfinity);
  double total = 0;
  float rest[kUnit];
  for (int32_t block = 0, begin = 0; begin < vocab; ++block, begin += kBlock) {
    const int32_t end = std::min(begin + kBlock, vocab);
    vf sums[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    typename Watch::Notes notes = watch.notes;
    Group g;
    for (g.start = begin; g.start < end; g.start += kUnit) {
      const float *x = logits + g.start;
      for (int j = 0; j < 4; ++j) __builtin_prefetch(x + kAhead + j * kWide);
      if (g.start + kUnit > end) x = padded(x, end - g.start, rest);
      for (int j = 0; j < 4; ++j) g.x[j] = vf_load(x + j * kWide);
      weight(g.x, g.weights);
      g.largest = largest(g.x);
      most = vf_max(g.largest, most);
      for (int j = 0; j < 4; ++j) sums[j] = vf_add(sums[j], g.weights[j]);
      notes.group(g);
    }
    watch.notes = notes;
    const float mass = take_sum(sums);
    total += mass;
    watch.block({block, end, mass, most, total});
  }
  return {vf_reduce_max(most), total};
}

inline bool too_heavy(const Masses &m, const Weight &weight) {
  return (m.top - weight.base()) / weight.temperature() > kMostOver;
}

// weigh(), again with another base if the row's largest logit lies too far above.
template <class Watch>
Masses weigh_row(const float *logits, int32_t vocab, Weight &weight, Watch &&watch) {
  const Masses m = weigh(logits, vocab, weight, watch);
  if (!too_heavy(m, weight)) return m;
  weight = Weight(m.top, weight.temperature());
  return weigh(logits, vocab, weight, watch);
}

}  // namespace sampling
}  // namespace kt
