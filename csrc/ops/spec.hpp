// What an operator has to know, as plain data: made once when a graph is built, read at every run.
//
// The user data of an operator's node (GGML_OP_CUSTOM) points at one of these; CPU callbacks and CUDA kernels read
// the same. Python objects own them (bindings.cpp), and the plan keeps those for as long as its graph can run.
// Every spec begins with its version and size, which `is_current` checks: an operator never guesses.
#pragma once

#include <cstdint>

#include "dtype.hpp"
#include "layout.hpp"

namespace edgedit::ops {

struct Tensor;

constexpr std::uint32_t kSpecVersion = 1;
constexpr int kMaxPlanes = 4;
constexpr int kMaxAxes = 8;
constexpr std::int64_t kMaxHeadDim = 1024; // a head's row is normalised and rotated in scratch of this size

using edgedit::DType;

constexpr bool is_dtype(std::int32_t type) { return type == 0 || type == 1 || type == 30; }

EDGEDIT_HD constexpr std::int64_t itemsize(DType type) { return type == DType::f32 ? 4 : 2; }

enum class Direction : std::int32_t { seq_to_head, head_to_seq };

/// Where `pack` of sequence -> head puts what it reads.
enum class Target : std::int32_t {
    blocks, ///< the sequence side of an exchange: one block per peer
    planes, ///< one rank, no exchange: what `receive` would make of it, head-major planes
};

/// RMS norm over each head's channels, then rotation of neighbouring channel pairs. One operator of a plan does it:
/// `pack` (each element once, before the exchange) or `receive`.
struct Preparation {
    const Tensor* norm[layout::kMaxStreams][kMaxPlanes]; ///< weight [D], f32, per stream and plane; null: no norm
    std::int32_t rotated[kMaxPlanes];                    ///< nonzero: the plane is rotated by the streams' tables
    float eps;
};

/// `pack` and `receive`, both directions.
///
/// Sources of a node:
///   pack, sequence -> head     streams [first_stream, first_stream + num_streams): each its planes [B, s, H, D]
///                              of any stride over B, s and H; then the tables of these streams, if it rotates
///   pack, head -> sequence     the joint tensor [B, S, h, D], any stride over B, S and h
///   receive, sequence -> head  the received buffer, then the table of every stream, if it rotates
///   receive, head -> sequence  the received buffer
/// Results:
///   pack                       blocks in the types `wire`, or planes in the type of the result
///   receive, sequence -> head  planes [first_plane, first_plane + num_planes) as [planes, B, h, S, D], the streams'
///                              tokens one after another, padding left out
///   receive, head -> sequence  each stream's [B, s, H, D], one after another
/// Several pack nodes, each with its own streams, may fill one buffer: then the later ones work in place.
struct ExchangeSpec {
    std::uint32_t version;
    std::uint32_t nbytes;
    Direction direction;
    Target target;
    std::int32_t rank;
    std::int32_t first_stream;
    std::int32_t num_streams;
    std::int32_t first_plane;
    std::int32_t num_planes;
    DType wire[kMaxPlanes];
    layout::Layout layout;
    Preparation preparation;
    /// null: pack writes its blocks into the node's own result. Else one address per peer: block p goes to
    /// targets[p], for instance to where peer p will look for it in memory that the ranks share.
    void* const* targets;
};

/// `rope_table`: positions i32 [axes, s] and one source of periods f32 [d_a / 2] per axis -> cosine and sine of
/// position / period, [s, D / 2, 2].
struct RopeTableSpec {
    std::uint32_t version;
    std::uint32_t nbytes;
    std::int32_t axes;
};

/// `modulate`: x, scale, shift -> LayerNorm(x) (1 + scale) + shift, over the last axis; and
/// `gated_residual`: x, gate, update -> x + gate * update. Scale, shift and gate broadcast over all but the last axis.
struct PointwiseSpec {
    std::uint32_t version;
    std::uint32_t nbytes;
    float eps; ///< of the norm
};

/// `attention_merge`: two results of `attention_partial` for the same queries and different keys -> the result for all
/// of these keys, with its logarithm again [B, Sq, H, D + 1], which may take the place of the first, or without it.
struct MergeSpec {
    std::uint32_t version;
    std::uint32_t nbytes;
};

template <typename Spec> constexpr bool is_current(const Spec& spec) {
    return spec.version == kSpecVersion && spec.nbytes == sizeof(Spec);
}

// Rows of the wire: how many bytes one head of one token takes, and where a plane begins in it.

EDGEDIT_HD constexpr std::int64_t plane_offset(const ExchangeSpec& spec, std::int64_t plane) {
    std::int64_t nbytes = 0;
    for (std::int64_t before = 0; before < plane; ++before) nbytes += itemsize(spec.wire[before]);
    return nbytes * spec.layout.head_dim;
}

EDGEDIT_HD constexpr std::int64_t row_nbytes(const ExchangeSpec& spec) {
    return plane_offset(spec, spec.layout.planes);
}

} // namespace edgedit::ops
