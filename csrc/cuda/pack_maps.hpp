// The maps of pack: from a rank's tensors to the blocks that its peers receive (or, on one rank, to what they would make
// of them).
#pragma once

#include "cuda/exchange.hpp"

namespace edgedit::cuda {

using namespace layout;

/// Sequence -> head. A block of threads takes one local token to one peer: all planes of that peer's heads.
struct StreamsToBlocks {
    Exchange exchange;
    Strided planes[kMaxStreams][ops::kMaxPlanes];
    std::byte* blocks[kMaxRanks];

    struct Line {
        int heads;
        std::int64_t first_head, token, batch;
        std::byte* to;
        const float* table;
        int stream; ///< counted among those of this node
    };

    EDGEDIT_HD Line line(std::int64_t token, std::int64_t batch, int peer, int stream) const {
        const Layout& layout = exchange.layout;
        const int global = exchange.first_stream + stream;
        const std::int64_t tokens = token_share(layout, global, exchange.rank).count;
        if (token >= tokens) return {};
        const Share heads = head_share(layout, peer);
        const std::int64_t before = local_tokens(layout, exchange.rank, global);
        const std::int64_t row = row_within_block(layout, heads.count, tokens, before, batch, token, 0);
        return {static_cast<int>(heads.count * layout.planes), heads.begin, token, batch,
                blocks[peer] + row * exchange.row_nbytes, exchange.table_row(global, token), stream};
    }

    EDGEDIT_HD Head head(const Line& line, int number) const {
        const int planes_per_row = static_cast<int>(exchange.layout.planes);
        const int plane = number % planes_per_row, row = number / planes_per_row;
        const Strided& from = planes[line.stream][plane];
        return {line.to + row * exchange.row_nbytes + exchange.plane_offset[plane],
                from.at(line.first_head + row, line.token, line.batch),
                exchange.wire[plane],
                from.type,
                exchange.norm[exchange.first_stream + line.stream][plane],
                exchange.rotated[plane] ? line.table : nullptr};
    }
};

/// One rank, no exchange: straight to head-major planes [planes, B, H, S, D].
struct StreamsToPlanes {
    Exchange exchange;
    Strided planes[kMaxStreams][ops::kMaxPlanes];
    Strided result;

    struct Line {
        int heads;
        std::int64_t token, position, batch;
        const float* table;
        int stream;
    };

    EDGEDIT_HD Line line(std::int64_t token, std::int64_t batch, int, int stream) const {
        const Layout& layout = exchange.layout;
        const int global = exchange.first_stream + stream;
        if (token >= layout.tokens[global]) return {};
        return {static_cast<int>(layout.heads * layout.planes), token, exchange.joint_position(global, token), batch,
                exchange.table_row(global, token), stream};
    }

    EDGEDIT_HD Head head(const Line& line, int number) const {
        const int heads = static_cast<int>(exchange.layout.heads);
        const int plane = number / heads, head = number % heads;
        const Strided& from = planes[line.stream][plane];
        return {result.at(line.position, head, plane * exchange.layout.batch + line.batch),
                from.at(head, line.token, line.batch),
                result.type,
                from.type,
                exchange.norm[exchange.first_stream + line.stream][plane],
                exchange.rotated[plane] ? line.table : nullptr};
    }
};

/// Head -> sequence. A block of threads takes one token of the joint tensor to its owner.
struct JointToBlocks {
    Exchange exchange;
    Strided joint;
    std::byte* blocks[kMaxRanks];

    struct Line {
        int heads;
        std::int64_t position, batch; ///< position -1: padding
        std::byte* to;
    };

