// pack: from a rank's tensors to the blocks that its peers receive (or, on one rank, to what they would make of them).
#include <cstring>

#include "ops/callbacks.hpp"
#include "ops/work.hpp"

namespace edgedit::ops {
namespace {

using namespace layout;

/// Where the block of `peer` begins, which in the node's own result is at row `first_row`.
std::byte* block_of(const ExchangeSpec& spec, const Tensor& result, int peer, std::int64_t first_row) {
    if (spec.targets != nullptr) return static_cast<std::byte*>(spec.targets[peer]);
    return static_cast<std::byte*>(result.data) + first_row * row_nbytes(spec);
}

/// One stream of sequence -> head: its plane tensors, and its rope table or null.
struct SourceStream {
    int index;
    const Tensor* const* planes;
    const Tensor* table;
};

template <typename Visit> // Visit(batch, token)
void for_each_token(std::int64_t batch, std::int64_t tokens, int thread, int num_threads, const Visit& visit) {
    const Part mine = part(batch * tokens, thread, num_threads);
    for (std::int64_t item = mine.begin; item < mine.end; ++item) visit(item / tokens, item % tokens);
}

void stream_to_blocks(const ExchangeSpec& spec, const Tensor& result, const SourceStream& source, bool streaming,
                      int thread, int num_threads) {
    const Layout& layout = spec.layout;
    const std::int64_t tokens = token_share(layout, source.index, spec.rank).count;
    const std::int64_t before = local_tokens(layout, spec.rank, source.index);
    const std::int64_t planes = layout.planes, nbytes = row_nbytes(spec);
    HeadMover movers[kMaxPlanes];
    for (int plane = 0; plane < planes; ++plane) {
        const DType from = dtype(*source.planes[plane]);
        movers[plane] = HeadMover(spec, source.index, plane, spec.wire[plane], from, streaming);
    }
    const std::size_t dense = static_cast<std::size_t>(layout.head_dim * itemsize(dtype(*source.planes[0])));
    const bool whole_rows = planes == 1 && movers[0].is_plain() && source.planes[0]->nb[1] == dense;
    for (int peer = 0; peer < layout.ranks; ++peer) {
        const Share heads = head_share(layout, peer);
        std::byte* block = block_of(spec, result, peer, sequence_side_row(layout, spec.rank, peer));
        for_each_token(layout.batch, tokens, thread, num_threads, [&](std::int64_t batch, std::int64_t token) {
            const float* table = table_row(source.table, token);
            std::byte* to = block + nbytes * row_within_block(layout, heads.count, tokens, before, batch, token, 0);
            if (whole_rows) {
                movers[0].run(to, row(*source.planes[0], heads.begin, token, batch), heads.count);
                return;
            }
            for (std::int64_t head = heads.begin; head < heads.begin + heads.count; ++head) {
                for (std::int64_t plane = 0; plane < planes; ++plane) {
                    movers[plane](to, row(*source.planes[plane], head, token, batch), table);
                    to += layout.head_dim * itemsize(spec.wire[plane]);
                }
            }
        });
    }
}

void stream_to_planes(const ExchangeSpec& spec, const Tensor& result, const SourceStream& source, bool streaming,
                      int thread, int num_threads) {
    const Layout& layout = spec.layout;
    std::int64_t first = 0;
    for (int stream = 0; stream < source.index; ++stream) first += layout.tokens[stream];
    HeadMover movers[kMaxPlanes];
    for (int plane = 0; plane < layout.planes; ++plane) {
        const DType from = dtype(*source.planes[plane]);
        movers[plane] = HeadMover(spec, source.index, plane, dtype(result), from, streaming);
    }
    for_each_token(layout.batch, layout.tokens[source.index], thread, num_threads,
                   [&](std::int64_t batch, std::int64_t token) {
                       const float* table = table_row(source.table, token);
                       for (std::int64_t plane = 0; plane < layout.planes; ++plane) {
                           const Tensor& from = *source.planes[plane];
                           for (std::int64_t head = 0; head < layout.heads; ++head) {
                               movers[plane](row(result, first + token, head, plane * layout.batch + batch),
                                             row(from, head, token, batch), table);
                           }
                       }
                   });
}

void pack_streams(const ExchangeSpec& spec, const Tensor& result, bool streaming, int thread, int num_threads) {
    // A node that works in place has the buffer as its first source.
    const Tensor* const* sources = result.src + (spec.first_stream > 0 ? 1 : 0);
    const Tensor* const* tables = sources + spec.num_streams * spec.layout.planes;
    for (int index = 0; index < spec.num_streams; ++index) {
        const Tensor* table = rotates(spec) ? tables[index] : nullptr;
        const SourceStream source{spec.first_stream + index, sources + index * spec.layout.planes, table};
        const auto place = spec.target == Target::planes ? stream_to_planes : stream_to_blocks;
        place(spec, result, source, streaming, thread, num_threads);
    }
}

void pack_heads(const ExchangeSpec& spec, const Tensor& result, bool streaming, int thread, int num_threads) {
    const Layout& layout = spec.layout;
    const Tensor& joint = *result.src[0];
    const std::int64_t heads = head_share(layout, spec.rank).count, nbytes = heads * row_nbytes(spec);
    if (heads == 0) return;
    const HeadMover mover(spec, 0, 0, spec.wire[0], dtype(joint), streaming);
    const bool dense = joint.nb[1] == static_cast<std::size_t>(layout.head_dim * itemsize(dtype(joint)));
    for (int peer = 0; peer < layout.ranks; ++peer) {
        std::byte* to = block_of(spec, result, peer, head_side_row(layout, spec.rank, peer));
        std::int64_t first = 0; // of the stream in the joint sequence
        for (int stream = 0; stream < layout.streams; ++stream) {
            const Share tokens = token_share(layout, stream, peer);
            for_each_token(
                layout.batch, tokens.count, thread, num_threads, [&](std::int64_t batch, std::int64_t token) {
                    std::byte* at = to + nbytes * (batch * tokens.count + token);
                    const std::int64_t global = tokens.begin + token;
                    if (global >= layout.tokens[stream]) {
                        std::memset(at, 0, static_cast<std::size_t>(nbytes)); // padding
                    } else if (dense) {
                        mover.run(at, row(joint, 0, first + global, batch), heads);
                    } else {
                        for (std::int64_t head = 0; head < heads; ++head)
                            mover(at + head * row_nbytes(spec), row(joint, head, first + global, batch), nullptr);
                    }
                });
            to += nbytes * layout.batch * tokens.count;
            first += layout.tokens[stream];
        }
    }
}

} // namespace
} // namespace edgedit::ops

extern "C" void edgedit_pack(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    using namespace edgedit::ops;
    const auto& spec = spec_of<ExchangeSpec>(userdata);
    const Tensor& result = tensor(node);
    const bool streaming = packed_nbytes(result) >= kStreamingNbytes;
    const auto run = spec.direction == Direction::seq_to_head ? pack_streams : pack_heads;
    run(spec, result, streaming, thread, num_threads);
    if (streaming) rows().fence();
}
