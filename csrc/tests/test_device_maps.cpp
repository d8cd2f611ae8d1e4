// The maps of the CUDA kernels of pack and receive, run on the host: every head that a block of threads would move is
// moved here, and the outcome must have the bits of the CPU operators. Sizes are drawn at random, uneven ones above all.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "check.hpp"
#include "cuda/pack_maps.hpp"
#include "cuda/receive_maps.hpp"
#include "ops/callbacks.hpp"
#include "ops/rows.hpp"

namespace {

using namespace edgedit;
using namespace edgedit::cuda;
using Bytes = std::vector<std::byte>;

std::mt19937 generator(7);

int random_of(int least, int most) { return std::uniform_int_distribution<int>(least, most)(generator); }

template <typename T> T one_of(std::initializer_list<T> choices) {
    return choices.begin()[random_of(0, static_cast<int>(choices.size()) - 1)];
}

/// What a group of threads does to its head (heads.cuh), said plainly.
void move_head(const Head& head, const ExchangeSpec& spec, int elements) {
    const std::int64_t count = spec.layout.head_dim;
    const auto aligned = [elements](const void* address, DType type) {
        return reinterpret_cast<std::uintptr_t>(address) % std::min<std::uintptr_t>(elements * ops::itemsize(type), 16) == 0;
    };
    CHECK(count % elements == 0 && aligned(head.to, head.to_type), "a head of %d at %p, %d at once", int(count), head.to, elements);
    CHECK(aligned(head.from, head.from_type) && aligned(head.norm, DType::f32) && aligned(head.table, DType::f32), "unaligned source");
    if (head.from == nullptr) {
        std::memset(head.to, 0, static_cast<std::size_t>(count * ops::itemsize(head.to_type)));
        return;
    }
    if (head.norm == nullptr && head.table == nullptr) {
        ops::rows().move(head.to_type, head.from_type, false)(head.to, head.from, count);
        return;
    }
    std::vector<float> values(static_cast<std::size_t>(count));
    ops::rows().move(DType::f32, head.from_type, false)(values.data(), head.from, count);
    if (head.norm != nullptr) ops::rows().rms_norm(values.data(), head.norm, count, spec.preparation.eps);
    if (head.table != nullptr) ops::rows().rotate(values.data(), head.table, count);
    ops::rows().move(head.to_type, DType::f32, false)(head.to, values.data(), count);
}

/// The grid of a launch.
template <typename Map> void run_on_host(const Map& map, const Work& work, const ExchangeSpec& spec) {
    for (std::int64_t token = 0; token < work.tokens; ++token)
        for (std::int64_t batch = 0; batch < spec.layout.batch; ++batch)
            for (int z = 0; z < spec.layout.ranks * work.streams; ++z) {
                const auto line = map.line(token, batch, z % spec.layout.ranks, z / spec.layout.ranks);
                CHECK(line.heads <= work.heads, "a block of threads with %d heads of %d", line.heads, int(work.heads));
                for (int number = 0; number < line.heads; ++number) move_head(map.head(line, number), spec, work.elements);
            }
}

/// Tensors with memory of their own, filled with small numbers that every type can hold.
class Workshop {
public:
    ops::Tensor* packed(DType type, std::array<std::int64_t, 4> ne) { return strided(type, ne, ne[0]); }

    /// Rows stand `row` elements apart, as in a slice of something wider.
    ops::Tensor* strided(DType type, std::array<std::int64_t, 4> ne, std::int64_t row) {
        tensors_.push_back(std::make_unique<ops::Tensor>());
        ops::Tensor& x = *tensors_.back();
        x.type = static_cast<std::int32_t>(type);
        std::copy(ne.begin(), ne.end(), x.ne);
        x.nb[0] = static_cast<std::size_t>(ops::itemsize(type));
        x.nb[1] = x.nb[0] * static_cast<std::size_t>(row);
        for (int axis = 2; axis < 4; ++axis) x.nb[axis] = x.nb[axis - 1] * static_cast<std::size_t>(ne[axis - 1]);
        const std::int64_t count = row * ne[1] * ne[2] * ne[3];
        memory_.push_back(std::make_unique<std::max_align_t[]>(static_cast<std::size_t>(count * 4 / 16 + 2)));
        x.data = memory_.back().get();
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values) value = static_cast<float>(random_of(-100, 100)) / 8.0f;
        ops::rows().move(type, DType::f32, false)(x.data, values.data(), count);
        return &x;
    }

private:
    std::vector<std::unique_ptr<ops::Tensor>> tensors_;
    std::vector<std::unique_ptr<std::max_align_t[]>> memory_;
};

