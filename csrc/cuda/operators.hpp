// The fused operators on CUDA. Each takes the node and the spec (ops/spec.hpp, ops/product_spec.hpp) that the CPU
// operator of the same name takes, reads tensors through ops/tensor.hpp, and enqueues its kernels on `stream`. Throws
// DeviceError.
#pragma once

#include "executor/fence.hpp"

struct ggml_tensor;

namespace edgedit::cuda {

void pack(ggml_tensor* node, void* spec, Stream* stream);
void receive(ggml_tensor* node, void* spec, Stream* stream);
void rope_table(ggml_tensor* node, void* spec, Stream* stream);
void modulate(ggml_tensor* node, void* spec, Stream* stream);
void gated_residual(ggml_tensor* node, void* spec, Stream* stream);
void attention_partial(ggml_tensor* node, void* spec, Stream* stream);
void attention_merge(ggml_tensor* node, void* spec, Stream* stream);

/// `to[i]` is the reduction of `parts[p][i]` over p in order: op 0 adds, 1 takes the largest, 2 the smallest. 16-bit
/// types are added in f32 and rounded once, as everywhere in edgedit.
void ordered_reduce(void* to, const void* parts, int num_parts, std::int64_t count, int type, int op, Stream* stream);

} // namespace edgedit::cuda
