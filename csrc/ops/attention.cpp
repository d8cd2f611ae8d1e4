// attention: one node, by the kernels of a family.
#include "ops/callbacks.hpp"
#include "ops/product_spec.hpp"
#include "ops/work.hpp"

namespace edgedit::ops {
namespace {

/// Of [B, S, H, D], ne = [D, H, S, B].
kernels::HeadsView heads_of(const Tensor& x) {
    return {x.data, dtype(x), static_cast<std::int64_t>(x.nb[3]), static_cast<std::int64_t>(x.nb[2]),
            static_cast<std::int64_t>(x.nb[1])};
}

/// The step along an axis of a mask, which broadcasts where it has length one.
std::int64_t mask_stride(const Tensor& mask, int axis) {
    return mask.ne[axis] == 1 ? 0 : static_cast<std::int64_t>(mask.nb[axis]);
}

} // namespace
} // namespace edgedit::ops

using namespace edgedit::ops;
namespace kernels = edgedit::kernels;

extern "C" void edgedit_attention(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    const auto& spec = spec_of<AttentionSpec>(userdata);
    const Tensor& result = tensor(node);
    kernels::AttentionProblem problem{};
    problem.head_dim = result.ne[0];
    problem.heads = result.ne[1];
    problem.queries = result.ne[2];
    problem.batch = result.ne[3];
    problem.keys = result.src[1]->ne[2];
    problem.q = heads_of(*result.src[0]);
    problem.k = heads_of(*result.src[1]);
    problem.v = heads_of(*result.src[2]);
    if (spec.has_mask != 0) {
        const Tensor& mask = *result.src[3];
        problem.mask = mask.data;
        problem.mask_type = dtype(mask);
        problem.mask_query_stride = mask_stride(mask, 1);
        problem.mask_head_stride = mask_stride(mask, 2);
        problem.mask_batch_stride = mask_stride(mask, 3);
    }
    problem.scale = spec.scale;
    problem.compute = spec.compute;
    const kernels::HeadsView out = heads_of(result);
    problem.out = result.data;
    problem.out_type = out.type;
    problem.out_batch_stride = out.batch_stride;
    problem.out_token_stride = out.token_stride;
    problem.out_head_stride = out.head_stride;
    spec.family->attention(problem, thread, num_threads);
}
