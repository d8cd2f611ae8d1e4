// Attention of every family: against double precision over shapes, types, strides and masks, and equal bit for bit
// however queries, heads and batches are split over calls and threads.
#include <algorithm>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

#include "kernel_testing.hpp"

using namespace edgedit;
using namespace edgedit::kernels;

namespace {

/// [batch, token, head, channel] in either order of tokens and heads, with unused elements after each row of
/// channels. These are NaN, and the memory ends with the last channel: to read either shows.
class Heads {
public:
    Heads(DType type, std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t head_dim,
          bool head_major, std::int64_t gap)
        : type_(type), shape_{batch, tokens, heads, head_dim} {
        const std::int64_t row = (head_dim + gap) * itemsize(type);
        token_stride = head_major ? row : row * heads;
        head_stride = head_major ? row * tokens : row;
        batch_stride = row * heads * tokens;
        bytes.assign(static_cast<std::size_t>(batch * batch_stride - gap * itemsize(type)), 0xff);
    }

    void fill(Values& values) {
        for (std::int64_t b = 0; b < shape_[0]; ++b)
            for (std::int64_t t = 0; t < shape_[1]; ++t)
                for (std::int64_t h = 0; h < shape_[2]; ++h)
                    for (std::int64_t c = 0; c < shape_[3]; ++c) write(at(b, t, h, c), type_, values.next(type_));
    }

    unsigned char* at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c = 0) {
        return bytes.data() + b * batch_stride + t * token_stride + h * head_stride + c * itemsize(type_);
    }
    const unsigned char* at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c = 0) const {
        return const_cast<Heads*>(this)->at(b, t, h, c);
    }

    double value(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) const {
        return read(at(b, t, h, c), type_);
    }

    HeadsView view() const { return {bytes.data(), type_, batch_stride, token_stride, head_stride}; }

    std::vector<unsigned char> bytes;
    std::int64_t batch_stride, token_stride, head_stride;

private:
    DType type_;
    std::int64_t shape_[4];
};

enum class MaskKind {
    none,
    additive, ///< finite values
    causal,   ///< key <= query
    holes,    ///< finite values, a quarter of the keys left out; some queries lack the first 140, some all
};

struct Case {
    std::int64_t batch, heads, queries, keys, head_dim;
    DType q, k, v, out;
    Compute compute;
    MaskKind mask;
    DType mask_type;
    bool mask_per_batch, mask_per_head;
    bool head_major;
    std::int64_t gap;
    float scale;
};

struct Inputs {
    Inputs(const Case& c, unsigned seed)
        : q(c.q, c.batch, c.queries, c.heads, c.head_dim, c.head_major, c.gap),
          k(c.k, c.batch, c.keys, c.heads, c.head_dim, c.head_major, c.gap),
          v(c.v, c.batch, c.keys, c.heads, c.head_dim, c.head_major, c.gap) {
        Values values(seed);
        for (Heads* heads : {&q, &k, &v}) heads->fill(values);
        if (c.mask == MaskKind::none) return;
        mask_rows = (c.mask_per_batch ? c.batch : 1) * (c.mask_per_head ? c.heads : 1) * c.queries;
        mask.resize(static_cast<std::size_t>(mask_rows * c.keys));
        for (std::int64_t row = 0; row < mask_rows; ++row)
            for (std::int64_t key = 0; key < c.keys; ++key) {
                float value = c.mask == MaskKind::causal ? 0.0f : values.next(DType::f16);
                if (c.mask == MaskKind::causal && key > row % c.queries) value = -kInfinity;
                const bool out = row % 5 == 3 || (row % 3 == 1 && key < 140) || values.below(4) == 0;
                if (c.mask == MaskKind::holes && out) value = -kInfinity;
                mask[static_cast<std::size_t>(row * c.keys + key)] = value;
            }
        mask_bytes.resize(mask.size() * static_cast<std::size_t>(itemsize(c.mask_type)));
        for (std::size_t i = 0; i < mask.size(); ++i)
            write(mask_bytes.data() + i * static_cast<std::size_t>(itemsize(c.mask_type)), c.mask_type, mask[i]);
    }

    Heads q, k, v;
    std::int64_t mask_rows = 0;
    std::vector<float> mask;
    std::vector<unsigned char> mask_bytes;
};

struct Result {
    explicit Result(const Case& c)
        : out(c.out, c.batch, c.queries, c.heads, c.head_dim, c.head_major, c.gap),
          lse(static_cast<std::size_t>(c.batch * c.queries * c.heads), NAN) {}

    Heads out;
    std::vector<float> lse; // [batch, query, head]
};

