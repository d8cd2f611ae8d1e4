// For x86-64 with AVX2, FMA and F16C (flags.cmake).
#include "kernels/kernels.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kernels/impl/int8_avx2.hpp"
#include "kernels/simd_avx2.hpp"
// after the vectors that it is made of
#include "kernels/impl/family.hpp"

namespace edgedit::kernels {
namespace {
constexpr Kernels table = family("avx2");
}
const Kernels* const avx2_kernels = &table;
} // namespace edgedit::kernels

#else

namespace edgedit::kernels {
const Kernels* const avx2_kernels = nullptr;
}

#endif
