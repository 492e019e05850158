// FP8 E4M3 to float32: the bits of a code, put where float32 has its own, are its value times
// 2^-120, subnormals too. Codes for NaN become numbers: packing has put NaN into their scale.
#pragma once

namespace kt {

// 16 rows of 4 K (bytes K 0, 2, 1, 3) as operands: of K 0 and 1, or of K 2 and 3.
inline BLine f8_operand(vi x, bool second) {
  const vi y = vi_sar16<4>(second ? x : vi_shl16<8>(x));
  const vi bits = vi_set1(static_cast<int32_t>(0x87f00000u));  // without copies of the sign
  const vf scale = vf_set1(0x1p120f);
  return {vf_mul(vf_bits(vi_and(vi_shl<16>(y), bits)), scale),
          vf_mul(vf_bits(vi_and(y, bits)), scale)};
}

// The same as two lines of 2 K of bfloat16.
inline void f8_lines(vi x, vi &first, vi &second) {
  const auto line = [](const BLine &w) {
    return vi_or(vi_shr<16>(vi_bits(w.even)), vi_bits(w.odd));
  };
  first = line(f8_operand(x, false)), second = line(f8_operand(x, true));
}

}  // namespace kt
