// The exported functions of include/kt.h.
#pragma once
#include "../formats/pack.h"
#include "../kernels/sampling.h"
#include "attend.h"
#include "experts.h"
#include "floors.h"

#define KT_EXPORT extern "C" __attribute__((visibility("default")))

struct kt_pool {
  std::unique_ptr<kt::Pool> pool;
};
struct kt_program {
  kt::Program program;
};

KT_EXPORT int32_t kt_abi_version(void) { return KT_ABI_VERSION; }
KT_EXPORT const char *kt_variant_name(void) { return KT_VARIANT_NAME; }
KT_EXPORT const char *kt_last_error(void) { return kt::last_error().c_str(); }

KT_EXPORT void *kt_alloc(int64_t bytes, int32_t node) { return kt::map_memory(bytes, node); }
KT_EXPORT void kt_free(void *data, int64_t bytes) { kt::unmap_memory(data, bytes); }

KT_EXPORT kt_pool *kt_pool_new(int32_t n_threads, const int32_t *cpus) {
  if (n_threads < 1 || n_threads > 4096) return kt::fail(0, "thread count"), nullptr;
  std::unique_ptr<kt::Pool> pool = kt::Pool::create(n_threads, cpus);
  if (!pool) return kt::fail(0, "cannot start worker threads"), nullptr;
  return new kt_pool{std::move(pool)};
}
KT_EXPORT int32_t kt_pool_threads(const kt_pool *pool) { return pool->pool->size(); }
KT_EXPORT void kt_pool_free(kt_pool *pool) { delete pool; }

KT_EXPORT int64_t kt_packed_bytes(int32_t format, int64_t n, int64_t k) {
  int64_t bytes = KT_BAD_ARGUMENT;
  if (n < 1 || k < 1) return bytes;
  kt::with_format(format,
                  [&](auto f) { bytes = kt::panels(n) * kt::panel_layout<decltype(f)>(k).bytes; });
  return bytes;
}

KT_EXPORT int32_t kt_pack(kt_pool *pool, int32_t format, int64_t n, int64_t k,
                          const kt_source *source, void *dst) {
  if (n < 1 || k < 1 || !kt::can_pack(format, *source, k))
    return kt::fail(KT_BAD_ARGUMENT, "source encoding " + std::to_string(source->encoding) +
                                         " does not pack into format " + std::to_string(format));
  kt::Units units;
  uint8_t *to = static_cast<uint8_t *>(dst);
  kt::with_format(format, [&](auto f) {
    using F = decltype(f);
    const int64_t bytes = kt::panel_layout<F>(k).bytes;
    pool->pool->each([&](kt::Worker w) {
      units.each({kt::panels(n), w.count, 4}, [&](int64_t p) {
        const int rows = int(std::min<int64_t>(kt::kPanel, n - p * kt::kPanel));
        kt::pack_panel<F>(*source, p * kt::kPanel, rows, k, to + p * bytes);
      });
    });
  });
  return KT_OK;
}

KT_EXPORT int32_t kt_unpack(kt_pool *pool, int32_t format, int64_t n, int64_t k, const void *packed,
                            float *dst) {
  kt::Units units;
  const bool known = kt::with_format(format, [&](auto f) {
    using F = decltype(f);
    const kt::PanelLayout layout = kt::panel_layout<F>(k);
    pool->pool->each([&](kt::Worker w) {
      units.each({n, w.count, 16}, [&](int64_t row) {
        const uint8_t *panel =
            static_cast<const uint8_t *>(packed) + row / kt::kPanel * layout.bytes;
        float x[32];
        for (int64_t b = 0; b < layout.blocks; b++) {
          kt::unpack_block<F>(panel, layout, b, int(row % kt::kPanel), x);
          std::memcpy(dst + row * k + b * 32, x, size_t(std::min<int64_t>(32, k - b * 32)) * 4);
        }
      });
    });
  });
  return known ? KT_OK : kt::fail(KT_BAD_ARGUMENT, "format");
}

