// The kernel of pack and receive: moves heads, that is, the D channels of one head of one token of one plane, each from
// where a map says to where it says; converted, and normed and rotated on the way where asked.
//
// A block of threads serves one token of one batch entry and one peer. Groups of `lanes` neighbouring threads take one
// head each, so a head of 128 channels is read and written by 16 threads, 16 bytes (f32: 32) at a time.
#pragma once

#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/elements.cuh"
#include "cuda/exchange.hpp"

namespace edgedit::cuda {

constexpr int kMaxChannels = 32; // of one head that one thread holds: 32 threads take kMaxHeadDim of them

template <int Count, int Units>
__device__ inline void move_head(const Head& head, int head_dim, int lane, int lanes, float eps) {
    const bool plain = head.norm == nullptr && head.table == nullptr;
    if (plain && head.from != nullptr && head.to_type == head.from_type) {
        copy<Count>(head.to, head.from, head.to_type, head_dim, lane, lanes);
        return;
    }
    Pack<Count> packs[Units];
    float squares = 0;
#pragma unroll
    for (int unit = 0; unit < Units; ++unit) {
        const int i = (unit * lanes + lane) * Count;
        packs[unit] = {};
        if (i < head_dim && head.from != nullptr) packs[unit] = load<Count>(head.from, head.from_type, i);
        for (const float value : packs[unit].values) squares += value * value;
    }
    if (head.norm != nullptr) {
        // All lanes of a group have the same head, but its neighbours in the warp may be at another stage.
        const unsigned group = lanes == 32 ? 0xffffffffu : ((1u << lanes) - 1) << (threadIdx.x % 32 / lanes * lanes);
        for (int offset = lanes / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(group, squares, offset, lanes);
        const float factor = 1.0f / sqrtf(squares / static_cast<float>(head_dim) + eps);
#pragma unroll
        for (int unit = 0; unit < Units; ++unit) {
            const int i = (unit * lanes + lane) * Count;
            if (i >= head_dim) continue;
            const Pack<Count> weight = load<Count>(head.norm, DType::f32, i);
#pragma unroll
            for (int k = 0; k < Count; ++k) packs[unit].values[k] = packs[unit].values[k] * factor * weight.values[k];
        }
    }
#pragma unroll
    for (int unit = 0; unit < Units; ++unit) {
        const int i = (unit * lanes + lane) * Count;
        if (i >= head_dim) continue;
        if constexpr (Count % 2 == 0) { // heads of odd size are never rotated
            if (head.table != nullptr) {
                const Pack<Count> turn = load<Count>(head.table, DType::f32, i);
#pragma unroll
                for (int k = 0; k < Count; k += 2) {
                    const float even = packs[unit].values[k], odd = packs[unit].values[k + 1];
                    packs[unit].values[k] = even * turn.values[k] - odd * turn.values[k + 1];
                    packs[unit].values[k + 1] = even * turn.values[k + 1] + odd * turn.values[k];
                }
            }
        }
        store<Count>(head.to, head.to_type, i, packs[unit]);
    }
}

/// Grid: (tokens, batch, peers * streams). `Map` has `line(token, batch, peer, stream)`, which says what a block moves
/// and how many `heads` that are, and `head(line, number)`.
template <typename Map, int Count, int Units>
__global__ void move_heads(const __grid_constant__ Map map, int head_dim, int lanes, float eps) {
    const int ranks = map.exchange.layout.ranks;
    const int peer = static_cast<int>(blockIdx.z) % ranks, stream = static_cast<int>(blockIdx.z) / ranks;
    const auto line = map.line(blockIdx.x, blockIdx.y, peer, stream);
    const int lane = static_cast<int>(threadIdx.x) % lanes, groups = static_cast<int>(blockDim.x) / lanes;
    for (int number = static_cast<int>(threadIdx.x) / lanes; number < line.heads; number += groups) {
        move_head<Count, Units>(map.head(line, number), head_dim, lane, lanes, eps);
    }
}

template <int Count, typename Map> void launch_with(const Map& map, dim3 grid, int threads, int lanes, cudaStream_t stream) {
    const auto head_dim = static_cast<int>(map.exchange.layout.head_dim);
    if (head_dim <= lanes * Count) {
        move_heads<Map, Count, 1><<<grid, threads, 0, stream>>>(map, head_dim, lanes, map.exchange.eps);
    } else {
        move_heads<Map, Count, kMaxChannels / Count><<<grid, threads, 0, stream>>>(map, head_dim, lanes, map.exchange.eps);
    }
    CUDA_CHECK_LAUNCH("move_heads");
}

template <typename Map> void launch(const Map& map, const Work& work, Stream* stream) {
    const layout::Layout& layout = map.exchange.layout;
    if (work.tokens == 0 || work.heads == 0) return;
    int lanes = 1;
    while (lanes < 32 && lanes * work.elements < layout.head_dim) lanes *= 2;
    const auto wanted = static_cast<int>(std::min<std::int64_t>(work.heads * lanes, 256));
    const int threads = (wanted + 31) / 32 * 32;
    const dim3 grid(static_cast<unsigned>(work.tokens), static_cast<unsigned>(layout.batch),
                    static_cast<unsigned>(layout.ranks * work.streams));
    switch (work.elements) {
        case 8: return launch_with<8>(map, grid, threads, lanes, native(stream));
        case 2: return launch_with<2>(map, grid, threads, lanes, native(stream));
        default: return launch_with<1>(map, grid, threads, lanes, native(stream));
    }
}

} // namespace edgedit::cuda
