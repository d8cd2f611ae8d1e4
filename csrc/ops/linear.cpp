// linear: one node for a product with a weight and what follows it, by the kernels of a family.
#include "ops/callbacks.hpp"
#include "ops/product_spec.hpp"
#include "ops/work.hpp"

namespace edgedit::ops {
namespace {

/// The rows of `x` in the order of those of `result`, whose leading axes are those of `x` or what it broadcasts to.
kernels::Rows rows_of(const Tensor& x, const Tensor& result) {
    struct Level {
        std::int64_t extent = 1;
        std::int64_t stride = 0;
    };
    Level levels[2]; // tokens, batches
    int used = 0;
    for (int axis = 1; axis < 4; ++axis) {
        const std::int64_t extent = result.ne[axis];
        if (extent == 1) continue;
        const std::int64_t stride = x.ne[axis] == 1 ? 0 : static_cast<std::int64_t>(x.nb[axis]);
        if (used > 0 && stride == levels[used - 1].stride * levels[used - 1].extent) {
            levels[used - 1].extent *= extent;
            continue;
        }
        if (used == 2) fail("rows of linear are apart in more than two ways");
        levels[used++] = {extent, stride};
    }
    return {x.data, static_cast<kernels::Type>(x.type), levels[0].extent, levels[1].stride, levels[0].stride};
}

} // namespace
} // namespace edgedit::ops

using namespace edgedit::ops;
namespace kernels = edgedit::kernels;

extern "C" void edgedit_linear(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    const auto& spec = spec_of<LinearSpec>(userdata);
    const Tensor& result = tensor(node);
    kernels::LinearProblem problem{};
    problem.rows = result.ne[1] * result.ne[2] * result.ne[3];
    problem.num_sources = spec.num_inputs;
    const Tensor* const* source = result.src;
    for (int input = 0; input < spec.num_inputs; ++input, ++source) {
        problem.sources[input] = rows_of(**source, result);
        problem.inner[input] = (*source)->ne[0];
    }
    if (spec.has_gate != 0) problem.gate = rows_of(**source++, result);
    if (spec.has_residual != 0) problem.residual = rows_of(**source++, result);
    const auto row_nbytes = static_cast<std::int64_t>(spec.weight->nb[1]);
    problem.weight = {spec.type, spec.weight->data, spec.columns, spec.inner, row_nbytes, spec.to_float};
    problem.compute = spec.compute;
    problem.bias = spec.bias != nullptr ? static_cast<const float*>(spec.bias->data) : nullptr;
    problem.activation = spec.activation;
    problem.out = result.data;
    problem.out_type = static_cast<kernels::Type>(result.type);
    problem.out_tokens = problem.rows;
    problem.out_row_stride = static_cast<std::int64_t>(result.nb[1]);
    spec.family->linear(problem, thread, num_threads);
}
