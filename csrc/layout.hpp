// Index maps of sequence parallelism: where each element of a stream stands in the send and receive
// buffers of an all-to-all that trades sharded tokens for sharded heads.
//
// Plain functions over a plain struct: no ggml, no pybind11, no allocation, so that CPU operators, CUDA
// kernels and tests share the one text. Nothing here moves data, and nothing here checks its arguments:
// `valid` does, once, before a layout is used.
//
// Two arrangements of one rank's buffer occur, each the mirror of the other:
//
//   sequence side   this rank holds its own tokens of all heads. The block of peer p is
//                   [streams][batch][own tokens][heads of p][planes][head_dim]
//   head side       this rank holds its own heads of all tokens. The block of peer p is
//                   [streams][batch][tokens of p][own heads][planes][head_dim]
//
// (slowest axis first; blocks follow one another in the order of the peers). Sequence -> head sends the
// sequence side and receives the head side; head -> sequence sends the head side and receives the
// sequence side. Block p of rank r's send buffer arrives as block r of rank p's receive buffer.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define EDGEDIT_HD __host__ __device__
#else
#define EDGEDIT_HD
#endif

namespace edgedit::layout {

constexpr int kMaxStreams = 4;

/// How a count that the ranks do not divide is shared.
enum class Split : std::int32_t {
    uneven, ///< the first `total % ranks` ranks own one more; nothing is padded
    padded, ///< every rank holds ceil(total / ranks) slots; the last slots may hold padding
};

/// Consecutive things [begin, begin + count).
struct Share {
    std::int64_t begin;
    std::int64_t count;
};

/// Share of `rank` in `total` things over `ranks` ranks. Under `Split::padded` the share counts slots:
/// it may reach beyond `total`. The share of `rank == ranks` begins where all shares end.
EDGEDIT_HD constexpr Share share(std::int64_t total, int ranks, int rank, Split split = Split::uneven) {
    if (split == Split::padded) {
        const std::int64_t slots = (total + ranks - 1) / ranks;
        return {slots * rank, slots};
    }
    const std::int64_t base = total / ranks;
    const std::int64_t extra = total % ranks;
    return {base * rank + (rank < extra ? rank : extra), base + (rank < extra ? 1 : 0)};
}

/// Rank whose share contains `index`; 0 <= index < total.
EDGEDIT_HD constexpr int owner(std::int64_t total, int ranks, std::int64_t index, Split split = Split::uneven) {
    if (split == Split::padded) {
        return static_cast<int>(index / ((total + ranks - 1) / ranks));
    }
    const std::int64_t base = total / ranks;
    const std::int64_t extra = total % ranks;
    const std::int64_t longer = extra * (base + 1); // things owned by the ranks that own one more
    return static_cast<int>(index < longer ? index / (base + 1) : extra + (index - longer) / base);
}

/// One collective: what every rank must agree on. Trivially copyable, so a kernel takes it by value.
struct Layout {
    std::int32_t ranks;                ///< P
    std::int64_t head_dim;             ///< D
    std::int64_t planes;               ///< K: 3 when q, k and v travel together
    std::int64_t heads;                ///< H over all ranks, always shared by the uneven rule
    std::int64_t batch;                ///< B
    std::int32_t streams;              ///< text and image of joint attention are two streams
    std::int64_t tokens[kMaxStreams];  ///< S of each stream over all ranks
    Split split;                       ///< how tokens are shared
};

/// Element of a stream: `plane` of K, `batch` of B, `token`, `head`, `channel` of D. Whether token and head
/// are local or global depends on the side and stands at each function.
struct Element {
    std::int64_t plane;
    std::int64_t batch;
    std::int64_t token;
    std::int64_t head;
    std::int64_t channel;
};

/// True when every count is legal. Zero tokens and more ranks than heads are legal: such a rank takes part
/// with empty blocks.
EDGEDIT_HD constexpr bool valid(const Layout& layout) {
    if (layout.ranks < 1 || layout.streams < 1 || layout.streams > kMaxStreams) return false;
    if (layout.head_dim < 1 || layout.planes < 1 || layout.heads < 1 || layout.batch < 1) return false;
    for (int stream = 0; stream < layout.streams; ++stream) {
        if (layout.tokens[stream] < 0) return false;
    }
    return true;
}

EDGEDIT_HD constexpr Share head_share(const Layout& layout, int rank) {
    return share(layout.heads, layout.ranks, rank);
}

EDGEDIT_HD constexpr Share token_share(const Layout& layout, int stream, int rank) {
    return share(layout.tokens[stream], layout.ranks, rank, layout.split);
}

/// Token slots of `rank` over the first `streams` streams.
EDGEDIT_HD constexpr std::int64_t local_tokens(const Layout& layout, int rank, int streams) {
    std::int64_t sum = 0;
    for (int stream = 0; stream < streams; ++stream) sum += token_share(layout, stream, rank).count;
    return sum;
}

// A *row* is one head of one token: planes * head_dim elements, the planes one after another. Blocks are whole
// rows, so operators whose planes have types of different sizes count rows, and bytes in a row.

/// First row of the block of `peer` in the sequence side of `rank`; `peer == ranks` gives all rows.
EDGEDIT_HD constexpr std::int64_t sequence_side_row(const Layout& layout, int rank, int peer) {
    return layout.batch * head_share(layout, peer).begin * local_tokens(layout, rank, layout.streams);
}

/// First row of the block of `peer` in the head side of `rank`; `peer == ranks` gives all rows.
EDGEDIT_HD constexpr std::int64_t head_side_row(const Layout& layout, int rank, int peer) {
    std::int64_t tokens_before = 0;
    for (int stream = 0; stream < layout.streams; ++stream) {
        tokens_before += token_share(layout, stream, peer).begin;
    }
    return layout.batch * head_share(layout, rank).count * tokens_before;
}

/// Row inside a block of `heads` heads, of which this stream has `tokens` tokens after `tokens_before` tokens of
/// earlier streams; token and head count from the start of the block.
EDGEDIT_HD constexpr std::int64_t row_within_block(const Layout& layout, std::int64_t heads, std::int64_t tokens,
                                                   std::int64_t tokens_before, std::int64_t batch,
                                                   std::int64_t token, std::int64_t head) {
    return (layout.batch * tokens_before + tokens * batch + token) * heads + head;
}

EDGEDIT_HD constexpr std::int64_t elements_per_row(const Layout& layout) { return layout.planes * layout.head_dim; }

/// Elements that `rank` exchanges with `peer`, own tokens with the peer's heads.
EDGEDIT_HD constexpr std::int64_t sequence_side_count(const Layout& layout, int rank, int peer) {
    return elements_per_row(layout) * layout.batch * head_share(layout, peer).count *
           local_tokens(layout, rank, layout.streams);
}

/// First element of the block of `peer` in the sequence side of `rank`; `peer == ranks` gives the total.
EDGEDIT_HD constexpr std::int64_t sequence_side_offset(const Layout& layout, int rank, int peer) {
    return elements_per_row(layout) * sequence_side_row(layout, rank, peer);
}

/// Elements that `rank` exchanges with `peer`, own heads with the peer's tokens.
EDGEDIT_HD constexpr std::int64_t head_side_count(const Layout& layout, int rank, int peer) {
    return sequence_side_count(layout, peer, rank);
}

/// First element of the block of `peer` in the head side of `rank`; `peer == ranks` gives the total.
EDGEDIT_HD constexpr std::int64_t head_side_offset(const Layout& layout, int rank, int peer) {
    return elements_per_row(layout) * head_side_row(layout, rank, peer);
}

/// Position of an element inside a block, see `row_within_block`.
EDGEDIT_HD constexpr std::int64_t within_block(const Layout& layout, std::int64_t heads, std::int64_t tokens,
                                               std::int64_t tokens_before, const Element& at) {
    const std::int64_t row = row_within_block(layout, heads, tokens, tokens_before, at.batch, at.token, at.head);
    return (row * layout.planes + at.plane) * layout.head_dim + at.channel;
}

/// Where the sequence side of `rank` keeps an element: local token, global head.
EDGEDIT_HD constexpr std::int64_t sequence_side_index(const Layout& layout, int rank, int stream, Element at) {
    const int peer = owner(layout.heads, layout.ranks, at.head);
    const Share heads = head_share(layout, peer);
    at.head -= heads.begin;
    return sequence_side_offset(layout, rank, peer) +
           within_block(layout, heads.count, token_share(layout, stream, rank).count,
                        local_tokens(layout, rank, stream), at);
}

/// Where the head side of `rank` keeps an element: global token, local head.
EDGEDIT_HD constexpr std::int64_t head_side_index(const Layout& layout, int rank, int stream, Element at) {
    const int peer = owner(layout.tokens[stream], layout.ranks, at.token, layout.split);
    const Share tokens = token_share(layout, stream, peer);
    at.token -= tokens.begin;
    return head_side_offset(layout, rank, peer) +
           within_block(layout, head_share(layout, rank).count, tokens.count,
                        local_tokens(layout, peer, stream), at);
}

/// Stream and token of a position in the joint sequence, the streams one after another.
struct StreamToken {
    int stream;
    std::int64_t token;
};

EDGEDIT_HD constexpr StreamToken joint_token(const Layout& layout, std::int64_t position) {
    int stream = 0;
    while (stream + 1 < layout.streams && position >= layout.tokens[stream]) {
        position -= layout.tokens[stream];
        ++stream;
    }
    return {stream, position};
}

} // namespace edgedit::layout
