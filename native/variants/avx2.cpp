// AVX2 with FMA and F16C: Haswell, Zen and later.
#define KT_VARIANT_NAME "avx2"
#include "../simd/avx2.h"
#include "../simd/common.h"
#include "../simd/dot_maddwd.h"
#include "../simd/half_fma.h"
#include "../simd/fp8_scaled.h"
#include "../runtime/abi.h"
