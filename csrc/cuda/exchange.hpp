// What the kernels of pack and receive are given, and where they find each head. Plain C++ for host and device: the maps
// themselves (pack_maps.hpp, receive_maps.hpp) are run on the host by the C++ tests, against the CPU operators.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/spec.hpp"
#include "ops/tensor.hpp"

namespace edgedit::cuda {

using ops::DType;
using ops::ExchangeSpec;

/// More ranks than one exchange reaches are refused when a plan is made.
constexpr int kMaxRanks = 64;

/// A tensor as kernels see it: address, and strides in bytes of its axes 1 to 3 in ggml's order.
struct Strided {
    std::byte* data;
    std::int64_t stride[3];
    DType type;

    EDGEDIT_HD std::byte* at(std::int64_t i1, std::int64_t i2, std::int64_t i3) const {
        return data + stride[0] * i1 + stride[1] * i2 + stride[2] * i3;
    }
};

inline Strided strided(const ops::Tensor& x) {
    return {static_cast<std::byte*>(x.data),
            {static_cast<std::int64_t>(x.nb[1]), static_cast<std::int64_t>(x.nb[2]), static_cast<std::int64_t>(x.nb[3])},
            ops::dtype(x)};
}

/// The spec as kernels see it: addresses in place of tensors.
struct Exchange {
    layout::Layout layout;
    int rank, first_stream, first_plane, num_planes;
    DType wire[ops::kMaxPlanes];
    std::int64_t plane_offset[ops::kMaxPlanes]; ///< bytes, in a row of the wire
    std::int64_t row_nbytes;
    bool rotated[ops::kMaxPlanes];
    float eps;
    const float* norm[layout::kMaxStreams][ops::kMaxPlanes];
    Strided table[layout::kMaxStreams]; ///< rope tables; null where a stream is not rotated

    EDGEDIT_HD const float* table_row(int stream, std::int64_t token) const {
        return table[stream].data != nullptr ? reinterpret_cast<const float*>(table[stream].at(0, token, 0)) : nullptr;
    }

    /// Of a token of a stream, in the sequence of all streams one after another.
    EDGEDIT_HD std::int64_t joint_position(int stream, std::int64_t token) const {
        for (int before = 0; before < stream; ++before) token += layout.tokens[before];
        return token;
    }
};

/// Throws DeviceError for a spec that the kernels do not take.
Exchange exchange_of(const ExchangeSpec& spec);
bool rotates(const ExchangeSpec& spec);

/// One head to move. `from` null: zeros, for slots of padding.
struct Head {
    std::byte* to;
    const std::byte* from;
    DType to_type, from_type;
    const float* norm;  ///< [D] or null
    const float* table; ///< [D / 2, 2] of the token, or null
};

/// How many elements a thread may take at once: 8, 2 or 1, as every size and address that occurs allows.
class Alignment {
public:
    explicit Alignment(const ExchangeSpec& spec);
    /// An address, or a step between addresses, in bytes.
    void require(DType type, std::int64_t nbytes);
    void require(DType type, const void* address) { require(type, reinterpret_cast<std::intptr_t>(address)); }
    void require(const Strided& x);
    int elements() const { return elements_; }

private:
    int elements_;
};

/// The blocks of threads of one launch: one per token, batch entry, peer and stream. `tokens` and `heads` are the
/// largest numbers that any of them meets; a map says how many heads each really has.
struct Work {
    std::int64_t tokens, heads;
    int streams;
    int elements; ///< at once
};

} // namespace edgedit::cuda
