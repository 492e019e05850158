// AVX-512 F, BW, DQ, VL, CD: Skylake-SP.
#define KT_VARIANT_NAME "avx512"
#include "../simd/avx512.h"
#include "../simd/common.h"
#include "../simd/dot_maddwd.h"
#include "../simd/half_fma.h"
#include "../simd/fp8_scaled.h"
#include "../runtime/abi.h"
