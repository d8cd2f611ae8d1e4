// cuda-ipc: two ranks of one host copy straight into each other's staging memory.
//
// Each rank owns one plain cudaMalloc block (ggml's pool cannot be opened by another process): a page of flags, then two
// slots that are used in turn. An exchange is, on the stream alone:
//
//     wait until the peer has emptied the slot | copy into it | raise the peer's "posted"
//     wait for our "posted" | copy the slot to the receive tensor | raise the peer's "emptied"
//
// Flags are counts that only grow, so nothing is ever reset, and both ranks may run ahead by one slot.
#pragma once

#include <array>
#include <string>

#include "cuda/channel.hpp"

namespace edgedit::cuda {

using IpcHandle = std::array<char, 64>;

class PeerChannel final : public Channel {
public:
    /// Allocates this rank's block with slots of `slot_nbytes`; larger exchanges are refused. Throws DeviceError where
    /// memory cannot be had.
    PeerChannel(int rank, int device, std::int64_t slot_nbytes);
    ~PeerChannel() override;

    /// Names this rank's block to the peer, which open()s it. Throws DeviceError where IPC or peer access is refused.
    IpcHandle handle() const;
    void open(const IpcHandle& peer_handle);

    std::int64_t slot_nbytes() const { return slot_nbytes_; }

    void exchange(const void* send, void* recv, const Block* blocks, Stream* stream) override;
    void all_gather(const void* send, void* recv, std::int64_t nbytes, Stream* stream) override;
    void broadcast(const void* send, void* recv, std::int64_t nbytes, int root, Stream* stream) override;
    std::string failure() const override;
    void abort() override;

private:
    void release();

    const int device_;
    const std::int64_t slot_nbytes_;
    char* own_ = nullptr;
    char* peer_ = nullptr;
    int* stop_ = nullptr; // host memory that waiting kernels look at
    std::uint32_t uses_ = 0;
};

} // namespace edgedit::cuda
