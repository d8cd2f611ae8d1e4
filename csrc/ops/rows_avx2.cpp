// For x86-64 with AVX2 and F16C; empty elsewhere. The pragmas, not flags of the build, allow the instructions. They leave
// out FMA, which GCC takes for sums and differences in turn even where it may not contract.
#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#define EDGEDIT_AVX2 1
#include "ops/rows_impl.hpp"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace edgedit::ops {
const Rows avx2_rows{"avx2", move, fence, rms_norm, rotate, modulate, gated_residual};
} // namespace edgedit::ops

#endif
