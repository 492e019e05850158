// The register tile on AMX: up to 32 tokens x 2 panels in four accumulators, straight from the
// packed lines (a panel's lines of 4 or 2 K are the rows of a B tile). Integer sums are exact
// within a group and joined in the order of tile_int, so these tiles and the VNNI ones give the
// same bits; bfloat16 goes through tiles at every height, since their order of summation is their
// own.
//
// A step multiplies one token tile by both panels, into one of two pairs of accumulators; steps
// alternate between the pairs. Behind each multiply the tile that it was the last to need is loaded
// for a later step, so every multiply finds operands that were asked for before the multiply ahead
// of it. A sum is stored when the other pair's multiplies are under way, and joined meanwhile by
// the vector units. tests/native/test_amx_model.py counts all of it.
#pragma once
#include "../simd/amx.h"
#include "tile.h"

namespace kt {

// Up to 16 token rows as one tile's memory: in place when they are evenly spaced, else copied.
class TokenTile {
 public:
  TokenTile(const void *const *rows, int count) : rows_(rows), count_(count) {
    if (count < 16) return;  // a tile reads 16 rows
    const uint8_t *first = row(0);
    const int64_t stride = row(1) - first;
    for (int i = 2; i < count; i++)
      if (row(i) - first != i * stride) return;
    base_ = first, stride_ = stride;
  }
  int count() const { return count_; }
  // Bytes [at, at + bytes) of every row. staging: 16 rows of 64 bytes, zeros or an earlier load.
  template <int T>
  void load(int64_t at, int bytes, uint8_t *staging) const {
    if (base_) return tile_load<T>(base_ + at, stride_);
    for (int i = 0; i < count_; i++) std::memcpy(staging + i * 64, row(i) + at, size_t(bytes));
    tile_load<T>(staging, 64);
  }

 private:
  const uint8_t *row(int i) const { return static_cast<const uint8_t *>(rows_[i]); }
  const void *const *rows_;
  int count_;
  const uint8_t *base_ = nullptr;
  int64_t stride_ = 0;
};

// Both panels' lines as operands: decoded into one of two buffers in the first-level cache, or for
// later passes, or as they lie in g.lines.
template <class F, Pass K>
class PanelLines {
  static constexpr bool kReady = K == Pass::kLater || !decodes<F>();
  static constexpr bool kBuffers = K == Pass::kOnly && !kReady;
  static constexpr int64_t kBytes = decodes<F>() ? decoded_block_bytes<F>() : F::kBlockBytes;

 public:
  explicit PanelLines(const TileArgs &g) : g_(g) { prepare(0); }
  // Before the multiplies of block b - 1, during which the first tiles of b are loaded. Inlined by
  // force: a function that only fetches looks as if it had no effect, and its calls are dropped.
  __attribute__((always_inline)) void prepare(int64_t b) {
    for (int p = 0; p < 2 && b < g_.blocks; p++) {
      if constexpr (kBuffers) {
        expand_block<F>(packed(p, b), decoded_[b % 2][p]);
      } else if constexpr (!kReady) {
        expand_block<F>(packed(p, b), g_.decoded[p] + b * kBytes);
        if constexpr (F::kKind == Kind::kInt)
          DecodedScales<F>::store(g_.decoded[p] + g_.blocks * kBytes, b,
                                  load_scales<F>(g_.meta[p], b));
      } else {
        for (int64_t line = 0; line < kBytes; line += 64)
          _mm_prefetch(reinterpret_cast<const char *>(at(p, b) + line), _MM_HINT_T0);
      }
    }
  }
  const uint8_t *at(int p, int64_t b) const {
    if constexpr (kBuffers) return decoded_[b % 2][p];
    if constexpr (!decodes<F>()) return packed(p, b);
    return (kReady ? g_.lines : g_.decoded)[p] + b * kBytes;
  }

