// Adds AVX512-VBMI: Ice Lake, Rocket Lake, Tiger Lake.
#define KT_VARIANT_NAME "avx512_vbmi"
#include "../simd/avx512.h"
#include "../simd/common.h"
#include "../simd/dot_vnni.h"
#include "../simd/half_fma.h"
#include "../simd/fp8_vbmi.h"
#include "../runtime/abi.h"
