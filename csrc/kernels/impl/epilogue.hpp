// What follows the product: bias, activation, gate, residual, and the type of the result.
#pragma once

#include "kernels/impl/activation.hpp"
#include "kernels/impl/rows.hpp"

namespace edgedit::kernels {
namespace {

EDGEDIT_SIMD Floats load_as(DType type, const char* row, Index column, Index count) {
    const auto part = [=](auto element) {
        const auto* from = reinterpret_cast<const decltype(element)*>(row) + column;
        return count < kLanes ? load_first(from, count) : load(from);
    };
    return type == DType::f32 ? part(float{}) : type == DType::f16 ? part(F16{}) : part(BF16{});
}

EDGEDIT_SIMD void store_as(DType type, char* row, Index column, Index count, Floats values) {
    const auto part = [=](auto element) {
        auto* to = reinterpret_cast<decltype(element)*>(row) + column;
        return count < kLanes ? store_first(to, values, count) : store(to, values);
    };
    return type == DType::f32 ? part(float{}) : type == DType::f16 ? part(F16{}) : part(BF16{});
}

/// Columns [first, first + count) of one output row from its sums; gate and residual are rows or null.
template <Activation kind>
void finish_row(const LinearProblem& problem, const float* sums, Index first, Index count, const char* gate,
                const char* residual, char* out) {
    for (Index i = 0; i < count; i += kLanes) {
        const Index column = first + i, left = count - i;
        Floats values = load(sums + i);
        if (problem.bias != nullptr)
            values = values + load_as(DType::f32, reinterpret_cast<const char*>(problem.bias), column, left);
        values = activate<kind>(values);
        if (gate != nullptr) {
            const Floats factor = load_as(problem.gate.type, gate, column, left);
            values = residual == nullptr ? factor * values
                                         : fma(factor, values, load_as(problem.residual.type, residual, column, left));
        } else if (residual != nullptr) {
            values = values + load_as(problem.residual.type, residual, column, left);
        }
        store_as(problem.out_type, out, column, left, values);
    }
}

using FinishRow = void (*)(const LinearProblem&, const float*, Index, Index, const char*, const char*, char*);

inline FinishRow finish_row_of(Activation activation) {
    switch (activation) {
        case Activation::gelu_tanh: return finish_row<Activation::gelu_tanh>;
        case Activation::gelu_erf: return finish_row<Activation::gelu_erf>;
        case Activation::gelu_quick: return finish_row<Activation::gelu_quick>;
        case Activation::silu: return finish_row<Activation::silu>;
        case Activation::relu: return finish_row<Activation::relu>;
        case Activation::none: break;
    }
    return finish_row<Activation::none>;
}

/// Columns [first_column, first_column + columns) of the output rows [first_row, first_row + rows), rows <= kTileRows,
/// from their sums, sums_stride elements from row to row and readable up to whole vectors.
inline void finish_tile(const LinearProblem& problem, Index first_row, int rows, Index first_column, Index columns,
                        const float* sums, Index sums_stride) {
    const FinishRow finish = finish_row_of(problem.activation);
    const TileRows out = tile_rows(problem.out, problem.out_tokens, problem.out_batch_stride, problem.out_row_stride,
                                   first_row, rows);
    TileRows gate{}, residual{};
    if (problem.gate.data != nullptr) gate = tile_rows(problem.gate, first_row, rows);
    if (problem.residual.data != nullptr) residual = tile_rows(problem.residual, first_row, rows);
    for (int r = 0; r < rows; ++r)
        finish(problem, sums + r * sums_stride, first_column, columns, gate.at[r], residual.at[r],
               const_cast<char*>(out.at[r]));
}

} // namespace
} // namespace edgedit::kernels
