#pragma once

#include "kernels/kernels.hpp"

namespace edgedit::kernels {
namespace {

std::int64_t packed_nbytes(Type, std::int64_t, std::int64_t) { return 0; }
void pack(Type, std::int64_t, std::int64_t, std::int64_t, std::int64_t, const void*, void*) {}

} // namespace
} // namespace edgedit::kernels
