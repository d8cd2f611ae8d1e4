// What of a weight the micro-kernel is given at a time: kBlock inner elements of a panel.
#pragma once

#include "kernels/impl/panel.hpp"
#include "kernels/impl/quant.hpp"

namespace edgedit::kernels {
namespace {

template <typename Half> void widen_block(const void* halves, Index count, float* floats) {
    const auto* from = static_cast<const Half*>(halves);
    for (Index i = 0; i < count; i += kLanes) store(floats + i, load(from + i));
}

/// Inner elements [begin, end) of a panel: `begin` a multiple of kBlock, `end` at most kBlock further. Where the weight
/// does not hold them as they are multiplied, they are put into `room`, of kBlock * kPanel elements.
template <typename Element>
const Element* weight_block(const Weight& weight, Index panel, Index begin, Index end, Element* room) {
    if (!is_packed(weight.type)) {
        expand_blocks(weight, panel, begin, end, room);
        return room;
    }
    const Index offset = (panel * padded_inner<Element>(weight.inner) + begin) * kPanel;
    if constexpr (sizeof(Element) == sizeof(float)) {
        const auto* halves = static_cast<const BF16*>(weight.data) + offset;
        const Index count = (end - begin) * kPanel;
        if (weight.type == Type::f16) return widen_block<F16>(halves, count, room), room;
        if (weight.type == Type::bf16) return widen_block<BF16>(halves, count, room), room;
    }
    return static_cast<const Element*>(weight.data) + offset;
}

} // namespace
} // namespace edgedit::kernels
