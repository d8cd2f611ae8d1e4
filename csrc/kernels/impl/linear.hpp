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

constexpr Index kGroupColumns = kGroup * kPanel;

/// Rows that pass a block of the weight before the next block: bounds the sums that are kept meanwhile.
constexpr Index kPassRows = 256 * kTileRows;

/// One thread's part of a linear layer, multiplied as `Element`.
template <typename Element> class LinearPart {
public:
    LinearPart(const LinearProblem& problem, const Part& part)
        : problem_(problem), weight_(problem.weight), part_(part), activations_(problem),
          keeps_sums_(problem.weight.inner > kBlock) {
        const Index rows = keeps_sums_ ? smaller(part.rows.end - part.rows.begin + kTileRows, kPassRows) : kTileRows;
        room_ = static_cast<Element*>(scratch(Scratch::panels, kGroupColumns * kBlock * sizeof(Element)));
        sums_ = static_cast<float*>(scratch(Scratch::sums, static_cast<std::size_t>(rows * kGroupColumns) * 4));
    }

    void run() const {
        for (Index row = part_.rows.begin; row < part_.rows.end; row += kPassRows)
            for (Index panel = part_.panels.begin; panel < part_.panels.end; panel += kGroup)
                pass({row, smaller(row + kPassRows, part_.rows.end)},
                     {panel, smaller(panel + kGroup, part_.panels.end)});
    }

private:
    void pass(Range rows, Range panels) const {
        const Index first_column = panels.begin * kPanel, columns = smaller(panels.end * kPanel, weight_.columns);
        const Element* blocks[kGroup];
        for (Index begin = 0; begin < weight_.inner; begin += kBlock) {
            const Index end = smaller(begin + kBlock, weight_.inner);
            for (Index panel = panels.begin; panel < panels.end; ++panel) {
                const Index i = panel - panels.begin;
                blocks[i] = weight_block(weight_, panel, begin, end, room_ + i * kPanel * kBlock);
            }
            for (Index row = rows.begin; row < rows.end; row += kTileRows) {
                const auto num_rows = static_cast<int>(smaller(kTileRows, rows.end - row));
                float* sums = keeps_sums_ ? sums_ + (row - rows.begin) * kGroupColumns : sums_;
                multiply(row, num_rows, blocks, panels.end - panels.begin, begin, end, sums);
                if (end == weight_.inner)
                    finish_tile(problem_, row, num_rows, first_column, columns - first_column, sums, kGroupColumns);
            }
        }
    }

    /// Inner elements [begin, end) of a tile of rows times a group of panels.
    void multiply(Index row, int num_rows, const Element* const* blocks, Index num_panels, Index begin, Index end,
                  float* sums) const {
        constexpr Index kStepElements = kPanel * Products<Element>::kStep;
        activations_.for_each_part(
            row, num_rows, begin, end, [&](const Element* const* rows, Index ahead, Index part_begin, Index part_end) {
                for (Index i = 0; i < num_panels; ++i)
                    multiply_tile(num_rows, rows, i + 1 == num_panels ? ahead : 0,
                                  blocks[i] + (part_begin - begin) * kPanel, kStepElements, part_end - part_begin,
                                  sums + i * kPanel, kGroupColumns, part_begin > 0);
            });
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
    const Part part = part_of_thread(problem.rows, problem.weight.columns, thread, num_threads);
    if (is_multiplied_in_int8(problem)) return linear_in_int8(problem, part);
#if EDGEDIT_HAS_PAIRS
    if (is_multiplied_in_bf16(problem.weight.type)) return LinearPart<BF16>(problem, part).run();
#endif
    LinearPart<float>(problem, part).run();
}

} // namespace
} // namespace edgedit::kernels
