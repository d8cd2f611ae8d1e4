// Linear layers of every family: against double precision over shapes, types, strides, sources and what follows the
// product, and equal bit for bit however rows, sources and threads are split. EDGEDIT_CASES sets how many. That oneDNN
// is right on one thread and on several is all that is asked of it.
//
// The reference multiplies what the family multiplies: activations and weights after their rounding to its type. What
// is left are the rounding errors of f32 sums, which stay below 2^-22 of the sum of |x w| for signs at random.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "kernel_testing.hpp"
#include "kernels/onednn/api.hpp"
#include "kernels/onednn/family.hpp"

using namespace edgedit;
using namespace edgedit::kernels;

namespace {

using Index = std::int64_t;

/// Distance of neighbouring numbers of a type around a value.
double spacing(double value, DType type) {
    const int digits = type == DType::f32 ? 24 : type == DType::f16 ? 11 : 8;
    const int lowest = type == DType::f32 ? -149 : type == DType::f16 ? -24 : -133;
    return std::ldexp(1, std::max(value == 0 ? lowest : std::ilogb(value) - digits + 1, lowest));
}

double rounded(double value, DType type) {
    const double unit = spacing(value, type);
    return std::nearbyint(value / unit) * unit;
}

void put(unsigned char* to, DType type, double value) {
    if (type != DType::f16) return write(to, type, static_cast<float>(value));
    const double size = std::fabs(value);
    const int exponent = std::max(size == 0 ? -15 : std::ilogb(size), -15);
    const double bits = exponent == -15 ? std::ldexp(size, 24) : std::ldexp(size, 10 - exponent) + (exponent + 14) * 1024;
    const auto half = static_cast<std::uint16_t>(static_cast<int>(bits) | (std::signbit(value) ? 0x8000 : 0));
    std::memcpy(to, &half, sizeof half);
}

double get(const unsigned char* from, DType type) {
    if (type != DType::f16) return read(from, type);
    std::uint16_t half;
    std::memcpy(&half, from, sizeof half);
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return fraction != 0 ? NAN : half & 0x8000 ? -INFINITY : INFINITY;
    const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
    return half & 0x8000 ? -size : size;
}

/// Rows in two levels, with gaps of NaN between them. The memory ends with the last element.
class Matrix {
public:
    Matrix() = default;
    Matrix(DType type, Index rows, Index tokens, Index columns, Values& values, bool broadcasts_tokens = false)
        : type_(type), tokens_(tokens), columns_(columns),
          row_stride_(broadcasts_tokens ? 0 : (columns + values.below(3)) * itemsize(type)),
          batch_stride_((broadcasts_tokens ? columns : tokens * row_stride_ / itemsize(type)) * itemsize(type) +
                        values.below(2) * 64) {
        bytes.assign(static_cast<std::size_t>(offset(rows - 1) + columns * itemsize(type)), 0xff);
        for (Index row = 0; row < rows; ++row)
            for (Index column = 0; column < columns; ++column)
                put(at(row, column), type, rounded(static_cast<double>(values.next(DType::f32)), type));
    }

    unsigned char* at(Index row, Index column) { return bytes.data() + offset(row) + column * itemsize(type_); }
    double value(Index row, Index column) const { return get(const_cast<Matrix*>(this)->at(row, column), type_); }

    /// From one row on.
    Rows rows(Index first = 0) const {
        if (bytes.empty()) return {};
        const bool is_whole = first == 0;
        return {bytes.data() + offset(first), static_cast<Type>(type_), is_whole ? tokens_ : 1, batch_stride_, row_stride_};
    }

    DType type() const { return type_; }
    Index tokens() const { return tokens_; }
    Index batch_stride() const { return batch_stride_; }
    Index row_stride() const { return row_stride_; }

    std::vector<unsigned char> bytes;

private:
    Index offset(Index row) const { return row / tokens_ * batch_stride_ + row % tokens_ * row_stride_; }

