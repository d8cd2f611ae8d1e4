// What edgedit knows of ggml's private structures: these few fields. check_backend (fence.hpp) makes sure of them.
#pragma once

#include <cuda_runtime_api.h>
#include <ggml-backend.h>

namespace edgedit::cuda {

/// ggml_backend_event of the pinned ggml release: on the CUDA backend the context is the cudaEvent_t.
struct EventLayout {
    ggml_backend_dev_t device;
    void* context;
};

/// The first field of ggml_backend_reg.
struct RegistryLayout {
    int api_version;
};

inline cudaEvent_t native(ggml_backend_event_t event) {
    return static_cast<cudaEvent_t>(reinterpret_cast<const EventLayout*>(event)->context);
}

} // namespace edgedit::cuda