AttentionProblem problem_of(const Case& c, const Inputs& inputs, Result& result) {
    AttentionProblem problem = {};
    problem.batch = c.batch, problem.heads = c.heads, problem.queries = c.queries, problem.keys = c.keys;
    problem.head_dim = c.head_dim;
    problem.q = inputs.q.view(), problem.k = inputs.k.view(), problem.v = inputs.v.view();
    if (c.mask != MaskKind::none) {
        problem.mask = inputs.mask_bytes.data();
        problem.mask_type = c.mask_type;
        problem.mask_query_stride = c.keys * itemsize(c.mask_type);
        const std::int64_t matrix = c.queries * problem.mask_query_stride;
        problem.mask_head_stride = c.mask_per_head ? matrix : 0;
        problem.mask_batch_stride = c.mask_per_batch ? (c.mask_per_head ? c.heads : 1) * matrix : 0;
    }
    problem.scale = c.scale;
    problem.compute = c.compute;
    problem.out = result.out.bytes.data(), problem.out_type = c.out;
    problem.out_batch_stride = result.out.batch_stride;
    problem.out_token_stride = result.out.token_stride;
    problem.out_head_stride = result.out.head_stride;
    problem.lse = result.lse.data();
    problem.lse_head_stride = 4, problem.lse_query_stride = 4 * c.heads;
    problem.lse_batch_stride = problem.lse_query_stride * c.queries;
    return problem;
}

void run(const Kernels& kernels, const AttentionProblem& problem, int num_threads) {
    for (int thread = 0; thread < num_threads; ++thread) kernels.attention(problem, thread, num_threads);
}

/// The same problem for some queries of one head of one batch.
AttentionProblem part_of(AttentionProblem problem, std::int64_t batch, std::int64_t head, std::int64_t query,
                         std::int64_t count) {
    const auto offset = [&](auto* data, std::int64_t by_batch, std::int64_t by_head, std::int64_t by_query) {
        using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>, const char, char>;
        return reinterpret_cast<decltype(data)>(reinterpret_cast<Byte*>(data) + batch * by_batch + head * by_head +
                                                query * by_query);
    };
    const auto select = [&](HeadsView& view, bool is_query) {
        view.data = offset(view.data, view.batch_stride, view.head_stride, is_query ? view.token_stride : 0);
    };
    select(problem.q, true), select(problem.k, false), select(problem.v, false);
    if (problem.mask)
        problem.mask =
            offset(problem.mask, problem.mask_batch_stride, problem.mask_head_stride, problem.mask_query_stride);
    problem.out = offset(problem.out, problem.out_batch_stride, problem.out_head_stride, problem.out_token_stride);
    problem.lse = offset(problem.lse, problem.lse_batch_stride, problem.lse_head_stride, problem.lse_query_stride);
    problem.batch = problem.heads = 1;
    problem.queries = count;
    return problem;
}

/// One query, by definition.
double expected_row(const Case& c, const Inputs& inputs, std::int64_t b, std::int64_t h, std::int64_t query,
                    std::vector<double>& row) {
    const std::int64_t mask_batch = c.mask_per_batch ? b : 0, mask_head = c.mask_per_head ? h : 0;
    const std::int64_t mask_row = (mask_batch * (c.mask_per_head ? c.heads : 1) + mask_head) * c.queries + query;
    std::vector<double> weights(static_cast<std::size_t>(c.keys));
    double highest = -kInfinity;
    for (std::int64_t key = 0; key < c.keys; ++key) {
        double score = 0;
        for (std::int64_t d = 0; d < c.head_dim; ++d)
            score += inputs.q.value(b, query, h, d) * inputs.k.value(b, key, h, d);
        score *= c.scale;
        if (c.mask != MaskKind::none) score += inputs.mask[static_cast<std::size_t>(mask_row * c.keys + key)];
        weights[static_cast<std::size_t>(key)] = score;
        highest = std::max(highest, score);
    }
    row.assign(static_cast<std::size_t>(c.head_dim), 0);
    if (std::isinf(highest)) return highest;
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - highest);
    for (std::int64_t key = 0; key < c.keys; ++key) {
        const double weight = weights[static_cast<std::size_t>(key)] / total;
        for (std::int64_t d = 0; d < c.head_dim; ++d)
            row[static_cast<std::size_t>(d)] += weight * inputs.v.value(b, key, h, d);
    }
    return highest + std::log(total);
}

