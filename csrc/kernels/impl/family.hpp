// Everything of a family: the body of avx2.cpp, avx512.cpp and portable.cpp, after their simd_*.hpp.
//
// It stands in an unnamed namespace, and no standard inline function is called: the linker must never take a copy made
// for a newer processor into code that an older one runs.
#pragma once

#include "kernels/impl/attention.hpp"
#include "kernels/impl/conv2d.hpp"
#include "kernels/impl/linear.hpp"
#include "kernels/impl/math.hpp"
#include "kernels/impl/pack.hpp"
#include "kernels/micro.hpp"

namespace edgedit::kernels {
namespace {

constexpr Kernels family(const char* name) {
    return {name, kPanel, EDGEDIT_HAS_PAIRS != 0, packed_nbytes, pack, linear, attention, conv2d,
            has_int8};
}

} // namespace
} // namespace edgedit::kernels
