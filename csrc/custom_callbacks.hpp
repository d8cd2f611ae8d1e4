// Callbacks of edgedit's own nodes (GGML_OP_CUSTOM), with the type of ggml's custom operators.
#pragma once

struct ggml_tensor;

/// For collective nodes, which the executor cuts out of what ggml runs. A ggml thread must never get here: the
/// receive buffer would be used unfilled, so the process ends with a message instead. `userdata` is null or the
/// collective's name, NUL-terminated.
extern "C" void edgedit_collective_placeholder(ggml_tensor* result, int thread, int num_threads, void* userdata);

/// For nodes that only own memory, which later nodes fill.
extern "C" void edgedit_no_operation(ggml_tensor* result, int thread, int num_threads, void* userdata);
