// The index maps of layout.hpp as numpy functions: one loop over all elements, one map per element. Slow on
// purpose: these are what the operators are checked against, not what runs.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "layout.hpp"

namespace py = pybind11;
using namespace edgedit::layout;

namespace {

using Counts = std::vector<std::int64_t>;
using Array = py::array; // any element type: elements are moved, never looked at

Split split_of(bool padded) { return padded ? Split::padded : Split::uneven; }

void check_rank(int ranks, int rank) {
    if (ranks < 1 || rank < 0 || rank >= ranks) {
        throw py::value_error("rank " + std::to_string(rank) + " is not one of " + std::to_string(ranks) + " ranks");
    }
}

std::string shape_text(const Array& array) {
    std::string text = "[";
    for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
        text += (axis > 0 ? ", " : "") + std::to_string(array.shape(axis));
    }
    return text + "]";
}

void check_shape(const char* what, const Array& array, const Counts& expected) {
    bool same = array.ndim() == static_cast<py::ssize_t>(expected.size());
    std::string text;
    for (std::size_t axis = 0; axis < expected.size(); ++axis) {
        same = same && array.shape(static_cast<py::ssize_t>(axis)) == expected[axis];
        text += (axis > 0 ? ", " : "") + std::to_string(expected[axis]);
    }
    if (!same) {
        throw py::value_error(std::string(what) + " has shape " + shape_text(array) + ", expected [" + text + "]");
    }
}

Array contiguous(const py::handle& object) {
    Array array = Array::ensure(object, py::array::c_style);
    if (!array) throw py::error_already_set();
    return array;
}

Layout make_layout(int ranks, int rank, const Counts& tokens, std::int64_t heads, std::int64_t head_dim,
                   std::int64_t planes, std::int64_t batch, bool padded) {
    check_rank(ranks, rank);
    Layout layout{ranks, head_dim, planes, heads, batch, static_cast<int>(tokens.size()), {}, split_of(padded)};
    if (tokens.empty() || tokens.size() > static_cast<std::size_t>(kMaxStreams)) {
        throw py::value_error(std::to_string(tokens.size()) + " streams; 1 to " + std::to_string(kMaxStreams) +
                              " are possible");
    }
    for (std::size_t stream = 0; stream < tokens.size(); ++stream) layout.tokens[stream] = tokens[stream];
    if (!valid(layout)) {
        throw py::value_error("head_dim, planes, heads and batch must be at least 1 and token counts at least 0");
    }
    return layout;
}

/// What the element loops below call for each element: position in the tensor, position in the buffer.
template <typename Move>
void for_each_element(const Layout& layout, std::int64_t tokens, std::int64_t heads, const Move& move) {
    std::int64_t position = 0; // tensors are [planes, batch, tokens, heads, head_dim]
    for (std::int64_t plane = 0; plane < layout.planes; ++plane)
        for (std::int64_t batch = 0; batch < layout.batch; ++batch)
            for (std::int64_t token = 0; token < tokens; ++token)
                for (std::int64_t head = 0; head < heads; ++head)
                    for (std::int64_t channel = 0; channel < layout.head_dim; ++channel)
                        move(position++, Element{plane, batch, token, head, channel});
}

std::int64_t joint_tokens(const Layout& layout) {
    std::int64_t sum = 0;
    for (int stream = 0; stream < layout.streams; ++stream) sum += layout.tokens[stream];
    return sum;
}

std::int64_t joint_head_side_index(const Layout& layout, int rank, Element at) {
    const StreamToken place = joint_token(layout, at.token);
    at.token = place.token;
    return head_side_index(layout, rank, place.stream, at);
}

Array empty(const py::dtype& dtype, std::vector<py::ssize_t> shape) { return Array(dtype, std::move(shape)); }

void copy(Array& to, std::int64_t to_index, const Array& from, std::int64_t from_index) {
    const auto size = static_cast<std::int64_t>(from.itemsize());
    std::memcpy(static_cast<char*>(to.mutable_data()) + to_index * size,
                static_cast<const char*>(from.data()) + from_index * size, static_cast<std::size_t>(size));
}

// ---- sequence side ----

Array pack_sequence_side(const py::list& streams, int ranks, int rank, const Counts& tokens, std::int64_t heads,
                         bool padded) {
    if (streams.size() != tokens.size()) {
        throw py::value_error(std::to_string(streams.size()) + " streams but " + std::to_string(tokens.size()) +
                              " token counts");
    }
    if (streams.empty()) throw py::value_error("no streams");
    const Array first = contiguous(streams[0]);
    if (first.ndim() != 5) throw py::value_error("a stream is [planes, batch, tokens, heads, head_dim], not " + shape_text(first));
    const Layout layout = make_layout(ranks, rank, tokens, heads, first.shape(4), first.shape(0), first.shape(1), padded);
    Array send = empty(first.dtype(), {sequence_side_offset(layout, rank, ranks)});
    std::memset(send.mutable_data(), 0, static_cast<std::size_t>(send.nbytes()));
    for (int stream = 0; stream < layout.streams; ++stream) {
        const Array source = contiguous(streams[static_cast<std::size_t>(stream)]);
        const std::int64_t count = token_share(layout, stream, rank).count;
        check_shape("a stream", source, {layout.planes, layout.batch, count, heads, layout.head_dim});
        if (!source.dtype().equal(first.dtype())) throw py::value_error("streams differ in dtype");
        for_each_element(layout, count, heads, [&](std::int64_t position, const Element& at) {
            copy(send, sequence_side_index(layout, rank, stream, at), source, position);
        });
    }
    return send;
}

