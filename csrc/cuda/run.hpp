// A plan as Python builds it: steps one by one, then compiled into a DeviceExecutor with its fences.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "cuda/collective.hpp"
#include "cuda/fence.hpp"
#include "cuda/nccl.hpp"
#include "cuda/peer.hpp"
#include "executor/device_executor.hpp"

namespace edgedit::cuda {

class Plan {
public:
    /// Throws DeviceError where `backend` is no CUDA backend of the pinned ggml.
    Plan(ggml_backend_t backend, int device);

    void add_segment(ggml_cgraph* graph);
    void add_operation(Launch launch, ggml_tensor* node, void* spec);
    int add_start(ggml_tensor* node, const Collective& collective);
    void add_wait(int flight);

    /// See DeviceExecutor. Without fences nothing orders our streams against the backend's.
    void compile(bool fenced);
    void run();
    bool has_ended() const;

private:
    ggml_backend_t backend_;
    int device_;
    std::vector<Step> steps_;
    std::deque<Collective> collectives_; // steps point at its elements
    std::unique_ptr<CudaFence> operators_, transfers_;
    std::unique_ptr<Fence> unfenced_operators_, unfenced_transfers_;
    std::unique_ptr<DeviceExecutor> executor_;
};

/// Of operators, see exchange.hpp.
int max_ranks();

/// Mean seconds of a device-to-device copy.
double copy_seconds(std::int64_t nbytes, int repeats, int device);

} // namespace edgedit::cuda
