// The attention operation: norm, rotate and store keys and values, then attend, then combine key
// splits.
#pragma once
#include "run.h"

namespace kt {

inline KvLayer Program::kv_layer(const Step &s) const {
  const int64_t page = kt_page_bytes(d_.n_kv_heads, d_.head_dim);
  return {static_cast<uint8_t *>(d_.kv) + int64_t(s.op.attention.layer) * d_.n_pages * page, page,
          page_head_bytes(d_.head_dim), padded_head(d_.head_dim)};
}

// Per-head norm (or none), then rotation, in place.
inline void prepare_head(const kt_attention &a, const float *gain, const float *cosine,
                         const float *sine, float *head) {
  if (gain) {
    float squares = 0;
    for (int i = 0; i < a.head_dim; i++) squares += head[i] * head[i];
    const float scale = 1.0f / std::sqrt(squares / float(a.head_dim) + a.qk_norm_eps);
    for (int i = 0; i < a.head_dim; i++) head[i] = head[i] * scale * gain[i];
  }
  if (cosine) rotate(a.rope, cosine, sine, head);
}

// One KV head of the tokens of one page: keys and values into the page, its query heads encoded.
inline void Program::attention_input(Step &s, const PageRun &run, int kv_head) {
  const kt_attention &a = s.op.attention;
  const KvLayer kv = kv_layer(s);
  const int32_t page =
      batch_->page_table[int64_t(run.seq) * batch_->page_stride + run.position / kPageTokens];
  const int group = a.n_heads / a.n_kv_heads, hd = a.head_dim;
  const int64_t hp = kv.head_padded, half = a.rope.dims / 2;
  for (int i = 0; i < run.count; i++) {
    const int64_t row = run.row + i;
    float *x = in(s).row(row);
    const float *cosine = nullptr, *sine = nullptr;
    if (s.table >= 0) {
      cosine = reinterpret_cast<const float *>(tables_[size_t(s.table)].cosine.data()) + row * half;
      sine = reinterpret_cast<const float *>(tables_[size_t(s.table)].sine.data()) + row * half;
    }
    float *key = x + (a.n_heads + kv_head) * hd;
    prepare_head(a, a.k_norm, cosine, sine, key);
    write_kv(kv, page, kv_head, (run.position + i) % kPageTokens, hd, key,
             x + (a.n_heads + a.n_kv_heads + kv_head) * hd);
    for (int h = kv_head * group; h < (kv_head + 1) * group; h++) {
      prepare_head(a, a.q_norm, cosine, sine, x + h * hd);
      uint8_t *q = queries_.data() + (row * a.n_heads + h) * hp * kHalfBytes;
      for (int64_t b = 0; b < hp / 32; b++) {
        alignas(64) float block[32] = {};
        for (int64_t c = 0; c < std::min<int64_t>(32, hd - b * 32); c++)
          block[c] = x[h * hd + b * 32 + c] * a.scale;
        b_store(q + b * 32 * kHalfBytes, vf_load(block), vf_load(block + 16));
      }
    }
  }
}

inline QueryRows Program::query_rows(const Step &s, const QueryBlock &b, int first_head) const {
  QueryRows q;
  q.count = 0;
  const int64_t bytes = padded_head(d_.head_dim) * kHalfBytes;
  for (int i = 0; i < b.count; i++)
    for (int h = 0; h < unit_heads_; h++) {
      q.row[q.count] =
          queries_.data() + (int64_t(b.row + i) * s.op.attention.n_heads + first_head + h) * bytes;
      q.position[q.count++] = b.position + i;
    }
  return q;
}

inline void Program::finish_row(Step &s, int64_t row, int head, float *acc, float total) {
  const Slot &o = out(s);
  const int hd = s.op.attention.head_dim;
  const vf inverse = vf_set1(1.0f / total);
  for (int64_t c = 0; c < padded_head(hd); c += 16)
    vf_store(acc + c, vf_mul(vf_load(acc + c), inverse));
  if (hd % 32 == 0) {
    for (int64_t c = 0; c < hd; c += 32)
      o.store_block(row, (int64_t(head) * hd + c) / 32, vf_load(acc + c), vf_load(acc + c + 16));
  } else {
    std::memcpy(o.row(row) + int64_t(head) * hd, acc, size_t(hd) * 4);
  }
}

inline void Program::attention(Step &s, Worker w) {
  const kt_attention &a = s.op.attention;
  const KvLayer kv = kv_layer(s);
  const int64_t hp = kv.head_padded;
  int64_t total = int64_t(runs_.size()) * a.n_kv_heads;
  s.units[0].each(total, chunk_of(total, w.count), [&](int64_t unit) {
    attention_input(s, runs_[size_t(unit / a.n_kv_heads)], int(unit % a.n_kv_heads));
  });

  const int group = a.n_heads / a.n_kv_heads;
  const int64_t head_units = a.n_heads / unit_heads_;
  const auto each_split = [&](const QueryBlock &b, int64_t split_from, int64_t split_to,
                              int64_t head_unit, auto &&done) {
    const int first_head = int(head_unit) * unit_heads_;
    const QueryRows q = query_rows(s, b, first_head);
    AttentionScratch scratch = AttentionScratch::at(scratch_.data() + w.index * scratch_bytes_, hp);
    AttentionRows state;
    state.out = scratch.out[0];
    const int32_t *pages = batch_->page_table + int64_t(b.seq) * batch_->page_stride;
    for (int64_t split = split_from; split < split_to; split++) {
      attend_split(kv, pages, first_head / group, split, a.window, q, scratch, state);
      for (int r = 0; r < q.count; r++) done(r, split, state, scratch);
    }
  };
  // Splits of a block: none before the window of its first row, none after its last row.
  const auto first_split = [&](const QueryBlock &b) {
    return a.window ? std::max(0, b.position - a.window + 1) / kSplit : 0;
  };
  const auto end_split = [&](const QueryBlock &b) {
    return (b.position + b.count - 1) / kSplit + 1;
  };

  const int64_t units = int64_t(blocks_.size()) * head_units;
  const bool parallel_splits =
      splits_ > 1 && units < 4 * w.count && rows_ * a.n_heads * splits_ <= kPartialRows;
  float *partial = reinterpret_cast<float *>(partial_.data());
  const auto partial_of = [&](int64_t row, int64_t head, int64_t split) {
    return partial + ((row * a.n_heads + head) * splits_ + split) * (hp + 2);
  };
  if (!parallel_splits) {
    s.units[1].each(units, chunk_of(units, w.count), [&](int64_t unit) {
      const QueryBlock &b = blocks_[size_t(unit / head_units)];
      float peak[kAttentionRows], sum[kAttentionRows];
      std::fill(peak, peak + kAttentionRows, -INFINITY);
      std::fill(sum, sum + kAttentionRows, 0.0f);
      AttentionScratch scratch =
          AttentionScratch::at(scratch_.data() + w.index * scratch_bytes_, hp);
      std::memset(scratch.out[1], 0, size_t(kAttentionRows * hp) * 4);
      each_split(b, first_split(b), end_split(b), unit % head_units,
                 [&](int r, int64_t, const AttentionRows &state, AttentionScratch &) {
                   combine_split(peak + r, sum + r, scratch.out[1] + r * hp, state.peak[r],
                                 state.total[r], state.out + r * hp, hp);
                 });
      for (int r = 0; r < b.count * unit_heads_; r++)
        finish_row(s, b.row + r / unit_heads_,
                   int(unit % head_units) * unit_heads_ + r % unit_heads_, scratch.out[1] + r * hp,
                   sum[r]);
    });
  } else {
    s.units[1].each(units * splits_, 1, [&](int64_t unit) {
      const int64_t split = unit % splits_, head_unit = unit / splits_ % head_units;
      const QueryBlock &b = blocks_[size_t(unit / splits_ / head_units)];
      if (split < first_split(b) || split >= end_split(b)) return;
      each_split(b, split, split + 1, head_unit,
                 [&](int r, int64_t, const AttentionRows &state, AttentionScratch &) {
                   float *p = partial_of(b.row + r / unit_heads_,
                                         head_unit * unit_heads_ + r % unit_heads_, split);
                   p[0] = state.peak[r], p[1] = state.total[r];
                   std::memcpy(p + 2, state.out + r * hp, size_t(hp) * 4);
                 });
    });
    total = int64_t(blocks_.size()) * a.n_heads;
    s.units[2].each(total, chunk_of(total, w.count), [&](int64_t unit) {
      const QueryBlock &b = blocks_[size_t(unit / a.n_heads)];
      const int head = int(unit % a.n_heads);
      float *acc = AttentionScratch::at(scratch_.data() + w.index * scratch_bytes_, hp).out[1];
      for (int i = 0; i < b.count; i++) {
        float peak = -INFINITY, sum = 0;
        std::memset(acc, 0, size_t(hp) * 4);
        for (int64_t split = first_split(b); split < end_split(b); split++) {
          const float *p = partial_of(b.row + i, head, split);
          combine_split(&peak, &sum, acc, p[0], p[1], p + 2, hp);
        }
        finish_row(s, b.row + i, head, acc, sum);
      }
    });
  }
  if (a.head_dim % 32 == 0) return;
  const Slot &o = out(s);
  s.units[3].each(rows_, chunk_of(rows_, w.count), [&](int64_t row) {
    for (int64_t b = 0; b < o.stride / 32; b++)
      o.store_block(row, b, vf_load(o.row(row) + b * 32), vf_load(o.row(row) + b * 32 + 16));
  });
}

}  // namespace kt
