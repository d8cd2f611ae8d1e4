// A CUDA stream of ours, ordered against ggml's CUDA backend by that backend's own events.
#pragma once

#include <vector>

#include "cuda/event.hpp"
#include "executor/fence.hpp"

namespace edgedit::cuda {

/// The ggml release whose event layout is known. Throws DeviceError for another one, or where the backend is no CUDA
/// backend, makes no events, or makes events of another layout than expected.
void check_backend(ggml_backend_t backend);

class CudaFence final : public Fence {
public:
    /// `marks`: how many of them record() knows. Throws DeviceError, see check_backend.
    CudaFence(ggml_backend_t backend, int device, int marks);
    ~CudaFence() override;
    CudaFence(const CudaFence&) = delete;

    Stream* stream() override { return reinterpret_cast<Stream*>(stream_); }
    void enter() override;
    void record(int mark) override;
    void leave(int mark) override;

    /// Whether the backend has done everything that it was given up to now, in the order of the calls of `note_end`.
    void note_end();
    bool has_ended() const;

private:
    void release();

    ggml_backend_t backend_;
    int device_;
    cudaStream_t stream_ = nullptr;
    ggml_backend_event_t entered_ = nullptr, ended_ = nullptr;
    std::vector<ggml_backend_event_t> marks_;
};

} // namespace edgedit::cuda
