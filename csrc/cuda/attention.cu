// attention_partial and attention_merge: attention to some of the keys with the logarithm of its sum, and two of these
// put together. What ring attention needs of a device; all else is attended to by ggml's own nodes.
#include <cmath>
#include <string>

#include "cuda/check.hpp"
#include "cuda/elements.cuh"
#include "cuda/operators.hpp"
#include "ops/product_spec.hpp"
#include "ops/tensor.hpp"

namespace edgedit::cuda {
namespace {

constexpr int kWarp = 32, kWarps = 4;

/// [batch, token, head, channel]; channels are dense. For `ne` = [D, H, S, B].
struct Heads {
    const std::byte* data;
    std::int64_t batch_stride, token_stride, head_stride;
    DType type;

    explicit Heads(const ops::Tensor& x)
        : data(static_cast<const std::byte*>(x.data)), batch_stride(static_cast<std::int64_t>(x.nb[3])),
          token_stride(static_cast<std::int64_t>(x.nb[2])), head_stride(static_cast<std::int64_t>(x.nb[1])),
          type(ops::dtype(x)) {}

    __device__ const std::byte* row(std::int64_t batch, std::int64_t token, std::int64_t head) const {
        return data + batch * batch_stride + token * token_stride + head * head_stride;
    }
};

/// Added to the scores; axes of length one broadcast. `data` is null where there is none.
struct Mask {
    const std::byte* data = nullptr;
    std::int64_t batch_stride = 0, head_stride = 0, query_stride = 0;
    DType type = DType::f32;

    Mask() = default;
    explicit Mask(const ops::Tensor& mask) : data(static_cast<const std::byte*>(mask.data)), type(ops::dtype(mask)) {
        const auto stride = [&](int axis) { return mask.ne[axis] == 1 ? 0 : static_cast<std::int64_t>(mask.nb[axis]); };
        query_stride = stride(1), head_stride = stride(2), batch_stride = stride(3);
    }

