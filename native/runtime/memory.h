// Large zeroed memory with huge pages, optionally bound to one NUMA node.
#pragma once
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace kt {

constexpr int64_t kHugePage = 2 << 20;

inline int64_t mapped_bytes(int64_t bytes) {
  const int64_t unit = bytes >= kHugePage ? kHugePage : 4096;
  return (bytes + unit - 1) / unit * unit;
}

inline void *map_memory(int64_t bytes, int node) {
  if (bytes <= 0) return nullptr;
  const int64_t size = mapped_bytes(bytes);
  const int64_t slack = size >= kHugePage ? kHugePage : 0;  // to align by hand
  void *raw = mmap(nullptr, size_t(size + slack), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  char *start = static_cast<char *>(raw), *aligned = start;
  if (slack) {
    const int64_t head = (kHugePage - int64_t(uintptr_t(start) % kHugePage)) % kHugePage;
    aligned = start + head;
    if (head) munmap(start, size_t(head));
    if (slack > head) munmap(aligned + size, size_t(slack - head));
    madvise(aligned, size_t(size), MADV_HUGEPAGE);
  }
  if (node >= 0 && node < 1024) {  // a failed bind costs speed, nothing else
    unsigned long mask[16] = {};
    mask[node / 64] = 1ul << (node % 64);
    constexpr int kPreferred = 1;  // MPOL_PREFERRED
    syscall(SYS_mbind, aligned, size, kPreferred, mask, 1024, 0);
  }
  return aligned;
}

inline void unmap_memory(void *data, int64_t bytes) {
  if (data) munmap(data, size_t(mapped_bytes(bytes)));
}

// A block of zeroed floats or bytes that frees itself.
class Memory {
 public:
  Memory() = default;
  Memory(Memory &&other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
  }
  Memory &operator=(Memory &&) = delete;
  ~Memory() { unmap_memory(data_, bytes_); }
  bool reserve(int64_t bytes) {
    bytes_ = bytes;
    data_ = static_cast<uint8_t *>(map_memory(bytes, -1));
    return bytes == 0 || data_;
  }
  // At least `bytes`, zeroed; what it held is gone. False: no memory, and nothing has changed.
  bool grow(int64_t bytes) {
    uint8_t *fresh = static_cast<uint8_t *>(map_memory(bytes, -1));
    if (!fresh) return false;
    unmap_memory(data_, bytes_);
    data_ = fresh, bytes_ = bytes;
    return true;
  }
  uint8_t *data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  uint8_t *data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace kt