 private:
  const uint8_t *packed(int p, int64_t b) const {
    return g_.lines[p] + lines_offset<F>(b, g_.blocks);
  }
  const TileArgs &g_;
  alignas(64) uint8_t decoded_[kBuffers ? 2 : 1][2][kBuffers ? kBytes : 64];
};

template <class F, Pass K>
class AmxTile {
  static constexpr bool kInt = F::kKind == Kind::kInt, kFp8 = F::kKind == Kind::kFp8;
  // K of a multiply, and multiplies of a block and of a sum.
  static constexpr int depth() {
    if constexpr (kInt) return F::Scales::kGroup;
    return 32;
  }
  static constexpr int kDepth = depth(), kParts = 32 / kDepth;
  static constexpr int kTokenBytes = kDepth * (kInt ? 1 : 2), kPanelLines = kTokenBytes / 4;
  static constexpr int64_t span() {
    if constexpr (kFp8) return F::Scales::kSuper;
    return kInt ? 1 : std::numeric_limits<int64_t>::max();
  }
  static constexpr int64_t kSpan = span();

 public:
  explicit AmxTile(const TileArgs &g)
      : g_(g),
        units_(g.blocks * kParts),
        ahead_(ahead_of<2, 2>(g, 0)),
        tokens_{{g.rows, std::min(g.count, 16)}, {g.rows + 16, std::max(g.count - 16, 0)}},
        lines_(g) {
    if constexpr (kInt)
      for (int t = 0; t < g.count; t++) a_[t] = int_row(g.rows[t], g.blocks);
    tile_want({kTokenBytes, kPanelLines});
  }

  void run() {
    if (!g_.accumulate && (kInt || kFp8))
      for (int t = 0; t < g_.count; t++) std::memset(g_.out + t * 32, 0, 128);
    if (g_.count > 16)
      run_two();
    else
      run_one();
  }

 private:
  // A unit: kDepth K.
  void start_unit(int64_t u) {
    if (u % kParts) return;
    ahead_.fetch_block();
    lines_.prepare(u / kParts + 1);
  }
  template <int P>
  void load_panel(int64_t u) {
    if (u < units_)
      tile_load<T_PANEL + P>(lines_.at(P, u / kParts) + u % kParts * kPanelLines * 64, 64);
  }
  // The rows of token tile `from` into A tile T.
  template <int T>
  void load_tokens(int from, int64_t u) {
    if (u < units_)
      tokens_[from].template load<T_TOKENS + T>(u * kTokenBytes, kTokenBytes, staging_[from]);
  }
  // The two sums of a pair start from zero, or from what a bfloat16 product is added to.
  template <int Pair>
  void start_sums() {
    if (kInt || kFp8 || !g_.accumulate) {
      tile_zero<2 * Pair>(), tile_zero<2 * Pair + 1>();
    } else {
      each_row(Pair, Pair, [](float *sum, float *out, int, int) { vf_store(sum, vf_load(out)); });
      tile_load<2 * Pair>(sums_[2 * Pair], 64), tile_load<2 * Pair + 1>(sums_[2 * Pair + 1], 64);
    }
  }
  template <int Pair, int A, int P>
  static void multiply() {
    if constexpr (kInt)
      tile_dot_int8<2 * Pair + P, T_TOKENS + A, T_PANEL + P>();
    else
      tile_dot_bf16<2 * Pair + P, T_TOKENS + A, T_PANEL + P>();
  }

  void run_two() {
    load_panel<0>(0), load_tokens<0>(0, 0), load_panel<1>(0), load_tokens<1>(1, 0);
    for (int64_t u = 0; u < units_; u++) {
      const bool first = u % kSpan == 0, last = (u + 1) % kSpan == 0 || u + 1 == units_;
      start_unit(u);
      if (first) start_sums<0>();
      multiply<0, 0, 0>(), multiply<0, 0, 1>();
      load_tokens<0>(0, u + 1);
      if (first && u) join<1>(u - 1, 1);
      if (first) start_sums<1>();
      multiply<1, 1, 0>();
      load_panel<0>(u + 1);
      multiply<1, 1, 1>();
      load_panel<1>(u + 1), load_tokens<1>(1, u + 1);
      if (last) join<0>(u, 0);
    }
    join<1>(units_ - 1, 1);
  }

