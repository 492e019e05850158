// The attention operation: norm, rotate and store keys and values, then attend, then combine key
// splits.
#pragma once
#include "run.h"

namespace kt {

inline KvLayer Program::kv_layer(const Step &s) const {
  const KvHead head = kv_head_of(d_.kv_format, d_.head_dim);
  const int64_t layer = int64_t(d_.n_pages) * d_.n_kv_heads * head.bytes;
  return {static_cast<uint8_t *>(d_.kv) + s.op.attention.layer * layer, d_.n_pages, head};
}

// A copy of a head, padded with zeros, after its norm (or none).
inline void prepare_head(const kt_attention &a, const float *x, const float *gain, int64_t hp,
                         float *head) {
  std::memset(head + hp - 32, 0, 128);
  std::memcpy(head, x, size_t(a.head_dim) * 4);
  if (!gain) return;
  const float scale = rms_scale(head, a.head_dim, a.qk_norm_eps);
  for (int i = 0; i < a.head_dim; i++) head[i] = head[i] * scale * gain[i];
}

inline uint8_t *Program::query(const kt_attention &a, int64_t row, int head) const {
  const int group = a.n_heads / a.n_kv_heads;
  return queries_.data() + ((head / group * rows_ + row) * group + head % group) * query_bytes_;
}

// One KV head of the tokens of one page: keys and values into the page, its query heads encoded.
inline void Program::attention_input(Step &s, const PageRun &run, int kv_head,
                                     AttentionScratch &scratch) {
  const kt_attention &a = s.op.attention;
  const KvLayer kv = kv_layer(s);
  const int32_t page =
      batch_->page_table[int64_t(run.seq) * batch_->page_stride + run.position / kPageTokens];
  const int group = a.n_heads / a.n_kv_heads, hd = a.head_dim;
  const int64_t hp = kv.head.padded, half = a.rope.dims / 2;
  const int encoding = query_encoding(kv.head.format);
  const vf scale = vf_set1(a.scale * kLog2E);
  float *key = scratch.head, *value = key + hp, *query_head = value + hp;
  for (int i = 0; i < run.count; i++) {
    const int64_t row = run.row + i;
    const float *x = in(s).row(row);
    const float *cosine = nullptr, *sine = nullptr;
    if (s.table >= 0) {
      cosine = reinterpret_cast<const float *>(tables_[size_t(s.table)].cosine.data()) + row * half;
      sine = reinterpret_cast<const float *>(tables_[size_t(s.table)].sine.data()) + row * half;
    }
    prepare_head(a, x + (a.n_heads + kv_head) * hd, a.k_norm, hp, key);
    prepare_head(a, x + (a.n_heads + a.n_kv_heads + kv_head) * hd, nullptr, hp, value);
    if (cosine) rotate(a.rope, cosine, sine, key);
    write_kv(kv, page, kv_head, (run.position + i) % kPageTokens, key, value);
    for (int h = kv_head * group; h < (kv_head + 1) * group; h++) {
      prepare_head(a, x + h * hd, a.q_norm, hp, query_head);
      if (cosine) rotate(a.rope, cosine, sine, query_head);
      uint8_t *to = query(a, row, h);
      for (int64_t b = 0; b < hp / 32; b++)
        encode_block(encoding, to, hp / 32, b, vf_mul(vf_load(query_head + b * 32), scale),
                     vf_mul(vf_load(query_head + b * 32 + 16), scale));
    }
  }
}

inline QueryRows Program::query_rows(const kt_attention &a, const QueryBlock &b,
                                     int first_head) const {
  QueryRows q;
  q.count = 0;
  for (int i = 0; i < b.count; i++)
    for (int h = 0; h < unit_heads_; h++) {
      q.row[q.count] = query(a, b.row + i, first_head + h);
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

// The pages of one of a piece's splits; after the last, none.
inline SplitPages Program::pages_of(const Step &s, const Piece &p, int64_t split) const {
  SplitPages pages{};
  if (split >= p.to) return pages;
  const KvLayer kv = kv_layer(s);
  const int group = s.op.attention.n_heads / s.op.attention.n_kv_heads;
  const int kv_head = int(p.head_unit) * unit_heads_ / group;
  const int32_t *table = batch_->page_table + int64_t(p.block->seq) * batch_->page_stride;
  const int64_t first = split * kSplitPages;
  const int64_t end = (p.block->position + p.block->count - 1) / kPageTokens + 1;
  for (int64_t i = first; i < std::min(first + kSplitPages, end); i++)
    pages.keys[pages.count++] = kv.at(table[i], kv_head);
  return pages;
}

inline PartSums Program::part_sums(const Step &s) const {
  float *peaks = reinterpret_cast<float *>(partial_.data());
  return {peaks, peaks + kPartialRows, peaks + 2 * kPartialRows, s.op.attention.n_heads,
          ceil_div(splits_, reaches_[s.reach].length)};
}

// Calls ended(part, sums) for each part of a piece; of a whole one, for each span. following: what
// this worker does next.
template <class Ended>
inline void Program::attend_piece(Step &s, const Piece &piece, const Piece &following,
                                  SplitStream &ahead, AttentionScratch &scratch, Ended &&ended) {
  const kt_attention &a = s.op.attention;
  const KvHead kv = kv_head_of(d_.kv_format, a.head_dim);
  const int64_t hp = kv.padded, length = piece.whole ? kSpan : reaches_[s.reach].length;
  const QueryRows q = query_rows(a, *piece.block, int(piece.head_unit) * unit_heads_);
  for (int row = 0; row < q.count; row += kQueryTile)
    pack_queries(kv.format, q.row + row, std::min(kQueryTile, q.count - row), hp,
                 scratch.packed + row / kQueryTile * packed_queries(hp));
  PageStream nothing;
  SplitState state;
  RowSums sums;
  sums.out = scratch.span;
  sums.reset(q.count, hp);
  SplitPages pages = pages_of(s, piece, piece.from);
  for (int64_t split = piece.from; split < piece.to; split++) {
    const SplitPages next = split + 1 < piece.to ? pages_of(s, piece, split + 1)
                                                 : pages_of(s, following, following.from);
    ahead.begin(pages, next);
    for (int row = 0; row < q.count; row += kQueryTile) {
      const int count = attend_tile(kv, pages, split * kSplit, a.window, q, row,
                                    row ? nothing : ahead.pages, scratch, state);
      sums.add(row, count, state.peak, state.total, scratch.part, 32, count * 32, hp);
    }
    pages = next;
    if ((split + 1) % length && split + 1 < piece.to) continue;
    ended(split / length, sums);
    sums.reset(q.count, hp);
  }
}

// Every worker's share of the parts. A block that one worker takes as a whole is finished here.
inline void Program::attend_parts(Step &s, Worker w, AttentionScratch &scratch) {
  const kt_attention &a = s.op.attention;
  const Reach &reach = reaches_[s.reach];
  const PartSums parts = part_sums(s);
  const int64_t hp = padded_head(a.head_dim);
  const int64_t total = reach.starts.back() * (a.n_heads / unit_heads_);
  s.units[1].each_run(shared(total, w), [&](int64_t unit, int64_t end) {
    SplitStream ahead(kv_head_of(d_.kv_format, a.head_dim).bytes);
    for (Piece piece = reach.piece(blocks_, unit, end), next; piece.block; piece = next) {
      unit += piece.units;
      next = reach.piece(blocks_, unit, end);
      const QueryBlock &b = *piece.block;
      const int rows = b.count * unit_heads_, first_head = int(piece.head_unit) * unit_heads_;
      const size_t at = size_t(piece.head_unit) * blocks_.size() + size_t(&b - blocks_.data());
      cut_[at].store(!piece.whole, std::memory_order_relaxed);
      RowSums all;
      all.out = scratch.out;
      if (piece.whole) all.reset(rows, hp);
      attend_piece(s, piece, next, ahead, scratch, [&](int64_t part, const RowSums &sums) {
        if (piece.whole) return all.add(0, rows, sums.peak, sums.total, sums.out, hp, 32, hp);
        for (int r = 0; r < rows; r++) {
          const int64_t i = parts.at(b.row + r / unit_heads_, first_head + r % unit_heads_, part);
          parts.peaks[i] = sums.peak[r], parts.totals[i] = sums.total[r];
          std::memcpy(parts.outs + i * hp, sums.out + r * hp, size_t(hp) * 4);
        }
      });
      for (int r = 0; piece.whole && r < rows; r++)
        finish_row(s, b.row + r / unit_heads_, first_head + r % unit_heads_, all.out + r * hp,
                   all.total[r]);
    }
  });
}

// One head of a block that workers shared.
inline void Program::combine_parts(Step &s, const QueryBlock &b, int head,
                                   AttentionScratch &scratch) {
  const Reach &reach = reaches_[s.reach];
  const PartSums parts = part_sums(s);
  const int64_t hp = padded_head(s.op.attention.head_dim);
  const int64_t from = reach.first_part(b), to = reach.end_part(b);
  for (int i = 0; i < b.count; i++) {
    int64_t first = parts.at(b.row + i, head, 0), end = first + to, spans = first;
    float *peaks = parts.peaks, *totals = parts.totals, *outs = parts.outs;
    if (reach.length == 1) {  // splits to spans, in place
      for (int64_t at = first + from, next; at < end; at = next, spans++) {
        next = std::min(end, first + ((at - first) / kSpan + 1) * kSpan);
        combine(peaks + at, totals + at, outs + at * hp, next - at, hp, scratch.out, peaks + spans,
                totals + spans);
        std::memcpy(outs + spans * hp, scratch.out, size_t(hp) * 4);
      }
      end = spans;
    } else {
      first += from;
    }
    float peak, sum;
    combine(peaks + first, totals + first, outs + first * hp, end - first, hp, scratch.out, &peak,
            &sum);
    finish_row(s, b.row + i, head, scratch.out, sum);
  }
}

inline void Program::attention(Step &s, Worker w) {
  const kt_attention &a = s.op.attention;
  AttentionScratch scratch =
      AttentionScratch::at(scratch_.data() + w.index * scratch_bytes_, padded_head(a.head_dim));
  const int64_t inputs = int64_t(runs_.size()) * a.n_kv_heads;
  s.units[0].each(shared(inputs, w), [&](int64_t unit) {
    attention_input(s, runs_[size_t(unit / a.n_kv_heads)], int(unit % a.n_kv_heads), scratch);
  });

  attend_parts(s, w, scratch);
  const int64_t blocks = int64_t(blocks_.size());
  const int64_t heads = reaches_[s.reach].length < splits_ ? blocks * a.n_heads : 0;
  s.units[2].each(shared(heads, w), [&](int64_t unit) {
    const int64_t block = unit % blocks, head = unit / blocks;
    if (cut_[size_t(head / unit_heads_ * blocks + block)].load(std::memory_order_relaxed))
      combine_parts(s, blocks_[size_t(block)], int(head), scratch);
  });
  if (a.head_dim % 32 == 0) return;
  const Slot &o = out(s);
  s.units[3].each(shared(rows_, w), [&](int64_t row) {
    for (int64_t b = 0; b < o.stride / 32; b++)
      o.store_block(row, b, vf_load(o.row(row) + b * 32), vf_load(o.row(row) + b * 32 + 16));
  });
}

}  // namespace kt