ExchangeSpec random_spec(ops::Direction direction) {
    ExchangeSpec spec{};
    spec.version = ops::kSpecVersion;
    spec.nbytes = sizeof spec;
    spec.direction = direction;
    const bool forward = direction == ops::Direction::seq_to_head;
    layout::Layout& layout = spec.layout;
    layout.ranks = random_of(1, 5);
    layout.head_dim = one_of<std::int64_t>({2, 6, 8, 16, 40});
    layout.planes = forward ? random_of(1, 3) : 1;
    layout.heads = random_of(layout.ranks, 9);
    layout.batch = random_of(1, 2);
    layout.streams = random_of(1, 2);
    for (int stream = 0; stream < layout.streams; ++stream) layout.tokens[stream] = random_of(0, 11);
    layout.split = one_of({layout::Split::uneven, layout::Split::padded});
    spec.rank = random_of(0, layout.ranks - 1);
    spec.num_streams = layout.streams;
    spec.num_planes = static_cast<std::int32_t>(layout.planes);
    for (int plane = 0; plane < layout.planes; ++plane) spec.wire[plane] = one_of({DType::f32, DType::f16, DType::bf16});
    spec.preparation.eps = 1e-6f;
    return spec;
}

void prepare_at_random(ExchangeSpec& spec, Workshop& shop) {
    for (int plane = 0; plane < spec.layout.planes; ++plane) {
        spec.preparation.rotated[plane] = random_of(0, 1);
        for (int stream = 0; stream < spec.layout.streams; ++stream) {
            if (random_of(0, 1)) spec.preparation.norm[stream][plane] = shop.packed(DType::f32, {spec.layout.head_dim, 1, 1, 1});
        }
    }
}

ops::Tensor* rope_table(Workshop& shop, const ExchangeSpec& spec, std::int64_t tokens) {
    return shop.packed(DType::f32, {2, spec.layout.head_dim / 2, tokens, 1});
}

/// Runs an operator twice, by the CPU callback and through the map, over memory that begins alike; compares `nbytes`
/// from `begin` on.
template <typename Callback, typename WithMap>
void compare(ops::Tensor& node, ExchangeSpec& spec, const Callback& callback, const WithMap& with_map, const char* what) {
    const auto nbytes = static_cast<std::size_t>(ops::packed_nbytes(node));
    auto* data = static_cast<std::byte*>(node.data);
    const Bytes before(data, data + nbytes);
    for (int thread = 0; thread < 2; ++thread) callback(reinterpret_cast<ggml_tensor*>(&node), thread, 2, &spec);
    const Bytes wanted(data, data + nbytes);
    std::copy(before.begin(), before.end(), data);
    with_map(node, spec, [&](const auto& map, const Work& work) { run_on_host(map, work, spec); });
    CHECK(std::equal(wanted.begin(), wanted.end(), data),
          "%s differs: P %d rank %d D %d K %d H %d B %d streams %d tokens %d %d split %d", what, spec.layout.ranks, spec.rank,
          int(spec.layout.head_dim), int(spec.layout.planes), int(spec.layout.heads), int(spec.layout.batch), spec.layout.streams,
          int(spec.layout.tokens[0]), int(spec.layout.tokens[1]), int(spec.layout.split));
}

/// A buffer of `rows` wire rows; at least one byte, as in a graph.
ops::Tensor* wire_buffer(Workshop& shop, const ExchangeSpec& spec, std::int64_t rows) {
    return shop.packed(DType::f32, {std::max<std::int64_t>((rows * ops::row_nbytes(spec) + 3) / 4, 1), 1, 1, 1});
}

/// The same, holding bytes that are small numbers in every type.
ops::Tensor* received(Workshop& shop, const ExchangeSpec& spec, std::int64_t rows) {
    ops::Tensor* buffer = wire_buffer(shop, spec, rows);
    auto* bytes = static_cast<std::byte*>(buffer->data);
    for (std::int64_t i = 0; i < ops::packed_nbytes(*buffer); ++i) bytes[i] = static_cast<std::byte>(i % 2 ? 0x3c : random_of(0, 255));
    return buffer;
}

void compare_pack(ExchangeSpec spec, ops::Tensor& node, const char* what) {
    const auto with_map = [](const ops::Tensor& result, const ExchangeSpec& s, const auto& visit) { with_pack_map(result, s, visit); };
    std::vector<void*> targets;
    if (spec.target == ops::Target::blocks && random_of(0, 1)) { // block p elsewhere: at the other end of the result
        const bool forward = spec.direction == ops::Direction::seq_to_head;
        for (int peer = 0; peer < spec.layout.ranks; ++peer) {
            const std::int64_t last = forward ? layout::sequence_side_row(spec.layout, spec.rank, spec.layout.ranks)
                                              : layout::head_side_row(spec.layout, spec.rank, spec.layout.ranks);
            const std::int64_t end = forward ? layout::sequence_side_row(spec.layout, spec.rank, peer + 1)
                                             : layout::head_side_row(spec.layout, spec.rank, peer + 1);
            targets.push_back(static_cast<std::byte*>(node.data) + (last - end) * ops::row_nbytes(spec));
        }
        spec.targets = targets.data();
    }
    compare(node, spec, edgedit_pack, with_map, what);
}

