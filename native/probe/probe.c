#define _GNU_SOURCE
#include "probe.h"

#include <cpuid.h>
#include <emmintrin.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* ---- instruction set ----------------------------------------------------------------- */

enum reg { EAX, EBX, ECX, EDX };

/* XCR0 bits that the operating system sets for the registers it saves. */
#define STATE_AVX 0x6u /* xmm, ymm */
#define STATE_AVX512 0xe6u /* and masks, upper halves of zmm, zmm16-31 */
#define STATE_TILE 0x60000u /* tile configuration and tile data */
#define TILE_DATA_FEATURE 18 /* XCR0 bit number of the tile data, what permission is asked for */

struct feature {
  const char *name; /* as in /proc/cpuinfo */
  uint32_t leaf, subleaf;
  enum reg reg;
  int bit;
  uint32_t state; /* XCR0 bits that it needs */
};

static const struct feature FEATURES[] = {
    {"sse4_2", 1, 0, ECX, 20, 0},
    {"avx", 1, 0, ECX, 28, STATE_AVX},
    {"f16c", 1, 0, ECX, 29, STATE_AVX},
    {"fma", 1, 0, ECX, 12, STATE_AVX},
    {"avx2", 7, 0, EBX, 5, STATE_AVX},
    {"avx_vnni", 7, 1, EAX, 4, STATE_AVX},
    {"avx512f", 7, 0, EBX, 16, STATE_AVX512},
    {"avx512bw", 7, 0, EBX, 30, STATE_AVX512},
    {"avx512dq", 7, 0, EBX, 17, STATE_AVX512},
    {"avx512vl", 7, 0, EBX, 31, STATE_AVX512},
    {"avx512cd", 7, 0, EBX, 28, STATE_AVX512},
    {"avx512_vnni", 7, 0, ECX, 11, STATE_AVX512},
    {"avx512vbmi", 7, 0, ECX, 1, STATE_AVX512},
    {"avx512_vbmi2", 7, 0, ECX, 6, STATE_AVX512},
    {"avx512_bf16", 7, 1, EAX, 5, STATE_AVX512},
    {"avx512_fp16", 7, 0, EDX, 23, STATE_AVX512},
    {"amx_tile", 7, 0, EDX, 24, STATE_TILE},
    {"amx_int8", 7, 0, EDX, 25, STATE_TILE},
    {"amx_bf16", 7, 0, EDX, 22, STATE_TILE},
};
#define N_FEATURES ((int32_t)(sizeof FEATURES / sizeof FEATURES[0]))

static uint32_t cpuid(uint32_t leaf, uint32_t subleaf, enum reg reg) {
  uint32_t out[4] = {0, 0, 0, 0};
  /* False, and zeros, above the highest leaf. A subleaf that does not exist reads as zeros. */
  if (!__get_cpuid_count(leaf, subleaf, &out[EAX], &out[EBX], &out[ECX], &out[EDX])) return 0;
  return out[reg];
}

static uint64_t saved_state(void) {
  if (!(cpuid(1, 0, ECX) & bit_OSXSAVE)) return 0; /* xgetbv would fault */
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

EXPORT int32_t kt_probe_version(void) { return 2; }

EXPORT uint64_t kt_probe_flags(void) {
  uint64_t state = saved_state(), flags = 0;
  /* Leaf 7 says in EAX which subleaf is its last; past it, old CPUs repeat subleaf 0. */
  uint32_t last_subleaf = cpuid(7, 0, EAX);
  for (int32_t i = 0; i < N_FEATURES; i++) {
    const struct feature *f = &FEATURES[i];
    if (f->leaf == 7 && f->subleaf > last_subleaf) continue;
    int present = cpuid(f->leaf, f->subleaf, f->reg) >> f->bit & 1;
    if (present && (state & f->state) == f->state) flags |= UINT64_C(1) << i;
  }
  return flags;
}

EXPORT const char *kt_probe_flag_name(int32_t bit) {
  return bit >= 0 && bit < N_FEATURES ? FEATURES[bit].name : NULL;
}

EXPORT const char *kt_probe_vendor(void) {
  static char vendor[13];
  uint32_t a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return "";
  memcpy(vendor, &b, 4);
  memcpy(vendor + 4, &d, 4);
  memcpy(vendor + 8, &c, 4);
  return vendor;
}

EXPORT const char *kt_probe_model(void) {
  static char model[49];
  for (uint32_t i = 0; i < 3; i++) {
    uint32_t out[4];
    if (!__get_cpuid(0x80000002u + i, &out[0], &out[1], &out[2], &out[3])) return "";
    memcpy(model + 16 * i, out, 16);
  }
  return model;
}

EXPORT int32_t kt_probe_amx_permission(void) {
  /* ARCH_GET_XCOMP_PERM and ARCH_REQ_XCOMP_PERM of asm/prctl.h. */
  const long get = 0x1022, request = 0x1023;
  uint64_t granted = 0;
  if ((saved_state() & STATE_TILE) != STATE_TILE) return 0;
  if (syscall(SYS_arch_prctl, request, TILE_DATA_FEATURE) != 0) return 0;
  if (syscall(SYS_arch_prctl, get, &granted) != 0) return 0;
  return (int32_t)(granted >> TILE_DATA_FEATURE & 1);
}

/* ---- read bandwidth ------------------------------------------------------------------ */

#define HUGE_PAGE ((size_t)2 << 20)
#define CHUNK ((size_t)256 << 10) /* read between two looks at the clock */
#define AHEAD 8192 /* prefetch distance, bytes */

struct gate { /* what the threads share */
  atomic_int ready, go;
  double seconds;
};

struct reader {
  pthread_t thread;
  struct gate *gate;
  int32_t cpu;
  size_t bytes; /* in: wanted */
  double fill_until; /* in: clock */
  double read; /* out: bytes read */
  double elapsed; /* out: seconds it took */
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pin(int32_t cpu) {
  cpu_set_t *set = CPU_ALLOC((size_t)cpu + 1);
  if (set == NULL) return;
  size_t size = CPU_ALLOC_SIZE((size_t)cpu + 1);
  CPU_ZERO_S(size, set);
  CPU_SET_S((size_t)cpu, size, set);
  /* A refusal only makes the figure less exact. */
  pthread_setaffinity_np(pthread_self(), size, set);
  CPU_FREE(set);
}

/* Writes the slice, so that its pages exist and lie near the thread's CPU. Returns the bytes. */
static size_t fill(char *slice, size_t bytes, double until) {
  size_t done = 0;
  while (done < bytes && (done == 0 || now() < until)) {
    memset(slice + done, 1, HUGE_PAGE);
    done += HUGE_PAGE;
  }
  return done;
}

static void read_chunk(const char *data, size_t bytes) {
  __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;
  for (const char *p = data; p < data + bytes; p += 64) {
    _mm_prefetch(p + AHEAD, _MM_HINT_T0);
    a = _mm_xor_si128(a, _mm_load_si128((const __m128i *)p));
    b = _mm_xor_si128(b, _mm_load_si128((const __m128i *)(p + 16)));
    c = _mm_xor_si128(c, _mm_load_si128((const __m128i *)(p + 32)));
    d = _mm_xor_si128(d, _mm_load_si128((const __m128i *)(p + 48)));
  }
  a = _mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d));
  __asm__ volatile("" ::"x"(a)); /* the sum is used, as far as the compiler knows */
}

