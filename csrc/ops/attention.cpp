// attention and what it takes in parts: the kernels of a family, with or without the logarithms of their sums.
#include <algorithm>
#include <cmath>
#include <vector>

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

/// The problem of a node whose rows begin with the result of a query: [channels or more, H, Sq, B].
kernels::AttentionProblem problem_of(const AttentionSpec& spec, const Tensor& result) {
    kernels::AttentionProblem problem{};
    problem.head_dim = result.src[0]->ne[0];
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
    return problem;
}

/// out = the rows of `a` and `b` weighted by the share that each has of both sums. Returns the logarithm of these.
/// Either may be `out`. Where both sums are empty, so is the result.
float merge_rows(float* out, const float* a, const float* b, std::int64_t channels) {
    const float of_a = a[channels], of_b = b[channels], highest = std::max(of_a, of_b);
    if (highest == -INFINITY) {
        std::fill_n(out, channels, 0.0f);
        return highest;
    }
    const double weight_a = std::exp(static_cast<double>(of_a) - highest),
                 weight_b = std::exp(static_cast<double>(of_b) - highest), sum = weight_a + weight_b;
    const auto share_a = static_cast<float>(weight_a / sum), share_b = static_cast<float>(weight_b / sum);
    for (std::int64_t channel = 0; channel < channels; ++channel)
        out[channel] = share_a * a[channel] + share_b * b[channel];
    return static_cast<float>(highest + std::log(sum));
}

} // namespace
} // namespace edgedit::ops

using namespace edgedit::ops;
namespace kernels = edgedit::kernels;

extern "C" void edgedit_attention(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    const auto& spec = spec_of<AttentionSpec>(userdata);
    spec.family->attention(problem_of(spec, tensor(node)), thread, num_threads);
}

extern "C" void edgedit_attention_partial(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    const auto& spec = spec_of<AttentionSpec>(userdata);
    const Tensor& result = tensor(node);
    kernels::AttentionProblem problem = problem_of(spec, result);
    problem.lse = static_cast<float*>(result.data) + problem.head_dim;
    problem.lse_batch_stride = problem.out_batch_stride;
    problem.lse_head_stride = problem.out_head_stride;
    problem.lse_query_stride = problem.out_token_stride;
    spec.family->attention(problem, thread, num_threads);
}

extern "C" void edgedit_attention_merge(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    spec_of<MergeSpec>(userdata);
    static thread_local std::vector<float> scratch; // grows to the longest row
    const Tensor &result = tensor(node), &a = *result.src[0], &b = *result.src[1];
    const std::int64_t channels = a.ne[0] - 1;
    const bool is_partial = result.ne[0] == a.ne[0], rounds = dtype(result) != DType::f32;
    if (rounds && scratch.size() < static_cast<std::size_t>(channels)) scratch.resize(channels);
    const Move narrow = rows().move(dtype(result), DType::f32, false);
    const Part mine = part(result.ne[1] * result.ne[2] * result.ne[3], thread, num_threads);
    for (std::int64_t item = mine.begin; item < mine.end; ++item) {
        const std::int64_t head = item % result.ne[1], query = item / result.ne[1] % result.ne[2];
        const std::int64_t batch = item / result.ne[1] / result.ne[2];
        std::byte* to = row(result, head, query, batch);
        auto* out = rounds ? scratch.data() : reinterpret_cast<float*>(to);
        const float lse = merge_rows(out, reinterpret_cast<const float*>(row(a, head, query, batch)),
                                     reinterpret_cast<const float*>(row(b, head, query, batch)), channels);
        if (is_partial) out[channels] = lse;
        if (rounds) narrow(to, out, channels);
    }
}
