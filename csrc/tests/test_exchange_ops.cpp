// pack and receive of every rank against a plain all-to-all: lists per peer in the order that layout.hpp states,
// and joint tensors made directly from the whole streams.
#include <algorithm>
#include <cstdio>
#include <functional>

#include "check.hpp"
#include "fake_tensor.hpp"
#include "ops/callbacks.hpp"

using namespace edgedit;
using namespace edgedit::ops;
using namespace edgedit::layout;

namespace {

/// Small whole numbers, exact in every type.
float value_of(int stream, std::int64_t plane, std::int64_t batch, std::int64_t token, std::int64_t head,
               std::int64_t channel) {
    const std::int64_t mixed = ((((stream * 3 + plane) * 5 + batch) * 31 + token) * 13 + head) * 7 + channel;
    return static_cast<float>(mixed % 251 - 125);
}

constexpr float kPadding = 127.0f;

struct Case {
    Layout layout;
    DType input;
    std::vector<DType> wire;
    DType output;
    int threads;
    bool direct; ///< pack writes into the peers' receive buffers
};

ExchangeSpec spec_of(const Case& of, Direction direction, int rank) {
    ExchangeSpec spec{};
    spec.version = kSpecVersion;
    spec.nbytes = sizeof spec;
    spec.direction = direction;
    spec.rank = rank;
    spec.num_streams = of.layout.streams;
    spec.num_planes = static_cast<std::int32_t>(of.layout.planes);
    spec.layout = of.layout;
    std::copy(of.wire.begin(), of.wire.end(), spec.wire);
    return spec;
}

using Operator = void (*)(ggml_tensor*, int, int, void*);

void run(Operator operation, ggml_tensor* node, const Case& of, ExchangeSpec& spec) {
    for (int thread = of.threads - 1; thread >= 0; --thread) operation(node, thread, of.threads, &spec);
}

using Bytes = std::vector<std::byte>;

/// Blocks move as the all-to-all moves them: block p of rank r arrives as block r of rank p.
std::vector<Bytes> exchanged(const std::vector<Bytes>& sent,
                             const std::function<std::int64_t(int, int)>& block_nbytes) {
    std::vector<Bytes> received(sent.size());
    for (std::size_t from = 0; from < sent.size(); ++from) {
        std::int64_t offset = 0;
        for (std::size_t to = 0; to < sent.size(); ++to) {
            const std::int64_t nbytes = block_nbytes(static_cast<int>(from), static_cast<int>(to));
            received[to].insert(received[to].end(), sent[from].begin() + offset, sent[from].begin() + offset + nbytes);
            offset += nbytes;
        }
        CHECK(offset == static_cast<std::int64_t>(sent[from].size()), "blocks of rank %zu do not add up", from);
    }
    return received;
}

/// What every rank receives when each packs with `pack_into(rank, spec, buffer)`.
template <typename Pack> std::vector<Bytes> exchange(const Case& of, Direction direction, const Pack& pack_into) {
    const int ranks = of.layout.ranks;
    const auto nbytes = [&](int from, int to) {
        const bool forward = direction == Direction::seq_to_head;
        const ExchangeSpec spec = spec_of(of, direction, from);
        const std::int64_t count =
            forward ? sequence_side_count(of.layout, from, to) : head_side_count(of.layout, from, to);
        return count / elements_per_row(of.layout) * row_nbytes(spec);
    };
    std::vector<Bytes> buffers(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
        std::int64_t total = 0;
        for (int peer = 0; peer < ranks; ++peer) total += of.direct ? nbytes(peer, rank) : nbytes(rank, peer);
        buffers[static_cast<std::size_t>(rank)].resize(static_cast<std::size_t>(total));
    }
    for (int rank = 0; rank < ranks; ++rank) {
        ExchangeSpec spec = spec_of(of, direction, rank);
        std::vector<void*> targets;
        for (int peer = 0; of.direct && peer < ranks; ++peer) {
            std::int64_t offset = 0;
            for (int before = 0; before < rank; ++before) offset += nbytes(before, peer);
            targets.push_back(buffers[static_cast<std::size_t>(peer)].data() + offset);
        }
        Bytes& own = buffers[static_cast<std::size_t>(rank)];
        spec.targets = of.direct ? targets.data() : nullptr;
        pack_into(rank, spec, of.direct ? nullptr : own.data(), own.size());
    }
    return of.direct ? buffers : exchanged(buffers, nbytes);
}

/// A result tensor over memory that is not its own.
struct Buffer : FakeTensor {
    Buffer(void* data, std::size_t nbytes) : FakeTensor(DType::f16, {1}) {
        tensor.data = data;
        tensor.ne[0] = static_cast<std::int64_t>(nbytes);
        for (int axis = 1; axis < 4; ++axis) tensor.nb[axis] = nbytes;
    }
};

void check_seq_to_head(const Case& of) {
    const Layout& layout = of.layout;
    const auto received =
        exchange(of, Direction::seq_to_head, [&](int rank, ExchangeSpec& spec, void* data, std::size_t nbytes) {
            std::vector<FakeTensor> sources;
            for (int stream = 0; stream < layout.streams; ++stream) {
                const Share tokens = token_share(layout, stream, rank);
                for (std::int64_t plane = 0; plane < layout.planes; ++plane) {
                    sources.emplace_back(
                        of.input, std::vector<std::int64_t>{layout.batch, tokens.count, layout.heads, layout.head_dim},
                        plane * 3);
                    for (std::int64_t b = 0; b < layout.batch; ++b)
                        for (std::int64_t t = 0; t < tokens.count; ++t)
                            for (std::int64_t h = 0; h < layout.heads; ++h)
                                for (std::int64_t d = 0; d < layout.head_dim; ++d) {
                                    const bool real = tokens.begin + t < layout.tokens[stream];
                                    sources.back().set(b, t, h, d,
                                                       real ? value_of(stream, plane, b, tokens.begin + t, h, d)
                                                            : kPadding);
                                }
                }
            }
            Buffer buffer(data, nbytes);
            // one node per stream: the first allocates, the others fill the same buffer in place
            const auto planes = static_cast<std::size_t>(layout.planes);
            for (int stream = 0; stream < layout.streams; ++stream) {
                spec.first_stream = stream;
                spec.num_streams = 1;
                std::size_t at = 0;
                if (stream > 0) buffer.tensor.src[at++] = &buffer.tensor;
                for (std::size_t plane = 0; plane < planes; ++plane)
                    buffer.tensor.src[at++] = &sources[static_cast<std::size_t>(stream) * planes + plane].tensor;
                run(edgedit_pack, buffer.node({}), of, spec);
            }
        });
    std::int64_t joint = 0;
    for (int stream = 0; stream < layout.streams; ++stream) joint += layout.tokens[stream];
    for (int rank = 0; rank < layout.ranks; ++rank) {
        const Share heads = head_share(layout, rank);
        ExchangeSpec spec = spec_of(of, Direction::seq_to_head, rank);
        Bytes bytes = received[static_cast<std::size_t>(rank)];
        Buffer buffer(bytes.data(), bytes.size());
        // the first planes in one node, the last in a node of its own
        for (const auto& [first, count] :
             {std::pair<std::int64_t, std::int64_t>{0, layout.planes - 1}, {layout.planes - 1, 1}}) {
            if (count == 0 || heads.count == 0) continue;
            spec.first_plane = static_cast<std::int32_t>(first);
            spec.num_planes = static_cast<std::int32_t>(count);
            FakeTensor out(of.output, {count * layout.batch, heads.count, joint, layout.head_dim});
            run(edgedit_receive, out.node({&buffer}), of, spec);
            for (std::int64_t plane = 0; plane < count; ++plane)
                for (std::int64_t b = 0; b < layout.batch; ++b)
                    for (std::int64_t h = 0; h < heads.count; ++h)
                        for (std::int64_t g = 0; g < joint; ++g)
                            for (std::int64_t d = 0; d < layout.head_dim; ++d) {
                                const StreamToken at = joint_token(layout, g);
                                const float expected =
                                    value_of(at.stream, first + plane, b, at.token, heads.begin + h, d);
                                CHECK(out.get(plane * layout.batch + b, h, g, d) == expected,
                                      "P=%d rank=%d plane=%d token=%d", layout.ranks, rank, static_cast<int>(plane),
                                      static_cast<int>(g));
                            }
        }
    }
}

void check_head_to_seq(const Case& of) {
    const Layout& layout = of.layout;
    std::int64_t joint = 0;
    for (int stream = 0; stream < layout.streams; ++stream) joint += layout.tokens[stream];
    const auto received =
        exchange(of, Direction::head_to_seq, [&](int rank, ExchangeSpec& spec, void* data, std::size_t nbytes) {
            const Share heads = head_share(layout, rank);
            FakeTensor source(of.input, {layout.batch, joint, heads.count, layout.head_dim}, rank % 2 * 5);
            for (std::int64_t b = 0; b < layout.batch; ++b)
                for (std::int64_t g = 0; g < joint; ++g)
                    for (std::int64_t h = 0; h < heads.count; ++h)
                        for (std::int64_t d = 0; d < layout.head_dim; ++d) {
                            const StreamToken at = joint_token(layout, g);
                            source.set(b, g, h, d, value_of(at.stream, 0, b, at.token, heads.begin + h, d));
                        }
            Buffer buffer(data, nbytes);
            run(edgedit_pack, buffer.node({&source}), of, spec);
        });
    for (int rank = 0; rank < layout.ranks; ++rank) {
        ExchangeSpec spec = spec_of(of, Direction::head_to_seq, rank);
        Bytes bytes = received[static_cast<std::size_t>(rank)];
        Buffer buffer(bytes.data(), bytes.size());
        const std::int64_t tokens = local_tokens(layout, rank, layout.streams);
        FakeTensor out(of.output, {layout.batch * tokens * layout.heads * layout.head_dim});
        run(edgedit_receive, out.node({&buffer}), of, spec);
        std::int64_t index = 0;
        for (int stream = 0; stream < layout.streams; ++stream) {
            const Share share = token_share(layout, stream, rank);
            for (std::int64_t b = 0; b < layout.batch; ++b)
                for (std::int64_t t = 0; t < share.count; ++t)
                    for (std::int64_t h = 0; h < layout.heads; ++h)
                        for (std::int64_t d = 0; d < layout.head_dim; ++d) {
                            const bool real = share.begin + t < layout.tokens[stream];
                            const float expected = real ? value_of(stream, 0, b, share.begin + t, h, d) : 0.0f;
                            CHECK(out.get(0, 0, 0, index) == expected, "P=%d rank=%d token=%d", layout.ranks, rank,
                                  static_cast<int>(t));
                            ++index;
                        }
        }
    }
}

} // namespace