KT_EXPORT int32_t kt_page_tokens(void) { return kt::kPageTokens; }
KT_EXPORT int64_t kt_page_bytes(int32_t kv_format, int32_t n_kv_heads, int32_t head_dim) {
  return int64_t(n_kv_heads) * kt::kv_head_of(kv_format, head_dim).bytes;
}

KT_EXPORT kt_program *kt_program_new(kt_pool *pool, const kt_program_desc *desc) {
  std::unique_ptr<kt_program> p(new kt_program);
  const std::string bad = p->program.build(pool->pool.get(), *desc);
  if (!bad.empty()) return kt::fail(0, bad), nullptr;
  return p.release();
}
KT_EXPORT void kt_program_free(kt_program *program) { delete program; }
KT_EXPORT int64_t kt_program_bytes(const kt_program *program) { return program->program.bytes(); }
KT_EXPORT int32_t kt_forward(kt_program *program, const kt_batch *batch, float *logits) {
  return program->program.forward(*batch, logits);
}
KT_EXPORT const float *kt_slot(const kt_program *program, int32_t slot, int64_t *stride) {
  if (slot < 0 || slot >= program->program.slots()) return nullptr;
  const kt::Slot &s = program->program.slot(slot);
  *stride = s.stride;
  return s.row(0);
}

KT_EXPORT int32_t kt_sample(kt_pool *pool, float *logits, int32_t n_rows, int32_t vocab,
                            const kt_sampling *params, int32_t *ids, float *chosen,
                            int32_t *best_ids, float *best_logprobs) {
  if (n_rows < 1 || vocab < 1) return kt::fail(KT_BAD_ARGUMENT, "no logits");
  const auto one = [&](int64_t i) {
    kt::sample_row(logits + i * vocab, vocab, params[i], ids + i, chosen ? chosen + i : nullptr,
                   best_ids ? best_ids + i * 20 : nullptr,
                   best_logprobs ? best_logprobs + i * 20 : nullptr);
  };
  if (n_rows == 1) {
    one(0);
    return KT_OK;
  }
  // What is fetched ahead at the end of a row is the start of the next: workers take runs of rows.
  kt::Units units;
  pool->pool->each([&](kt::Worker w) {
    units.each({n_rows, w.count, std::max(1, n_rows / (4 * w.count))}, one);
  });
  return KT_OK;
}

KT_EXPORT double kt_peak_rate(kt_pool *pool, int32_t kind, double seconds) {
  std::vector<double> rate(size_t(pool->pool->size()));
  pool->pool->each([&](kt::Worker w) { rate[size_t(w.index)] = kt::peak_rate(kind, seconds); },
                   true);
  double total = 0;
  for (double r : rate) total += r;
  return total;
}
KT_EXPORT double kt_read_rate(kt_pool *pool, const void *data, int64_t bytes, double seconds) {
  std::vector<double> rate(size_t(pool->pool->size()));
  pool->pool->each(
      [&](kt::Worker w) {
        const int64_t part = bytes / w.count / 256 * 256;
        rate[size_t(w.index)] =
            kt::read_rate(static_cast<const uint8_t *>(data) + w.index * part, part, seconds);
      },
      true);
  double total = 0;
  for (double r : rate) total += r;
  return total;
}
KT_EXPORT void kt_tile_counts(int64_t *counts) {
  std::fill(counts, counts + KT_TILE_COUNTS, 0);
#ifdef KT_TILE_MODEL
  const kt::TileCounts &c = kt::tile_counts();
  counts[KT_TILE_MULTIPLIES] = c.multiplies, counts[KT_TILE_LOADS] = c.loads;
  counts[KT_TILE_STORES] = c.stores, counts[KT_TILE_ZEROS] = c.zeros;
  counts[KT_TILE_LATE_LOADS] = c.late_loads, counts[KT_TILE_EARLY_STORES] = c.early_stores;
#endif
}
