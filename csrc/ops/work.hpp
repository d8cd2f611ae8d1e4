// What the CPU operators share: the part of a thread, the check of a spec, and the mover of one head's channels.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "ops/rows.hpp"
#include "ops/spec.hpp"
#include "ops/tensor.hpp"

namespace edgedit::ops {

/// Results of this size or more are written past the caches: they would only push out what is needed next.
constexpr std::int64_t kStreamingNbytes = std::int64_t{4} << 20;

struct Part {
    std::int64_t begin;
    std::int64_t end;
};

inline Part part(std::int64_t total, int thread, int num_threads) {
    return {total * thread / num_threads, total * (thread + 1) / num_threads};
}

/// Ends the process: an operator cannot refuse what its node holds.
[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "edgedit: %s\n", what);
    std::abort();
}

/// The spec behind a node's user data. One that was made by another version of this extension ends the process.
template <typename Spec> const Spec& spec_of(const void* userdata) {
    const Spec& spec = *static_cast<const Spec*>(userdata);
    if (!is_current(spec)) {
        std::fprintf(stderr, "edgedit: an operator got a spec of version %u and %u bytes, not %u and %zu\n",
                     spec.version, spec.nbytes, kSpecVersion, sizeof(Spec));
        std::abort();
    }
    return spec;
}

/// Moves the channels of one head of one plane: converted, and normed and rotated where the spec asks for it.
class HeadMover {
public:
    HeadMover() = default;
    HeadMover(const ExchangeSpec& spec, int stream, int plane, DType to, DType from, bool streaming)
        : channels_(spec.layout.head_dim), eps_(spec.preparation.eps), rotated_(spec.preparation.rotated[plane] != 0) {
        const Tensor* norm = spec.preparation.norm[stream][plane];
        norm_ = norm != nullptr ? static_cast<const float*>(norm->data) : nullptr;
        move_ = rows().move(to, is_plain() ? from : DType::f32, streaming);
        load_ = rows().move(DType::f32, from, false);
    }

    bool is_plain() const { return norm_ == nullptr && !rotated_; }

    /// `table` is the token's row of its stream's rope table.
    void operator()(void* to, const void* from, const float* table) const {
        if (is_plain()) {
            move_(to, from, channels_);
            return;
        }
        alignas(64) float scratch[kMaxHeadDim];
        load_(scratch, from, channels_);
        if (norm_ != nullptr) rows().rms_norm(scratch, norm_, channels_, eps_);
        if (rotated_) rows().rotate(scratch, table, channels_);
        move_(to, scratch, channels_);
    }

    /// Several heads that stand one after another on both sides; only where the mover is plain.
    void run(void* to, const void* from, std::int64_t heads) const { move_(to, from, heads * channels_); }

private:
    std::int64_t channels_ = 0;
    float eps_ = 0;
    bool rotated_ = false;
    const float* norm_ = nullptr;
    Move move_ = nullptr;
    Move load_ = nullptr;
};

/// The rope table of a token, or null for a stream without one.
inline const float* table_row(const Tensor* table, std::int64_t token) {
    return table != nullptr ? reinterpret_cast<const float*>(row(*table, 0, token)) : nullptr;
}

inline bool rotates(const ExchangeSpec& spec) {
    bool any = false;
    for (std::int64_t plane = 0; plane < spec.layout.planes; ++plane) any |= spec.preparation.rotated[plane] != 0;
    return any;
}

} // namespace edgedit::ops
