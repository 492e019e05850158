// Codes in lines of 64 bytes: 16 rows, a dword each. A block of 32 K is eight quads of 4 K;
// layout.h tells which bits of which line a quad has.
#pragma once
#include <cstdint>
#include <cstring>

namespace kt {

constexpr int kPanel = 16;  // rows
constexpr int kBlock = 32;  // K

// Byte of a dword that holds K i (0 .. 3) of an FP8 line.
constexpr int fp8_byte(int i) { return i == 1 ? 2 : i == 2 ? 1 : i; }

// What a code stands for, as an unsigned byte: the value plus the format's zero point.
struct NoTable {
  static constexpr bool kUsed = false;
  static constexpr uint8_t kValues[16] = {};
};
// FP4 E2M1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), doubled, plus 16.
struct TableE2M1 {
  static constexpr bool kUsed = true;
  static constexpr uint8_t kValues[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                          16, 15, 14, 13, 12, 10, 8,  4};
};
// IQ4_NL's values, plus 128.
struct TableNl {
  static constexpr bool kUsed = true;
  static constexpr uint8_t kValues[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};
};
// Codes of the IQ types: bits 0 .. 1 (IQ3: 0 .. 2) choose an entry of their grids, the highest one
// is its sign. IQ2: 8, 25, 43, plus 64.
struct TableIq2 {
  static constexpr bool kUsed = true;
  static constexpr uint8_t kValues[16] = {72, 89, 107, 64, 56, 39, 21, 64};
};
// IQ3_XXS: 4, 12, .. 52, 62, plus 64.
struct TableIq3Xxs {
  static constexpr bool kUsed = true;
  static constexpr uint8_t kValues[16] = {68, 76, 84, 92, 100, 108, 116, 126,
                                          60, 52, 44, 36, 28,  20,  12,  2};
};
// IQ3_S: 1, 3, .. 15, plus 16.
struct TableIq3S {
  static constexpr bool kUsed = true;
  static constexpr uint8_t kValues[16] = {17, 19, 21, 23, 25, 27, 29, 31,
                                          15, 13, 11, 9,  7,  5,  3,  1};
};
// IQ1_M: -1, 0, 1, plus (the highest bit: minus) 1 / 8; eightfold, plus 16.
struct TableIq1M {
  static constexpr bool kUsed = true;
  static constexpr uint8_t kValues[16] = {9, 17, 25, 16, 7, 15, 23, 16};
};

template <int Low, int High, class Table>
struct CodeLines {
  static constexpr int kLowBytes = Low * 64;
  // The largest code, or value of one.
  static constexpr int top() {
    int most = Table::kUsed ? 0 : (1 << (Low + High)) - 1;
    for (int value : Table::kValues) most = value > most ? value : most;
    return most;
  }
  static constexpr int kBytes = (Low + High) * 64;  // of a block
  static constexpr bool kPlain = Low == 8, kNibbles = Low == 4 && High == 0, kTable = Table::kUsed;
  static_assert((Low == 8 && High == 0) || (Low == 4 && High <= 2) || (Low == 2 && High <= 1), "");

  // Bits of quad q in its line, one field per byte.
  static constexpr int low_shift(int q) { return Low == 8 ? 0 : Low == 4 ? q % 2 * 4 : q % 4 * 2; }
  static constexpr int low_line(int q) { return q * Low / 8; }
  static constexpr int high_shift(int q) { return High == 1 ? q : q % 4 * 2; }
  static constexpr int high_line(int q) { return High == 2 ? q / 4 : 0; }

  static int raw(const uint8_t *block, int r, int i) {
    const int q = i / 4, at = r * 4 + i % 4;
    int code = block[low_line(q) * 64 + at] >> low_shift(q) & ((1 << Low) - 1);
    if (High)
      code |= (block[kLowBytes + high_line(q) * 64 + at] >> high_shift(q) & ((1 << High) - 1))
              << Low;
    return code;
  }
  // K i of row r, as its table says.
  static int code(const uint8_t *block, int r, int i) {
    const int c = raw(block, r, i);
    return Table::kUsed ? Table::kValues[c & 15] : c;
  }
  // The raw codes of 16 rows as a block of lines. Loops over rows are vectors.
  static void store(uint8_t *block, const uint8_t (*codes)[32]) {
    uint32_t quads[8][kPanel];
    for (int r = 0; r < kPanel; r++)
      for (int q = 0; q < 8; q++) std::memcpy(&quads[q][r], codes[r] + q * 4, 4);
    uint32_t *lines = reinterpret_cast<uint32_t *>(block);
    std::memset(block, 0, kBytes);
    for (int q = 0; q < 8; q++) {
      uint32_t *low = lines + low_line(q) * kPanel;
      for (int r = 0; r < kPanel; r++)
        low[r] |= (quads[q][r] & 0x01010101u * ((1 << Low) - 1)) << low_shift(q);
      if (High) {
        uint32_t *high = lines + kLowBytes / 4 + high_line(q) * kPanel;
        for (int r = 0; r < kPanel; r++)
          high[r] |= (quads[q][r] >> Low & 0x01010101u * ((1 << High) - 1)) << high_shift(q);
      }
    }
  }

  // Quad q of all 16 rows as bytes.
  template <int Q>
  static vi quad(const uint8_t *block) {
    vi x = vi_load(block + low_line(Q) * 64);
    if constexpr (Low == 8) return x;
    x = vi_and(vi_shift_right<low_shift(Q)>(x), vi_set1(Low == 4 ? 0x0f0f0f0f : 0x03030303));
    if constexpr (High > 0) {
      constexpr int kBy = high_shift(Q) - Low;  // from its place to just above the low bits
      constexpr int kMask = (High == 1 ? 0x01010101 : 0x03030303) << Low;
      const vi h = vi_load(block + kLowBytes + high_line(Q) * 64);
      x = vi_or(x, vi_and(vi_shift_right<kBy>(h), vi_set1(kMask)));
    }
    if constexpr (Table::kUsed) x = vi_lookup(Table::kValues, x);
    return x;
  }
};

}  // namespace kt
