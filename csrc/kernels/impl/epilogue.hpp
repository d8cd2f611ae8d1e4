// What follows the product: bias, activation, gate, residual, and the type of the result.
#pragma once

#include "kernels/impl/activation.hpp"
#include "kernels/impl/fetch.hpp"
#include "kernels/impl/rows.hpp"

namespace edgedit::kernels {
namespace {

EDGEDIT_SIMD Floats load_as(DType type, const void* row, Index column, Index count) {
    const auto part = [=](auto element) {
        const auto* from = static_cast<const decltype(element)*>(row) + column;
        return count < kLanes ? load_first(from, count) : load(from);
    };
    return type == DType::f32 ? part(float{}) : type == DType::f16 ? part(F16{}) : part(BF16{});
}

EDGEDIT_SIMD void store_as(DType type, void* row, Index column, Index count, Floats values) {
    const auto part = [=](auto element) {
        auto* to = static_cast<decltype(element)*>(row) + column;
        return count < kLanes ? store_first(to, values, count) : store(to, values);
    };
    return type == DType::f32 ? part(float{}) : type == DType::f16 ? part(F16{}) : part(BF16{});
}

/// Rows of the output and of what goes into them after the product: `count` <= kTileRows, from row `first` on.
struct OutputRows {
    OutputRows(const LinearProblem& problem, Index first, int count) : count(count) {
        out = tile_rows(problem.out, problem.out_tokens, problem.out_batch_stride, problem.out_row_stride, first, count);
        if (problem.gate.data != nullptr) gate = tile_rows(problem.gate, first, count);
        if (problem.residual.data != nullptr) residual = tile_rows(problem.residual, first, count);
    }

    /// Columns [first, first + columns) of them.
    void add_to(Fetch& fetch, const LinearProblem& problem, Index first, Index columns) const {
        const auto add = [&](const TileRows& rows, DType type) {
            for (int r = 0; r < count; ++r) fetch.add(rows.at[r] + first * itemsize(type), columns * itemsize(type));
        };
        add(out, problem.out_type);
        if (problem.residual.data != nullptr) add(residual, problem.residual.type);
    }

    int count;
    TileRows out;
    TileRows gate{};
    TileRows residual{};
};

template <Activation kind>
void finish_as(const LinearProblem& problem, const OutputRows& rows, Index first, Index count, const float* sums,
               Index stride) {
    for (Index i = 0; i < count; i += kLanes) {
        const Index column = first + i, left = count - i;
        const Floats bias = problem.bias == nullptr ? zeros() : load_as(DType::f32, problem.bias, column, left);
        for (int r = 0; r < rows.count; ++r) {
            Floats values = activate<kind>(load(sums + r * stride + i) + bias);
            if (problem.gate.data != nullptr)
                values = values * load_as(problem.gate.type, rows.gate.at[r], column, left);
            if (problem.residual.data != nullptr)
                values = values + load_as(problem.residual.type, rows.residual.at[r], column, left);
            store_as(problem.out_type, const_cast<char*>(rows.out.at[r]), column, left, values);
        }
    }
}

/// Columns [first, first + count) of some output rows from their sums, `stride` elements from row to row and readable
/// up to whole vectors.
inline void finish(const LinearProblem& problem, const OutputRows& rows, Index first, Index count, const float* sums,
                   Index stride) {
    using A = Activation;
    switch (problem.activation) {
        case A::none: return finish_as<A::none>(problem, rows, first, count, sums, stride);
        case A::gelu_tanh: return finish_as<A::gelu_tanh>(problem, rows, first, count, sums, stride);
        case A::gelu_erf: return finish_as<A::gelu_erf>(problem, rows, first, count, sums, stride);
        case A::gelu_quick: return finish_as<A::gelu_quick>(problem, rows, first, count, sums, stride);
        case A::silu: return finish_as<A::silu>(problem, rows, first, count, sums, stride);
        case A::relu: return finish_as<A::relu>(problem, rows, first, count, sums, stride);
    }
}

inline void finish_tile(const LinearProblem& problem, Index first_row, int rows, Index first_column, Index columns,
                        const float* sums, Index sums_stride) {
    finish(problem, OutputRows(problem, first_row, rows), first_column, columns, sums, sums_stride);
}

} // namespace
} // namespace edgedit::kernels