void pack_streams() {
    Workshop shop;
    ExchangeSpec spec = random_spec(ops::Direction::seq_to_head);
    prepare_at_random(spec, shop);
    if (spec.layout.ranks == 1 && spec.layout.split == layout::Split::uneven) spec.target = ops::Target::planes;
    if (spec.layout.streams == 2 && random_of(0, 1)) spec.num_streams = 1;
    ops::Tensor* buffer = nullptr;
    for (spec.first_stream = 0; spec.first_stream < spec.layout.streams; spec.first_stream += spec.num_streams) {
        if (buffer == nullptr && spec.target == ops::Target::planes) {
            std::int64_t tokens = 0;
            for (int stream = 0; stream < spec.layout.streams; ++stream) tokens += spec.layout.tokens[stream];
            buffer = shop.packed(one_of({DType::f32, DType::f16, DType::bf16}),
                                 {spec.layout.head_dim, tokens, spec.layout.heads, spec.layout.planes * spec.layout.batch});
        } else if (buffer == nullptr) {
            buffer = wire_buffer(shop, spec, layout::sequence_side_row(spec.layout, spec.rank, spec.layout.ranks));
        }
        int source = 0;
        if (spec.first_stream > 0) buffer->src[source++] = buffer;
        for (int i = 0; i < spec.num_streams; ++i) {
            const std::int64_t tokens = layout::token_share(spec.layout, spec.first_stream + i, spec.rank).count;
            for (int plane = 0; plane < spec.layout.planes; ++plane) {
                const std::int64_t row = spec.layout.head_dim * random_of(1, 2) + random_of(0, 1) * 2;
                buffer->src[source++] = shop.strided(one_of({DType::f32, DType::f16, DType::bf16}),
                                                     {spec.layout.head_dim, spec.layout.heads, tokens, spec.layout.batch}, row);
            }
        }
        for (int i = 0; rotates(spec) && i < spec.num_streams; ++i) {
            buffer->src[source++] = rope_table(shop, spec, layout::token_share(spec.layout, spec.first_stream + i, spec.rank).count);
        }
        compare_pack(spec, *buffer, "pack, sequence -> head");
    }
}

std::int64_t all_tokens(const ExchangeSpec& spec) {
    std::int64_t tokens = 0;
    for (int stream = 0; stream < spec.layout.streams; ++stream) tokens += spec.layout.tokens[stream];
    return tokens;
}

void pack_joint() {
    Workshop shop;
    const ExchangeSpec spec = random_spec(ops::Direction::head_to_seq);
    const std::int64_t heads = layout::head_share(spec.layout, spec.rank).count;
    ops::Tensor* buffer = wire_buffer(shop, spec, layout::head_side_row(spec.layout, spec.rank, spec.layout.ranks));
    buffer->src[0] = shop.strided(one_of({DType::f32, DType::f16, DType::bf16}), {spec.layout.head_dim, heads, all_tokens(spec), spec.layout.batch},
                                  spec.layout.head_dim * random_of(1, 2));
    compare_pack(spec, *buffer, "pack, head -> sequence");
}

void receive_planes() {
    Workshop shop;
    ExchangeSpec spec = random_spec(ops::Direction::seq_to_head);
    prepare_at_random(spec, shop);
    spec.first_plane = random_of(0, static_cast<int>(spec.layout.planes) - 1);
    spec.num_planes = random_of(1, static_cast<int>(spec.layout.planes) - spec.first_plane);
    const std::int64_t heads = layout::head_share(spec.layout, spec.rank).count;
    ops::Tensor* result = shop.packed(one_of({DType::f32, DType::f16, DType::bf16}),
                                      {spec.layout.head_dim, all_tokens(spec), heads, spec.num_planes * spec.layout.batch});
    result->src[0] = received(shop, spec, layout::head_side_row(spec.layout, spec.rank, spec.layout.ranks));
    for (int stream = 0; stream < spec.layout.streams; ++stream) result->src[1 + stream] = rope_table(shop, spec, spec.layout.tokens[stream]);
    compare(*result, spec, edgedit_receive, [](const ops::Tensor& node, const ExchangeSpec& s, const auto& visit) { with_receive_map(node, s, visit); },
            "receive, sequence -> head");
}

void receive_streams() {
    Workshop shop;
    ExchangeSpec spec = random_spec(ops::Direction::head_to_seq);
    const std::int64_t count = spec.layout.head_dim * spec.layout.heads * spec.layout.batch *
                               layout::local_tokens(spec.layout, spec.rank, spec.layout.streams);
    ops::Tensor* result = shop.packed(one_of({DType::f32, DType::f16, DType::bf16}), {std::max<std::int64_t>(count, 1), 1, 1, 1});
    result->src[0] = received(shop, spec, layout::sequence_side_row(spec.layout, spec.rank, spec.layout.ranks));
    compare(*result, spec, edgedit_receive, [](const ops::Tensor& node, const ExchangeSpec& s, const auto& visit) { with_receive_map(node, s, visit); },
            "receive, head -> sequence");
}

} // namespace

int main() {
    for (int round = 0; round < 3000; ++round) {
        pack_streams();
        pack_joint();
        receive_planes();
        receive_streams();
    }
    std::printf("the maps of the CUDA kernels move what the CPU operators move\n");
    return 0;
}
