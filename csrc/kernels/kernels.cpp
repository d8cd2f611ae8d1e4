#include "kernels/kernels.hpp"

#include <cstring>
#include <initializer_list>

#include "cpu_features.hpp"

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

} // namespace

const Kernels* find(const char* name) {
    static const bool has_avx2 = has_all({"avx2", "fma", "f16c"});
    static const bool has_avx512 = has_all({"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl",
                                            "avx512_bf16", "avx512_vnni"});
    if (std::strcmp(name, "avx512") == 0) return has_avx512 ? avx512_kernels : nullptr;
    if (std::strcmp(name, "avx2") == 0) return has_avx2 ? avx2_kernels : nullptr;
    if (std::strcmp(name, "portable") == 0) return portable_kernels;
    return nullptr;
}

const char* best() {
    for (const char* name : {"avx512", "avx2"}) {
        if (find(name) != nullptr) return name;
    }
    return "ggml";
}

} // namespace edgedit::kernels
