// Loops over one row of elements, in versions for different processors; `rows()` is the fastest that can run here.
#pragma once

#include <cstdint>

#include "ops/spec.hpp"

namespace edgedit::ops {

/// Copy `count` elements, converting between two types: exact where they are equal or the target is wider, else
/// rounded to the nearest, ties to even.
using Move = void (*)(void* to, const void* from, std::int64_t count);

struct Rows {
    const char* name;

    /// `streaming` bypasses the caches on the way out, where the row is aligned for it; call `fence` afterwards.
    Move (*move)(DType to, DType from, bool streaming);
    void (*fence)();

    /// x *= weight / rms(x), in place [Zhang and Sennrich 2019].
    void (*rms_norm)(float* x, const float* weight, std::int64_t count, float eps);

    /// Turn the pairs (x[2i], x[2i + 1]) by the angle with cosine table[2i] and sine table[2i + 1], in place.
    void (*rotate)(float* x, const float* table, std::int64_t count);

    /// LayerNorm(x) (1 + scale) + shift.
    void (*modulate)(float* to, const float* x, const float* scale, const float* shift, std::int64_t count, float eps);

    /// x + gate * update.
    void (*gated_residual)(float* to, const float* x, const float* gate, const float* update, std::int64_t count);
};

const Rows& rows();

/// All versions that this processor can run, slowest first: for tests.
int usable_rows(const Rows* versions[2]);

extern const Rows portable_rows;
#if defined(__x86_64__)
extern const Rows avx2_rows;
#endif

} // namespace edgedit::ops
