#include "cuda/collective.hpp"

#include "cuda/check.hpp"
#include "cuda/operators.hpp"
#include "ops/tensor.hpp"

namespace edgedit::cuda {
namespace {

std::shared_ptr<void> device_memory(std::int64_t nbytes, int device) {
    const OnDevice on(device);
    void* address = nullptr;
    CUDA_CHECK(cudaMalloc(&address, static_cast<std::size_t>(nbytes > 0 ? nbytes : 1)));
    return {address, [](void* memory) { cudaFree(memory); }};
}

} // namespace

Collective Collective::exchange(std::shared_ptr<Channel> channel, std::vector<Block> blocks) {
    if (static_cast<int>(blocks.size()) != channel->size()) {
        throw DeviceError(std::to_string(blocks.size()) + " blocks for a group of " + std::to_string(channel->size()));
    }
    Collective collective(Kind::exchange, std::move(channel));
    collective.blocks_ = std::move(blocks);
    return collective;
}

Collective Collective::all_gather(std::shared_ptr<Channel> channel, std::int64_t nbytes) {
    Collective collective(Kind::all_gather, std::move(channel));
    collective.nbytes_ = nbytes;
    return collective;
}

Collective Collective::broadcast(std::shared_ptr<Channel> channel, std::int64_t nbytes, int root) {
    Collective collective(Kind::broadcast, std::move(channel));
    collective.nbytes_ = nbytes;
    collective.root_ = root;
    return collective;
}

Collective Collective::all_reduce(std::shared_ptr<Channel> channel, const std::vector<std::int64_t>& counts, int type, int op, int device) {
    if (!ops::is_dtype(type)) throw DeviceError("all-reduce on CUDA takes f32, f16 and bf16, not ggml type " + std::to_string(type));
    if (static_cast<int>(counts.size()) != channel->size()) throw DeviceError("all-reduce: one share per rank is needed");
    Collective collective(Kind::all_reduce, std::move(channel));
    const auto width = ops::itemsize(static_cast<ops::DType>(type));
    const int rank = collective.channel_->rank();
    for (int peer = 0; peer < rank; ++peer) collective.share_offset_ += counts[static_cast<std::size_t>(peer)] * width;
    collective.share_ = counts[static_cast<std::size_t>(rank)];
    const std::int64_t own = collective.share_ * width;
    std::int64_t offset = 0;
    for (int peer = 0; peer < collective.channel_->size(); ++peer) {
        const std::int64_t nbytes = counts[static_cast<std::size_t>(peer)] * width;
        collective.blocks_.push_back({offset, nbytes, peer * own, own});
        collective.gather_.push_back({collective.share_offset_, own, offset, nbytes});
        offset += nbytes;
    }
    collective.parts_ = device_memory(own * collective.channel_->size(), device);
    collective.type_ = type;
    collective.op_ = op;
    return collective;
}

void Collective::start(const ggml_tensor* node, Stream* stream) const {
    const ops::Tensor& result = *reinterpret_cast<const ops::Tensor*>(node);
    const void* send = result.src[0]->data;
    switch (kind_) {
        case Kind::exchange: return channel_->exchange(send, result.data, blocks_.data(), stream);
        case Kind::all_gather: return channel_->all_gather(send, result.data, nbytes_, stream);
        case Kind::broadcast: return channel_->broadcast(send, result.data, nbytes_, root_, stream);
        case Kind::all_reduce:
            channel_->exchange(send, parts_.get(), blocks_.data(), stream);
            ordered_reduce(static_cast<char*>(result.data) + share_offset_, parts_.get(), channel_->size(), share_, type_, op_, stream);
            return channel_->exchange(result.data, result.data, gather_.data(), stream);
    }
}

void start_collective(ggml_tensor* node, void* collective, Stream* stream) {
    static_cast<const Collective*>(collective)->start(node, stream);
}

} // namespace edgedit::cuda
