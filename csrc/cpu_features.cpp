#include "cpu_features.hpp"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace edgedit {

#if defined(__x86_64__)

namespace {

/// State that the operating system saves: a feature whose registers it does not save cannot be used.
std::uint64_t saved_state() {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return 0;
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
}

} // namespace

std::vector<std::pair<const char*, bool>> cpu_features() {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
    std::uint32_t ecx1 = 0, ebx7 = 0, ecx7 = 0, edx7 = 0, eax7_1 = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) ecx1 = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
        ebx7 = ebx, ecx7 = ecx, edx7 = edx;
        const std::uint32_t subleaves = eax;
        if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) eax7_1 = eax;
    }
    const std::uint64_t saved = saved_state();
    const bool avx = (saved & 0x6) == 0x6;           // xmm, ymm
    const bool avx512 = (saved & 0xe6) == 0xe6;      // and opmask, zmm
    const bool amx = (saved & 0x60000) == 0x60000;   // tile configuration, tile data
    const auto has = [](std::uint32_t word, int bit) { return ((word >> bit) & 1u) != 0; };
    return {
        {"fma", avx && has(ecx1, 12)},
        {"f16c", avx && has(ecx1, 29)},
        {"avx2", avx && has(ebx7, 5)},
        {"avx_vnni", avx && has(eax7_1, 4)},
        {"avx512f", avx512 && has(ebx7, 16)},
        {"avx512dq", avx512 && has(ebx7, 17)},
        {"avx512bw", avx512 && has(ebx7, 30)},
        {"avx512vl", avx512 && has(ebx7, 31)},
        {"avx512_vnni", avx512 && has(ecx7, 11)},
        {"avx512_bf16", avx512 && has(eax7_1, 5)},
        {"amx_tile", amx && has(edx7, 24)},
        {"amx_bf16", amx && has(edx7, 22)},
        {"amx_int8", amx && has(edx7, 25)},
    };
}

#else

std::vector<std::pair<const char*, bool>> cpu_features() { return {}; }

#endif

} // namespace edgedit
