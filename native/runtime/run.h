// Running a program: every worker walks the same list of operations.
#pragma once
#include "build.h"

namespace kt {

inline void Program::plan_batch() {
  const kt_batch &b = *batch_;
  rows_ = b.seq_start[b.n_seqs];
  n_steps_ = b.n_ops ? size_t(b.n_ops) : steps_.size();
  runs_.clear(), blocks_.clear(), dense_blocks_.clear();
  splits_ = 1;
  const int32_t block = attention_block();
  for (int s = 0; s < b.n_seqs; s++) {
    const int32_t start = b.seq_start[s], end = b.seq_start[s + 1], first = b.first_position[s];
    for (int32_t row = start; row < end; row++) position_[size_t(row)] = first + row - start;
    for (int32_t row = start; row < end;) {
      const int32_t position = first + row - start;
      const int32_t count = std::min(end - row, kPageTokens - position % kPageTokens);
      runs_.push_back({s, row, count, position});
      row += count;
    }
    for (int32_t row = start; row < end; row += block)
      blocks_.push_back({s, row, std::min(block, end - row), first + row - start});
    splits_ = std::max(splits_, ceil_div(first + end - start, kSplit));
  }
  const int64_t unit = unit_rows(rows_);
  for (int64_t row = 0; row < rows_; row += unit)
    dense_blocks_.push_back({0, int32_t(row), int32_t(std::min(rows_, row + unit))});
  for (Reach &r : reaches_) r.plan(blocks_, part_splits());
  for (Step &s : steps_)
    for (int i = 0; i < kPhases; i++) s.units[size_t(i)].reset();
  table_units_.reset(), logit_units_.reset();
  not_finite_.store(-1, std::memory_order_relaxed);
}

// Splits of a part: few where there are few blocks; all of a block where there are many, or where
// the sums of parts would need too much room.
inline int64_t Program::part_splits() const {
  const int64_t workers = pool_->size(), units = int64_t(blocks_.size()) * head_units_;
  const bool many = units >= 4 * workers && rows_ > kFewRows;
  if (many || rows_ * head_units_ * unit_heads_ * splits_ > kPartialRows) return splits_;
  return units * splits_ < 4 * kSpan * workers ? 1 : kSpan;
}

// Tokens of an attention unit: many, so that keys and values are seldom read, but few enough for
// all workers to have some.
inline int32_t Program::attention_block() const {
  if (!unit_heads_) return std::max<int32_t>(1, int32_t(rows_));
  const int64_t most = std::max(1, kAttentionRows / unit_heads_);
  const int64_t least = std::max(1, kQueryTile / unit_heads_);
  return int32_t(std::clamp(rows_ * head_units_ / (4 * pool_->size()), least, most));
}

inline int32_t Program::forward(const kt_batch &batch, float *logits) {
  const std::string bad = check_batch(batch);
  if (!bad.empty()) return fail(KT_BAD_ARGUMENT, "batch: " + bad);
  batch_ = &batch, logits_ = logits;
  plan_batch();
  pool_->each([this](Worker w) { work(w); });
  const int64_t row = not_finite_.load(std::memory_order_relaxed);
  if (row >= 0)
    return fail(KT_NOT_FINITE, "logits of row " + std::to_string(row) + " are not finite");
  return KT_OK;
}

inline void Program::work(Worker w) {
  rope_tables(w);
  for (size_t i = 0; i < n_steps_; i++) run(steps_[i], w);
  if (logits_ && n_steps_ == steps_.size()) give_logits(w);
  leave_job();
}

// Rows of logits to the caller, each checked on its way.
inline void Program::give_logits(Worker w) {
  const Slot &s = slots_[size_t(d_.logits_slot)];
  const int64_t whole = s.width / 16 * 16;
  logit_units_.each(shared(batch_->n_logits, w), [&](int64_t i) {
    const float *from = s.row(i);
    float *to = logits_ + i * s.width;
    vf probe = vf_zero();  // NaN as soon as one value is not finite
    for (int64_t c = 0; c < whole; c += 16) {
      const vf x = vf_load(from + c);
      probe = vf_fma(x, vf_zero(), probe);
      vf_store(to + c, x);
    }
    float rest = vf_sum(probe);
    for (int64_t c = whole; c < s.width; c++) rest += (to[c] = from[c]) * 0.0f;
    if (rest != 0) not_finite_.store(i, std::memory_order_relaxed);
  });
}

inline void Program::run(Step &s, Worker w) {
  switch (s.op.kind) {
    case KT_OP_EMBED:
      return embed(s, w);
    case KT_OP_NORM:
      return norm(s, w);
    case KT_OP_LINEAR:
      return linear(s, w);
    case KT_OP_ATTENTION:
      return attention(s, w);
    case KT_OP_ROUTE:
      return route_rows(s, w);
    case KT_OP_MLP:
      return mlp(s, w);
    default:
      return select(s, w);
  }
}

inline void Program::rope_tables(Worker w) {
  const int64_t total = rows_ * int64_t(tables_.size());
  table_units_.each(shared(total, w), [&](int64_t unit) {
    const Table &t = tables_[size_t(unit / rows_)];
    const int64_t row = unit % rows_, half = t.rope.dims / 2;
    rope_angles(t.rope, position_[size_t(row)],
                reinterpret_cast<float *>(t.cosine.data()) + row * half,
                reinterpret_cast<float *>(t.sine.data()) + row * half);
  });
}

inline void Program::embed(Step &s, Worker w) {
  const Matrix m = matrix_of(s.op.w[0], 0);
  Slot &o = out(s);
  s.units[0].each(shared(rows_, w), [&](int64_t i) {
    const int64_t token = batch_->tokens[i];
    float *x = o.row(i);
    with_format(m.format, [&](auto f) {
      const uint8_t *panel = m.data + token / kPanel * m.panel.bytes;
      for (int64_t b = 0; b < m.panel.blocks; b++)
        unpack_block<decltype(f)>(panel, m.panel, b, int(token % kPanel), x + b * 32);
    });
    for (int64_t c = 0; c < o.width; c++) x[c] *= s.op.scale * m.scale;
    for (int64_t c = o.width; c < o.stride; c++) x[c] = 0;  // a minimum decodes to more than 0
  });
}

inline void Program::norm(Step &s, Worker w) {
  const Slot &x = in(s), &o = out(s);
  const int64_t rows = rows_of(s), whole = o.width / 32 * 32;
  s.units[0].each(shared(rows, w), [&](int64_t i) {
    const float *row = x.row(i);
    const vf scale = vf_set1(rms_scale(row, x.width, s.op.eps));
    for (int64_t c = 0; c < whole; c += 32)
      o.store_block(i, c / 32, vf_mul(vf_mul(vf_load(row + c), scale), vf_load(s.op.gain + c)),
                    vf_mul(vf_mul(vf_load(row + c + 16), scale), vf_load(s.op.gain + c + 16)));
    if (whole == o.width) return;
    float tail[32] = {}, gain[32] = {};
    std::memcpy(gain, s.op.gain + whole, size_t(o.width - whole) * 4);
    for (int c = 0; c < 32; c += 16)
      vf_store(tail + c, vf_mul(vf_mul(vf_load(row + whole + c), scale), vf_load(gain + c)));
    o.store_block(i, whole / 32, vf_load(tail), vf_load(tail + 16));
  });
}

// Row `row` of the input in the order of the weights' columns, encoded for them, as row `slot` of
// what is gathered.
inline void Program::gather(const Step &s, int64_t row, int64_t slot, int64_t expert) {
  const kt_weight &w = s.op.w[0];
  const int encoding = encoding_of_format(w.format);
  const int64_t blocks = ceil_div(w.k, kBlock);
  const float *x = slots_[size_t(s.op.in)].row(row);
  const int32_t *order = s.op.order + expert * w.k;
  uint8_t *to = gathered_.data() + slot * encoded_row_bytes(encoding, w.k);
  for (int64_t b = 0; b < blocks; b++) {
    alignas(64) float block[32] = {};
    for (int64_t i = b * 32; i < std::min(w.k, b * 32 + 32); i++) block[i - b * 32] = x[order[i]];
    encode_block(encoding, to, blocks, b, vf_load(block), vf_load(block + 16));
  }
}

inline void Program::linear(Step &s, Worker w) {
  const kt_op &op = s.op;
  const Slot &x = in(s), &o = out(s);
  Matrix m[3];
  int64_t pairs = 0, first_pair[4] = {}, column[3] = {};
  for (int i = 0; i < op.n_weights; i++) {
    m[i] = matrix_of(op.w[i], 0);
    first_pair[i] = pairs;
    pairs += m[i].pairs();
    if (i) column[i] = column[i - 1] + m[i - 1].n;
  }
  const int64_t rows = rows_of(s), block = unit_rows(rows);
  const int64_t total = ceil_div(rows, block) * pairs;
  if (op.order) s.units[1].each(shared(rows, w), [&](int64_t i) { gather(s, i, i, 0); });
  const Rows gathered = {gathered_.data(), encoded_row_bytes(m[0].encoding, m[0].k), nullptr};
  s.units[0].each(shared(total, w), [&](int64_t unit) {
    const int64_t pair = unit % pairs, from = unit / pairs * block;
    int i = op.n_weights - 1;
    while (pair < first_pair[i]) i--;
    const int64_t p = pair - first_pair[i], columns = std::min<int64_t>(32, m[i].n - p * 32);
    multiply(m[i], p, op.order ? gathered : x.rows(m[i].encoding), from,
             std::min(rows, from + block), pair_memory(m[i], p + 1),
             [&](int64_t row, const float *y) {
               float *dst = o.row(row) + column[i] + p * 32;
               if (op.flags & KT_ADD)
                 for (int64_t c = 0; c < columns; c++) dst[c] += y[c];
               else
                 std::memcpy(dst, y, size_t(columns) * 4);
             });
  });
}

inline void Program::select(Step &s, Worker w) {
  const Slot &x = in(s), &o = out(s);
  const int64_t rows = batch_->n_logits;
  s.units[0].each(shared(rows, w), [&](int64_t i) {
    std::memcpy(o.row(i), x.row(batch_->logit_rows[i]), size_t(x.stride) * 4);
  });
}

}  // namespace kt
