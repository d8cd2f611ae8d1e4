// For x86-64 with AVX-512 F, BW, DQ, VL, BF16 and VNNI (flags.cmake).
#include "kernels/kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512BF16__) && defined(__AVX512VNNI__)

#include "kernels/impl/int8_avx512.hpp"
#include "kernels/simd_avx512.hpp"
// after the vectors that it is made of
#include "kernels/impl/family.hpp"

namespace edgedit::kernels {
namespace {
constexpr Kernels table = family("avx512");
}
const Kernels* const avx512_kernels = &table;
} // namespace edgedit::kernels

#else

namespace edgedit::kernels {
const Kernels* const avx512_kernels = nullptr;
}

#endif
