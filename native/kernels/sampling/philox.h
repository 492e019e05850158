// Random numbers that depend on seed and position alone. Philox4x32-10: Salmon, Moraes, Dror, Shaw:
// Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
#pragma once
#include <cstdint>

namespace kt {
namespace sampling {

inline void philox4x32(uint32_t (&counter)[4], uint64_t seed) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    const uint32_t next0 = static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key0;
    const uint32_t next2 = static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key1;
    counter[0] = next0;
    counter[1] = static_cast<uint32_t>(b);
    counter[2] = next2;
    counter[3] = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// In [0, 1), 53 bits: the first two words of the stream's block `position`, high word first.
inline double uniform(uint64_t seed, uint64_t position) {
  uint32_t block[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0,
                       0};
  philox4x32(block, seed);
  const uint64_t bits = (uint64_t{block[0]} << 32) | block[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace sampling
}  // namespace kt