    DType type_ = DType::f32;
    Index tokens_ = 1, columns_ = 0, row_stride_ = 0, batch_stride_ = 0;
};

double activated(double x, Activation activation) {
    switch (activation) {
        case Activation::gelu_tanh: return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        case Activation::gelu_erf: return x * std::erfc(-x / std::sqrt(2)) / 2;
        case Activation::gelu_quick: return x / (1 + std::exp(-1.702 * x));
        case Activation::silu: return x / (1 + std::exp(-x));
        case Activation::relu: return std::max(x, 0.0);
        case Activation::none: break;
    }
    return x;
}

constexpr auto kActivations = {Activation::none,       Activation::gelu_tanh, Activation::gelu_erf,
                               Activation::gelu_quick, Activation::silu,      Activation::relu};
constexpr auto kTypes = {DType::f32, DType::f16, DType::bf16};

/// One linear layer at random.
struct Layer {
    Layer(const Kernels& kernels, Values& values) : family(kernels) {
        rows = values.pick({values.below(20) + 1, values.below(20) + 1, values.below(90) + 1});
        columns = values.pick({values.below(20) + 1, values.below(200) + 1, kernels.panel * (values.below(3) + 1)});
        inner = values.pick({values.below(10) + 1, values.below(100) + 1, values.below(700) + 1, Index{1}});
        if (values.below(8) == 0) inner = values.pick({Index{512}, Index{1024}, Index{1025}, 2000 + values.below(100)});
        if (values.below(40) == 0) rows = 750 + values.below(100), columns = values.below(20) + 1, inner = 300;
        const Index tokens = values.pick({rows, Index{1}, values.below(rows) + 1});
        num_sources = inner > 1 && values.below(3) == 0 ? 2 : 1;
        split[0] = num_sources == 2 ? values.below(inner - 1) + 1 : inner;
        split[1] = inner - split[0];
        for (int s = 0; s < num_sources; ++s) x[s] = Matrix(values.pick(kTypes), rows, tokens, split[s], values);

        weight_type = values.pick(kTypes);
        weight = Matrix(weight_type, columns, columns, inner, values);
        bias = values.below(3) > 0 ? Matrix(DType::f32, 1, 1, columns, values) : Matrix();
        activation = values.pick(kActivations);
        if (values.below(3) == 0)
            gate = Matrix(values.pick(kTypes), rows, tokens, columns, values, values.below(2) == 0);
        if (values.below(3) == 0) residual = Matrix(values.pick(kTypes), rows, tokens, columns, values);
        out = Matrix(values.pick(kTypes), rows, values.pick({rows, tokens}), columns, values);
        pack(values);
    }

    /// In two pieces, neither of them with rows that it does not need.
    void pack(Values& values) {
        const auto type = static_cast<Type>(weight_type);
        const auto row_nbytes = static_cast<std::size_t>(inner * itemsize(weight_type));
        const auto nbytes = static_cast<std::size_t>(family.packed_nbytes(type, columns, inner));
        packed.resize(nbytes + 64);
        const Index first = values.below((columns - 1) / family.panel + 1) * family.panel;
        for (const auto& [begin, end] : {std::pair{Index{0}, first}, std::pair{first, columns}}) {
            if (begin == end) continue;
            std::vector<unsigned char> dense;
            for (Index row = begin; row < end; ++row)
                dense.insert(dense.end(), weight.at(row, 0), weight.at(row, 0) + row_nbytes);
            family.pack(type, columns, inner, begin, end - begin, dense.data(), panels());
        }
    }

    /// The packed weight, aligned: std::vector does not promise more than 16 bytes.
    unsigned char* panels() {
        const auto address = reinterpret_cast<std::uintptr_t>(packed.data());
        return packed.data() + (64 - address % 64) % 64;
    }

