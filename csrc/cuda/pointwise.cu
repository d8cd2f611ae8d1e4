// modulate, gated_residual and rope_table: what adaLN blocks do to each token around their products; and the ordered sum
// of all-reduce.
#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/elements.cuh"
#include "cuda/operators.hpp"
#include "ops/tensor.hpp"

namespace edgedit::cuda {
namespace {

/// Rows of a tensor whose axes of length one are repeated.
struct Rows {
    const std::byte* data;
    std::int64_t stride[3];
    DType type;

    explicit Rows(const ops::Tensor& x) : data(static_cast<const std::byte*>(x.data)), type(ops::dtype(x)) {
        for (int axis = 0; axis < 3; ++axis) {
            stride[axis] = x.ne[axis + 1] == 1 ? 0 : static_cast<std::int64_t>(x.nb[axis + 1]);
        }
    }

    /// Of the block of threads (x, y, z).
    __device__ const std::byte* row() const {
        return data + stride[0] * blockIdx.x + stride[1] * blockIdx.y + stride[2] * blockIdx.z;
    }
};

__device__ inline float sum_of_block(float value) {
    __shared__ float of_warps[32];
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    __syncthreads(); // an earlier sum may still be read
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += of_warps[warp];
    return sum;
}

/// One block of threads per row. The row is read three times, of which two come from the first-level cache.
template <int Count>
__global__ void modulate_rows(Rows result, Rows x, Rows scale, Rows shift, int columns, float eps) {
    const int first = static_cast<int>(threadIdx.x) * Count, step = static_cast<int>(blockDim.x) * Count;
    float sum = 0;
    for (int i = first; i < columns; i += step) {
        for (const float value : load<Count>(x.row(), x.type, i).values) sum += value;
    }
    const float mean = sum_of_block(sum) / static_cast<float>(columns);
    float squares = 0;
    for (int i = first; i < columns; i += step) {
        for (const float value : load<Count>(x.row(), x.type, i).values) squares += (value - mean) * (value - mean);
    }
    const float factor = 1.0f / sqrtf(sum_of_block(squares) / static_cast<float>(columns) + eps);
    for (int i = first; i < columns; i += step) {
        Pack<Count> out = load<Count>(x.row(), x.type, i);
        const Pack<Count> s = load<Count>(scale.row(), scale.type, i), t = load<Count>(shift.row(), shift.type, i);
#pragma unroll
        for (int k = 0; k < Count; ++k) out.values[k] = (out.values[k] - mean) * factor * (1.0f + s.values[k]) + t.values[k];
        store<Count>(const_cast<std::byte*>(result.row()), result.type, i, out);
    }
}

template <int Count> __global__ void gate_rows(Rows result, Rows x, Rows gate, Rows update, int columns) {
    const int first = static_cast<int>(threadIdx.x) * Count, step = static_cast<int>(blockDim.x) * Count;
    for (int i = first; i < columns; i += step) {
        Pack<Count> out = load<Count>(x.row(), x.type, i);
        const Pack<Count> g = load<Count>(gate.row(), gate.type, i), u = load<Count>(update.row(), update.type, i);
#pragma unroll
        for (int k = 0; k < Count; ++k) out.values[k] = out.values[k] + g.values[k] * u.values[k];
        store<Count>(const_cast<std::byte*>(result.row()), result.type, i, out);
    }
}

struct Periods {
    const float* of_axis[ops::kMaxAxes];
    int pairs[ops::kMaxAxes];
};

/// One block of threads per token: cosine and sine of position / period.
__global__ void turn_tokens(float2* table, const std::int32_t* positions, std::int64_t axis_stride, Periods periods, int axes, int pairs) {
    for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += static_cast<int>(blockDim.x)) {
        int axis = 0, within = pair;
        while (axis + 1 < axes && within >= periods.pairs[axis]) within -= periods.pairs[axis++];
        const auto position = static_cast<float>(positions[axis * axis_stride + blockIdx.x]);
        const float angle = position / periods.of_axis[axis][within];
        table[static_cast<std::int64_t>(blockIdx.x) * pairs + pair] = {cosf(angle), sinf(angle)};
    }
}

__global__ void reduce_parts(void* to, const void* parts, int num_parts, std::int64_t count, DType type, int op) {
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        Pack<1> total = load<1>(parts, type, i);
        for (int part = 1; part < num_parts; ++part) {
            const float value = load<1>(parts, type, part * count + i).values[0], before = total.values[0];
            if (op == 0) {
                total.values[0] = before + value;
            } else if (!isnan(before)) { // a NaN stays, which fmaxf and fminf would drop
                total.values[0] = isnan(value) ? value : op == 1 ? fmaxf(before, value) : fminf(before, value);
            }
        }
        store<1>(to, type, i, total);
    }
}

