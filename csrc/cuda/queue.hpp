// A stream of ours on its own, for collectives that the host calls one by one (the graph-cut path), and the trial of a
// channel.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "cuda/channel.hpp"

namespace edgedit::cuda {

class Queue {
public:
    explicit Queue(int device);
    ~Queue();
    Queue(const Queue&) = delete;

    /// Enqueues an exchange of device memory; returns its number for has_done().
    std::int64_t exchange(Channel& channel, const void* send, void* recv, const std::vector<Block>& blocks);
    /// See ordered_reduce in operators.hpp.
    void reduce(void* to, const void* parts, int num_parts, std::int64_t count, int type, int op);

    /// Whether the exchange of that number, and all before it, are over.
    bool has_done(std::int64_t number);
    /// Waits for everything enqueued.
    void synchronize();

private:
    const int device_;
    cudaStream_t stream_ = nullptr;
    std::int64_t issued_ = 0, done_ = 0;
    std::deque<std::pair<std::int64_t, cudaEvent_t>> pending_;
};

/// Sends patterns to the other of two ranks and looks at what comes, a few times; both ranks call it together. Returns
/// why it does not work, or an empty text. A channel that failed is aborted.
std::string try_channel(Channel& channel, int device);

} // namespace edgedit::cuda
