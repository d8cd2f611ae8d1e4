// Every CUDA call goes through CUDA_CHECK, which names the call that failed.
#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include "executor/fence.hpp"

namespace edgedit::cuda {

[[noreturn]] inline void fail(const char* call, cudaError_t status) {
    throw DeviceError(std::string(call) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

inline cudaStream_t native(Stream* stream) { return reinterpret_cast<cudaStream_t>(stream); }

/// Makes a device current for a scope; libraries in the same process may have chosen another.
class OnDevice {
public:
    explicit OnDevice(int device);
    ~OnDevice() { cudaSetDevice(before_); }
    OnDevice(const OnDevice&) = delete;

private:
    int before_ = 0;
};

} // namespace edgedit::cuda

#define CUDA_CHECK(call)                                                       \
    do {                                                                       \
        const cudaError_t status_ = (call);                                    \
        if (status_ != cudaSuccess) ::edgedit::cuda::fail(#call, status_);     \
    } while (0)

/// After a kernel launch, whose only error code this is.
#define CUDA_CHECK_LAUNCH(kernel)                                              \
    do {                                                                       \
        const cudaError_t status_ = cudaGetLastError();                        \
        if (status_ != cudaSuccess) ::edgedit::cuda::fail("launch of " kernel, status_); \
    } while (0)

inline edgedit::cuda::OnDevice::OnDevice(int device) {
    CUDA_CHECK(cudaGetDevice(&before_));
    if (before_ != device) CUDA_CHECK(cudaSetDevice(device));
}
