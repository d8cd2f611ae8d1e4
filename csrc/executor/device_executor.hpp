// Runs a planned graph on a device: stretches of stock nodes as graph views on ggml's backend, our own nodes on streams
// of ours in between, all of it enqueued without waiting for the device.
//
// Two streams of ours are used. Operators (pack, receive, modulate, ...) hold up the backend until they are done, since
// the nodes after them read their results. A collective does not: between its start and its wait the backend computes.
//
//     backend      [segment 0]──────┐        ┌[segment 1]────────────[segment 2]
//     operators                     └[pack]──┤                         │
//     collectives                            └[all_to_all: start … ]───┘ wait
//
// Only ggml's public headers are used. Views are made by the caller (ggml_graph_view), who sets their `uid` once, so
// that the CUDA backend recognises them and replays its captured graphs.
#pragma once

#include <vector>

#include <ggml-backend.h>
#include <ggml.h>

#include "executor/fence.hpp"

namespace edgedit {

/// Enqueues the work of one node on `stream`; `state` is whatever the step carries. Throws DeviceError.
using Launch = void (*)(ggml_tensor* node, void* state, Stream* stream);

/// One step of a plan, in the order of the schedule.
struct Step {
    enum class Kind {
        segment,   ///< `graph` on the backend
        operation, ///< `launch` on the operators' stream; later steps see its result
        start,     ///< `launch` on the collectives' stream; later steps see its result after the wait of `flight`
        wait,      ///< the collective of that `flight` has arrived
    };
    Kind kind;
    ggml_cgraph* graph = nullptr;
    ggml_tensor* node = nullptr;
    Launch launch = nullptr;
    void* state = nullptr;
    int flight = 0;
};

class DeviceExecutor {
public:
    /// The tensors of all steps must be allocated. Backend, fences, graphs and states belong to the caller and outlive
    /// the executor. Throws DeviceError naming the first node that the backend cannot run, or whose source lies in
    /// memory that it cannot read, and for steps that make no sense (a wait without a start).
    DeviceExecutor(ggml_backend_t backend, Fence& operators, Fence& collectives, std::vector<Step> steps);

    /// Enqueues all steps once and returns; the caller synchronises with the backend, which by then waits for
    /// everything of ours. After a DeviceError the device is in an unknown state and the plan must not be run again.
    void run();

private:
    void check_segment(const Step& step, std::size_t index) const;
    void check_flights() const;
    void join_operators();

    ggml_backend_t backend_;
    Fence& operators_;
    Fence& collectives_;
    std::vector<Step> steps_;
    bool operators_ahead_ = false; // the operators' stream was given work that the backend does not wait for yet
};

} // namespace edgedit
