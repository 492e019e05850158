// Building a program: checks, working memory, and what follows from each operation.
#pragma once
#include "program.h"

namespace kt {

inline int Program::table_of(const kt_rope &rope) {
  for (size_t i = 0; i < tables_.size(); i++) {
    const kt_rope &t = tables_[i].rope;
    if (t.inv_freq == rope.inv_freq && t.dims == rope.dims &&
        t.attention_factor == rope.attention_factor)
      return int(i);
  }
  tables_.emplace_back();
  tables_.back().rope = rope;
  return int(tables_.size()) - 1;
}

inline size_t Program::reach_of(int window) {
  size_t i = 0;
  while (i < reaches_.size() && reaches_[i].window != window) i++;
  if (i == reaches_.size()) reaches_.push_back({window, 0, {}});
  return i;
}

inline std::string Program::check_op(const Step &s) const {
  const kt_op &op = s.op;
  const auto bad_slot = [&](int i) { return i < 0 || i >= d_.n_slots; };
  if (op.n_weights < 0 || op.n_weights > 3) return "n_weights";
  if (bad_slot(op.out) || (op.kind != KT_OP_EMBED && bad_slot(op.in))) return "slot";
  const int64_t in_width = op.kind == KT_OP_EMBED ? 0 : slots_[size_t(op.in)].width;
  const int64_t out_width = slots_[size_t(op.out)].width;
  for (int i = 0; i < op.n_weights; i++) {
    const kt_weight &w = op.w[i];
    if (encoding_of_format(w.format) < 0) return "weight format";
    if (!w.data || w.n < 1 || w.k < 1 || uintptr_t(w.data) % 64 || w.stride % 64)
      return "weight data";
  }
  if (op.order) {
    if (op.kind != KT_OP_LINEAR && op.kind != KT_OP_MLP) return "order";
    const kt_weight &w = op.w[0];
    for (int64_t i = 0; i < w.count * w.k; i++)
      if (op.order[i] < 0 || op.order[i] >= w.k) return "order of columns";
    for (int i = 1; i < (op.kind == KT_OP_MLP ? 2 : op.n_weights); i++)
      if (encoding_of_format(op.w[i].format) != encoding_of_format(w.format)) return "order";
  }
  const bool late = s.selected;
  switch (op.kind) {
    case KT_OP_EMBED:
      return op.n_weights != 1 || op.w[0].k != out_width || late ? "embed shape" : "";
    case KT_OP_NORM:
      return in_width != out_width || !op.gain ? "norm shape" : "";
    case KT_OP_LINEAR: {
      int64_t n = 0;
      for (int i = 0; i < op.n_weights; i++) {
        n += op.w[i].n;
        if (op.w[i].k != in_width || op.w[i].count != 1) return "linear shape";
      }
      return n != out_width ? "linear width" : "";
    }
    case KT_OP_SELECT:
      return in_width != out_width || late || op.in == op.out ? "select shape" : "";
    case KT_OP_ROUTE: {
      const kt_router &r = op.router;
      if (r.n_experts < 1 || r.n_experts > kMaxExperts || in_width != r.n_experts)
        return "router experts";
      if (r.top_k < 1 || r.top_k > r.n_experts || r.score < 0 || r.score > KT_SQRT_SOFTPLUS)
        return "router";
      if (r.n_groups > 1) {
        const int size = r.n_experts / r.n_groups;
        if (r.n_groups > 64 || r.n_experts % r.n_groups || r.top_groups < 1 ||
            r.top_groups > r.n_groups || (r.group_top2 && size < 2) ||
            r.top_k > r.top_groups * size)
          return "router groups";
      }
      return late ? "route after select" : "";
    }
    case KT_OP_MLP: {
      if (op.n_weights != 3 || late || op.activation != KT_SILU) return "mlp";
      const kt_weight &g = op.w[0], &u = op.w[1], &v = op.w[2];
      if (g.k != in_width || u.k != in_width || g.n != u.n || v.k != g.n || v.n != out_width ||
          g.count != u.count || g.count != v.count)
        return "mlp shape";
      if (op.router.top_k ? g.count != op.router.n_experts : g.count != 1) return "mlp experts";
      if (op.squares && d_.max_tokens > kUnitRows) return "batch for squares";
      return g.bias || u.bias || v.bias ? "mlp bias" : "";
    }
    case KT_OP_ATTENTION: {
      const kt_attention &a = op.attention;
      if (a.layer < 0 || a.layer >= d_.n_kv_layers || a.head_dim != d_.head_dim ||
          a.n_kv_heads != d_.n_kv_heads || a.n_heads < 1 || a.n_heads % a.n_kv_heads || late)
        return "attention shape";
      if (in_width != int64_t(a.n_heads + 2 * a.n_kv_heads) * a.head_dim ||
          out_width != int64_t(a.n_heads) * a.head_dim)
        return "attention width";
      if (a.rope.dims < 0 || a.rope.dims > a.head_dim || a.rope.dims % 2 || a.window < 0)
        return "rope";
      return a.rope.dims && !a.rope.inv_freq ? "rope frequencies" : "";
    }
    default:
      return "kind";
  }
}

inline std::string Program::build(Pool *pool, const kt_program_desc &d) {
  pool_ = pool, d_ = d;
  if (d.n_ops < 1 || d.n_slots < 1 || d.max_tokens < 1 || d.max_logits < 1 || d.logits_slot < 0 ||
      d.logits_slot >= d.n_slots || d.kv_format < KT_KV_BF16 || d.kv_format > KT_KV_INT8)
    return "program description";
  slots_ = std::vector<Slot>(size_t(d.n_slots));
  for (int i = 0; i < d.n_slots; i++) {
    if (d.slot_widths[i] < 1) return "slot width";
    slots_[size_t(i)].width = d.slot_widths[i];
    slots_[size_t(i)].stride = round_up(d.slot_widths[i], kBlock);
  }
  bool selected = false;
  const kt_router *route = nullptr;
  for (int i = 0; i < d.n_ops; i++) {
    Step s;
    s.op = d.ops[i], s.selected = selected, s.table = -1, s.reach = 0;
    const std::string bad = check_op(s);
    if (!bad.empty()) return "operation " + std::to_string(i) + ": bad " + bad;
    if (s.op.kind == KT_OP_ROUTE) route = &d.ops[i].router;
    if (s.op.kind == KT_OP_MLP && s.op.router.top_k &&
        !(route && route->top_k == s.op.router.top_k && route->n_experts == s.op.router.n_experts))
      return "operation " + std::to_string(i) + ": experts without their router before them";
    if (s.op.kind == KT_OP_ATTENTION) {
      const kt_attention &a = s.op.attention;
      const int group = a.n_heads / a.n_kv_heads;
      int heads = std::min(group, kAttentionRows);
      while (group % heads) heads--;
      if (unit_heads_ && (unit_heads_ != heads))
        return "attention operations differ in head counts";
      unit_heads_ = heads, head_units_ = a.n_heads / heads;
      s.reach = reach_of(a.window);
      if (a.rope.dims) s.table = table_of(a.rope);
      if (tables_.size() > kMaxTables) return "more than 4 rotary tables";
    }
    if (s.op.kind == KT_OP_SELECT) selected = true;
    Slot &written = slots_[size_t(s.op.out)];
    written.capacity = std::max<int64_t>(
        written.capacity, selected || s.op.kind == KT_OP_SELECT ? d.max_logits : d.max_tokens);
    steps_.push_back(std::move(s));
  }
  return reserve();
}

inline std::string Program::reserve() {
  const int64_t tokens = d_.max_tokens;
  const char *no_memory = "no memory for the step program's working space";
  int64_t hidden = 0, gathered = 0, expert_rows = 0, expert_width = 0, heads = 0;
  // What each operation needs of its input.
  for (Step &s : steps_) {
    const kt_op &op = s.op;
    if (op.kind == KT_OP_LINEAR || op.kind == KT_OP_MLP) {
      const int last =
          op.kind == KT_OP_MLP ? 2 : op.n_weights;  // the down matrix reads the hidden rows
      const int first = encoding_of_format(op.w[0].format);
      const int64_t slots = tokens * std::max(1, op.kind == KT_OP_MLP ? op.router.top_k : 1);
      if (op.order) gathered = std::max(gathered, slots * encoded_row_bytes(first, op.w[0].k));
      for (int i = 0; i < last && !op.order; i++)
        in(s).wanted[encoding_of_format(op.w[i].format)] = true;
    }
    if (op.kind == KT_OP_MLP) {
      const int64_t slots = tokens * std::max(1, op.router.top_k);
      const int64_t row = encoded_row_bytes(encoding_of_format(op.w[2].format), op.w[2].k);
      hidden = std::max(hidden, slots * row);
      if (op.router.top_k) {
        expert_rows = std::max(expert_rows, slots);
        expert_width = std::max(expert_width, round_up(op.w[2].n, kBlock));
      }
    }
    if (op.kind == KT_OP_ROUTE) expert_rows = std::max(expert_rows, tokens * op.router.top_k);
    if (op.kind == KT_OP_ATTENTION) heads = std::max<int64_t>(heads, op.attention.n_heads);
  }
  // Only NORM and ATTENTION write encodings; float32 rows are always there.
  for (Step &s : steps_) {
    const bool encodes = s.op.kind == KT_OP_NORM || s.op.kind == KT_OP_ATTENTION;
    Slot &o = out(s);
    if (!encodes && (o.wanted[ENC_HALF] || o.wanted[ENC_INT]))
      return "a slot is read encoded but not by a norm";
  }
  for (Slot &s : slots_) {
    s.wanted[ENC_F32] = true;
    for (int e = 0; e < ENC_COUNT; e++) {
      if (!s.wanted[e]) continue;
      s.row_bytes[e] = encoded_row_bytes(e, s.width);
      if (!s.memory[e].reserve(s.capacity * s.row_bytes[e])) return no_memory;
    }
  }
  for (Table &t : tables_)
    if (!t.cosine.reserve(tokens * t.rope.dims * 2) || !t.sine.reserve(tokens * t.rope.dims * 2))
      return no_memory;
  const int64_t hp = padded_head(std::max(1, d_.head_dim));
  query_bytes_ = encoded_row_bytes(query_encoding(d_.kv_format), hp);
  scratch_bytes_ = round_up(AttentionScratch::bytes(hp), 64);
  const bool ok = hidden_.reserve(hidden) && gathered_.reserve(gathered) &&
                  expert_out_.reserve(expert_rows * expert_width * 4) &&
                  queries_.reserve(tokens * heads * query_bytes_) &&
                  scratch_.reserve(scratch_bytes_ * pool_->size()) &&
                  partial_.reserve(heads ? kPartialRows * (hp + 2) * 4 : 0);
  if (!ok) return no_memory;
  cut_.reset(new std::atomic<bool>[size_t(tokens * std::max(1, head_units_))]);
  for (Reach &r : reaches_) r.starts.reserve(size_t(tokens) + 1);
  position_.resize(size_t(tokens));
  runs_.reserve(size_t(tokens)), blocks_.reserve(size_t(tokens)),
      dense_blocks_.reserve(size_t(tokens));
  ids_.resize(size_t(expert_rows)), weights_.resize(size_t(expert_rows));
  slot_of_.resize(size_t(expert_rows)), row_of_.resize(size_t(expert_rows));
  active_.reserve(kMaxExperts), expert_blocks_.reserve(size_t(expert_rows));
  route_scratch_.resize(size_t(pool_->size()) * 2 * kMaxExperts);
  return "";
}

inline int64_t Program::bytes() const {
  int64_t total = queries_.bytes() + hidden_.bytes() + gathered_.bytes() + expert_out_.bytes() +
                  scratch_.bytes() + partial_.bytes();
  for (const Slot &s : slots_)
    for (const Memory &m : s.memory) total += m.bytes();
  for (const Table &t : tables_) total += t.cosine.bytes() + t.sine.bytes();
  return total;
}

// Everything that a wrong batch could make the loop read or write out of bounds.
inline std::string Program::check_batch(const kt_batch &b) const {
  if (b.n_seqs < 1 || b.seq_start[0] != 0) return "no sequences";
  if (b.n_ops < 0 || b.n_ops > int(steps_.size())) return "n_ops";
  const int32_t rows = b.seq_start[b.n_seqs];
  if (rows > d_.max_tokens) return "more tokens than the program was made for";
  for (int s = 0; s < b.n_seqs; s++) {
    const int32_t count = b.seq_start[s + 1] - b.seq_start[s];
    if (count < 1 || b.first_position[s] < 0) return "an empty sequence";
    if (!d_.n_kv_layers) continue;
    const int64_t used = ceil_div(int64_t(b.first_position[s]) + count, kPageTokens);
    if (used > b.page_stride) return "a page table is too short";
    for (int64_t p = 0; p < used; p++) {
      const int32_t page = b.page_table[int64_t(s) * b.page_stride + p];
      if (page < 0 || page >= d_.n_pages) return "a page number is out of range";
    }
  }
  for (const Step &s : steps_)
    if (s.op.kind == KT_OP_EMBED)
      for (int i = 0; i < rows; i++)
        if (b.tokens[i] < 0 || b.tokens[i] >= s.op.w[0].n)
          return "a token id is outside the vocabulary";
  if (b.n_logits < 0 || b.n_logits > d_.max_logits)
    return "more logits than the program was made for";
  for (int i = 0; i < b.n_logits; i++)
    if (b.logit_rows[i] < 0 || b.logit_rows[i] >= rows ||
        (i && b.logit_rows[i] <= b.logit_rows[i - 1]))
      return "logit rows";
  return "";
}

}  // namespace kt
