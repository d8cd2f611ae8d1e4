#include "cuda/queue.hpp"

#include <chrono>
#include <memory>
#include <thread>

#include "cuda/check.hpp"
#include "cuda/operators.hpp"

namespace edgedit::cuda {
namespace {

constexpr std::int64_t kTrialNbytes = 65536;
constexpr int kTrialRounds = 5; // more than there are slots
constexpr std::chrono::seconds kTrialTime{10};

unsigned char pattern(int rank, int round, std::int64_t i) { return static_cast<unsigned char>(7 * rank + 31 * round + i % 251); }

struct FreeDevice {
    void operator()(void* memory) const { cudaFree(memory); }
};

} // namespace

Queue::Queue(int device) : device_(device) {
    const OnDevice on(device_);
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Queue::~Queue() {
    for (const auto& [number, event] : pending_) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
}

std::int64_t Queue::exchange(Channel& channel, const void* send, void* recv, const std::vector<Block>& blocks) {
    if (static_cast<int>(blocks.size()) != channel.size()) {
        throw DeviceError(std::to_string(blocks.size()) + " blocks for a group of " + std::to_string(channel.size()));
    }
    const OnDevice on(device_);
    channel.exchange(send, recv, blocks.data(), reinterpret_cast<Stream*>(stream_));
    cudaEvent_t event = nullptr;
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    pending_.emplace_back(++issued_, event);
    CUDA_CHECK(cudaEventRecord(event, stream_));
    return issued_;
}

void Queue::reduce(void* to, const void* parts, int num_parts, std::int64_t count, int type, int op) {
    const OnDevice on(device_);
    ordered_reduce(to, parts, num_parts, count, type, op, reinterpret_cast<Stream*>(stream_));
}

bool Queue::has_done(std::int64_t number) {
    while (done_ < number && !pending_.empty()) {
        const auto [next, event] = pending_.front();
        const cudaError_t status = cudaEventQuery(event);
        if (status == cudaErrorNotReady) return false;
        if (status != cudaSuccess) fail("cudaEventQuery of an exchange", status);
        CUDA_CHECK(cudaEventDestroy(event));
        pending_.pop_front();
        done_ = next;
    }
    return done_ >= number;
}

void Queue::synchronize() { CUDA_CHECK(cudaStreamSynchronize(stream_)); }

std::string try_channel(Channel& channel, int device) {
    const OnDevice on(device);
    void* memory = nullptr;
    CUDA_CHECK(cudaMalloc(&memory, 2 * kTrialNbytes));
    const std::unique_ptr<void, FreeDevice> owner(memory);
    auto* const send = static_cast<char*>(memory);
    char* const recv = send + kTrialNbytes;
    Queue queue(device);
    std::vector<unsigned char> host(kTrialNbytes);
    for (int round = 0; round < kTrialRounds; ++round) {
        for (std::int64_t i = 0; i < kTrialNbytes; ++i) host[static_cast<std::size_t>(i)] = pattern(channel.rank(), round, i);
        CUDA_CHECK(cudaMemcpy(send, host.data(), host.size(), cudaMemcpyHostToDevice));
        std::vector<Block> blocks(2);
        blocks[static_cast<std::size_t>(1 - channel.rank())] = {0, kTrialNbytes, 0, kTrialNbytes};
        const std::int64_t number = queue.exchange(channel, send, recv, blocks);
        const auto deadline = std::chrono::steady_clock::now() + kTrialTime;
        while (!queue.has_done(number)) {
            if (std::chrono::steady_clock::now() > deadline) {
                channel.abort();
                queue.synchronize();
                return "nothing came from the other rank";
            }
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        CUDA_CHECK(cudaMemcpy(host.data(), recv, host.size(), cudaMemcpyDeviceToHost));
        for (std::int64_t i = 0; i < kTrialNbytes; ++i) {
            if (host[static_cast<std::size_t>(i)] != pattern(1 - channel.rank(), round, i)) {
                channel.abort();
                return "byte " + std::to_string(i) + " of trial " + std::to_string(round) + " came wrong";
            }
        }
    }
    return "";
}

} // namespace edgedit::cuda