struct RowLaunch {
    dim3 grid;
    int columns, threads;
    bool wide; ///< four elements at once
};

RowLaunch rows_of(const ops::Tensor& result) {
    const auto columns = static_cast<int>(result.ne[0]);
    bool wide = columns % 4 == 0;
    const ops::Tensor* tensors[] = {&result, result.src[0], result.src[1], result.src[2]};
    for (const ops::Tensor* x : tensors) {
        const std::int64_t unit = 4 * ops::itemsize(ops::dtype(*x));
        wide = wide && reinterpret_cast<std::intptr_t>(x->data) % unit == 0;
        for (int axis = 1; axis < 4; ++axis) wide = wide && static_cast<std::int64_t>(x->nb[axis]) % unit == 0;
    }
    if (result.ne[2] > 65535 || result.ne[3] > 65535) throw DeviceError("more than 65535 rows along an outer axis");
    const int wanted = (columns / (wide ? 4 : 1) + 31) / 32 * 32;
    return {dim3(static_cast<unsigned>(result.ne[1]), static_cast<unsigned>(result.ne[2]), static_cast<unsigned>(result.ne[3])),
            columns, std::clamp(wanted, 32, 1024), wide};
}

bool is_empty(const ops::Tensor& x) { return x.ne[0] * x.ne[1] * x.ne[2] * x.ne[3] == 0; }

const ops::PointwiseSpec& pointwise_spec(const void* spec) {
    const auto& pointwise = *static_cast<const ops::PointwiseSpec*>(spec);
    if (!ops::is_current(pointwise)) throw DeviceError("a pointwise operator got a spec of another version");
    return pointwise;
}

} // namespace

void modulate(ggml_tensor* node, void* userdata, Stream* stream) {
    const float eps = pointwise_spec(userdata).eps;
    const ops::Tensor& y = ops::tensor(node);
    if (is_empty(y)) return;
    const auto [grid, columns, threads, wide] = rows_of(y);
    const auto kernel = wide ? modulate_rows<4> : modulate_rows<1>;
    kernel<<<grid, threads, 0, native(stream)>>>(Rows(y), Rows(*y.src[0]), Rows(*y.src[1]), Rows(*y.src[2]), columns, eps);
    CUDA_CHECK_LAUNCH("modulate_rows");
}

void gated_residual(ggml_tensor* node, void* userdata, Stream* stream) {
    pointwise_spec(userdata);
    const ops::Tensor& y = ops::tensor(node);
    if (is_empty(y)) return;
    const auto [grid, columns, threads, wide] = rows_of(y);
    const auto kernel = wide ? gate_rows<4> : gate_rows<1>;
    kernel<<<grid, threads, 0, native(stream)>>>(Rows(y), Rows(*y.src[0]), Rows(*y.src[1]), Rows(*y.src[2]), columns);
    CUDA_CHECK_LAUNCH("gate_rows");
}

void rope_table(ggml_tensor* node, void* userdata, Stream* stream) {
    const auto& spec = *static_cast<const ops::RopeTableSpec*>(userdata);
    if (!ops::is_current(spec)) throw DeviceError("rope_table got a spec of another version");
    const ops::Tensor& table = ops::tensor(node);
    if (is_empty(table)) return;
    const ops::Tensor& positions = *table.src[0];
    Periods periods{};
    for (int axis = 0; axis < spec.axes; ++axis) {
        periods.of_axis[axis] = static_cast<const float*>(table.src[1 + axis]->data);
        periods.pairs[axis] = static_cast<int>(table.src[1 + axis]->ne[0]);
    }
    const auto pairs = static_cast<int>(table.ne[1]);
    turn_tokens<<<static_cast<unsigned>(table.ne[2]), std::clamp((pairs + 31) / 32 * 32, 32, 256), 0, native(stream)>>>(
        static_cast<float2*>(table.data), static_cast<const std::int32_t*>(positions.data),
        static_cast<std::int64_t>(positions.nb[1] / sizeof(std::int32_t)), periods, spec.axes, pairs);
    CUDA_CHECK_LAUNCH("turn_tokens");
}

void ordered_reduce(void* to, const void* parts, int num_parts, std::int64_t count, int type, int op, Stream* stream) {
    if (!ops::is_dtype(type)) throw DeviceError("all-reduce on CUDA takes f32, f16 and bf16, not ggml type " + std::to_string(type));
    if (count == 0) return;
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((count + 255) / 256, 2048));
    reduce_parts<<<blocks, 256, 0, native(stream)>>>(to, parts, num_parts, count, static_cast<DType>(type), op);
    CUDA_CHECK_LAUNCH("reduce_parts");
}

} // namespace edgedit::cuda
