// The step program: a flat list of operations over value slots, run by all workers together, phase
// by phase. No allocation, no Python and no locks in the loop.
#pragma once
#include <cstdio>
#include <string>

#include "../kernels/attention.h"
#include "../kernels/router.h"
#include "memory.h"
#include "parts.h"
#include "pool.h"

namespace kt {

inline std::string &last_error() {
  thread_local std::string text;
  return text;
}
inline int32_t fail(int32_t status, const std::string &text) {
  last_error() = text;
  return status;
}

// One float32 row per token, and the encodings that later operations read.
struct Slot {
  int64_t width = 0;
  int64_t capacity = 0;  // room: a batch's tokens, or only those that need logits
  int64_t stride = 0;  // floats
  bool wanted[ENC_COUNT] = {};
  Memory memory[ENC_COUNT];
  int64_t row_bytes[ENC_COUNT] = {};

  float *row(int64_t i) const {
    return reinterpret_cast<float *>(memory[ENC_F32].data()) + i * stride;
  }
  uint8_t *encoded(int e, int64_t i) const { return memory[e].data() + i * row_bytes[e]; }
  Rows rows(int e) const { return {memory[e].data(), row_bytes[e], nullptr}; }
  // Writes 32 values of a row's block in all wanted encodings.
  void store_block(int64_t i, int64_t b, vf lo, vf hi) const {
    for (int e = 0; e < ENC_COUNT; e++)
      if (wanted[e]) encode_block(e, encoded(e, i), stride / 32, b, lo, hi);
  }
};

// Consecutive rows of one sequence that lie in one KV page.
struct PageRun {
  int32_t seq, row, count, position;
};
// Slots [from, to) of one expert (an index into the active ones), or rows of a dense MLP.
struct ExpertBlock {
  int32_t active, from, to;
};

class Program {
 public:
  // Empty text on success.
  std::string build(Pool *pool, const kt_program_desc &d);
  int32_t forward(const kt_batch &batch, float *logits);
  const Slot &slot(int i) const { return slots_[size_t(i)]; }
  int slots() const { return int(slots_.size()); }
  int64_t bytes() const;

 private:
  static constexpr int64_t kPartialRows = 16384;  // of parallel key splits
  static constexpr int64_t kFewRows = 8;
  static constexpr int kMaxTables = 4;
  static constexpr int kMaxExperts = 1024;
  static constexpr int kPhases = 4;

  struct Table {  // cos and sin of every row's position
    kt_rope rope;
    Memory cosine, sine;
  };
  struct Step {  // an operation and what follows from it
    kt_op op;
    bool selected;  // after SELECT: rows are those with logits
    int table;
    size_t reach;
    std::unique_ptr<Units[]> units{new Units[kPhases]};
  };

  std::string check_op(const Step &s) const;
  std::string check_batch(const kt_batch &b) const;
  std::string reserve();
  int table_of(const kt_rope &rope);
  size_t reach_of(int window);
  void plan_batch();
  int64_t part_splits() const;
  int32_t attention_block() const;
  void work(Worker w);
  void run(Step &s, Worker w);

  int64_t rows_of(const Step &s) const { return s.selected ? batch_->n_logits : rows_; }
  // Alike units. Each run begins with memory that nothing has fetched, so runs are long: a whole
  // share where few rows make a step short, else less, in case a worker is slower than the others.
  Sharing shared(int64_t total, Worker w) const {
    const int64_t share = total / w.count;
    return {total, w.count, std::max<int64_t>(1, rows_ <= kFewRows ? share : share * 3 / 4)};
  }
  Slot &in(const Step &s) { return slots_[size_t(s.op.in)]; }
  Slot &out(const Step &s) { return slots_[size_t(s.op.out)]; }

  void rope_tables(Worker w);
  void embed(Step &s, Worker w);
  void norm(Step &s, Worker w);
  void linear(Step &s, Worker w);
  void gather(const Step &s, int64_t row, int64_t slot, int64_t expert);
  void select(Step &s, Worker w);
  void route_rows(Step &s, Worker w);
  void give_logits(Worker w);
  void group_by_expert();
  void mlp(Step &s, Worker w);
  void attention(Step &s, Worker w);
  void attend_parts(Step &s, Worker w, AttentionScratch &scratch);
  template <class Ended>
  void attend_piece(Step &s, const Piece &piece, const Piece &following, SplitStream &ahead,
                    AttentionScratch &scratch, Ended &&ended);
  void combine_parts(Step &s, const QueryBlock &b, int head, AttentionScratch &scratch);
  SplitPages pages_of(const Step &s, const Piece &p, int64_t split) const;
  PartSums part_sums(const Step &s) const;
  void attention_input(Step &s, const PageRun &run, int kv_head, AttentionScratch &scratch);
  uint8_t *query(const kt_attention &a, int64_t row, int head) const;
  QueryRows query_rows(const kt_attention &a, const QueryBlock &b, int first_head) const;
  void finish_row(Step &s, int64_t row, int head, float *acc, float total);
  KvLayer kv_layer(const Step &s) const;

  Pool *pool_ = nullptr;
  kt_program_desc d_{};
  std::vector<Step> steps_;
  std::vector<Slot> slots_;
  std::vector<Table> tables_;
  std::vector<Reach> reaches_;
  Units table_units_, logit_units_;

  // Query heads of one attention unit share a KV head; all attention operations have the same
  // shape.
  int unit_heads_ = 0, head_units_ = 0;

  // Per batch.
  const kt_batch *batch_ = nullptr;
  float *logits_ = nullptr;
  size_t n_steps_ = 0;
  std::atomic<int64_t> not_finite_{-1};  // a row of logits
  int64_t rows_ = 0;
  std::vector<int32_t> position_;  // [rows]
  std::vector<PageRun> runs_;
  std::vector<QueryBlock> blocks_;
  std::vector<ExpertBlock> dense_blocks_;
  int64_t splits_ = 1;  // key splits of the longest sequence
  // [head unit][block] of the current layer: not taken by one worker as a whole.
  std::unique_ptr<std::atomic<bool>[]> cut_;

  // Routing of the current MoE layer; a slot is one (row, choice) pair in expert order.
  int top_k_ = 0;
  std::vector<int32_t> ids_, slot_of_;  // [rows, top_k]
  std::vector<float> weights_;  // [rows, top_k]
  std::vector<int32_t> row_of_;  // [slot]
  std::vector<int32_t> active_;  // expert numbers
  std::vector<ExpertBlock> expert_blocks_;
  std::vector<float> route_scratch_;  // [worker, 2 * kMaxExperts]

  Memory queries_, hidden_, gathered_, expert_out_, scratch_, partial_;
  int64_t scratch_bytes_ = 0, query_bytes_ = 0;
};

}  // namespace kt
