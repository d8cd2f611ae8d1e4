// The CPU operators, with the type of ggml's custom operators. `userdata` is the operator's spec (spec.hpp). Each
// thread of the graph calls them with its number; the work is split by tokens or rows.
#pragma once

struct ggml_tensor;

extern "C" {
void edgedit_pack(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_receive(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_rope_table(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_modulate(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_gated_residual(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_linear(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_attention(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_attention_partial(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_attention_merge(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_conv2d(ggml_tensor* result, int thread, int num_threads, void* userdata);
}
