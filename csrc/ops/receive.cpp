// receive: from the blocks that came from the peers to the tensors that attention, or the rest of a block, wants.
#include "ops/callbacks.hpp"
#include "ops/work.hpp"

namespace edgedit::ops {
namespace {

using namespace layout;

/// The tokens that one peer sent of one stream: where their block of rows begins, and where they go.
struct Arrival {
    int stream;
    const std::byte* rows; ///< of this stream, [batch][slots][own heads]
    std::int64_t slots;    ///< tokens with padding
    std::int64_t tokens;   ///< without
    std::int64_t position; ///< of the first token in the joint sequence
    std::int64_t global;   ///< of the first token in its stream
    const Tensor* table;
};

void to_planes(const ExchangeSpec& spec, const Tensor& result, const Arrival& from, bool streaming, Part mine) {
    const Layout& layout = spec.layout;
    const std::int64_t heads = head_share(layout, spec.rank).count, nbytes = row_nbytes(spec);
    HeadMover movers[kMaxPlanes];
    std::int64_t offsets[kMaxPlanes];
    for (int plane = 0; plane < spec.num_planes; ++plane) {
        const int on_wire = spec.first_plane + plane;
        movers[plane] = HeadMover(spec, from.stream, on_wire, dtype(result), spec.wire[on_wire], streaming);
        offsets[plane] = plane_offset(spec, on_wire);
    }
    for (std::int64_t item = mine.begin; item < mine.end; ++item) {
        const std::int64_t batch = item / from.tokens, token = item % from.tokens;
        const float* table = table_row(from.table, from.global + token);
        const std::byte* at = from.rows + nbytes * (batch * from.slots + token) * heads;
        for (std::int64_t head = 0; head < heads; ++head, at += nbytes) {
            for (std::int64_t plane = 0; plane < spec.num_planes; ++plane) {
                std::byte* to = row(result, from.position + token, head, plane * layout.batch + batch);
                movers[plane](to, at + offsets[plane], table);
            }
        }
    }
}

void receive_planes(const ExchangeSpec& spec, const Tensor& result, bool streaming, int thread, int num_threads) {
    const Layout& layout = spec.layout;
    const std::int64_t heads = head_share(layout, spec.rank).count;
    for (int peer = 0; peer < layout.ranks; ++peer) {
        const auto* rows = static_cast<const std::byte*>(result.src[0]->data) +
                           head_side_row(layout, spec.rank, peer) * row_nbytes(spec);
        std::int64_t first = 0;
        for (int stream = 0; stream < layout.streams; ++stream) {
            const Share slots = token_share(layout, stream, peer);
            const std::int64_t left = layout.tokens[stream] - slots.begin;
            const std::int64_t tokens = left < 0 ? 0 : left < slots.count ? left : slots.count;
            const Tensor* table = rotates(spec) ? result.src[1 + stream] : nullptr;
            const Arrival from{stream, rows, slots.count, tokens, first + slots.begin, slots.begin, table};
            to_planes(spec, result, from, streaming, part(layout.batch * tokens, thread, num_threads));
            rows += layout.batch * slots.count * heads * row_nbytes(spec);
            first += layout.tokens[stream];
        }
    }
}

void receive_streams(const ExchangeSpec& spec, const Tensor& result, bool streaming, int thread, int num_threads) {
    const Layout& layout = spec.layout;
    const auto* received = static_cast<const std::byte*>(result.src[0]->data);
    const HeadMover mover(spec, 0, 0, dtype(result), spec.wire[0], streaming);
    const std::int64_t in_nbytes = row_nbytes(spec), out_nbytes = layout.head_dim * itemsize(dtype(result));
    auto* to = static_cast<std::byte*>(result.data);
    for (int stream = 0; stream < layout.streams; ++stream) {
        const std::int64_t tokens = token_share(layout, stream, spec.rank).count;
        const std::int64_t before = local_tokens(layout, spec.rank, stream);
        const Part mine = part(layout.batch * tokens, thread, num_threads);
        for (int peer = 0; peer < layout.ranks; ++peer) {
            const Share heads = head_share(layout, peer);
            const std::int64_t first_row = sequence_side_row(layout, spec.rank, peer) +
                                           row_within_block(layout, heads.count, tokens, before, 0, 0, 0);
            const std::byte* rows = received + in_nbytes * first_row;
            for (std::int64_t item = mine.begin; item < mine.end; ++item) {
                mover.run(to + out_nbytes * (item * layout.heads + heads.begin), rows + in_nbytes * item * heads.count,
                          heads.count);
            }
        }
        to += out_nbytes * layout.batch * tokens * layout.heads;
    }
}

} // namespace
} // namespace edgedit::ops

extern "C" void edgedit_receive(ggml_tensor* node, int thread, int num_threads, void* userdata) {
    using namespace edgedit::ops;
    const auto& spec = spec_of<ExchangeSpec>(userdata);
    const Tensor& result = tensor(node);
    const bool streaming = packed_nbytes(result) >= kStreamingNbytes;
    const auto run = spec.direction == Direction::seq_to_head ? receive_planes : receive_streams;
    run(spec, result, streaming, thread, num_threads);
    if (streaming) rows().fence();
}
