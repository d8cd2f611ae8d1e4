// The rows of x, a tile at a time, as the micro-kernel takes them.
#pragma once

#include "kernels/impl/epilogue.hpp"
#include "kernels/impl/rows.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels {
namespace {

/// Rows that are already made of `Element` are read where they are, all others are converted into scratch.
template <typename Element> class Activations {
public:
    explicit Activations(const LinearProblem& problem)
        : problem_(problem), room_(static_cast<Element*>(scratch(Scratch::rows, kTileRows * kRoom * sizeof(Element)))),
          splits_step_(problem.num_sources == 2 && problem.inner[0] % Products<Element>::kStep != 0) {}

    /// Calls `use(rows, ahead, begin, end)`, as of `multiply_rows`, for the parts of inner elements [begin, end), in
    /// order: one part per source, at most.
    template <typename Use>
    void for_each_part(Index first_row, int num_rows, Index begin, Index end, const Use& use) const {
        const Element* rows[kTileRows];
        Index start = 0;
        for (int s = 0; s < problem_.num_sources; start += problem_.inner[s++]) {
            const Index part_begin = larger(begin, start), part_end = smaller(end, start + problem_.inner[s]);
            if (part_begin >= part_end) continue;
            const Rows& source = problem_.sources[s];
            const TileRows tile = tile_rows(source, first_row, num_rows);
            const bool is_direct = source.type == kType && !splits_step_;
            const Index at = part_begin - start;
            for (int r = 0; r < num_rows; ++r) {
                rows[r] = room_ + r * kRoom;
                if (is_direct) {
                    rows[r] = reinterpret_cast<const Element*>(tile.at[r]) + at;
                } else {
                    convert(source.type, tile.at[r], at, part_end - part_begin,
                            room_ + r * kRoom + (splits_step_ ? part_begin - begin : 0));
                }
            }
            if (!splits_step_)
                use(rows, is_direct ? tile.ahead / static_cast<Index>(sizeof(Element)) : 0, part_begin, part_end);
        }
        if (splits_step_) use(rows, 0, begin, end);
    }

private:
    static constexpr DType kType = sizeof(Element) == sizeof(float) ? DType::f32 : DType::bf16;
    static constexpr Index kRoom = kBlock + 3 * kLanes; ///< per row: for whole vectors, and apart in the caches

    static void convert(DType type, const char* row, Index first, Index count, Element* to) {
        for (Index i = 0; i < count; i += kLanes) store(to + i, load_as(type, row, first + i, count - i));
    }

    const LinearProblem& problem_;
    Element* room_;
    bool splits_step_; ///< a step of the product takes elements of both sources
};

} // namespace
} // namespace edgedit::kernels
