#include "ops/rows.hpp"

#include <cstring>

#include "cpu_features.hpp"

namespace edgedit::ops {

namespace {

#if defined(__x86_64__)
bool has(const char* wanted) {
    for (const auto& [name, usable] : cpu_features()) {
        if (std::strcmp(name, wanted) == 0) return usable;
    }
    return false;
}
#endif

} // namespace

int usable_rows(const Rows* versions[2]) {
    int count = 0;
    versions[count++] = &portable_rows;
#if defined(__x86_64__)
    if (has("avx2") && has("f16c")) versions[count++] = &avx2_rows;
#endif
    return count;
}

const Rows& rows() {
    static const Rows* const chosen = [] {
        const Rows* versions[2];
        return versions[usable_rows(versions) - 1];
    }();
    return *chosen;
}

} // namespace edgedit::ops
