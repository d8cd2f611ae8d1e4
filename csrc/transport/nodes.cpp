#include "transport/nodes.hpp"

using namespace edgedit::transport;

extern "C" void edgedit_collective_start(ggml_tensor*, int thread, int, void* userdata) {
    if (thread != 0) return;
    const auto* node = static_cast<const NodeOfProgram*>(userdata);
    node->program->start(node->collective);
}

extern "C" void edgedit_collective_wait(ggml_tensor*, int thread, int, void* userdata) {
    if (thread != 0) return;
    const auto* node = static_cast<const NodeOfProgram*>(userdata);
    node->program->wait(node->collective);
}

extern "C" void edgedit_collective_producer(ggml_tensor* result, int thread, int num_threads, void* userdata) {
    const auto* node = static_cast<const ProducerNode*>(userdata);
    if (!node->program->open(node->collective, thread)) return;
    if (thread != 0) return node->run(result, thread, num_threads, node->userdata);
    const Stopwatch stopwatch(node->program->busy(node->collective)); // its result is what the peers receive
    node->run(result, thread, num_threads, node->userdata);
}

extern "C" bool edgedit_collective_abort(void* userdata) { return static_cast<Program*>(userdata)->must_stop(); }