    EDGEDIT_HD Line line(std::int64_t token, std::int64_t batch, int peer, int stream) const {
        const Layout& layout = exchange.layout;
        const Share tokens = token_share(layout, stream, peer);
        if (token >= tokens.count) return {};
        const std::int64_t heads = head_share(layout, exchange.rank).count, global = tokens.begin + token;
        const std::int64_t before = local_tokens(layout, peer, stream);
        const std::int64_t row = row_within_block(layout, heads, tokens.count, before, batch, token, 0);
        return {static_cast<int>(heads), global < layout.tokens[stream] ? exchange.joint_position(stream, global) : -1,
                batch, blocks[peer] + row * exchange.row_nbytes};
    }

    EDGEDIT_HD Head head(const Line& line, int number) const {
        const std::byte* from = line.position < 0 ? nullptr : joint.at(number, line.position, line.batch);
        return {line.to + number * exchange.row_nbytes, from, exchange.wire[0], joint.type, nullptr, nullptr};
    }
};

template <typename Map> void place_blocks(Map& map, const ExchangeSpec& spec, const ops::Tensor& result, Alignment& alignment) {
    for (int peer = 0; peer < spec.layout.ranks; ++peer) {
        const bool forward = spec.direction == ops::Direction::seq_to_head;
        const std::int64_t row = forward ? sequence_side_row(spec.layout, spec.rank, peer)
                                         : head_side_row(spec.layout, spec.rank, peer);
        map.blocks[peer] = spec.targets != nullptr ? static_cast<std::byte*>(spec.targets[peer])
                                                   : static_cast<std::byte*>(result.data) + row * map.exchange.row_nbytes;
        alignment.require(DType::f32, map.blocks[peer]);
    }
}

/// The sources of a node that packs streams: planes stream by stream, then rope tables.
template <typename Map> void read_streams(Map& map, const ExchangeSpec& spec, const ops::Tensor& result, Alignment& alignment) {
    // A node that works in place has the buffer as its first source.
    const ops::Tensor* const* sources = result.src + (spec.first_stream > 0 ? 1 : 0);
    for (int stream = 0; stream < spec.num_streams; ++stream) {
        for (int plane = 0; plane < spec.layout.planes; ++plane) {
            map.planes[stream][plane] = strided(**sources++);
            alignment.require(map.planes[stream][plane]);
        }
    }
    for (int stream = 0; rotates(spec) && stream < spec.num_streams; ++stream) {
        Strided& table = map.exchange.table[spec.first_stream + stream];
        table = strided(**sources++);
        alignment.require(table);
    }
}

/// Calls `visit(map, work)` with the map that the spec asks for.
template <typename Visit> void with_pack_map(const ops::Tensor& result, const ExchangeSpec& spec, const Visit& visit) {
    const Layout& layout = spec.layout;
    Alignment alignment(spec);
    std::int64_t tokens = 0;
    if (spec.direction == ops::Direction::head_to_seq) {
        JointToBlocks map{exchange_of(spec), strided(*result.src[0]), {}};
        alignment.require(map.joint);
        place_blocks(map, spec, result, alignment);
        for (int stream = 0; stream < layout.streams; ++stream) {
            tokens = std::max(tokens, token_share(layout, stream, 0).count); // rank 0 has the most
        }
        visit(map, Work{tokens, head_share(layout, spec.rank).count, layout.streams, alignment.elements()});
        return;
    }
    for (int stream = spec.first_stream; stream < spec.first_stream + spec.num_streams; ++stream) {
        tokens = std::max(tokens, token_share(layout, stream, spec.rank).count);
    }
    const std::int64_t heads = head_share(layout, 0).count * layout.planes;
    if (spec.target == ops::Target::planes) {
        StreamsToPlanes map{exchange_of(spec), {}, strided(result)};
        read_streams(map, spec, result, alignment);
        alignment.require(map.result);
        visit(map, Work{tokens, heads, spec.num_streams, alignment.elements()});
    } else {
        StreamsToBlocks map{exchange_of(spec), {}, {}};
        read_streams(map, spec, result, alignment);
        place_blocks(map, spec, result, alignment);
        visit(map, Work{tokens, heads, spec.num_streams, alignment.elements()});
    }
}

} // namespace edgedit::cuda
