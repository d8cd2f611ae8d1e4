// What linear, attention and conv2d have to know. As in spec.hpp; apart from there since only the CPU has these.
#pragma once

#include "kernels/kernels.hpp"
#include "ops/spec.hpp"

namespace edgedit::ops {

/// `linear`: x W^T and what follows it, see kernels::LinearProblem.
///
/// Sources of a node: the inputs [..., inner[i]], then the gate, then the residual, where there are such. Their leading
/// axes are those of the result [..., N] in at most two steps (`is_two_level`); the gate broadcasts over them.
struct LinearSpec {
    std::uint32_t version;
    std::uint32_t nbytes;
    const kernels::Kernels* family;
    const Tensor* weight; ///< packed by the family, or ggml's blocks
    const Tensor* bias;   ///< [N] f32, or null
    kernels::Type type;   ///< of the weight, which in its packed form ggml knows as bytes
    kernels::Compute compute;
    kernels::Activation activation;
    std::int64_t columns;
    std::int64_t inner;
    void (*to_float)(const void* blocks, float* values, std::int64_t count); ///< ggml's, where the weight is quantised
    std::int32_t num_inputs;
    std::int32_t has_gate;
    std::int32_t has_residual;
};

/// `attention`: q [B, Sq, H, D], k and v [B, Sk, H, D], then perhaps a mask of up to [B, H, Sq, Sk], whose axes but the
/// last may be 1 -> [B, Sq, H, D].
/// `attention_partial`: the same -> [B, Sq, H, D + 1] in f32, where the last channel is the natural logarithm of the sum
/// of the exponentials of a query's scores, see kernels::AttentionProblem.
struct AttentionSpec {
    std::uint32_t version;
    std::uint32_t nbytes;
    const kernels::Kernels* family;
    kernels::Compute compute;
    float scale;
    std::int32_t has_mask;
};

/// `conv2d`: x [B, C, H, W] with dense lines, then perhaps a residual as the result [B, O, H', W'].
struct Conv2dSpec {
    std::uint32_t version;
    std::uint32_t nbytes;
    const kernels::Kernels* family;
    const Tensor* weight; ///< [O, C, kernel height, kernel width] f32
    const Tensor* bias;   ///< [O] f32, or null
    kernels::Activation activation;
    std::int32_t stride;
    std::int32_t pad_top;
    std::int32_t pad_bottom;
    std::int32_t pad_left;
    std::int32_t pad_right;
    std::int32_t has_residual;
};

} // namespace edgedit::ops
