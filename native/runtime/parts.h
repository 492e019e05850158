// How the attention of a batch shares out among workers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "../kernels/attention.h"

namespace kt {

// Query rows of one sequence that one attention unit takes together.
struct QueryBlock {
  int32_t seq, row, count, position;
};

// Consecutive parts of one block, for the query heads of one unit.
struct Piece {
  const QueryBlock *block = nullptr;  // NULL: nothing
  int64_t head_unit = 0;
  int64_t units = 0;  // parts
  int64_t from = 0, to = 0;  // splits
  bool whole = false;  // all that the block sees
};

// The parts of a batch, for attention operations of one window: splits, spans, or all that a block
// sees. They are numbered block after block within one query-head unit, and these one after the
// other: what a head's blocks read lies near, and every worker has some of each sequence.
struct Reach {
  int window;
  int64_t length = 0;  // splits of a part
  std::vector<int64_t> starts;  // [blocks + 1] parts of a head unit before a block

  // Splits of a block: none before the window of its first row, none after its last row.
  int64_t first_split(const QueryBlock &b) const {
    return window ? std::max(0, b.position - window + 1) / kSplit : 0;
  }
  int64_t end_split(const QueryBlock &b) const { return (b.position + b.count - 1) / kSplit + 1; }
  int64_t first_part(const QueryBlock &b) const { return first_split(b) / length; }
  int64_t end_part(const QueryBlock &b) const { return ceil_div(end_split(b), length); }

  void plan(const std::vector<QueryBlock> &blocks, int64_t part_splits) {
    length = part_splits;
    starts.assign(1, 0);
    for (const QueryBlock &b : blocks)
      starts.push_back(starts.back() + end_part(b) - first_part(b));
  }

  // What of parts [at, end) lies in the first one's block.
  Piece piece(const std::vector<QueryBlock> &blocks, int64_t at, int64_t end) const {
    if (at >= end) return {};
    const int64_t in_head = at % starts.back();
    const auto after = std::upper_bound(starts.begin(), starts.end(), in_head);
    const QueryBlock &b = blocks[size_t(after - starts.begin() - 1)];
    const int64_t part = first_part(b) + in_head - after[-1];
    Piece piece{&b, at / starts.back(), std::min(end - at, *after - in_head)};
    piece.from = std::max(part * length, first_split(b));
    piece.to = std::min((part + piece.units) * length, end_split(b));
    piece.whole = piece.from == first_split(b) && piece.to == end_split(b);
    return piece;
  }
};

// Of parts that are combined later: peaks, totals and outputs [row][head][part].
struct PartSums {
  float *peaks, *totals, *outs;
  int64_t heads, parts;  // parts of the longest sequence

  int64_t at(int64_t row, int64_t head, int64_t part) const {
    return (row * heads + head) * parts + part;
  }
};

}  // namespace kt
