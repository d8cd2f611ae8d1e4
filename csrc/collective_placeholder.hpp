// The callback of collective nodes that the executor cuts out of the graph. A ggml thread must never reach
// it; if one does, the receive buffer would be used unfilled, so the process ends with a message instead.
#pragma once

struct ggml_tensor;

/// Has the type of ggml's custom operators. `userdata` is null or the collective's name, NUL-terminated.
extern "C" void edgedit_collective_placeholder(ggml_tensor* result, int thread, int num_threads, void* userdata);
