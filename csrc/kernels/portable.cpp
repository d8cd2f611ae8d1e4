// For every processor: exact to the last detail of the blocking what avx512 does, at the speed of what the compiler
// may assume. For tests, and for whoever asks for it by name.
#include "kernels/kernels.hpp"
#include "kernels/impl/int8_portable.hpp"
#include "kernels/simd_portable.hpp"
// after the vectors that it is made of
#include "kernels/impl/family.hpp"

namespace edgedit::kernels {
namespace {
constexpr Kernels table = family("portable");
}
const Kernels* const portable_kernels = &table;
} // namespace edgedit::kernels