    LinearProblem problem(Matrix& to) {
        LinearProblem p{};
        p.rows = rows;
        p.num_sources = num_sources;
        for (int s = 0; s < num_sources; ++s) p.sources[s] = x[s].rows(), p.inner[s] = split[s];
        p.weight = {static_cast<Type>(weight_type), panels(), columns, inner, 0, nullptr};
        p.bias = bias.bytes.empty() ? nullptr : reinterpret_cast<const float*>(bias.bytes.data());
        p.activation = activation;
        p.gate = gate.rows();
        p.residual = residual.rows();
        p.out = to.bytes.data(), p.out_type = static_cast<Type>(to.type()), p.out_tokens = to.tokens();
        p.out_batch_stride = to.batch_stride(), p.out_row_stride = to.row_stride();
        return p;
    }

    const Kernels& family;
    Index rows, columns, inner, split[2];
    int num_sources;
    Matrix x[2], weight, bias, gate, residual, out;
    DType weight_type;
    Activation activation;
    std::vector<unsigned char> packed;
};

void run(const Kernels& family, const LinearProblem& problem, int num_threads) {
    for (int thread = 0; thread < num_threads; ++thread) family.linear(problem, thread, num_threads);
}

/// What is expected of an element, and how far off it may be.
struct Expected {
    double value;
    double tolerance;
};

Expected expect(const Layer& layer, Index row, Index column) {
    const bool in_bf16 = layer.family.has_bf16 && layer.weight_type != DType::f32;
    double sum = 0, size = 0;
    Index k = 0;
    for (int s = 0; s < layer.num_sources; ++s)
        for (Index i = 0; i < layer.split[s]; ++i, ++k) {
            double x = layer.x[s].value(row, i), w = layer.weight.value(column, k);
            if (in_bf16) x = rounded(x, DType::bf16), w = rounded(w, DType::bf16);
            sum += x * w;
            size += std::fabs(x * w);
        }
    if (!layer.bias.bytes.empty()) sum += layer.bias.value(0, column);
    double value = activated(sum, layer.activation);
    double tolerance = 1.2 * std::ldexp(size + std::fabs(sum), -22) + 1e-6 * std::fabs(value); // slopes are below 1.2
    if (!layer.gate.bytes.empty()) {
        const double gate = layer.gate.value(row, column);
        value *= gate, tolerance *= std::fabs(gate);
    }
    tolerance += std::ldexp(std::fabs(value), -23);
    if (!layer.residual.bytes.empty()) value += layer.residual.value(row, column);
    return {value, tolerance + 0.51 * spacing(std::fabs(value) + tolerance, layer.out.type())};
}

void check_against_reference(Layer& layer, int num_threads, const char* what) {
    const Matrix before = layer.out;
    run(layer.family, layer.problem(layer.out), num_threads);
    for (Index row = 0; row < layer.rows; ++row)
        for (Index column = 0; column < layer.columns; ++column) {
            const Expected expected = expect(layer, row, column);
            const double got = layer.out.value(row, column), error = std::fabs(got - expected.value);
            CHECK(error <= expected.tolerance, "%s: row %lld, column %lld is %g, not %g: off by %g, not %g", what,
                  static_cast<long long>(row), static_cast<long long>(column), got, expected.value, error,
                  expected.tolerance);
        }
    Matrix after = layer.out, untouched = before;
    for (Matrix* matrix : {&after, &untouched})
        for (Index row = 0; row < layer.rows; ++row)
            for (Index column = 0; column < layer.columns; ++column) put(matrix->at(row, column), matrix->type(), 0);
    CHECK(after.bytes == untouched.bytes, "%s: wrote between the rows", what);
}

/// Against the output of one call on one thread, which stands in layer.out.
void check_same_bits(Layer& layer, Values& values, const char* what) {
    Matrix again = layer.out;
    const auto repeat = [&](const char* how, const LinearProblem& problem, int num_threads) {
        for (Index row = 0; row < layer.rows; ++row)
            std::memset(again.at(row, 0), 0x5a, static_cast<std::size_t>(layer.columns * itemsize(again.type())));
        run(layer.family, problem, num_threads);
        CHECK(again.bytes == layer.out.bytes, "%s: differs %s", what, how);
    };
    for (const int num_threads : {2, 3, static_cast<int>(values.below(20)) + 4})
        repeat("with more threads", layer.problem(again), num_threads);

    for (Index row = 0; row < layer.rows; ++row) {
        LinearProblem problem = layer.problem(again);
        problem.rows = 1;
        for (int s = 0; s < layer.num_sources; ++s) problem.sources[s] = layer.x[s].rows(row);
        if (problem.gate.data != nullptr) problem.gate = layer.gate.rows(row);
        if (problem.residual.data != nullptr) problem.residual = layer.residual.rows(row);
        problem.out = again.at(row, 0);
        run(layer.family, problem, 1);
    }
    CHECK(again.bytes == layer.out.bytes, "%s: differs row by row", what);

    if (layer.num_sources == 2 && layer.x[0].type() == layer.x[1].type()) {
        Matrix joined(layer.x[0].type(), layer.rows, layer.rows, layer.inner, values);
        for (Index row = 0; row < layer.rows; ++row)
            for (Index k = 0; k < layer.inner; ++k) {
                const int s = k < layer.split[0] ? 0 : 1;
                put(joined.at(row, k), joined.type(), layer.x[s].value(row, s == 0 ? k : k - layer.split[0]));
            }
        LinearProblem problem = layer.problem(again);
        problem.num_sources = 1, problem.sources[0] = joined.rows(), problem.inner[0] = layer.inner;
        repeat("with the sources joined", problem, 1);
    }

    if (!layer.residual.bytes.empty()) {
        Matrix apart = layer.residual, in_place = layer.residual;
        run(layer.family, layer.problem(apart), 1);
        LinearProblem problem = layer.problem(in_place);
        problem.residual = in_place.rows();
        run(layer.family, problem, 3);
        CHECK(in_place.bytes == apart.bytes, "%s: differs in place of the residual", what);
    }
}

/// Layers of one weight, which is 1: x passes them unchanged, so that only what follows the product is left.
class PassThrough {
public:
    explicit PassThrough(const Kernels& kernels) : family(kernels), packed_(kNbytes) {
        const auto address = reinterpret_cast<std::uintptr_t>(packed_.data());
        panel_ = packed_.data() + (64 - address % 64) % 64;
        CHECK(family.packed_nbytes(Type::f32, 1, 1) <= kNbytes - 64, "a panel is larger than thought");
        const float one = 1;
        family.pack(Type::f32, 1, 1, 0, 1, &one, panel_);
    }

