// conv2d: one node for a convolution and what follows it, by the kernels of a family.
#include "ops/callbacks.hpp"
#include "ops/product_spec.hpp"
#include "ops/work.hpp"

using namespace edgedit::ops;
namespace kernels = edgedit::kernels;

extern "C" void edgedit_conv2d(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    const auto& spec = spec_of<Conv2dSpec>(userdata);
    const Tensor& result = tensor(node);
    const Tensor& x = *result.src[0];
    kernels::Conv2dProblem problem{};
    problem.batch = x.ne[3];
    problem.in_channels = x.ne[2];
    problem.in_height = x.ne[1];
    problem.in_width = x.ne[0];
    problem.out_channels = spec.weight->ne[3];
    problem.kernel_height = spec.weight->ne[1];
    problem.kernel_width = spec.weight->ne[0];
    problem.stride_y = spec.stride;
    problem.stride_x = spec.stride;
    problem.pad_top = spec.pad_top;
    problem.pad_bottom = spec.pad_bottom;
    problem.pad_left = spec.pad_left;
    problem.pad_right = spec.pad_right;
    problem.x = static_cast<const float*>(x.data);
    problem.x_line_stride = static_cast<std::int64_t>(x.nb[1]);
    problem.x_channel_stride = static_cast<std::int64_t>(x.nb[2]);
    problem.x_batch_stride = static_cast<std::int64_t>(x.nb[3]);
    problem.weight = static_cast<const float*>(spec.weight->data);
    problem.bias = spec.bias != nullptr ? static_cast<const float*>(spec.bias->data) : nullptr;
    problem.activation = spec.activation;
    problem.residual = spec.has_residual != 0 ? static_cast<const float*>(result.src[1]->data) : nullptr;
    problem.out = static_cast<float*>(result.data);
    spec.family->conv2d(problem, thread, num_threads);
}
