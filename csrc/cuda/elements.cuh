// Loads and stores of a few neighbouring elements at once, converted to and from f32.
//
// A `Pack<8>` moves 16 bytes of a 16-bit type or twice 16 bytes of f32 by one thread. The type is a runtime value: it is
// the same for a whole warp, so the switch costs nothing beside the memory it waits for, and kernels need not be
// compiled for every pair of types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/spec.hpp"

namespace edgedit::cuda {

using ops::DType;

template <int Count> struct Pack {
    float values[Count];
};

/// `Count` elements of `Element` as one access of the widest kind that their size allows, 16 bytes at most.
template <typename Element, int Count> struct alignas(sizeof(Element) * Count < 16 ? sizeof(Element) * Count : 16) Raw {
    Element elements[Count];
};

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ inline void narrow(float value, float& to) { to = value; }
__device__ inline void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ inline void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

template <typename Element, int Count> __device__ inline Pack<Count> load_as(const void* base, std::int64_t index) {
    const auto raw = *reinterpret_cast<const Raw<Element, Count>*>(static_cast<const Element*>(base) + index);
    Pack<Count> pack;
#pragma unroll
    for (int i = 0; i < Count; ++i) pack.values[i] = widen(raw.elements[i]);
    return pack;
}

template <typename Element, int Count>
__device__ inline void store_as(void* base, std::int64_t index, const Pack<Count>& pack) {
    Raw<Element, Count> raw;
#pragma unroll
    for (int i = 0; i < Count; ++i) narrow(pack.values[i], raw.elements[i]);
    *reinterpret_cast<Raw<Element, Count>*>(static_cast<Element*>(base) + index) = raw;
}

/// `Count` elements from `index` on; base and index must be aligned for it.
template <int Count> __device__ inline Pack<Count> load(const void* base, DType type, std::int64_t index) {
    switch (type) {
        case DType::f16: return load_as<__half, Count>(base, index);
        case DType::bf16: return load_as<__nv_bfloat16, Count>(base, index);
        default: return load_as<float, Count>(base, index);
    }
}

template <int Count>
__device__ inline void store(void* base, DType type, std::int64_t index, const Pack<Count>& pack) {
    switch (type) {
        case DType::f16: return store_as<__half, Count>(base, index, pack);
        case DType::bf16: return store_as<__nv_bfloat16, Count>(base, index, pack);
        default: return store_as<float, Count>(base, index, pack);
    }
}

/// Moves elements of one type without looking at them: the bits of a NaN stay what they are.
template <int Count> __device__ inline void copy(void* to, const void* from, DType type, std::int64_t index) {
    if (type == DType::f32) {
        using Bits = Raw<std::uint32_t, Count>;
        reinterpret_cast<Bits*>(to)[index / Count] = reinterpret_cast<const Bits*>(from)[index / Count];
    } else {
        using Bits = Raw<std::uint16_t, Count>;
        reinterpret_cast<Bits*>(to)[index / Count] = reinterpret_cast<const Bits*>(from)[index / Count];
    }
}

} // namespace edgedit::cuda
