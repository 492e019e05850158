// Adds AVX512-BF16: Zen 4, Zen 5, and Sapphire Rapids without tile permission.
#define KT_VARIANT_NAME "avx512_bf16"
#include "../simd/avx512.h"
#include "../simd/common.h"
#include "../simd/dot_vnni.h"
#include "../simd/half_bf16.h"
#include "../simd/fp8_vbmi.h"
#include "../runtime/abi.h"
