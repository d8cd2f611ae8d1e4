// How the ranks of a group exchange device memory: the interface of NCCL and of direct copies between two ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "executor/fence.hpp"

namespace edgedit::cuda {

/// Called now and then while the host waits for other ranks; true ends the wait.
using Stop = std::function<bool()>;

/// What a rank sends to one peer and receives from it: bytes, at offsets in the send and receive tensors.
struct Block {
    std::int64_t send_offset, send_nbytes;
    std::int64_t recv_offset, recv_nbytes;
};

/// All calls enqueue on `stream` and do not wait for the device. They throw DeviceError.
class Channel {
public:
    Channel(int rank, int size) : rank_(rank), size_(size) {}
    virtual ~Channel() = default;
    Channel(const Channel&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }

    /// Block p of `send` goes to rank p and block p of `recv` comes from it, for all ranks at once; blocks of 0 bytes are
    /// left out. The own block is copied on the device.
    virtual void exchange(const void* send, void* recv, const Block* blocks, Stream* stream) = 0;
    /// `recv` becomes every rank's `send` of the same `nbytes`, in rank order.
    virtual void all_gather(const void* send, void* recv, std::int64_t nbytes, Stream* stream) = 0;
    virtual void broadcast(const void* send, void* recv, std::int64_t nbytes, int root, Stream* stream) = 0;

    /// The error that came up since work was enqueued, or an empty text.
    virtual std::string failure() const = 0;
    /// Ends work on the device that waits for a peer. The channel is of no use afterwards; safe to call twice.
    virtual void abort() = 0;

protected:
    const int rank_, size_;
};

} // namespace edgedit::cuda
