// The maps of receive: from the blocks that came from the peers to the tensors that attention, or the rest of a block,
// wants.
#pragma once

#include "cuda/exchange.hpp"

namespace edgedit::cuda {

using namespace layout;

/// Sequence -> head, to planes [planes, B, h, S, D]. A block of threads takes one token that one peer sent.
struct BlocksToPlanes {
    Exchange exchange;
    const std::byte* received;
    Strided result;

    struct Line {
        int heads; ///< of all planes
        std::int64_t position, batch;
        const std::byte* from;
        const float* table;
        int stream;
    };

    EDGEDIT_HD Line line(std::int64_t token, std::int64_t batch, int peer, int stream) const {
        const Layout& layout = exchange.layout;
        const Share slots = token_share(layout, stream, peer);
        const std::int64_t global = slots.begin + token; // in its stream; beyond its end lies padding
        if (token >= slots.count || global >= layout.tokens[stream]) return {};
        const auto own_heads = static_cast<int>(head_share(layout, exchange.rank).count);
        const std::int64_t row = head_side_row(layout, exchange.rank, peer) +
                                 row_within_block(layout, own_heads, slots.count, local_tokens(layout, peer, stream),
                                                  batch, token, 0);
        return {own_heads * exchange.num_planes, exchange.joint_position(stream, global), batch,
                received + row * exchange.row_nbytes, exchange.table_row(stream, global), stream};
    }

    EDGEDIT_HD Head head(const Line& line, int number) const {
        // Planes first: neighbours in the received row are read together.
        const int plane = number % exchange.num_planes, head = number / exchange.num_planes;
        const int on_wire = exchange.first_plane + plane;
        return {result.at(line.position, head, plane * exchange.layout.batch + line.batch),
                line.from + head * exchange.row_nbytes + exchange.plane_offset[on_wire],
                result.type,
                exchange.wire[on_wire],
                exchange.norm[line.stream][on_wire],
                exchange.rotated[on_wire] ? line.table : nullptr};
    }
};

/// Head -> sequence, to each stream's [B, s, H, D]. A block of threads takes the heads of one peer of one token.
struct BlocksToStreams {
    Exchange exchange;
    const std::byte* received;
    std::byte* result;
    DType type;

    struct Line {
        int heads;
        const std::byte* from;
        std::byte* to;
    };

    EDGEDIT_HD Line line(std::int64_t token, std::int64_t batch, int peer, int stream) const {
        const Layout& layout = exchange.layout;
        const std::int64_t tokens = token_share(layout, stream, exchange.rank).count;
        if (token >= tokens) return {};
        const Share heads = head_share(layout, peer);
        const std::int64_t before = local_tokens(layout, exchange.rank, stream);
        const std::int64_t row = sequence_side_row(layout, exchange.rank, peer) +
                                 row_within_block(layout, heads.count, tokens, before, batch, token, 0);
        const std::int64_t target = (layout.batch * before + tokens * batch + token) * layout.heads + heads.begin;
        return {static_cast<int>(heads.count), received + row * exchange.row_nbytes,
                result + target * layout.head_dim * ops::itemsize(type)};
    }

    EDGEDIT_HD Head head(const Line& line, int number) const {
        return {line.to + number * exchange.layout.head_dim * ops::itemsize(type),
                line.from + number * exchange.row_nbytes, type, exchange.wire[0], nullptr, nullptr};
    }
};

/// Calls `visit(map, work)` with the map that the spec asks for.
template <typename Visit> void with_receive_map(const ops::Tensor& result, const ExchangeSpec& spec, const Visit& visit) {
    const Layout& layout = spec.layout;
    const auto* received = static_cast<const std::byte*>(result.src[0]->data);
    const bool forward = spec.direction == ops::Direction::seq_to_head;
    Alignment alignment(spec);
    alignment.require(DType::f32, received);
    alignment.require(ops::dtype(result), result.data);
    std::int64_t tokens = 0;
    for (int stream = 0; stream < layout.streams; ++stream) {
        tokens = std::max(tokens, token_share(layout, stream, forward ? 0 : spec.rank).count); // rank 0 has the most
    }
    if (forward) {
        BlocksToPlanes map{exchange_of(spec), received, strided(result)};
        alignment.require(map.result);
        for (int stream = 0; rotates(spec) && stream < layout.streams; ++stream) {
            map.exchange.table[stream] = strided(*result.src[1 + stream]);
            alignment.require(map.exchange.table[stream]);
        }
        const std::int64_t heads = head_share(layout, spec.rank).count * spec.num_planes;
        visit(map, Work{tokens, heads, layout.streams, alignment.elements()});
    } else {
        const BlocksToStreams map{exchange_of(spec), received, static_cast<std::byte*>(result.data), ops::dtype(result)};
        visit(map, Work{tokens, head_share(layout, 0).count, layout.streams, alignment.elements()});
    }
}

} // namespace edgedit::cuda
