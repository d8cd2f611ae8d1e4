// What operators read of a ggml tensor: the leading fields of ggml's public `ggml_tensor`, by their place in the
// pinned release. Python compares the offsets with those of the installed ggml when it loads the extension, so this
// folder needs no header and no library of ggml, neither here nor in the C++ tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/spec.hpp"

struct ggml_tensor;

namespace edgedit::ops {

/// Dimensions and strides in ggml's order: fastest first, strides in bytes.
struct Tensor {
    std::int32_t type;
    void* buffer;
    std::int64_t ne[4];
    std::size_t nb[4];
    std::int32_t op;
    std::int32_t op_params[16];
    std::int32_t flags;
    Tensor* src[10];
    Tensor* view_src;
    std::size_t view_offs;
    void* data;
};

inline Tensor& tensor(ggml_tensor* pointer) { return *reinterpret_cast<Tensor*>(pointer); }

inline DType dtype(const Tensor& x) { return static_cast<DType>(x.type); }

/// Bytes of a packed tensor.
inline std::int64_t packed_nbytes(const Tensor& x) { return x.ne[3] * static_cast<std::int64_t>(x.nb[3]); }

/// Address of the row at three indices, slowest last in ggml's order (numpy: [i3, i2, i1, :]).
inline std::byte* row(const Tensor& x, std::int64_t i1, std::int64_t i2 = 0, std::int64_t i3 = 0) {
    const auto offset = static_cast<std::int64_t>(x.nb[1]) * i1 + static_cast<std::int64_t>(x.nb[2]) * i2 +
                        static_cast<std::int64_t>(x.nb[3]) * i3;
    return static_cast<std::byte*>(x.data) + offset;
}

} // namespace edgedit::ops
