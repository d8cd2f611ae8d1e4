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

/// `lanes` threads move `units` neighbouring units, each thread every `lanes`-th, so that they touch memory side by side.
template <typename Unit> __device__ inline void copy_units(void* to, const void* from, int units, int lane, int lanes) {
    for (int i = lane; i < units; i += lanes) static_cast<Unit*>(to)[i] = static_cast<const Unit*>(from)[i];
}

/// Moves `count` elements of one type without looking at them: the bits of a NaN stay what they are. Both sides are
/// aligned for `Count` elements or for 16 bytes, whichever is less.
template <int Count> __device__ inline void copy(void* to, const void* from, DType type, int count, int lane, int lanes) {
    if constexpr (Count == 8) {
        copy_units<uint4>(to, from, count * static_cast<int>(ops::itemsize(type)) / 16, lane, lanes);
    } else if (type == DType::f32) {
        copy_units<Raw<std::uint32_t, Count>>(to, from, count / Count, lane, lanes);
    } else {
        copy_units<Raw<std::uint16_t, Count>>(to, from, count / Count, lane, lanes);
    }
}

} // namespace edgedit::cuda
