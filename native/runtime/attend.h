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

// The pages of a split, of a sequence of `end` pages.
inline SplitPages split_pages(const KvLayer &kv, const int32_t *table, int head, int64_t split,
                              int64_t end) {
  SplitPages pages{};
  const int64_t first = split * kSplitPages;
  for (int64_t p = first; p < std::min(first + kSplitPages, end); p++)
    pages.keys[pages.count++] = kv.at(table[p], head);
  return pages;
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
  const int64_t hp = kv.head.padded;
  AttentionScratch scratch = AttentionScratch::at(scratch_.data() + w.index * scratch_bytes_, hp);
  int64_t total = int64_t(runs_.size()) * a.n_kv_heads;
  s.units[0].each(shared(total, w), [&](int64_t unit) {
    attention_input(s, runs_[size_t(unit / a.n_kv_heads)], int(unit % a.n_kv_heads), scratch);
  });

  const int group = a.n_heads / a.n_kv_heads;
  const int64_t head_units = a.n_heads / unit_heads_;
  // Splits [from, to) of a block's rows, for query heads of one KV head.
  struct Piece {
    const QueryBlock *block = nullptr;  // NULL: nothing
    int first_head = 0;
    int64_t from = 0, to = 0;
  };
  const auto pages_of = [&](const Piece &p, int64_t split) -> SplitPages {
    if (split >= p.to) return {};
    const int32_t *table = batch_->page_table + int64_t(p.block->seq) * batch_->page_stride;
    return split_pages(kv, table, p.first_head / group, split,
                       (p.block->position + p.block->count - 1) / kPageTokens + 1);
  };
  // ended(n, sums) with the sums of the splits among n * length .. (n + 1) * length - 1. following:
  // what this worker does next.
  const auto each_span = [&](const Piece &piece, const Piece &following, int64_t length,
                             SplitStream &ahead, auto &&ended) {
    const QueryRows q = query_rows(a, *piece.block, piece.first_head);
    for (int row = 0; row < q.count; row += kQueryTile)
      pack_queries(kv.head.format, q.row + row, std::min(kQueryTile, q.count - row), hp,
                   scratch.packed + row / kQueryTile * packed_queries(hp));
    PageStream nothing;
    SplitState state;
    RowSums sums;
    sums.out = scratch.span;
    sums.reset(q.count, hp);
    SplitPages pages = pages_of(piece, piece.from);
    for (int64_t split = piece.from; split < piece.to; split++) {
      const SplitPages next =
          split + 1 < piece.to ? pages_of(piece, split + 1) : pages_of(following, following.from);
      ahead.begin(pages, next);
      for (int row = 0; row < q.count; row += kQueryTile) {
        const int count = attend_tile(kv.head, pages, split * kSplit, a.window, q, row,
                                      row ? nothing : ahead.pages, scratch, state);
        sums.add(row, count, state.peak, state.total, scratch.part, 32, count * 32, hp);
      }
      pages = next;
      if ((split + 1) % length && split + 1 < piece.to) continue;
      ended(split / length, sums);
      sums.reset(q.count, hp);
    }
  };
  // Splits of a block: none before the window of its first row, none after its last row.
  const auto first_split = [&](const QueryBlock &b) -> int64_t {
    return a.window ? std::max(0, b.position - a.window + 1) / kSplit : 0;
  };
  const auto end_split = [&](const QueryBlock &b) -> int64_t {
    return (b.position + b.count - 1) / kSplit + 1;
  };

  const int64_t units = int64_t(blocks_.size()) * head_units;
  const bool parallel_splits =
      splits_ > 1 && units < 4 * w.count && rows_ * a.n_heads * splits_ <= kPartialRows;
  if (!parallel_splits) {
    const auto piece_of = [&](int64_t unit) -> Piece {
      const QueryBlock &b = blocks_[size_t(unit / head_units)];
      return {&b, int(unit % head_units) * unit_heads_, first_split(b), end_split(b)};
    };
    s.units[1].each_run(shared(units, w), [&](int64_t unit, int64_t end) {
      SplitStream ahead(kv.head.bytes);
      for (Piece piece = piece_of(unit), next; unit < end; unit++, piece = next) {
        next = unit + 1 < end ? piece_of(unit + 1) : Piece{};
        const int rows = piece.block->count * unit_heads_;
        RowSums all;
        all.out = scratch.out;
        all.reset(rows, hp);
        each_span(piece, next, kSpan, ahead, [&](int64_t, const RowSums &sums) {
          all.add(0, rows, sums.peak, sums.total, sums.out, hp, 32, hp);
        });
        for (int r = 0; r < rows; r++)
          finish_row(s, piece.block->row + r / unit_heads_, piece.first_head + r % unit_heads_,
                     all.out + r * hp, all.total[r]);
      }
    });
  } else {
    // Units are spans, or splits where spans are too few; handed out in long runs, since only
    // within one the next split is fetched during the one before.
    const int64_t length = units * splits_ < 4 * kSpan * w.count ? 1 : kSpan;
    const int64_t parts = ceil_div(splits_, length);
    // Peaks, totals and outputs of units: [row][head][unit].
    float *peaks = reinterpret_cast<float *>(partial_.data()), *totals = peaks + kPartialRows;
    float *outs = totals + kPartialRows;
    total = units * parts;
    // The part of [unit, end) that is one block's and one head's.
    const auto piece_of = [&](int64_t unit, int64_t end) -> Piece {
      const int64_t of = unit / parts, to = std::min(end, (of + 1) * parts);
      const QueryBlock &b = blocks_[size_t(of / head_units)];
      return {&b, int(of % head_units) * unit_heads_,
              std::max((unit - of * parts) * length, first_split(b)),
              std::min((to - of * parts) * length, end_split(b))};
    };
    s.units[1].each_run(shared(total, w), [&](int64_t unit, int64_t end) {
      SplitStream ahead(kv.head.bytes);
      for (Piece piece = piece_of(unit, end), next; unit < end; piece = next) {
        unit = std::min(end, (unit / parts + 1) * parts);
        next = unit < end ? piece_of(unit, end) : Piece{};
        const QueryBlock &b = *piece.block;
        each_span(piece, next, length, ahead, [&](int64_t part, const RowSums &sums) {
          for (int r = 0; r < b.count * unit_heads_; r++) {
            const int64_t row = b.row + r / unit_heads_;
            const int64_t head = piece.first_head + r % unit_heads_;
            const int64_t at = (row * a.n_heads + head) * parts + part;
            peaks[at] = sums.peak[r], totals[at] = sums.total[r];
            std::memcpy(outs + at * hp, sums.out + r * hp, size_t(hp) * 4);
          }
        });
      }
    });
    total = int64_t(blocks_.size()) * a.n_heads;
    s.units[2].each(shared(total, w), [&](int64_t unit) {
      const QueryBlock &b = blocks_[size_t(unit / a.n_heads)];
      const int head = int(unit % a.n_heads);
      for (int i = 0; i < b.count; i++) {
        const int64_t first = ((b.row + i) * a.n_heads + head) * parts;
        int64_t from = first + first_split(b) / length,
                to = first + (end_split(b) - 1) / length + 1;
        if (length == 1) {  // splits to spans, in place
          int64_t spans = first;
          for (int64_t at = from, next; at < to; at = next, spans++) {
            next = std::min(to, first + ((at - first) / kSpan + 1) * kSpan);
            combine(peaks + at, totals + at, outs + at * hp, next - at, hp, scratch.out,
                    peaks + spans, totals + spans);
            std::memcpy(outs + spans * hp, scratch.out, size_t(hp) * 4);
          }
          from = first, to = spans;
        }
        float peak, sum;
        combine(peaks + from, totals + from, outs + from * hp, to - from, hp, scratch.out, &peak,
                &sum);
        finish_row(s, b.row + i, head, scratch.out, sum);
      }
    });
  }
  if (a.head_dim % 32 == 0) return;
  const Slot &o = out(s);
  s.units[3].each(shared(rows_, w), [&](int64_t row) {
    for (int64_t b = 0; b < o.stride / 32; b++)
      o.store_block(row, b, vf_load(o.row(row) + b * 32), vf_load(o.row(row) + b * 32 + 16));
  });
}

}  // namespace kt
