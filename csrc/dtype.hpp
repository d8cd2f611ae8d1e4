// The floating-point types of activations.
#pragma once

#include <cstdint>

namespace edgedit {

/// ggml's type numbers.
enum class DType : std::int32_t { f32 = 0, f16 = 1, bf16 = 30 };

} // namespace edgedit
