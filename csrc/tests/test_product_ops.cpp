// linear, attention and conv2d as nodes: which source is which, and how strides and axes of length one are read. What
// kernels make of it is tested apart; here small whole numbers give exact results.
#include <cmath>
#include <functional>
#include <vector>

#include "check.hpp"
#include "fake_tensor.hpp"
#include "ops/callbacks.hpp"
#include "ops/product_spec.hpp"

using namespace edgedit;
using namespace edgedit::ops;

namespace {

constexpr int kThreads = 3;

template <typename Spec> Spec fresh() {
    Spec spec{};
    spec.version = kSpecVersion;
    spec.nbytes = sizeof spec;
    spec.family = kernels::find("portable");
    return spec;
}

using Operator = void (*)(ggml_tensor*, int, int, void*);

template <typename Spec> void run(Operator operation, ggml_tensor* node, Spec& spec) {
    for (int thread = kThreads - 1; thread >= 0; --thread) operation(node, thread, kThreads, &spec);
}

using Use = std::function<void(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>;

void for_each(const FakeTensor& of, const Use& use) {
    const std::int64_t* ne = of.tensor.ne;
    for (std::int64_t i3 = 0; i3 < ne[3]; ++i3)
        for (std::int64_t i2 = 0; i2 < ne[2]; ++i2)
            for (std::int64_t i1 = 0; i1 < ne[1]; ++i1)
                for (std::int64_t i0 = 0; i0 < ne[0]; ++i0) use(i3, i2, i1, i0);
}

/// Small whole numbers that differ between neighbours along every axis.
void fill(FakeTensor& x, std::int64_t seed) {
    for_each(x, [&](std::int64_t i3, std::int64_t i2, std::int64_t i1, std::int64_t i0) {
        x.set(i3, i2, i1, i0, static_cast<float>((((i3 * 5 + i2) * 7 + i1) * 3 + i0 + seed) % 7 - 3));
    });
}

/// 64-byte aligned memory for a weight, with ggml's tensor before it.
class Packed {
public:
    Packed(const std::vector<float>& values, std::int64_t columns, std::int64_t inner) {
        const kernels::Kernels& family = *kernels::find("portable");
        const std::int64_t nbytes = family.packed_nbytes(kernels::Type::f32, columns, inner);
        memory_.resize(static_cast<std::size_t>(nbytes) / sizeof(Line));
        family.pack(kernels::Type::f32, columns, inner, 0, columns, values.data(), memory_.data());
        tensor.data = memory_.data();
    }

    Tensor tensor{};

private:
    struct alignas(64) Line {
        std::byte bytes[64];
    };
    std::vector<Line> memory_;
};

void linear_reads_its_sources(DType out_type, bool has_gate, bool has_residual) {
    const std::int64_t batch = 2, tokens = 7, columns = 70, inner[2] = {24, 9};
    FakeTensor first(DType::f32, {batch, tokens, inner[0]}, 5), second(DType::f32, {batch, tokens, inner[1]});
    FakeTensor gate(DType::f32, {batch, 1, columns}, 3), residual(DType::f32, {batch, tokens, columns}, 8);
    FakeTensor bias(DType::f32, {columns}), result(out_type, {batch, tokens, columns});
    std::int64_t seed = 0;
    for (FakeTensor* x : {&first, &second, &gate, &residual, &bias}) fill(*x, seed++);
    std::vector<float> weight;
    for (std::int64_t i = 0; i < columns * (inner[0] + inner[1]); ++i) weight.push_back(static_cast<float>(i % 5 - 2));
    const Packed packed(weight, columns, inner[0] + inner[1]);

    auto spec = fresh<LinearSpec>();
    spec.weight = &packed.tensor;
    spec.bias = &bias.tensor;
    spec.activation = kernels::Activation::relu;
    spec.columns = columns;
    spec.inner = inner[0] + inner[1];
    spec.num_inputs = 2;
    spec.has_gate = has_gate;
    spec.has_residual = has_residual;
    ggml_tensor* node = result.node({&first, &second});
    int sources = 2;
    if (has_gate) result.tensor.src[sources++] = &gate.tensor;
    if (has_residual) result.tensor.src[sources++] = &residual.tensor;
    run(edgedit_linear, node, spec);

    for_each(result, [&](std::int64_t, std::int64_t b, std::int64_t token, std::int64_t column) {
        float sum = bias.get(0, 0, 0, column);
        const float* row = weight.data() + column * spec.inner;
        for (std::int64_t k = 0; k < inner[0]; ++k) sum += first.get(0, b, token, k) * row[k];
        for (std::int64_t k = 0; k < inner[1]; ++k) sum += second.get(0, b, token, k) * row[inner[0] + k];
        float expected = std::fmax(sum, 0.0f);
        if (has_gate) expected *= gate.get(0, b, 0, column);
        if (has_residual) expected += residual.get(0, b, token, column);
        const float found = result.get(0, b, token, column), unit = out_type == DType::f32 ? 0.0f : 1.0f / 256;
        CHECK(std::fabs(found - expected) <= unit * std::fabs(expected), "linear %lld %lld %lld: %g, not %g",
              static_cast<long long>(b), static_cast<long long>(token), static_cast<long long>(column), found,
              expected);
    });
}

/// A mask that leaves each query one key makes attention a choice of rows of v.
void attention_reads_its_mask(bool per_batch, bool per_head) {
    const std::int64_t batch = 2, heads = 3, queries = 5, keys = 11, channels = 8;
    FakeTensor q(DType::f32, {batch, queries, heads, channels}, 4), k(DType::f32, {batch, keys, heads, channels});
    FakeTensor v(DType::f32, {batch, keys, heads, channels}, 6);
    FakeTensor mask(DType::f16, {per_batch ? batch : 1, per_head ? heads : 1, queries, keys});
    FakeTensor result(DType::f32, {batch, queries, heads, channels});
    fill(q, 0), fill(k, 1), fill(v, 2);
    const auto chosen = [&](std::int64_t b, std::int64_t head, std::int64_t query) {
        return (b * 3 + head * 2 + query + 1) % keys;
    };
    for_each(mask, [&](std::int64_t b, std::int64_t head, std::int64_t query, std::int64_t key) {
        mask.set(b, head, query, key, key == chosen(b, head, query) ? 0.0f : -INFINITY);
    });
    auto spec = fresh<AttentionSpec>();
    spec.scale = 0.5f;
    spec.has_mask = 1;
    run(edgedit_attention, result.node({&q, &k, &v, &mask}), spec);
    for_each(result, [&](std::int64_t b, std::int64_t query, std::int64_t head, std::int64_t channel) {
        const std::int64_t key = chosen(per_batch ? b : 0, per_head ? head : 0, query);
        const float found = result.get(b, query, head, channel), expected = v.get(b, key, head, channel);
        CHECK(found == expected, "attention %lld %lld %lld: %g, not %g", static_cast<long long>(b),
              static_cast<long long>(query), static_cast<long long>(head), found, expected);
    });
}

/// Two masks that leave out what the other leaves in: the parts merge to what no mask gives. Queries from
/// `first_masked` on have no key in either.
void attention_in_parts_adds_up(DType out_type, bool keeps_lse, bool in_place) {
    const std::int64_t batch = 2, heads = 3, queries = 5, keys = 11, channels = 8, first_masked = 4;
    FakeTensor q(DType::f32, {batch, queries, heads, channels}, 4), k(DType::f32, {batch, keys, heads, channels});
    FakeTensor v(DType::f32, {batch, keys, heads, channels});
    FakeTensor low(DType::f32, {queries, keys}), high(DType::f32, {queries, keys}), all(DType::f32, {queries, keys});
    fill(q, 0), fill(k, 1), fill(v, 2);
    for_each(all, [&](std::int64_t, std::int64_t, std::int64_t query, std::int64_t key) {
        const bool is_low = key < query; // none of the first query's keys
        const bool is_masked = query >= first_masked;
        low.set(0, 0, query, key, is_low && !is_masked ? 0.0f : -INFINITY);
        high.set(0, 0, query, key, is_low || is_masked ? -INFINITY : 0.0f);
        all.set(0, 0, query, key, is_masked ? -INFINITY : 0.0f);
    });
    auto spec = fresh<AttentionSpec>();
    spec.scale = 0.25f;
    spec.has_mask = 1;
    const std::vector<std::int64_t> shape = {batch, queries, heads, channels + 1};
    FakeTensor first(DType::f32, shape), second(DType::f32, shape), whole(DType::f32, shape);
    run(edgedit_attention_partial, first.node({&q, &k, &v, &low}), spec);
    run(edgedit_attention_partial, second.node({&q, &k, &v, &high}), spec);
    run(edgedit_attention_partial, whole.node({&q, &k, &v, &all}), spec);

    MergeSpec merge{kSpecVersion, sizeof merge};
    FakeTensor other(out_type, {batch, queries, heads, channels + (keeps_lse ? 1 : 0)});
    FakeTensor& merged = in_place ? first : other;
    run(edgedit_attention_merge, merged.node({&first, &second}), merge);
    for_each(merged, [&](std::int64_t b, std::int64_t query, std::int64_t head, std::int64_t channel) {
        const float found = merged.get(b, query, head, channel), expected = whole.get(b, query, head, channel);
        const float unit = out_type == DType::f32 ? 2e-6f : 1.0f / 128;
        const bool is_empty = query >= first_masked;
        const bool fits = is_empty ? found == (channel == channels ? -INFINITY : 0.0f)
                                   : std::fabs(found - expected) <= unit * std::fmax(1.0f, std::fabs(expected));
        CHECK(fits, "merge %lld %lld %lld %lld: %g, not %g", static_cast<long long>(b), static_cast<long long>(query),
              static_cast<long long>(head), static_cast<long long>(channel), found, expected);
    });
}

void conv2d_reads_its_sides() {
    const std::int64_t batch = 2, channels = 3, height = 6, width = 7, filters = 4, kernel = 3, stride = 2;
    const std::int64_t above = 1, below = 2, left = 0, right = 1;
    FakeTensor x(DType::f32, {batch, channels, height, width}, 9);
    FakeTensor weight(DType::f32, {filters, channels, kernel, kernel});
    FakeTensor bias(DType::f32, {filters});
    FakeTensor result(DType::f32, {batch, filters, (height + above + below - kernel) / stride + 1,
                                   (width + left + right - kernel) / stride + 1});
    FakeTensor residual(DType::f32, {batch, filters, result.tensor.ne[1], result.tensor.ne[0]});
    fill(x, 0), fill(weight, 1), fill(bias, 2), fill(residual, 3);
    auto spec = fresh<Conv2dSpec>();
    spec.weight = &weight.tensor;
    spec.bias = &bias.tensor;
    spec.stride = stride;
    spec.pad_top = above;
    spec.pad_bottom = below;
    spec.pad_left = left;
    spec.pad_right = right;
    spec.has_residual = 1;
    run(edgedit_conv2d, result.node({&x, &residual}), spec);
    for_each(result, [&](std::int64_t b, std::int64_t filter, std::int64_t y0, std::int64_t x0) {
        float expected = bias.get(0, 0, 0, filter) + residual.get(b, filter, y0, x0);
        for_each(weight, [&](std::int64_t of, std::int64_t channel, std::int64_t dy, std::int64_t dx) {
            const std::int64_t line = y0 * stride + dy - above, pixel = x0 * stride + dx - left;
            if (of != filter || line < 0 || line >= height || pixel < 0 || pixel >= width) return;
            expected += weight.get(of, channel, dy, dx) * x.get(b, channel, line, pixel);
        });
        const float found = result.get(b, filter, y0, x0);
        CHECK(found == expected, "conv2d %lld %lld %lld %lld: %g, not %g", static_cast<long long>(b),
              static_cast<long long>(filter), static_cast<long long>(y0), static_cast<long long>(x0), found, expected);
    });
}

} // namespace

int main() {
    for (const DType type : {DType::f32, DType::bf16}) {
        for (int choice = 0; choice < 4; ++choice) linear_reads_its_sources(type, choice & 1, choice & 2);
    }
    for (int choice = 0; choice < 4; ++choice) attention_reads_its_mask(choice & 1, choice & 2);
    attention_in_parts_adds_up(DType::f32, true, false);
    attention_in_parts_adds_up(DType::f32, true, true);
    for (const DType type : {DType::f32, DType::bf16}) attention_in_parts_adds_up(type, false, false);
    conv2d_reads_its_sides();
    std::printf("linear, attention and conv2d read their sources as they are\n");
    return 0;
}