py::list unpack_sequence_side(const py::object& received, int ranks, int rank, const Counts& tokens, std::int64_t heads,
                              std::int64_t head_dim, std::int64_t planes, std::int64_t batch, bool padded) {
    const Layout layout = make_layout(ranks, rank, tokens, heads, head_dim, planes, batch, padded);
    const Array source = contiguous(received);
    check_shape("the received buffer", source, {sequence_side_offset(layout, rank, ranks)});
    py::list streams;
    for (int stream = 0; stream < layout.streams; ++stream) {
        const std::int64_t count = token_share(layout, stream, rank).count;
        Array target = empty(source.dtype(), {planes, batch, count, heads, head_dim});
        for_each_element(layout, count, heads, [&](std::int64_t position, const Element& at) {
            copy(target, position, source, sequence_side_index(layout, rank, stream, at));
        });
        streams.append(target);
    }
    return streams;
}

// ---- head side ----

Array pack_head_side(const py::object& joint, int ranks, int rank, const Counts& tokens, std::int64_t heads, bool padded) {
    const Array source = contiguous(joint);
    if (source.ndim() != 5) throw py::value_error("the tensor is [planes, batch, tokens, heads, head_dim], not " + shape_text(source));
    const Layout layout = make_layout(ranks, rank, tokens, heads, source.shape(4), source.shape(0), source.shape(1), padded);
    const std::int64_t own_heads = head_share(layout, rank).count;
    check_shape("the tensor", source, {layout.planes, layout.batch, joint_tokens(layout), own_heads, layout.head_dim});
    Array send = empty(source.dtype(), {head_side_offset(layout, rank, ranks)});
    std::memset(send.mutable_data(), 0, static_cast<std::size_t>(send.nbytes()));
    for_each_element(layout, joint_tokens(layout), own_heads, [&](std::int64_t position, const Element& at) {
        copy(send, joint_head_side_index(layout, rank, at), source, position);
    });
    return send;
}

Array unpack_head_side(const py::object& received, int ranks, int rank, const Counts& tokens, std::int64_t heads,
                       std::int64_t head_dim, std::int64_t planes, std::int64_t batch, bool padded) {
    const Layout layout = make_layout(ranks, rank, tokens, heads, head_dim, planes, batch, padded);
    const Array source = contiguous(received);
    check_shape("the received buffer", source, {head_side_offset(layout, rank, ranks)});
    const std::int64_t own_heads = head_share(layout, rank).count;
    Array target = empty(source.dtype(), {planes, batch, joint_tokens(layout), own_heads, head_dim});
    for_each_element(layout, joint_tokens(layout), own_heads, [&](std::int64_t position, const Element& at) {
        copy(target, position, source, joint_head_side_index(layout, rank, at));
    });
    return target;
}

py::tuple share_of(std::int64_t total, int ranks, int rank, bool padded) {
    check_rank(ranks, rank);
    if (total < 0) throw py::value_error("total must be at least 0, got " + std::to_string(total));
    const Share part = share(total, ranks, rank, split_of(padded));
    return py::make_tuple(part.begin, part.count);
}

py::tuple side_counts(int ranks, int rank, const Counts& tokens, std::int64_t heads, std::int64_t head_dim,
                      std::int64_t planes, std::int64_t batch, bool padded) {
    const Layout layout = make_layout(ranks, rank, tokens, heads, head_dim, planes, batch, padded);
    Counts sequence_side, head_side;
    for (int peer = 0; peer < ranks; ++peer) {
        sequence_side.push_back(sequence_side_count(layout, rank, peer));
        head_side.push_back(head_side_count(layout, rank, peer));
    }
    return py::make_tuple(sequence_side, head_side);
}

} // namespace

void register_layout(py::module_& module) {
    using namespace py::literals;
    module.def("share", &share_of, "total"_a, "ranks"_a, "rank"_a, "padded"_a = false,
               "(begin, count) of a rank's share of total things.");
    module.def("side_counts", &side_counts, "ranks"_a, "rank"_a, "tokens"_a, "heads"_a, "head_dim"_a, "planes"_a = 1,
               "batch"_a = 1, "padded"_a = false,
               "Elements exchanged with each peer: (of the sequence side, of the head side).");
    module.def("pack_seq_to_head", &pack_sequence_side, "streams"_a, "ranks"_a, "rank"_a, "tokens"_a, "heads"_a,
               "padded"_a = false,
               "Send buffer of sequence -> head from streams [planes, batch, local tokens, heads, head_dim].");
    module.def("unpack_seq_to_head", &unpack_head_side, "received"_a, "ranks"_a, "rank"_a, "tokens"_a, "heads"_a,
               "head_dim"_a, "planes"_a = 1, "batch"_a = 1, "padded"_a = false,
               "Joint tensor [planes, batch, all tokens, local heads, head_dim] from the receive buffer.");
    module.def("pack_head_to_seq", &pack_head_side, "joint"_a, "ranks"_a, "rank"_a, "tokens"_a, "heads"_a,
               "padded"_a = false,
               "Send buffer of head -> sequence from [planes, batch, all tokens, local heads, head_dim].");
    module.def("unpack_head_to_seq", &unpack_sequence_side, "received"_a, "ranks"_a, "rank"_a, "tokens"_a, "heads"_a,
               "head_dim"_a, "planes"_a = 1, "batch"_a = 1, "padded"_a = false,
               "Streams [planes, batch, local tokens, heads, head_dim] from the receive buffer.");
}
