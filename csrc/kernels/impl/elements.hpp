// Elements, by type and by number.
#pragma once

#include <cstdint>
#include <cstring>

#include "halves.hpp"
#include "kernels/kernels.hpp"

namespace edgedit::kernels {
namespace {

using Index = std::int64_t;

/// Of f32, f16 and bf16.
inline Index itemsize(Type type) { return type == Type::f32 ? 4 : 2; }

inline Index ceil_div(Index count, Index by) { return (count + by - 1) / by; }

inline Index smaller(Index a, Index b) { return a < b ? a : b; }

inline Index larger(Index a, Index b) { return a > b ? a : b; }

} // namespace
} // namespace edgedit::kernels
