// Adds AVX512-VNNI: Cascade Lake, Cooper Lake.
#define KT_VARIANT_NAME "avx512_vnni"
#include "../simd/avx512.h"
#include "../simd/common.h"
#include "../simd/dot_vnni.h"
#include "../simd/half_fma.h"
#include "../simd/fp8_scaled.h"
#include "../runtime/abi.h"