std::string describe(const Kernels& kernels, const Case& c) {
    char text[256];
    std::snprintf(text, sizeof text, "%s B%d H%d Sq%d Sk%d D%d types %d %d %d -> %d compute %d mask %d", kernels.name,
                  static_cast<int>(c.batch), static_cast<int>(c.heads), static_cast<int>(c.queries),
                  static_cast<int>(c.keys), static_cast<int>(c.head_dim), static_cast<int>(c.q), static_cast<int>(c.k),
                  static_cast<int>(c.v), static_cast<int>(c.out), static_cast<int>(c.compute),
                  static_cast<int>(c.mask));
    return text;
}

/// What of rounding is allowed, for values up to 4 in v. Of f32: by the length of sums. Of bf16: half a unit of the
/// last of 8 bits of each weight and value; and of each query and key, unless they are exact, which shifts scores.
void check_values(const Kernels& kernels, const Case& c, const Inputs& inputs, const Result& result) {
    const bool pairs = c.compute == Compute::bf16 && kernels.has_bf16;
    const bool exact_scores = !pairs || (c.q != DType::f32 && c.k != DType::f32);
    const double sums = 2e-8 * static_cast<double>(c.head_dim);
    const double value_error = !pairs ? 4e-6 + sums : exact_scores ? 1.6e-2 : 6e-2;
    const double lse_error = exact_scores ? 2e-6 + sums : 2e-2;
    const std::string what = describe(kernels, c);
    std::vector<double> row;
    for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t h = 0; h < c.heads; ++h)
            for (std::int64_t query = 0; query < c.queries; ++query) {
                const double lse = expected_row(c, inputs, b, h, query, row);
                const double got = result.lse[static_cast<std::size_t>((b * c.queries + query) * c.heads + h)];
                const bool close = std::fabs(got - lse) <= lse_error + 3e-7 * std::fabs(lse);
                CHECK(std::isinf(lse) ? got == lse : close, "%s: lse of query %d is %.9g, not %.9g", what.c_str(),
                      static_cast<int>(query), got, lse);
                for (std::int64_t d = 0; d < c.head_dim; ++d) {
                    const double expected = row[static_cast<std::size_t>(d)], value = result.out.value(b, query, h, d);
                    const double rounding = c.out == DType::bf16 ? std::fabs(expected) / 256 : 0;
                    CHECK(std::isinf(lse) ? value == 0 : std::fabs(value - expected) <= value_error + rounding,
                          "%s: query %d, channel %d is %.9g, not %.9g", what.c_str(), static_cast<int>(query),
                          static_cast<int>(d), value, expected);
                }
            }
}

void check_same(const Kernels& kernels, const Case& c, const Result& a, const Result& b, const char* how) {
    CHECK(a.out.bytes == b.out.bytes, "%s: other values %s", describe(kernels, c).c_str(), how);
    CHECK(std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0, "%s: other lse %s",
          describe(kernels, c).c_str(), how);
}

constexpr Case kPlain = {1, 1, 1, 1, 64, DType::f32, DType::f32, DType::f32, DType::f32, Compute::f32, MaskKind::none,
                         DType::f32, false, false, false, 0, 0.125f};

/// Leave nothing but NaN in the memory that the kernel keeps: nothing of an earlier call may show.
void spoil_scratch(const Kernels& kernels, Compute compute) {
    Case c = kPlain;
    c.queries = 30, c.keys = 128, c.head_dim = 264, c.compute = compute;
    Inputs inputs(c, 0);
    for (Heads* heads : {&inputs.q, &inputs.k, &inputs.v}) heads->bytes.assign(heads->bytes.size(), 0xff);
    Result result(c);
    run(kernels, problem_of(c, inputs, result), 1);
    CHECK(std::isnan(result.lse[0]), "%s: NaN gave %g", kernels.name, static_cast<double>(result.lse[0]));
}

void check(const Kernels& kernels, const Case& c, unsigned seed) {
    const Inputs inputs(c, seed);
    Result whole(c);
    spoil_scratch(kernels, c.compute);
    run(kernels, problem_of(c, inputs, whole), 1);
    check_values(kernels, c, inputs, whole);

    Values values(seed);
    Result threads(c);
    run(kernels, problem_of(c, inputs, threads), static_cast<int>(2 + values.below(9)));
    check_same(kernels, c, whole, threads, "by threads");

    Result parts(c);
    const AttentionProblem problem = problem_of(c, inputs, parts);
    for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t h = 0; h < c.heads; ++h)
            for (std::int64_t query = 0, count; query < c.queries; query += count) {
                count = std::min(c.queries - query, values.pick<std::int64_t>({1, 1, 2, 5, 6, 31, 700}));
                run(kernels, part_of(problem, b, h, query, count), 1);
            }
    check_same(kernels, c, whole, parts, "in parts");

    Result without_lse(c);
    AttentionProblem no_lse = problem_of(c, inputs, without_lse);
    no_lse.lse = nullptr;
    run(kernels, no_lse, 1);
    CHECK(without_lse.out.bytes == whole.out.bytes, "%s: other values without lse", describe(kernels, c).c_str());
}

