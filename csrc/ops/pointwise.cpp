// modulate, gated_residual and rope_table: what adaLN blocks do to each token around their products.
#include <cmath>
#include <vector>

#include "ops/callbacks.hpp"
#include "ops/work.hpp"

namespace edgedit::ops {
namespace {

/// The row of `x` that belongs to a row of a larger tensor; axes of length one are repeated.
const float* broadcast_row(const Tensor& x, std::int64_t i1, std::int64_t i2, std::int64_t i3) {
    return reinterpret_cast<const float*>(row(x, x.ne[1] == 1 ? 0 : i1, x.ne[2] == 1 ? 0 : i2, x.ne[3] == 1 ? 0 : i3));
}

/// Rows of another type than f32 are computed in scratch and rounded on their way out.
template <typename Visit> // Visit(result row, rows of the three sources)
void for_each_row(const Tensor& result, int thread, int num_threads, const Visit& visit) {
    static thread_local std::vector<float> scratch; // grows to the longest row
    const bool rounds = dtype(result) != DType::f32;
    if (rounds && scratch.size() < static_cast<std::size_t>(result.ne[0])) scratch.resize(result.ne[0]);
    const Move narrow = rows().move(dtype(result), DType::f32, false);
    const Part mine = part(result.ne[1] * result.ne[2] * result.ne[3], thread, num_threads);
    for (std::int64_t item = mine.begin; item < mine.end; ++item) {
        const std::int64_t i1 = item % result.ne[1], i2 = item / result.ne[1] % result.ne[2];
        const std::int64_t i3 = item / result.ne[1] / result.ne[2];
        std::byte* to = row(result, i1, i2, i3);
        visit(rounds ? scratch.data() : reinterpret_cast<float*>(to), broadcast_row(*result.src[0], i1, i2, i3),
              broadcast_row(*result.src[1], i1, i2, i3), broadcast_row(*result.src[2], i1, i2, i3));
        if (rounds) narrow(to, scratch.data(), result.ne[0]);
    }
}

} // namespace
} // namespace edgedit::ops

using namespace edgedit::ops;

extern "C" void edgedit_modulate(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    const auto& spec = spec_of<PointwiseSpec>(userdata);
    const Tensor& result = tensor(node);
    for_each_row(result, thread, num_threads, [&](float* to, const float* x, const float* scale, const float* shift) {
        rows().modulate(to, x, scale, shift, result.ne[0], spec.eps);
    });
}

extern "C" void edgedit_gated_residual(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    spec_of<PointwiseSpec>(userdata);
    const Tensor& result = tensor(node);
    for_each_row(result, thread, num_threads, [&](float* to, const float* x, const float* gate, const float* update) {
        rows().gated_residual(to, x, gate, update, result.ne[0]);
    });
}

extern "C" void edgedit_rope_table(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    const auto& spec = spec_of<RopeTableSpec>(userdata);
    const Tensor& result = tensor(node);
    const Tensor& positions = *result.src[0];
    const Part mine = part(result.ne[2], thread, num_threads);
    for (std::int64_t token = mine.begin; token < mine.end; ++token) {
        auto* to = reinterpret_cast<float*>(row(result, 0, token));
        for (int axis = 0; axis < spec.axes; ++axis) {
            const Tensor& periods = *result.src[1 + axis];
            const auto position =
                static_cast<float>(reinterpret_cast<const std::int32_t*>(row(positions, axis))[token]);
            for (std::int64_t pair = 0; pair < periods.ne[0]; ++pair) {
                const float angle = position / static_cast<const float*>(periods.data)[pair];
                *to++ = std::cos(angle);
                *to++ = std::sin(angle);
            }
        }
    }
}