    std::vector<double> operator()(const std::vector<float>& x, Activation activation, DType out_type) const {
        const auto rows = static_cast<Index>(x.size()), size = itemsize(out_type);
        std::vector<unsigned char> out(x.size() * static_cast<std::size_t>(size));
        LinearProblem p{};
        p.rows = rows, p.num_sources = 1, p.sources[0] = {x.data(), Type::f32, rows, 0, 4}, p.inner[0] = 1;
        p.weight = {Type::f32, panel_, 1, 1, 0, nullptr};
        p.activation = activation;
        p.out = out.data(), p.out_type = static_cast<Type>(out_type), p.out_tokens = rows, p.out_row_stride = size;
        run(family, p, 1);
        std::vector<double> y;
        for (Index i = 0; i < rows; ++i) y.push_back(get(out.data() + i * size, out_type));
        return y;
    }

    const Kernels& family;

private:
    static constexpr std::int64_t kNbytes = 16384;

    std::vector<unsigned char> packed_;
    unsigned char* panel_;
};

void check_activations(const PassThrough& pass) {
    std::vector<float> x = {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, 3e38f, -3e38f, kInfinity, std::nanf("")};
    for (int i = -30000; i <= 30000; ++i) x.push_back(static_cast<float>(i) * 0.004f);
    for (const Activation activation : kActivations) {
        const std::vector<double> y = pass(x, activation, DType::f32);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double expected = activated(x[i], activation), error = std::fabs(y[i] - expected);
            const bool is_right = std::isnan(expected)   ? std::isnan(y[i])
                                  : std::isinf(expected) ? y[i] == expected
                                                         // results below 1e-3 come from large exponents, whose rounding
                                                         // shows in them
                                                         : error <= 1e-6 * std::fabs(expected) + 1e-9;
            CHECK(is_right, "%s: activation %d of %g is %g, not %g", pass.family.name, static_cast<int>(activation),
                  static_cast<double>(x[i]), y[i], expected);
        }
    }
}