/// Shapes at the edges of tiles and blocks.
std::vector<Case> edge_cases() {
    std::vector<Case> cases;
    const auto add = [&](std::int64_t queries, std::int64_t keys, std::int64_t head_dim) {
        Case c = kPlain;
        c.queries = queries, c.keys = keys, c.head_dim = head_dim;
        c.scale = 1 / std::sqrt(static_cast<float>(head_dim));
        cases.push_back(c);
        c.compute = Compute::bf16, c.k = DType::bf16;
        cases.push_back(c);
    };
    add(1, 1, 1), add(1, 300, 64), add(300, 1, 64), add(7, 9, 1024), add(5, 3, 1), add(1100, 20, 16);
    for (const std::int64_t keys : {15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 515}) add(7, keys, 40);
    for (const std::int64_t queries : {5, 6, 7, 23, 24, 25, 47, 49, 130}) add(queries, 33, 24);
    for (const std::int64_t head_dim : {2, 3, 7, 8, 9, 15, 17, 31, 33, 63, 65, 127, 129, 161, 257})
        add(9, 21, head_dim);
    return cases;
}

Case random_case(Values& values) {
    constexpr DType f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16;
    Case c = {};
    c.batch = 1 + values.below(2), c.heads = 1 + values.below(3);
    c.queries = 1 + values.below(values.pick({8, 60, 200})), c.keys = 1 + values.below(values.pick({20, 150, 400}));
    c.head_dim = 1 + values.below(values.pick({8, 40, 140}));
    c.q = values.pick({f32, f32, bf16, f16}), c.k = values.pick({f32, f32, bf16, f16});
    c.v = values.pick({f32, f32, bf16, f16}), c.out = values.pick({f32, f32, bf16});
    c.compute = values.pick({Compute::f32, Compute::bf16});
    c.mask = values.pick({MaskKind::none, MaskKind::additive, MaskKind::causal, MaskKind::holes});
    c.mask_type = values.pick({f32, f16});
    c.mask_per_batch = values.below(2) == 1, c.mask_per_head = values.below(2) == 1;
    c.head_major = values.below(2) == 1, c.gap = values.below(2) * values.below(9);
    c.scale = values.pick({0.0f, -0.2f, 1.0f, 0.5f}) / std::sqrt(static_cast<float>(c.head_dim));
    return c;
}

/// Scores far apart: all the weight on one key. And masks that keep no key but by the smallest of finite numbers.
void check_extremes(const Kernels& kernels) {
    Case c = kPlain;
    c.queries = 3, c.keys = 203, c.mask = MaskKind::additive;
    Inputs inputs(c, 5);
    const auto set_mask = [&](std::int64_t query, float value, std::int64_t kept) {
        for (std::int64_t key = 0; key < c.keys; ++key) {
            const float here = key == kept ? 0 : value;
            const auto at = static_cast<std::size_t>(query * c.keys + key);
            inputs.mask[at] = here;
            write(inputs.mask_bytes.data() + 4 * at, DType::f32, here);
        }
    };
    set_mask(0, -1e4f, 150);
    set_mask(1, std::numeric_limits<float>::lowest(), 3);
    set_mask(2, -65504.0f, -1);
    Result result(c);
    run(kernels, problem_of(c, inputs, result), 1);
    for (std::int64_t query = 0; query < 2; ++query)
        for (std::int64_t d = 0; d < c.head_dim; ++d)
            CHECK(result.out.value(0, query, 0, d) == inputs.v.value(0, query ? 3 : 150, 0, d),
                  "%s: another key shows through", kernels.name);
    std::vector<double> row;
    const double lse = expected_row(c, inputs, 0, 0, 2, row);
    CHECK(std::fabs(result.lse[2] - lse) < 1e-2, "%s: lse of an offset of all scores", kernels.name);
}

} // namespace

int main() {
    for (const Kernels* kernels : usable_kernels()) {
        unsigned seed = 0;
        for (const Case& c : edge_cases()) check(*kernels, c, ++seed);
        Values values(17);
        for (int i = 0; i < 60; ++i) check(*kernels, random_case(values), ++seed);
        check_extremes(*kernels);
        std::printf("%s: attention is right\n", kernels->name);
    }
    return 0;
}