  // One token tile: its rows of two units alternate between the A tiles, its sums between the
  // pairs.
  void run_one() {
    load_panel<0>(0), load_tokens<0>(0, 0), load_panel<1>(0), load_tokens<1>(0, 1);
    for (int64_t u = 0; u < units_; u++) {
      start_unit(u);
      const int64_t sum = u / kSpan;
      if (sum % 2 == 0)
        u % 2 == 0 ? one_step<0, 0>(u) : one_step<0, 1>(u);
      else
        u % 2 == 0 ? one_step<1, 0>(u) : one_step<1, 1>(u);
    }
    (units_ - 1) / kSpan % 2 == 0 ? join<0>(units_ - 1, 0) : join<1>(units_ - 1, 0);
  }
  template <int Pair, int A>
  void one_step(int64_t u) {
    if (u % kSpan == 0) start_sums<Pair>();
    multiply<Pair, A, 0>();
    load_panel<0>(u + 1);
    multiply<Pair, A, 1>();
    load_panel<1>(u + 1), load_tokens<A>(0, u + 2);
    if (u % kSpan == 0 && u) join<1 - Pair>(u - 1, 0);
  }

  // f(sum, out, row, panel) for the 16 outputs of each row of a token tile and each panel.
  template <class Each>
  void each_row(int pair, int from, Each &&f) {
    float *sum = sums_[2 * pair], *out = g_.out + from * 16 * 32;
    for (int t = 0, count = tokens_[from].count(); t < count; t++)
      for (int p = 0; p < 2; p++)
        f(sum + p * 256 + t * 16, out + t * 32 + p * 16, from * 16 + t, p);
  }
  // Adds a pair's sum, which ends with unit u, to the outputs of token tile `from`.
  template <int Pair>
  void join(int64_t u, int from) {
    tile_store<2 * Pair>(sums_[2 * Pair], 64), tile_store<2 * Pair + 1>(sums_[2 * Pair + 1], 64);
    const int64_t b = u / kParts;
    if constexpr (kInt) {
      const VScales s[2] = {load_scales<F>(g_.meta[0], b), load_scales<F>(g_.meta[1], b)};
      if (kParts == 1 || u % 2 == 0)
        join_group_of<Pair, 0>(b, from, s);
      else
        join_group_of<Pair, kParts - 1>(b, from, s);
    } else if constexpr (kFp8) {
      const int64_t start = b / kSpan * kSpan;
      const vf scale[2] = {F::Scales::load(g_.meta[0], start).scale[0],
                           F::Scales::load(g_.meta[1], start).scale[0]};
      each_row(Pair, from, [&](float *sum, float *out, int, int p) {
        vf_store(out, vf_fma(vf_load(sum), scale[p], vf_load(out)));
      });
    } else {
      each_row(Pair, from, [](float *sum, float *out, int, int) { vf_store(out, vf_load(sum)); });
    }
  }
  template <int Pair, int Group>
  void join_group_of(int64_t b, int from, const VScales (&s)[2]) {
    each_row(Pair, from, [&](float *sum, float *out, int t, int p) {
      vi product = vi_load(sum);
      const IntRow &a = a_[t];
      if constexpr (F::kZeroLog2 >= 0)
        product = vi_add(product, vi_shl<F::kZeroLog2>(vi_set1(
                                      kParts == 1 ? a.neg_sum32[b] : a.neg_sum16[2 * b + Group])));
      vf_store(out, join_group<F, Group>(vf_from(product), s[p], a, b, vf_load(out)));
    });
  }

  const TileArgs &g_;
  const int64_t units_;
  Ahead<2> ahead_;
  const TokenTile tokens_[2];
  PanelLines<F, K> lines_;
  IntRow a_[kInt ? 32 : 1];
  alignas(64) uint8_t staging_[2][16 * 64] = {};
  alignas(64) float sums_[4][16 * 16];  // int32 of an integer format
};

template <class F, Pass K>
void tile_amx(const TileArgs &g) {
  AmxTile<F, K>(g).run();
}

}  // namespace kt