/// Results are rounded to the nearest number of their type, ties to even, also where it is denormal or infinite.
void check_rounding(const PassThrough& pass, Values& values) {
    for (const DType type : {DType::f16, DType::bf16}) {
        const double largest = type == DType::f16 ? 65504 : 3.3895313892515355e38;
        std::vector<float> x = {kInfinity, -kInfinity, std::nanf(""), 3.4e38f, 65519.0f, 65520.0f};
        for (int i = 0; i < 5000; ++i) {
            const double scale = std::ldexp(1, static_cast<int>(values.below(60)) - 40);
            const double value = rounded(static_cast<double>(values.next(DType::f32)) * scale, type);
            for (const double between : {0.0, 0.25, 0.5, 0.75}) // of the way to the next
                x.push_back(static_cast<float>(value + between * spacing(value, type)));
        }
        const std::vector<double> y = pass(x, Activation::none, type);
        for (std::size_t i = 0; i < x.size(); ++i) {
            double expected = std::isfinite(x[i]) ? rounded(x[i], type) : x[i];
            if (std::fabs(expected) > largest) expected = std::copysign(INFINITY, expected);
            CHECK(std::isnan(expected) ? std::isnan(y[i]) : y[i] == expected, "%s: %a became %a, not %a",
                  pass.family.name, static_cast<double>(x[i]), y[i], expected);
        }
    }
}

} // namespace

int main() {
    const char* wanted = std::getenv("EDGEDIT_CASES");
    const int cases = wanted != nullptr ? std::atoi(wanted) : 120;
    std::vector<const Kernels*> families = usable_kernels();
    const Kernels* by_onednn = onednn_kernels(*portable_kernels); // with bf16 where oneDNN has it here
    if (by_onednn == nullptr) by_onednn = find("onednn");
    if (by_onednn != nullptr)
        families.push_back(by_onednn);
    else
        std::printf("onednn: left out, %s\n", onednn::description().c_str());
    for (const Kernels* family : families) {
        const PassThrough pass(*family);
        Values pass_values(1);
        check_activations(pass);
        check_rounding(pass, pass_values);
        for (int i = 0; i < cases; ++i) {
            Values values(static_cast<unsigned>(i));
            Layer layer(*family, values);
            char what[200];
            std::snprintf(what, sizeof what,
                          "%s, case %d: %lld x %lld x (%lld + %lld), weight %d, activation %d, gate %d, residual %d",
                          family->name, i, static_cast<long long>(layer.rows), static_cast<long long>(layer.columns),
                          static_cast<long long>(layer.split[0]), static_cast<long long>(layer.split[1]),
                          static_cast<int>(layer.weight_type), static_cast<int>(layer.activation),
                          !layer.gate.bytes.empty(), !layer.residual.bytes.empty());
            check_against_reference(layer, 1, what);
            if (family == by_onednn)
                check_against_reference(layer, 3, what);
            else
                check_same_bits(layer, values, what);
        }
        std::printf("%s: %d linear layers are right\n", family->name, cases);
    }
    return 0;
}
