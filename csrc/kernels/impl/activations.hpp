// The rows of x, a tile at a time, as the micro-kernel takes them.
#pragma once

#include "kernels/impl/epilogue.hpp"
#include "kernels/impl/fetch.hpp"
#include "kernels/impl/rows.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels {
namespace {

/// Rows of the right type are read where they are if they can stay in the cache together, all others are copied.
template <typename Element> class Activations {
public:
    explicit Activations(const LinearProblem& problem)
        : problem_(problem), room_(static_cast<Element*>(scratch(Scratch::rows, kTileRows * kRoom * sizeof(Element)))),
          splits_step_(problem.num_sources == 2 && problem.inner[0] % Products<Element>::kStep != 0) {}

    /// Calls `use(rows, begin, end)` for the parts of inner elements [begin, end), in order: one part per source, at
    /// most.
    template <typename Use>
    void for_each_part(Index first_row, int num_rows, Index begin, Index end, const Use& use) const {
        const Element* rows[kTileRows];
        for (int r = 0; r < kTileRows; ++r) rows[r] = room_ + r * kRoom;
        for_each_source(begin, end, [&](const Rows& source, Index first, Index part_begin, Index part_end) {
            const TileRows tile = tile_rows(source, first_row, num_rows);
            const bool is_copied = splits_step_ || source.type != kType || source.row_stride % kSetsNbytes == 0;
            for (int r = 0; r < num_rows; ++r) {
                Element* to = room_ + r * kRoom;
                if (is_copied)
                    copy(source.type, tile.at[r], first, part_end - part_begin, to + (splits_step_ ? part_begin - begin : 0));
                rows[r] = is_copied ? to : reinterpret_cast<const Element*>(tile.at[r]) + first;
            }
            if (!splits_step_) use(rows, part_begin, part_end);
        });
        if (splits_step_) use(rows, begin, end);
    }

    /// What `for_each_part` will read.
    void add_to(Fetch& fetch, Index first_row, int num_rows, Index begin, Index end) const {
        for_each_source(begin, end, [&](const Rows& source, Index first, Index part_begin, Index part_end) {
            const TileRows tile = tile_rows(source, first_row, num_rows);
            const Index size = itemsize(source.type);
            for (int r = 0; r < num_rows; ++r) fetch.add(tile.at[r] + first * size, (part_end - part_begin) * size);
        });
    }

private:
    static constexpr Type kType = sizeof(Element) == sizeof(float) ? Type::f32 : Type::bf16;

    /// Rows this far apart fall into the same sets of an L1 cache, which cannot hold as many of them as a tile has.
    static constexpr Index kSetsNbytes = 4096;

    /// For a row's part, up to whole vectors, and so that rows fall into different sets.
    static constexpr Index kRoom = kBlock + 64 / sizeof(Element);

    /// Calls `use(source, first, begin, end)` with the sources' shares [begin, end) of inner elements [begin, end),
    /// which begin with element `first` of the source.
    template <typename Use> void for_each_source(Index begin, Index end, const Use& use) const {
        Index start = 0;
        for (int s = 0; s < problem_.num_sources; start += problem_.inner[s++]) {
            const Index part_begin = larger(begin, start), part_end = smaller(end, start + problem_.inner[s]);
            if (part_begin < part_end) use(problem_.sources[s], part_begin - start, part_begin, part_end);
        }
    }

    static void copy(Type type, const char* row, Index first, Index count, Element* to) {
        for (Index i = 0; i < count; i += kLanes) store(to + i, load_as(type, row, first + i, count - i));
    }

    const LinearProblem& problem_;
    Element* room_;
    bool splits_step_; ///< a step of the product takes elements of both sources
};

} // namespace
} // namespace edgedit::kernels
