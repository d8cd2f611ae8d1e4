// A collective of a plan, as its start node enqueues it.
#pragma once

#include <memory>
#include <vector>

#include "cuda/channel.hpp"

struct ggml_tensor;

namespace edgedit::cuda {

class Collective {
public:
    enum class Kind { exchange, all_gather, broadcast, all_reduce };

    /// Blocks of any sizes: all-to-all, ring shift, all-gather of unequal shares.
    static Collective exchange(std::shared_ptr<Channel> channel, std::vector<Block> blocks);
    /// Equal shares of `nbytes`.
    static Collective all_gather(std::shared_ptr<Channel> channel, std::int64_t nbytes);
    static Collective broadcast(std::shared_ptr<Channel> channel, std::int64_t nbytes, int root);
    /// `counts`: elements of the share that each rank reduces; together the whole tensor. The shares are added in rank
    /// order, so that the result has the same bits on every rank and every channel. Takes device memory for the parts.
    static Collective all_reduce(std::shared_ptr<Channel> channel, const std::vector<std::int64_t>& counts, int type, int op, int device);

    /// From the node's source to its result. Throws DeviceError.
    void start(const ggml_tensor* node, Stream* stream) const;

    const std::shared_ptr<Channel>& channel() const { return channel_; }

private:
    Collective(Kind kind, std::shared_ptr<Channel> channel) : kind_(kind), channel_(std::move(channel)) {}

    Kind kind_;
    std::shared_ptr<Channel> channel_;
    std::vector<Block> blocks_;
    std::int64_t nbytes_ = 0;
    int root_ = 0;
    // all_reduce
    std::vector<Block> gather_;
    std::shared_ptr<void> parts_;
    std::int64_t share_ = 0, share_offset_ = 0;
    int type_ = 0, op_ = 0;
};

/// The Launch of a step whose state is a Collective.
void start_collective(ggml_tensor* node, void* collective, Stream* stream);

} // namespace edgedit::cuda
