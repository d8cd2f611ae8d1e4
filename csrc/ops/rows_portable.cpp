// For every processor, with the vector instructions that the compiler may assume anyway.
#define EDGEDIT_AVX2 0
#include "ops/rows_impl.hpp"

namespace edgedit::ops {
const Rows portable_rows{"portable", move, fence, rms_norm, rotate, modulate, gated_residual};
} // namespace edgedit::ops
