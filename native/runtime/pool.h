// Workers that run one job together. Between jobs they spin for some tens of microseconds, so that
// the next step of a busy engine finds them awake, and then park in the kernel: an idle pool uses
// no CPU.
//
// Nobody waits for a worker that has nothing in its hands. Work is handed out in units; a phase
// ends when its units are done, and a worker that another process keeps off its core joins later or
// not at all. So a busy neighbour costs its share of the machine, not a time slice at every phase.
#pragma once
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace kt {

inline void futex_wait(std::atomic<uint32_t> *word, uint32_t seen) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
inline void futex_wake_all(std::atomic<uint32_t> *word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}
inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// A counter that threads wait on: spin, then park. Only a wake with sleepers present enters the
// kernel.
class Gate {
 public:
  uint32_t value() const { return word_.load(std::memory_order_acquire); }
  void reset() { word_.store(0, std::memory_order_relaxed); }
  void open() {
    word_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst)) futex_wake_all(&word_);
  }
  void wait_past(uint32_t seen, int64_t spin_ns) {
    for (int64_t start = 0;;) {
      for (int i = 0; i < 64; i++) {
        if (value() != seen) return;
        _mm_pause();
      }
      if (!start) start = now_ns();
      if (now_ns() - start > spin_ns) break;
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word_.load(std::memory_order_seq_cst) == seen) futex_wait(&word_, seen);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::atomic<uint32_t> word_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// The units [0, total) of one phase, and how they are handed out: `first` to each of the workers in
// its first run, and then ever fewer, so that all end together.
struct Sharing {
  int64_t total;
  int workers;
  int64_t first;
};

// Hands out the units of one phase, in runs, to whoever asks next. Padded: the counters of
// neighbouring phases do not share a cache line.
class alignas(64) Units {
 public:
  // Before the workers start.
  void reset() {
    next_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    finished_.reset();
  }
  // Runs f(from, to) for runs of units until there are none left, and returns when all of them are
  // done, whoever did them: what they wrote may then be read.
  template <class F>
  void each_run(const Sharing &work, F &&f) {
    // Whoever comes after the end leaves at once: what the phase was made of (the experts of a
    // layer, say) may already be that of a later one, and its work with it.
    if (finished_.value()) return;
    for (int64_t from = next_.load(std::memory_order_relaxed); from < work.total;) {
      const int64_t left = work.total - from;
      const int64_t run = from < work.first * work.workers
                              ? work.first
                              : std::min(work.first, left / (2 * work.workers));
      const int64_t to = from + std::clamp<int64_t>(run, 1, left);
      if (!next_.compare_exchange_weak(from, to, std::memory_order_relaxed)) continue;
      f(from, to);
      if (done_.fetch_add(to - from, std::memory_order_acq_rel) + to - from == work.total)
        finished_.open();
      from = next_.load(std::memory_order_relaxed);
    }
    if (work.total > 0) finished_.wait_past(0, kPhaseSpin);
  }
  // The same for f(unit).
  template <class F>
  void each(const Sharing &work, F &&f) {
    each_run(work, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; i++) f(i);
    });
  }

 private:
  static constexpr int64_t kPhaseSpin = 200000;  // ns, then another process has the core of a peer
  std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  Gate finished_;
};

class Pool;

// One worker's view of a running job.
struct Worker {
  int index;
  int count;  // of the pool
};

class Pool {
 public:
  using Job = void (*)(Worker, void *);

  static std::unique_ptr<Pool> create(int n, const int32_t *cpus) {
    std::unique_ptr<Pool> pool(new Pool(n));
    for (int i = 0; i < n; i++) {
      pool->starts_[i] = {pool.get(), i, cpus ? cpus[i] : -1};
      pthread_t thread;
      if (pthread_create(&thread, nullptr, &Pool::main, &pool->starts_[i])) return nullptr;
      pool->threads_.push_back(thread);
    }
    return pool;
  }
  ~Pool() {
    stop_ = true;
    jobs_.open();
    for (pthread_t t : threads_) pthread_join(t, nullptr);
  }
  int size() const { return size_; }

  // Runs job(worker, context) and returns when every worker that started it has left it. A job of
  // units is done when one worker has come to its end; all: every worker must run it.
  void run(Job job, void *context, bool all) {
    job_ = job, context_ = context;
    to_finish_.store(all ? size_ : 1, std::memory_order_relaxed);
    const uint32_t seen = done_.value();
    state_.store(0, std::memory_order_release);
    jobs_.open();
    done_.wait_past(seen, 0);
  }
  // The same for a callable.
  template <class F>
  void each(F &&f, bool all = false) {
    run([](Worker w, void *c) { (*static_cast<std::remove_reference_t<F> *>(c))(w); }, &f, all);
  }

 private:
  static constexpr int64_t kIdleSpin = 50000;  // ns a worker spins for the next job
  static constexpr uint32_t kClosed = 1u << 31;  // nobody else may start the job

  struct Start {
    Pool *pool;
    int index;
    int cpu;
  };

  explicit Pool(int n) : size_(n), starts_(size_t(n)) {}

  static void *main(void *arg) {
    const Start start = *static_cast<Start *>(arg);
    if (start.cpu >= 0 && start.cpu < CPU_SETSIZE) {  // a refused pin costs speed, nothing else
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(start.cpu, &set);
      pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
    start.pool->loop(start.index);
    return nullptr;
  }
  void loop(int index) {
    for (uint32_t seen = 0;;) {
      jobs_.wait_past(seen, kIdleSpin);
      seen = jobs_.value();
      if (stop_) return;
      if (!enter()) continue;
      job_({index, size_}, context_);
      if (to_finish_.fetch_sub(1, std::memory_order_acq_rel) == 1)
        state_.fetch_or(kClosed, std::memory_order_acq_rel);
      // The last to leave a closed job tells the caller.
      if (state_.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1u)) done_.open();
    }
  }
  // Counts this worker into the job, unless it is closed.
  bool enter() {
    uint32_t state = state_.load(std::memory_order_acquire);
    while (!(state & kClosed))
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

  const int size_;
  std::vector<Start> starts_;
  std::vector<pthread_t> threads_;
  std::atomic<bool> stop_{false};
  Job job_ = nullptr;
  void *context_ = nullptr;
  alignas(64) Gate jobs_;
  alignas(64) Gate done_;
  alignas(64) std::atomic<uint32_t> state_{kClosed};  // workers in the job, and kClosed
  alignas(64) std::atomic<int> to_finish_{0};
};

}  // namespace kt
