#include "cuda/fence.hpp"

#include <cstring>
#include <string>

#include <ggml.h>

#include "cuda/check.hpp"

namespace edgedit::cuda {
namespace {

constexpr const char* kGgmlVersion = "0.15.3";
constexpr int kApiVersion = 2;

ggml_backend_event_t new_event(ggml_backend_t backend) {
    const ggml_backend_event_t event = ggml_backend_event_new(ggml_backend_get_device(backend));
    if (event == nullptr) {
        throw DeviceError("ggml_backend_event_new: this ggml makes no CUDA events; build it without GGML_CUDA_NO_PEER_COPY");
    }
    return event;
}

} // namespace

void check_backend(ggml_backend_t backend) {
    if (std::strcmp(ggml_version(), kGgmlVersion) != 0) {
        throw DeviceError(std::string("ggml ") + ggml_version() + " is loaded; edgedit's CUDA extension knows the events of ggml " + kGgmlVersion);
    }
    const ggml_backend_dev_t device = ggml_backend_get_device(backend);
    const ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
    const char* name = ggml_backend_reg_name(registry);
    if (std::strcmp(name, "CUDA") != 0) throw DeviceError(std::string("backend ") + name + " is not CUDA");
    const int api_version = reinterpret_cast<const RegistryLayout*>(registry)->api_version;
    if (api_version != kApiVersion) {
        throw DeviceError("ggml's backends have interface " + std::to_string(api_version) + ", not " + std::to_string(kApiVersion));
    }
    const ggml_backend_event_t event = new_event(backend);
    const bool as_expected = reinterpret_cast<const EventLayout*>(event)->device == device;
    const cudaError_t usable = as_expected ? cudaEventQuery(native(event)) : cudaSuccess;
    ggml_backend_event_free(event);
    if (!as_expected) throw DeviceError("ggml's events are laid out in an unknown way");
    if (usable != cudaSuccess) fail("cudaEventQuery of a new ggml event", usable);
}

CudaFence::CudaFence(ggml_backend_t backend, int device, int marks) : backend_(backend), device_(device) {
    check_backend(backend);
    const OnDevice on(device_);
    try {
        int least = 0, greatest = 0;
        CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        // Ours are short and others wait for them: they go first where the device has a choice.
        CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
        entered_ = new_event(backend);
        ended_ = new_event(backend);
        for (int mark = 0; mark < marks; ++mark) marks_.push_back(new_event(backend));
    } catch (...) {
        release();
        throw;
    }
}

CudaFence::~CudaFence() {
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(device_);
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    release();
    cudaSetDevice(before);
}

void CudaFence::release() {
    for (const ggml_backend_event_t event : marks_) ggml_backend_event_free(event);
    if (ended_ != nullptr) ggml_backend_event_free(ended_);
    if (entered_ != nullptr) ggml_backend_event_free(entered_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void CudaFence::enter() {
    ggml_backend_event_record(entered_, backend_);
    CUDA_CHECK(cudaStreamWaitEvent(stream_, native(entered_), 0));
}

void CudaFence::record(int mark) { CUDA_CHECK(cudaEventRecord(native(marks_.at(mark)), stream_)); }

void CudaFence::leave(int mark) { ggml_backend_event_wait(backend_, marks_.at(mark)); }

void CudaFence::note_end() { ggml_backend_event_record(ended_, backend_); }

bool CudaFence::has_ended() const {
    const cudaError_t status = cudaEventQuery(native(ended_));
    if (status == cudaErrorNotReady) return false;
    if (status != cudaSuccess) fail("cudaEventQuery of the end of a run", status);
    return true;
}

} // namespace edgedit::cuda
