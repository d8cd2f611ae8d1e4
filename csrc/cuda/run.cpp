#include "cuda/run.hpp"

#include "cuda/check.hpp"
#include "cuda/exchange.hpp"
#include "cuda/operators.hpp"

namespace edgedit::cuda {
namespace {

/// Only the stream of a fence: what the negative control of the tests runs on.
class Unfenced final : public Fence {
public:
    explicit Unfenced(Fence& fence) : fence_(fence) {}
    Stream* stream() override { return fence_.stream(); }
    void enter() override {}
    void record(int) override {}
    void leave(int) override {}

private:
    Fence& fence_;
};

} // namespace

Plan::Plan(ggml_backend_t backend, int device) : backend_(backend), device_(device) { check_backend(backend); }

void Plan::add_segment(ggml_cgraph* graph) { steps_.push_back({Step::Kind::segment, graph, nullptr, nullptr, nullptr, 0}); }

void Plan::add_operation(Launch launch, ggml_tensor* node, void* spec) {
    // Found out now rather than in the middle of a run.
    if (launch == pack || launch == receive) exchange_of(*static_cast<const ExchangeSpec*>(spec));
    steps_.push_back({Step::Kind::operation, nullptr, node, launch, spec, 0});
}

int Plan::add_start(ggml_tensor* node, const Collective& collective) {
    const auto flight = static_cast<int>(collectives_.size());
    collectives_.push_back(collective);
    steps_.push_back({Step::Kind::start, nullptr, node, start_collective, &collectives_.back(), flight});
    return flight;
}

void Plan::add_wait(int flight) { steps_.push_back({Step::Kind::wait, nullptr, nullptr, nullptr, nullptr, flight}); }

void Plan::compile(bool fenced) {
    operators_ = std::make_unique<CudaFence>(backend_, device_, 1);
    transfers_ = std::make_unique<CudaFence>(backend_, device_, static_cast<int>(collectives_.size()));
    unfenced_operators_ = std::make_unique<Unfenced>(*operators_);
    unfenced_transfers_ = std::make_unique<Unfenced>(*transfers_);
    Fence& first = fenced ? *operators_ : *unfenced_operators_;
    Fence& second = fenced ? *transfers_ : *unfenced_transfers_;
    executor_ = std::make_unique<DeviceExecutor>(backend_, first, second, steps_);
}

void Plan::run() {
    if (executor_ == nullptr) throw DeviceError("the plan was not compiled");
    const OnDevice on(device_);
    executor_->run();
    operators_->note_end();
}

bool Plan::has_ended() const { return executor_ == nullptr || operators_->has_ended(); }

int max_ranks() { return kMaxRanks; }

double copy_seconds(std::int64_t nbytes, int repeats, int device) {
    const OnDevice on(device);
    void *from = nullptr, *to = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr;
    float milliseconds = 0;
    CUDA_CHECK(cudaMalloc(&from, static_cast<std::size_t>(nbytes)));
    CUDA_CHECK(cudaMalloc(&to, static_cast<std::size_t>(nbytes)));
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    for (int run = -1; run < repeats; ++run) { // the first one warms up
        if (run == 0) CUDA_CHECK(cudaEventRecord(begin, nullptr));
        CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(nbytes), cudaMemcpyDeviceToDevice, nullptr));
    }
    CUDA_CHECK(cudaEventRecord(end, nullptr));
    CUDA_CHECK(cudaEventSynchronize(end));
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    CUDA_CHECK(cudaFree(from));
    CUDA_CHECK(cudaFree(to));
    return milliseconds / 1000.0 / repeats;
}

} // namespace edgedit::cuda
