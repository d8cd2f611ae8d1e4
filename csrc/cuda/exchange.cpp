#include "cuda/exchange.hpp"

#include <string>

#include "executor/fence.hpp"

namespace edgedit::cuda {

Exchange exchange_of(const ExchangeSpec& spec) {
    if (!ops::is_current(spec)) throw DeviceError("an exchange operator got a spec of another version");
    if (spec.layout.ranks > kMaxRanks) {
        throw DeviceError("an exchange between " + std::to_string(spec.layout.ranks) + " ranks; the kernels take " +
                          std::to_string(kMaxRanks));
    }
    if (spec.layout.head_dim > ops::kMaxHeadDim) {
        throw DeviceError("heads of " + std::to_string(spec.layout.head_dim) + " channels; the kernels take " +
                          std::to_string(ops::kMaxHeadDim));
    }
    Exchange exchange{};
    exchange.layout = spec.layout;
    exchange.rank = spec.rank;
    exchange.first_stream = spec.first_stream;
    exchange.first_plane = spec.first_plane;
    exchange.num_planes = spec.num_planes;
    exchange.row_nbytes = ops::row_nbytes(spec);
    exchange.eps = spec.preparation.eps;
    for (int plane = 0; plane < spec.layout.planes; ++plane) {
        exchange.wire[plane] = spec.wire[plane];
        exchange.plane_offset[plane] = ops::plane_offset(spec, plane);
        exchange.rotated[plane] = spec.preparation.rotated[plane] != 0;
        for (int stream = 0; stream < spec.layout.streams; ++stream) {
            const ops::Tensor* norm = spec.preparation.norm[stream][plane];
            exchange.norm[stream][plane] = norm != nullptr ? static_cast<const float*>(norm->data) : nullptr;
        }
    }
    return exchange;
}

bool rotates(const ExchangeSpec& spec) {
    bool any = false;
    for (int plane = 0; plane < spec.layout.planes; ++plane) any |= spec.preparation.rotated[plane] != 0;
    return any;
}

Alignment::Alignment(const ExchangeSpec& spec)
    : elements_(spec.layout.head_dim % 8 == 0 ? 8 : spec.layout.head_dim % 2 == 0 ? 2 : 1) {
    for (int stream = 0; stream < spec.layout.streams; ++stream) {
        for (int plane = 0; plane < spec.layout.planes; ++plane) {
            const ops::Tensor* norm = spec.preparation.norm[stream][plane];
            if (norm != nullptr) require(DType::f32, norm->data);
        }
    }
    // The planes of a row stand one after another, in types that may differ in size.
    for (int plane = 0; plane < spec.layout.planes; ++plane) require(spec.wire[plane], ops::plane_offset(spec, plane));
    require(DType::f32, ops::row_nbytes(spec));
}

void Alignment::require(DType type, std::int64_t nbytes) {
    while (elements_ > 1 && nbytes % std::min<std::int64_t>(elements_ * ops::itemsize(type), 16) != 0) {
        elements_ = elements_ == 8 ? 2 : 1;
    }
}

void Alignment::require(const Strided& x) {
    require(x.type, x.data);
    for (const std::int64_t stride : x.stride) require(x.type, stride);
}

} // namespace edgedit::cuda
