#include "executor/device_executor.hpp"

#include <set>

namespace edgedit {

namespace {

std::string named(const ggml_tensor* node) {
    return std::string("'") + node->name + "' (" + ggml_op_desc(node) + ")";
}

bool only_a_view(const ggml_tensor* node) {
    switch (node->op) {
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return true;
        default: return false;
    }
}

} // namespace

DeviceExecutor::DeviceExecutor(ggml_backend_t backend, Fence& operators, Fence& collectives, std::vector<Step> steps)
    : backend_(backend), operators_(operators), collectives_(collectives), steps_(std::move(steps)) {
    for (std::size_t index = 0; index < steps_.size(); ++index) {
        const Step& step = steps_[index];
        if (step.kind == Step::Kind::segment) {
            check_segment(step, index);
        } else if (step.kind != Step::Kind::wait && (step.node == nullptr || step.launch == nullptr)) {
            throw DeviceError("step " + std::to_string(index) + " has no node or nothing to launch");
        }
    }
    check_flights();
}

void DeviceExecutor::check_segment(const Step& step, std::size_t index) const {
    const std::string where = "step " + std::to_string(index) + ": ";
    if (step.graph == nullptr) throw DeviceError(where + "a segment without a graph");
    for (int position = 0; position < ggml_graph_n_nodes(step.graph); ++position) {
        const ggml_tensor* node = ggml_graph_node(step.graph, position);
        if (only_a_view(node)) continue;
        if (!ggml_backend_supports_op(backend_, node)) {
            throw DeviceError(where + ggml_backend_name(backend_) + " cannot run node " + named(node));
        }
        for (const ggml_tensor* source : node->src) {
            const ggml_backend_buffer_t buffer =
                source == nullptr ? nullptr : (source->view_src != nullptr ? source->view_src : source)->buffer;
            if (buffer != nullptr && !ggml_backend_supports_buft(backend_, ggml_backend_buffer_get_type(buffer))) {
                throw DeviceError(where + "node " + named(node) + " reads '" + source->name + "', which lies in a " +
                                  ggml_backend_buffer_name(buffer) + " buffer that " + ggml_backend_name(backend_) +
                                  " cannot read");
            }
        }
    }
}

void DeviceExecutor::check_flights() const {
    std::set<int> in_flight;
    for (const Step& step : steps_) {
        const std::string flight = "collective " + std::to_string(step.flight);
        if (step.kind == Step::Kind::start && !in_flight.insert(step.flight).second) {
            throw DeviceError(flight + " is started again before its wait");
        }
        if (step.kind == Step::Kind::wait && in_flight.erase(step.flight) == 0) {
            throw DeviceError(flight + " is waited for before its start");
        }
    }
    if (!in_flight.empty()) throw DeviceError("collective " + std::to_string(*in_flight.begin()) + " has no wait");
}

void DeviceExecutor::join_operators() {
    if (!operators_ahead_) return;
    operators_.record(0);
    operators_.leave(0);
    operators_ahead_ = false;
}

void DeviceExecutor::run() {
    for (std::size_t index = 0; index < steps_.size(); ++index) {
        const Step& step = steps_[index];
        if (step.kind == Step::Kind::operation) {
            // Operators in a row need one fence: the backend was given nothing in between.
            if (!operators_ahead_) operators_.enter();
            operators_ahead_ = true;
            step.launch(step.node, step.state, operators_.stream());
            continue;
        }
        join_operators();
        switch (step.kind) {
            case Step::Kind::segment: {
                const ggml_status status = ggml_backend_graph_compute_async(backend_, step.graph);
                if (status != GGML_STATUS_SUCCESS) {
                    throw DeviceError("step " + std::to_string(index) + ": ggml ended the segment with status " +
                                      std::to_string(status));
                }
                break;
            }
            case Step::Kind::start:
                collectives_.enter();
                step.launch(step.node, step.state, collectives_.stream());
                collectives_.record(step.flight);
                break;
            default: collectives_.leave(step.flight);
        }
    }
    join_operators();
}

} // namespace edgedit
