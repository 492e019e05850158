// Routing, and the MLP of routed experts or of a dense layer.
#pragma once
#include "run.h"

namespace kt {

inline void Program::route_rows(Step &s, Worker w) {
  const kt_router &r = s.op.router;
  float *scratch = route_scratch_.data() + int64_t(w.index) * 2 * kMaxExperts;
  s.units[0].each(shared(rows_, w), [&](int64_t i) {
    route(r, in(s).row(i), scratch, ids_.data() + i * r.top_k, weights_.data() + i * r.top_k);
  });
  s.units[1].each(shared(1, w), [&](int64_t) {
    top_k_ = r.top_k;
    group_by_expert();
  });
}

// Counting sort of (row, choice) pairs by expert.
inline void Program::group_by_expert() {
  int32_t first[kMaxExperts + 1] = {};
  const int64_t pairs = rows_ * top_k_;
  for (int64_t i = 0; i < pairs; i++) first[ids_[size_t(i)] + 1]++;
  for (int e = 0; e < kMaxExperts; e++) first[e + 1] += first[e];
  active_.clear(), expert_blocks_.clear();
  for (int e = 0; e < kMaxExperts; e++) {
    if (first[e] == first[e + 1]) continue;
    const int32_t unit = int32_t(unit_rows(first[e + 1] - first[e]));
    for (int32_t from = first[e]; from < first[e + 1]; from += unit)
      expert_blocks_.push_back(
          {int32_t(active_.size()), from, std::min(first[e + 1], from + unit)});
    active_.push_back(e);
  }
  for (int64_t i = 0; i < pairs; i++) {
    const int32_t slot = first[ids_[size_t(i)]]++;
    slot_of_[size_t(i)] = slot;
    row_of_[size_t(slot)] = int32_t(i / top_k_);
  }
}

inline void Program::mlp(Step &s, Worker w) {
  const kt_op &op = s.op;
  const Slot &x = in(s), &o = out(s);
  const bool routed = op.router.top_k > 0;
  const std::vector<ExpertBlock> &blocks = routed ? expert_blocks_ : dense_blocks_;
  const auto expert = [&](const ExpertBlock &b) { return routed ? active_[size_t(b.active)] : 0; };
  const Matrix gate0 = matrix_of(op.w[0], 0), down0 = matrix_of(op.w[2], 0);
  const int64_t hidden_blocks = gate0.pairs(),
                row_bytes = encoded_row_bytes(down0.encoding, down0.k);
  const int32_t *pick = routed ? row_of_.data() : nullptr;
  const auto input = [&](const Matrix &m) -> Rows {
    if (op.order) return {gathered_.data(), encoded_row_bytes(m.encoding, m.k), nullptr};
    return {x.memory[m.encoding].data(), x.row_bytes[m.encoding], pick};
  };
  if (op.order)
    s.units[3].each(shared(int64_t(blocks.size()), w), [&](int64_t unit) {
      const ExpertBlock &b = blocks[size_t(unit)];
      for (int64_t i = b.from; i < b.to; i++) gather(s, pick ? pick[i] : i, i, expert(b));
    });

  // What the unit after pair `pair` of block `b` reads of the matrices `m`, those of expert 0.
  const auto next_memory = [&](const Matrix &m, const kt_weight &weight, const ExpertBlock &b,
                               int64_t pair) -> const uint8_t * {
    const ExpertBlock *of = &b;
    if (++pair == m.pairs()) ++of, pair = 0;
    if (of == blocks.data() + blocks.size()) return nullptr;
    return pair_memory(m, pair) + expert(*of) * weight.stride;
  };

  int64_t pairs = gate0.pairs(), total = int64_t(blocks.size()) * pairs;
  s.units[0].each_run(shared(total, w), [&](int64_t unit, int64_t end) {
    alignas(64) float gated[kUnitRows * 32];
    while (unit < end) {
      // Gate, then up, of some pairs of an expert: longer streams than pair by pair.
      const ExpertBlock &b = blocks[size_t(unit / pairs)];
      const Matrix gate = matrix_of(op.w[0], expert(b)), up = matrix_of(op.w[1], expert(b));
      const int64_t first = unit % pairs, rows = b.to - b.from;
      const int64_t last = std::min({first + end - unit, pairs, first + kUnitRows / rows}) - 1;
      for (int64_t pair = first; pair <= last; pair++)
        multiply(gate, pair, input(gate), b.from, b.to,
                 pair < last ? pair_memory(gate, pair + 1) : pair_memory(up, first),
                 [&](int64_t i, const float *y) {
                   std::memcpy(gated + ((pair - first) * rows + i - b.from) * 32, y, 128);
                 });
      for (int64_t pair = first; pair <= last; pair++) {
        const int64_t columns = std::min<int64_t>(32, gate0.n - pair * 32);
        multiply(up, pair, input(up), b.from, b.to,
                 pair < last ? pair_memory(up, pair + 1) : next_memory(gate0, op.w[0], b, pair),
                 [&](int64_t i, const float *y) {
                   float *h = gated + ((pair - first) * rows + i - b.from) * 32;
                   for (int c = 0; c < 32; c += 16)
                     vf_store(h + c, vf_mul(vf_silu(vf_load(h + c)), vf_load(y + c)));
                   for (int64_t c = columns; c < 32; c++) h[c] = 0;
                   if (op.squares)  // no other unit adds to these: an expert's rows are one block
                     for (int64_t c = 0; c < columns; c++)
                       op.squares[expert(b) * gate0.n + pair * 32 + c] += double(h[c]) * h[c];
                   encode_block(down0.encoding, hidden_.data() + i * row_bytes, hidden_blocks, pair,
                                vf_load(h), vf_load(h + 16));
                 });
      }
      unit += last - first + 1;
    }
  });

  pairs = down0.pairs(), total = int64_t(blocks.size()) * pairs;
  float *slots_out = reinterpret_cast<float *>(expert_out_.data());
  s.units[1].each(shared(total, w), [&](int64_t unit) {
    const ExpertBlock &b = blocks[size_t(unit / pairs)];
    const int64_t pair = unit % pairs, columns = std::min<int64_t>(32, down0.n - pair * 32);
    const Matrix down = matrix_of(op.w[2], expert(b));
    multiply(down, pair, {hidden_.data(), row_bytes, nullptr}, b.from, b.to,
             next_memory(down0, op.w[2], b, pair), [&](int64_t i, const float *y) {
               if (routed) {
                 std::memcpy(slots_out + i * o.stride + pair * 32, y, 128);
                 return;
               }
               float *dst = o.row(i) + pair * 32;
               for (int64_t c = 0; c < columns; c++) dst[c] += y[c];
             });
  });
  if (!routed) return;

  // Combined in the order of the router's choice, whatever order the experts ran in.
  const int64_t strips = ceil_div(o.width, 512);
  total = rows_ * strips;
  s.units[2].each(shared(total, w), [&](int64_t unit) {
    const int64_t row = unit / strips, from = unit % strips * 512,
                  to = std::min(o.width, from + 512);
    for (int j = 0; j < top_k_; j++) {
      const float *y = slots_out + slot_of_[size_t(row * top_k_ + j)] * o.stride;
      const float weight = weights_[size_t(row * top_k_ + j)];
      for (int64_t c = from; c < to; c++) o.row(row)[c] += weight * y[c];
    }
  });
}

}  // namespace kt
