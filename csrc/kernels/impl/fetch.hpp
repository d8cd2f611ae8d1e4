// Fetching memory into the caches, a little at a time while something else is computed.
#pragma once

#include "kernels/impl/elements.hpp"

namespace edgedit::kernels {
namespace {

/// Some stretches of memory, each fetched in `steps` steps. The processor would not foresee them: rows of a tile stand
/// far apart, and each is left before its pattern shows.
class Fetch {
public:
    explicit Fetch(Index steps) : steps_(steps) {}

    void add(const void* begin, Index nbytes) {
        if (count_ == kMost) return;
        const auto* first = static_cast<const char*>(begin);
        stretches_[count_++] = {first, first + nbytes, ceil_div(ceil_div(nbytes, kLine), steps_) * kLine};
    }

    void step() {
        for (int i = 0; i < count_; ++i) {
            Stretch& stretch = stretches_[i];
            const char* const end = stretch.at + stretch.step_nbytes;
            for (; stretch.at < end && stretch.at < stretch.end; stretch.at += kLine) prefetch(stretch.at);
        }
    }

private:
    static constexpr Index kLine = 64;
    static constexpr int kMost = 24; // four times a tile's rows

    struct Stretch {
        const char* at;
        const char* end;
        Index step_nbytes;
    };

    Index steps_;
    int count_ = 0;
    Stretch stretches_[kMost];
};

} // namespace
} // namespace edgedit::kernels