static void measure(struct reader *self, const char *slice, size_t bytes) {
  double start = now(), end = start + self->gate->seconds, clock = start;
  for (size_t at = 0; clock < end; clock = now()) {
    read_chunk(slice + at, CHUNK);
    self->read += (double)CHUNK;
    at = at + CHUNK == bytes ? 0 : at + CHUNK;
  }
  self->elapsed = clock - start;
}

static void *reader_main(void *argument) {
  struct reader *self = argument;
  size_t bytes = (self->bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  size_t mapped = bytes + HUGE_PAGE; /* room to align */
  pin(self->cpu);
  char *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *slice = NULL;
  size_t filled = 0;
  if (base != MAP_FAILED) {
    slice = (char *)(((uintptr_t)base + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    madvise(slice, bytes, MADV_HUGEPAGE);
    filled = fill(slice, bytes, self->fill_until);
  }
  atomic_fetch_add(&self->gate->ready, 1);
  while (!atomic_load(&self->gate->go)) usleep(50);
  if (filled) measure(self, slice, filled);
  if (base != MAP_FAILED) munmap(base, mapped);
  return NULL;
}

EXPORT double kt_probe_read_bandwidth(const int32_t *cpus, int32_t n_cpus, int64_t bytes,
                                      double seconds) {
  if (n_cpus < 1 || bytes < 1 || !(seconds > 0)) return 0;
  struct reader *readers = calloc((size_t)n_cpus, sizeof *readers);
  if (readers == NULL) return 0;
  struct gate gate = {.seconds = seconds / 2};
  double fill_until = now() + seconds / 2, total = 0, longest = 0;
  int32_t started = 0;
  for (; started < n_cpus; started++) {
    readers[started] = (struct reader){.gate = &gate,
                                       .cpu = cpus[started],
                                       .bytes = (size_t)(bytes / n_cpus) + 1,
                                       .fill_until = fill_until};
    if (pthread_create(&readers[started].thread, NULL, reader_main, &readers[started]) != 0) break;
  }
  while (atomic_load(&gate.ready) < started) usleep(50);
  atomic_store(&gate.go, 1);
  for (int32_t i = 0; i < started; i++) {
    pthread_join(readers[i].thread, NULL);
    total += readers[i].read;
    if (readers[i].elapsed > longest) longest = readers[i].elapsed;
  }
  free(readers);
  return longest > 0 ? total / longest : 0;
}

/* ---- maps of files that get shorter -------------------------------------------------- */

static char guard_message[512];
static size_t guard_length;
static int guard_status;

static void on_bus_error(int number, siginfo_t *info, void *context) {
  (void)context;
  if (info->si_code != BUS_ADRERR) { /* broken memory, say: ends as it would have */
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  size_t done = 0;
  while (done < guard_length) {
    const ssize_t count = write(2, guard_message + done, guard_length - done);
    if (count <= 0) break;
    done += (size_t)count;
  }
  _exit(guard_status);
}

EXPORT int32_t kt_probe_guard_maps(const char *message, int32_t status) {
  const size_t length = strlen(message);
  if (length > 500) return 0;
  memcpy(guard_message, message, length);
  guard_length = length, guard_status = status;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGBUS, &action, NULL) == 0;
}
