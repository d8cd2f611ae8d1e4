// The index maps against an all-to-all that knows nothing of them: every rank appends to one list per peer, in
// the order that layout.hpp states for a block, and reads its receive buffer back in the same order.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "layout.hpp"

using namespace edgedit::layout;

namespace {

using Values = std::vector<std::int64_t>;

constexpr std::int64_t kPad = -1;   // value of a padding token
constexpr std::int64_t kUnset = -2; // no map wrote here

/// Shares by dealing things out one at a time, as numpy.array_split ends up doing.
std::vector<Share> dealt(std::int64_t total, int ranks, Split split) {
    std::vector<Share> shares(static_cast<std::size_t>(ranks), Share{0, 0});
    const std::int64_t slots = split == Split::padded ? (total + ranks - 1) / ranks * ranks : total;
    for (std::int64_t thing = 0; thing < slots; ++thing) shares[static_cast<std::size_t>(thing % ranks)].count += 1;
    for (std::size_t rank = 1; rank < shares.size(); ++rank) {
        shares[rank].begin = shares[rank - 1].begin + shares[rank - 1].count;
    }
    return shares;
}

/// A value that tells all coordinates of a global element apart.
std::int64_t value_of(int stream, const Element& at) {
    std::int64_t value = stream;
    for (const std::int64_t coordinate : {at.plane, at.batch, at.token, at.head, at.channel}) value = value * 100 + coordinate;
    return value;
}

std::int64_t value_or_pad(const Layout& layout, int stream, const Element& at) {
    return at.token < layout.tokens[stream] ? value_of(stream, at) : kPad;
}

/// The block of tokens `own` (one share per stream) and heads `heads`, element by element in its stated order.
template <typename Visit>
void for_each_in_block(const Layout& layout, const std::vector<Share>& own, const Share& heads, const Visit& visit) {
    for (int stream = 0; stream < layout.streams; ++stream) {
        const Share tokens = own[static_cast<std::size_t>(stream)];
        for (std::int64_t batch = 0; batch < layout.batch; ++batch)
            for (std::int64_t token = 0; token < tokens.count; ++token)
                for (std::int64_t head = 0; head < heads.count; ++head)
                    for (std::int64_t plane = 0; plane < layout.planes; ++plane)
                        for (std::int64_t channel = 0; channel < layout.head_dim; ++channel)
                            visit(stream, Element{plane, batch, tokens.begin + token, heads.begin + head, channel});
    }
}

struct Shares {
    std::vector<Share> heads;
    std::vector<std::vector<Share>> tokens; // [rank][stream]
};

Shares shares_of(const Layout& layout) {
    Shares shares{dealt(layout.heads, layout.ranks, Split::uneven), {}};
    shares.tokens.resize(static_cast<std::size_t>(layout.ranks));
    for (int stream = 0; stream < layout.streams; ++stream) {
        const auto dealt_tokens = dealt(layout.tokens[stream], layout.ranks, layout.split);
        for (int rank = 0; rank < layout.ranks; ++rank) {
            shares.tokens[static_cast<std::size_t>(rank)].push_back(dealt_tokens[static_cast<std::size_t>(rank)]);
        }
    }
    return shares;
}

/// The block that holds the tokens of one rank and the heads of another.
Values block(const Layout& layout, const Shares& shares, int token_rank, int head_rank) {
    Values values;
    for_each_in_block(layout, shares.tokens[static_cast<std::size_t>(token_rank)],
                      shares.heads[static_cast<std::size_t>(head_rank)],
                      [&](int stream, const Element& at) { values.push_back(value_or_pad(layout, stream, at)); });
    return values;
}

void append(Values& to, const Values& from) { to.insert(to.end(), from.begin(), from.end()); }

void check_counts(const Layout& layout, const Shares& shares, int rank) {
    std::int64_t sequence_side = 0, head_side = 0;
    for (int peer = 0; peer < layout.ranks; ++peer) {
        const auto sent = static_cast<std::int64_t>(block(layout, shares, rank, peer).size());
        const auto received = static_cast<std::int64_t>(block(layout, shares, peer, rank).size());
        CHECK(sequence_side_count(layout, rank, peer) == sent, "P=%d rank=%d peer=%d", layout.ranks, rank, peer);
        CHECK(head_side_count(layout, rank, peer) == received, "P=%d rank=%d peer=%d", layout.ranks, rank, peer);
        CHECK(sequence_side_offset(layout, rank, peer) == sequence_side, "P=%d rank=%d peer=%d", layout.ranks, rank, peer);
        CHECK(head_side_offset(layout, rank, peer) == head_side, "P=%d rank=%d peer=%d", layout.ranks, rank, peer);
        sequence_side += sent;
        head_side += received;
    }
    CHECK(sequence_side_offset(layout, rank, layout.ranks) == sequence_side, "P=%d rank=%d", layout.ranks, rank);
    CHECK(head_side_offset(layout, rank, layout.ranks) == head_side, "P=%d rank=%d", layout.ranks, rank);
}

/// Writes every element of the rank's own tokens, pads included, through the map.
Values written_through_sequence_side(const Layout& layout, int rank) {
    Values buffer(static_cast<std::size_t>(sequence_side_offset(layout, rank, layout.ranks)), kUnset);
    for (int stream = 0; stream < layout.streams; ++stream) {
        const Share tokens = token_share(layout, stream, rank);
        for (std::int64_t plane = 0; plane < layout.planes; ++plane)
            for (std::int64_t batch = 0; batch < layout.batch; ++batch)
                for (std::int64_t token = 0; token < tokens.count; ++token)
                    for (std::int64_t head = 0; head < layout.heads; ++head)
                        for (std::int64_t channel = 0; channel < layout.head_dim; ++channel) {
                            const Element global{plane, batch, tokens.begin + token, head, channel};
                            const std::int64_t index =
                                sequence_side_index(layout, rank, stream, Element{plane, batch, token, head, channel});
                            std::int64_t& slot = buffer.at(static_cast<std::size_t>(index));
                            CHECK(slot == kUnset, "element %lld written twice", static_cast<long long>(index));
                            slot = value_or_pad(layout, stream, global);
                        }
    }
    return buffer;
}

/// Writes every real token of the joint sequence, own heads only, through the map; padding slots stay kPad.
Values written_through_head_side(const Layout& layout, int rank) {
    Values buffer(static_cast<std::size_t>(head_side_offset(layout, rank, layout.ranks)), kPad);
    const Share heads = head_share(layout, rank);
    std::int64_t joint = 0;
    for (int stream = 0; stream < layout.streams; ++stream) joint += layout.tokens[stream];
    for (std::int64_t plane = 0; plane < layout.planes; ++plane)
        for (std::int64_t batch = 0; batch < layout.batch; ++batch)
            for (std::int64_t position = 0; position < joint; ++position)
                for (std::int64_t head = 0; head < heads.count; ++head)
                    for (std::int64_t channel = 0; channel < layout.head_dim; ++channel) {
                        const StreamToken place = joint_token(layout, position);
                        const std::int64_t index = head_side_index(
                            layout, rank, place.stream, Element{plane, batch, place.token, head, channel});
                        std::int64_t& slot = buffer.at(static_cast<std::size_t>(index));
                        CHECK(slot == kPad, "element %lld written twice", static_cast<long long>(index));
                        slot = value_of(place.stream, Element{plane, batch, place.token, heads.begin + head, channel});
                    }
    return buffer;
}

void check_layout(const Layout& layout) {
    CHECK(valid(layout), "P=%d", layout.ranks);
    const Shares shares = shares_of(layout);
    for (int rank = 0; rank < layout.ranks; ++rank) {
        check_counts(layout, shares, rank);
        // What rank sends as its sequence side, and receives as it when the direction is head -> sequence.
        Values sequence_side, head_side;
        for (int peer = 0; peer < layout.ranks; ++peer) {
            append(sequence_side, block(layout, shares, rank, peer));
            append(head_side, block(layout, shares, peer, rank));
        }
        CHECK(written_through_sequence_side(layout, rank) == sequence_side, "P=%d rank=%d", layout.ranks, rank);
        CHECK(written_through_head_side(layout, rank) == head_side, "P=%d rank=%d", layout.ranks, rank);
    }
}

void check_shares() {
    for (const Split split : {Split::uneven, Split::padded}) {
        for (int ranks = 1; ranks <= 8; ++ranks) {
            for (std::int64_t total = 0; total <= 33; ++total) {
                const auto expected = dealt(total, ranks, split);
                for (int rank = 0; rank < ranks; ++rank) {
                    const Share actual = share(total, ranks, rank, split);
                    const Share& want = expected[static_cast<std::size_t>(rank)];
                    CHECK(actual.begin == want.begin && actual.count == want.count, "n=%lld P=%d rank=%d",
                          static_cast<long long>(total), ranks, rank);
                    const std::int64_t end = std::min(want.begin + want.count, total);
                    for (std::int64_t index = want.begin; index < end; ++index) {
                        CHECK(owner(total, ranks, index, split) == rank, "n=%lld P=%d index=%lld",
                              static_cast<long long>(total), ranks, static_cast<long long>(index));
                    }
                }
            }
        }
    }
}

void check_invalid() {
    const Layout good{2, 4, 3, 8, 1, 1, {5}, Split::uneven};
    CHECK(valid(good), "a legal layout is refused");
    Layout bad = good;
    bad.ranks = 0;
    CHECK(!valid(bad), "0 ranks are accepted");
    bad = good;
    bad.streams = kMaxStreams + 1;
    CHECK(!valid(bad), "too many streams are accepted");
    bad = good;
    bad.tokens[0] = -1;
    CHECK(!valid(bad), "a negative token count is accepted");
}

} // namespace

int main() {
    check_shares();
    check_invalid();
    const std::vector<Values> token_counts = {{1}, {7}, {16}, {5, 11}, {1, 3}, {0, 9}, {2, 3, 4}};
    int layouts = 0;
    for (int ranks = 1; ranks <= 8; ++ranks)
        for (const Split split : {Split::uneven, Split::padded})
            for (const std::int64_t heads : {1, 7, 8})
                for (const std::int64_t planes : {1, 3})
                    for (const std::int64_t batch : {1, 2})
                        for (const Values& tokens : token_counts) {
                            Layout layout{ranks, 3, planes, heads, batch, static_cast<int>(tokens.size()), {}, split};
                            std::copy(tokens.begin(), tokens.end(), layout.tokens);
                            check_layout(layout);
                            ++layouts;
                        }
    std::printf("%d layouts agree with the plain all-to-all\n", layouts);
    return 0;
}