int main() {
    constexpr DType f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16;
    const std::vector<std::vector<std::int64_t>> token_counts = {{1}, {17}, {5, 11}, {1, 3}, {0, 9}, {2, 3, 4}};
    const std::vector<DType> types = {f32, f16, bf16};
    int cases = 0;
    for (int ranks = 1; ranks <= 8; ++ranks)
        for (const Split split : {Split::uneven, Split::padded})
            for (const std::int64_t heads : {3, 8})
                for (const std::int64_t head_dim : {4, 40})
                    for (const auto& tokens : token_counts) {
                        // types, planes, batch, threads and targets change from case to case
                        const auto type = [&](int step) { return types[static_cast<std::size_t>(cases / step % 3)]; };
                        const std::int64_t planes = cases % 2 ? 3 : 1;
                        Case of{{ranks,
                                 head_dim,
                                 planes,
                                 heads,
                                 1 + cases / 5 % 2,
                                 static_cast<int>(tokens.size()),
                                 {},
                                 split},
                                type(1),
                                {type(3), type(3), type(2)},
                                type(9),
                                1 + cases % 4,
                                cases % 7 < 3};
                        std::copy(tokens.begin(), tokens.end(), of.layout.tokens);
                        check_seq_to_head(of);
                        of.layout.planes = 1;
                        check_head_to_seq(of);
                        ++cases;
                    }
    std::printf("%d exchanges agree with the plain all-to-all\n", cases);
    return 0;
}
