#include "kernels/kernels.hpp"

#include <cstring>
#include <initializer_list>

#include "cpu_features.hpp"
#include "kernels/onednn/family.hpp"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace edgedit::kernels {

namespace {

bool has_all(std::initializer_list<const char*> wanted) {
    const auto features = cpu_features();
    for (const char* name : wanted) {
        bool usable = false;
        for (const auto& [feature, has] : features) usable = usable || (has && std::strcmp(feature, name) == 0);
        if (!usable) return false;
    }
    return true;
}

/// Whether this process may use the tiles of AMX, which Linux grants to those who ask.
bool may_use_tiles() {
#if defined(__linux__) && defined(__x86_64__)
    constexpr long kRequest = 0x1023, kTileData = 18; // ARCH_REQ_XCOMP_PERM
    return has_all({"amx_tile", "amx_bf16"}) && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
    return false;
#endif
}

} // namespace

const Kernels* find(const char* name) {
    static const bool has_avx2 = has_all({"avx2", "fma", "f16c"});
    static const bool has_avx512 = has_all({"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl",
                                            "avx512_bf16", "avx512_vnni"});
    if (std::strcmp(name, "avx512") == 0) return has_avx512 ? avx512_kernels : nullptr;
    if (std::strcmp(name, "avx2") == 0) return has_avx2 ? avx2_kernels : nullptr;
    if (std::strcmp(name, "portable") == 0) return portable_kernels;
    if (std::strcmp(name, "onednn") == 0) {
        static const Kernels* const base = find("avx512") != nullptr ? find("avx512") : find("avx2");
        static const Kernels* const found = base != nullptr ? onednn_kernels(*base) : nullptr;
        return found;
    }
    return nullptr;
}

const char* best() {
    if (may_use_tiles() && find("onednn") != nullptr) return "onednn";
    for (const char* name : {"avx512", "avx2"}) {
        if (find(name) != nullptr) return name;
    }
    return "ggml";
}

} // namespace edgedit::kernels
