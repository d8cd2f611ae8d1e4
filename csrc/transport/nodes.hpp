// Callbacks of collective nodes (GGML_OP_CUSTOM) whose transport is native.
#pragma once

#include "transport/program.hpp"

struct ggml_tensor;

namespace edgedit::transport {

/// User data of a start or wait node: a collective of a program. Owned by the plan.
struct NodeOfProgram {
    Program* program;
    int collective;
};

/// User data of a node that writes its result straight into the peers' receive slots: the operator itself, and the
/// collective that has to be open before it runs.
struct ProducerNode {
    Program* program;
    int collective;
    void (*run)(ggml_tensor* result, int thread, int num_threads, void* userdata);
    void* userdata;
};

} // namespace edgedit::transport

extern "C" {
void edgedit_collective_start(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_collective_wait(ggml_tensor* result, int thread, int num_threads, void* userdata);
void edgedit_collective_producer(ggml_tensor* result, int thread, int num_threads, void* userdata);
/// `userdata` is a Program.
bool edgedit_collective_abort(void* userdata);
}
