// Adds AMX tiles (int8, bfloat16): Sapphire Rapids and later. With KT_TILE_MODEL: their software
// model.
#define KT_AMX
#ifdef KT_TILE_MODEL
#define KT_VARIANT_NAME "amx_model"
#else
#define KT_VARIANT_NAME "amx"
#endif
#include "../simd/avx512.h"
#include "../simd/common.h"
#include "../simd/dot_vnni.h"
#include "../simd/half_bf16.h"
#include "../simd/fp8_vbmi.h"
#include "../runtime/abi.h"
