// Linear layers: the loops around the micro-kernel.
#pragma once

#include "kernels/impl/activations.hpp"
#include "kernels/impl/block.hpp"
#include "kernels/impl/epilogue.hpp"
#include "kernels/impl/int8_linear.hpp"
#include "kernels/impl/split.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels {
namespace {

/// Rows that pass a block of the weight before the next block: bounds the sums that are kept meanwhile.
constexpr Index kPassRows = 128 * kTileRows;

/// One thread's part of a linear layer, multiplied as `Element`.
template <typename Element> class LinearPart {
public:
    LinearPart(const LinearProblem& problem, const Part& part)
        : problem_(problem), weight_(problem.weight), part_(part), activations_(problem),
          keeps_sums_(problem.weight.inner > kBlock) {
        const Index rows = smaller(part.rows.end - part.rows.begin, keeps_sums_ ? kPassRows : kTileRows);
        const Index tiles = ceil_div(rows, kTileRows);
        room_ = static_cast<Element*>(scratch(Scratch::panels, kGroup * kPanel * kBlock * sizeof(Element)));
        sums_ = static_cast<float*>(scratch(Scratch::sums, static_cast<std::size_t>(tiles * kTileSums) * sizeof(float)));
    }

    void run() const {
        for (Index row = part_.rows.begin; row < part_.rows.end; row += kPassRows)
            for (Index panel = part_.panels.begin; panel < part_.panels.end; panel += kGroup)
                pass({row, smaller(row + kPassRows, part_.rows.end)},
                     {panel, smaller(panel + kGroup, part_.panels.end)});
    }

private:
    static constexpr Index kPanelSums = kTileRows * kPanel, kTileSums = kGroup * kPanelSums;

    /// Inner elements [begin, end) of a group of panels.
    struct Group {
        Range panels;
        Index begin;
        Index end;
        const Element* blocks[kGroup];
    };

    void pass(Range rows, Range panels) const {
        Group group{panels, 0, 0, {}};
        for (; group.begin < weight_.inner; group.begin = group.end) {
            group.end = smaller(group.begin + kBlock, weight_.inner);
            for (Index i = 0; i < panels.end - panels.begin; ++i)
                group.blocks[i] = weight_block(weight_, panels.begin + i, group.begin, group.end,
                                               room_ + i * kPanel * kBlock);
            for (Index row = rows.begin; row < rows.end; row += kTileRows) {
                float* sums = keeps_sums_ ? sums_ + (row - rows.begin) / kTileRows * kTileSums : sums_;
                add_tile(group, row, rows.end, sums);
            }
        }
    }

    /// One tile times a group: sums are [panel][row][column]. The last block also finishes the output.
    void add_tile(const Group& group, Index row, Index end_row, float* sums) const {
        const auto num_rows = static_cast<int>(smaller(kTileRows, end_row - row));
        const Index num_panels = group.panels.end - group.panels.begin, first_column = group.panels.begin * kPanel;
        const Index columns = smaller(num_panels * kPanel, weight_.columns - first_column);
        const bool is_last = group.end == weight_.inner;
        const OutputRows output(problem_, row, is_last ? num_rows : 0, first_column);

        Fetch fetch(num_panels);
        const Index next = row + kTileRows, next_rows = smaller(kTileRows, end_row - next);
        if (next_rows > 0) activations_.add_to(fetch, next, static_cast<int>(next_rows), group.begin, group.end);
        output.add_to(fetch, problem_, first_column, columns);

        activations_.for_each_part(row, num_rows, group.begin, group.end, [&](auto rows, Index begin, Index end) {
            for (Index i = 0; i < num_panels; ++i) {
                fetch.step();
                multiply_tile(num_rows, rows, 0, group.blocks[i] + (begin - group.begin) * kPanel,
                              kPanel * Products<Element>::kStep, end - begin, sums + i * kPanelSums, kPanel, begin > 0);
            }
        });
        for (Index i = 0; is_last && i < num_panels; ++i)
            finish(problem_, output, first_column + i * kPanel, smaller(columns - i * kPanel, kPanel),
                   sums + i * kPanelSums, kPanel);
        output.close(columns);
    }

    const LinearProblem& problem_;
    const Weight& weight_;
    Part part_;
    Activations<Element> activations_;
    bool keeps_sums_; ///< more than one block of inner elements
    Element* room_;
    float* sums_;
};

void linear(const LinearProblem& problem, int thread, int num_threads) {
    const Part part = part_of_thread(problem, thread, num_threads);
    if (is_multiplied_in_int8(problem)) return linear_in_int8(problem, part);
#if EDGEDIT_HAS_PAIRS
    if (is_multiplied_in_bf16(problem.weight.type)) return LinearPart<BF16>(problem, part).run();
#endif
    LinearPart<float>(problem, part).run();
}

} // namespace
} // namespace edgedit::kernels