    __device__ const std::byte* row(std::int64_t batch, std::int64_t head, std::int64_t query) const {
        return data + batch * batch_stride + head * head_stride + query * query_stride;
    }
};

struct Place {
    std::int64_t batch, query, head;
};

/// What a warp works on; false for warps beyond the last row.
__device__ inline bool find_place(Place& place, std::int64_t batch, std::int64_t queries, std::int64_t heads) {
    std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    if (item >= batch * queries * heads) return false;
    place.head = item % heads, item /= heads;
    place.query = item % queries, place.batch = item / queries;
    return true;
}

__device__ inline float sum_of_warp(float value) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

struct Sizes {
    std::int64_t batch, queries, keys, heads;
    int channels;
};

/// One warp per query of a head, `Slots` channels per lane; the softmax is online.
template <int Slots>
__global__ void attend_rows(Heads out, Heads q, Heads k, Heads v, Mask mask, Sizes sizes, float scale) {
    Place at;
    if (!find_place(at, sizes.batch, sizes.queries, sizes.heads)) return;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float query[Slots], sums[Slots] = {};
    const std::byte* row = q.row(at.batch, at.query, at.head);
#pragma unroll
    for (int slot = 0; slot < Slots; ++slot) {
        const int channel = lane + slot * kWarp;
        query[slot] = channel < sizes.channels ? load<1>(row, q.type, channel).values[0] : 0.0f;
    }
    float highest = -INFINITY, total = 0.0f;
    for (std::int64_t key = 0; key < sizes.keys; ++key) {
        const std::byte *of_key = k.row(at.batch, key, at.head), *of_value = v.row(at.batch, key, at.head);
        float score = 0.0f;
#pragma unroll
        for (int slot = 0; slot < Slots; ++slot) {
            const int channel = lane + slot * kWarp;
            if (channel < sizes.channels) score += query[slot] * load<1>(of_key, k.type, channel).values[0];
        }
        score = sum_of_warp(score) * scale;
        if (mask.data != nullptr) score += load<1>(mask.row(at.batch, at.head, at.query), mask.type, key).values[0];
        if (score == -INFINITY) continue; // the same for the whole warp
        const float raised = fmaxf(highest, score), factor = expf(highest - raised), weight = expf(score - raised);
        highest = raised;
        total = total * factor + weight;
#pragma unroll
        for (int slot = 0; slot < Slots; ++slot) {
            const int channel = lane + slot * kWarp;
            const float value = channel < sizes.channels ? load<1>(of_value, v.type, channel).values[0] : 0.0f;
            sums[slot] = sums[slot] * factor + weight * value;
        }
    }
    auto* to = reinterpret_cast<float*>(const_cast<std::byte*>(out.row(at.batch, at.query, at.head)));
#pragma unroll
    for (int slot = 0; slot < Slots; ++slot) {
        const int channel = lane + slot * kWarp;
        if (channel < sizes.channels) to[channel] = total == 0.0f ? 0.0f : sums[slot] / total;
    }
    if (lane == 0) to[sizes.channels] = total == 0.0f ? -INFINITY : highest + logf(total);
}

/// One warp per row of D channels and the logarithm of their sum. `out` may be `a`.
__global__ void merge_rows(Heads out, Heads a, Heads b, Sizes sizes, bool keeps_lse) {
    Place at;
    if (!find_place(at, sizes.batch, sizes.queries, sizes.heads)) return;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto* of_a = reinterpret_cast<const float*>(a.row(at.batch, at.query, at.head));
    const auto* of_b = reinterpret_cast<const float*>(b.row(at.batch, at.query, at.head));
    const float lse_a = of_a[sizes.channels], lse_b = of_b[sizes.channels], highest = fmaxf(lse_a, lse_b);
    __syncwarp(); // a row may be overwritten, its logarithm last of all
    const bool is_empty = highest == -INFINITY;
    const float weight_a = is_empty ? 0.0f : expf(lse_a - highest), weight_b = is_empty ? 0.0f : expf(lse_b - highest);
    const float sum = is_empty ? 1.0f : weight_a + weight_b;
    auto* to = const_cast<std::byte*>(out.row(at.batch, at.query, at.head));
    for (int channel = lane; channel < sizes.channels; channel += kWarp) {
        const Pack<1> value = {{weight_a / sum * of_a[channel] + weight_b / sum * of_b[channel]}};
        store<1>(to, out.type, channel, value);
    }
    if (keeps_lse && lane == 0) reinterpret_cast<float*>(to)[sizes.channels] = is_empty ? highest : highest + logf(sum);
}

dim3 grid_of(const Sizes& sizes) {
    const std::int64_t items = sizes.batch * sizes.queries * sizes.heads, blocks = (items + kWarps - 1) / kWarps;
    if (blocks > 0x7fffffff) throw DeviceError("attention over " + std::to_string(items) + " rows is too large for one launch");
    return dim3(static_cast<unsigned>(blocks));
}

} // namespace

void attention_partial(ggml_tensor* node, void* userdata, Stream* stream) {
    const auto& spec = *static_cast<const ops::AttentionSpec*>(userdata);
    if (!ops::is_current(spec)) throw DeviceError("attention_partial got a spec of another version");
    const ops::Tensor& out = ops::tensor(node);
    const ops::Tensor &q = *out.src[0], &k = *out.src[1], &v = *out.src[2];
    const Sizes sizes = {out.ne[3], out.ne[2], k.ne[2], out.ne[1], static_cast<int>(q.ne[0])};
    if (sizes.batch * sizes.queries * sizes.heads == 0) return;
    const int slots = (sizes.channels + kWarp - 1) / kWarp;
    const auto kernel = slots <= 2 ? attend_rows<2> : slots <= 4 ? attend_rows<4> : attend_rows<8>;
    if (slots > 8) throw DeviceError("attention_partial on CUDA takes at most 256 channels a head, not " + std::to_string(sizes.channels));
    kernel<<<grid_of(sizes), kWarps * kWarp, 0, native(stream)>>>(
        Heads(out), Heads(q), Heads(k), Heads(v), spec.has_mask != 0 ? Mask(*out.src[3]) : Mask(), sizes, spec.scale);
    CUDA_CHECK_LAUNCH("attend_rows");
}

void attention_merge(ggml_tensor* node, void* userdata, Stream* stream) {
    if (!ops::is_current(*static_cast<const ops::MergeSpec*>(userdata)))
        throw DeviceError("attention_merge got a spec of another version");
    const ops::Tensor& out = ops::tensor(node);
    const ops::Tensor &a = *out.src[0], &b = *out.src[1];
    const Sizes sizes = {out.ne[3], out.ne[2], 0, out.ne[1], static_cast<int>(a.ne[0]) - 1};
    if (sizes.batch * sizes.queries * sizes.heads == 0) return;
    merge_rows<<<grid_of(sizes), kWarps * kWarp, 0, native(stream)>>>(Heads(out), Heads(a), Heads(b), sizes,
                                                                      out.ne[0] == a.ne[0]);
    CUDA_CHECK_LAUNCH("merge_rows");
}

} // namespace edgedit::cuda
