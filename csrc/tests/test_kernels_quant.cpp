// Linear layers over quantised weights: ggml's formats, products against double precision, and the integers of int8
// against the same quantisation done here.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "quant_layers.hpp"

using namespace edgedit;
using namespace edgedit::kernels;

namespace {

/// With the unit matrix for x, the product is the decoded weight itself.
void check_values(const Kernels& kernels, const Format& format) {
    Layer layer(format, 768, kernels.panel + 5, 768, 1);
    std::fill(layer.x.begin(), layer.x.end(), 0.0f);
    for (std::size_t i = 0; i < 768; ++i) layer.x[i * 768 + i] = 1;
    const auto got = result(kernels, layer, Compute::bf16);
    for (Index k = 0; k < layer.inner; ++k)
        for (Index n = 0; n < layer.columns; ++n) {
            const float value = layer.weight[static_cast<std::size_t>(n * layer.inner + k)];
            const float expected = kernels.has_bf16 ? to_bf16(value) : value;
            const float actual = got[static_cast<std::size_t>(k * layer.columns + n)];
            CHECK(actual == expected, "%s %s: weight [%lld, %lld] is %a, not %a", kernels.name, format.name,
                  static_cast<long long>(n), static_cast<long long>(k), static_cast<double>(actual),
                  static_cast<double>(expected));
        }
}

void check_products(const Kernels& kernels, const Format& format, Index rows, Index columns, Index inner) {
    const Layer layer(format, rows, columns, inner, static_cast<unsigned>(rows + columns));
    const auto exact = result(kernels, layer, Compute::bf16);
    const auto expected = kernels.has_bf16 ? product(layer, rounded(layer.x), rounded(layer.weight))
                                           : product(layer, layer.x, layer.weight);
    check_close("exact", kernels, layer, exact, expected, 1e-6);

    const auto int8 = result(kernels, layer, Compute::int8);
    if (&format == &kOther) {
        CHECK(is_same(int8, exact), "%s: another format is multiplied as ever", kernels.name);
        return;
    }
    check_close("int8", kernels, layer, int8, product(layer, quantised(layer.x), layer.weight), 1e-6);
    const double error = relative_error(int8, product(layer, layer.x, layer.weight));
    if (rows * columns > 100)
        CHECK(error > 3e-3 && error < 1e-2, "%s %s: int8 is off by %g", kernels.name, format.name, error);
}

/// The largest integers of a format by the largest activations: nothing may wrap or saturate.
void check_extremes(const Kernels& kernels, const Format& format) {
    Layer layer(format, 4, 8, 512, 7);
    for (Index column = 0; column < layer.columns; ++column)
        for (Index at = 0; at < layer.row_nbytes(); ++at) {
            const Index in_block = at % format.nbytes;
            const bool is_scale = std::any_of(format.halves.begin(), format.halves.end(),
                                              [=](Index half) { return in_block == half || in_block == half + 1; });
            const std::uint8_t patterns[] = {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0, 0x81, 0x01};
            if (!is_scale) layer.blocks[static_cast<std::size_t>(column * layer.row_nbytes() + at)] = patterns[column];
        }
    layer.decode();
    for (std::size_t i = 0; i < layer.x.size(); ++i) {
        const std::size_t row = i / 512;
        const bool is_positive[] = {true, false, i % 2 == 0, i % 4 < 2};
        layer.x[i] = is_positive[row] ? 1.0f : -1.0f;
    }
    check_close("extremes", kernels, layer, result(kernels, layer, Compute::int8),
                product(layer, quantised(layer.x), layer.weight), 1e-6);
}

/// A block whose scale is not a number, with every sign and payload, makes its column not a number and no other.
void check_damaged_scales(const Kernels& kernels, const Format& format) {
    for (const std::uint8_t high : {0x7e, 0x7f, 0xfe, 0xff}) {
        Layer layer(format, 2, kernels.panel + 3, 512, 8);
        const Index damaged = kernels.panel + 1;
        const auto at = static_cast<std::size_t>(damaged * layer.row_nbytes() + format.halves.front());
        layer.blocks[at] = 0xff;
        layer.blocks[at + 1] = high;
        for (const Compute compute : {Compute::bf16, Compute::int8}) {
            const auto got = result(kernels, layer, compute);
            for (std::size_t i = 0; i < got.size(); ++i)
                CHECK(std::isnan(got[i]) == (static_cast<Index>(i) % layer.columns == damaged),
                      "%s %s: element %zu with scale 0x%xff is %g", kernels.name, format.name, i, high,
                      static_cast<double>(got[i]));
        }
    }
}

/// A row's result does not depend on the rows around it, on the threads, or on how its inputs are held.
void check_same_bits(const Kernels& kernels, const Format& format, Compute compute) {
    const Index rows = 15, columns = kernels.panel * 2 + 9, inner = 1280;
    const Layer layer(format, rows, columns, inner, 3);
    const auto whole = result(kernels, layer, compute);
    for (const int num_threads : {2, 3, 4, 7})
        CHECK(is_same(result(kernels, layer, compute, num_threads), whole), "%s %s: %d threads", kernels.name,
              format.name, num_threads);

    std::vector<float> out;
    for (Index row = 0; row < rows; ++row) {
        LinearProblem problem = layer.problem(compute, out);
        problem.rows = 1;
        problem.sources[0].data = layer.x.data() + row * inner;
        run(kernels, problem);
        CHECK(std::memcmp(out.data(), &whole[static_cast<std::size_t>(row * columns)],
                          static_cast<std::size_t>(columns) * sizeof(float)) == 0,
              "%s %s: row %lld alone", kernels.name, format.name, static_cast<long long>(row));
    }

    for (const Index first : {256, 37}) { // within a block, too
        LinearProblem problem = layer.problem(compute, out);
        problem.num_sources = 2;
        problem.inner[0] = first;
        problem.inner[1] = inner - first;
        problem.sources[1] = problem.sources[0];
        problem.sources[1].data = layer.x.data() + first;
        run(kernels, problem, 2);
        CHECK(is_same(out, whole), "%s %s: two sources from %lld on", kernels.name, format.name,
              static_cast<long long>(first));
    }
}

/// Activations in 16 bits, in batches with gaps, count as the floats that they stand for.
void check_halves(const Kernels& kernels, const Format& format, DType type) {
    Layer layer(format, 10, 21, 512, 5);
    Values values(6);
    for (float& value : layer.x) value = values.next(type);
    const Index row_stride = (layer.inner + 3) * 2, batch_stride = 5 * row_stride + 64;
    Bytes halves(static_cast<std::size_t>(2 * batch_stride));
    for (Index row = 0; row < layer.rows; ++row)
        for (Index k = 0; k < layer.inner; ++k)
            write(&halves[static_cast<std::size_t>(row / 5 * batch_stride + row % 5 * row_stride + k * 2)], type,
                  layer.x[static_cast<std::size_t>(row * layer.inner + k)]);
    for (const Compute compute : {Compute::bf16, Compute::int8}) {
        std::vector<float> out;
        LinearProblem problem = layer.problem(compute, out);
        problem.sources[0] = {halves.data(), static_cast<Type>(type), 5, batch_stride, row_stride};
        run(kernels, problem);
        CHECK(is_same(out, result(kernels, layer, compute)), "%s %s: activations of type %d", kernels.name, format.name,
              static_cast<int>(type));
    }
}

/// Blocks of activations that no scale can be computed for.
void check_odd_activations(const Kernels& kernels, const Format& format) {
    Layer layer(format, 5, 3, 256, 9);
    const auto row = [&](Index index) { return layer.x.begin() + index * layer.inner; };
    std::fill(row(0), row(1), 0.0f);
    std::fill(row(1), row(2), 1e-39f);
    row(2)[100] = NAN;
    row(3)[40] = INFINITY;
    row(4)[41] = -INFINITY;
    const auto got = result(kernels, layer, Compute::int8);
    for (std::size_t i = 0; i < got.size(); ++i) {
        const bool is_finite = i < 6;
        CHECK(is_finite ? std::fabs(got[i]) < 1e-30f : std::isnan(got[i]), "%s %s: odd activations give %g",
              kernels.name, format.name, static_cast<double>(got[i]));
    }
}

void check_format(const Kernels& kernels, const Format& format) {
    check_values(kernels, format);
    check_products(kernels, format, 1, 1, 256);
    check_products(kernels, format, 7, kernels.panel, 512);
    check_products(kernels, format, 13, kernels.panel * 9 + 3, 1280);
    check_products(kernels, format, 20, kernels.panel - 1, 2304);
    if (format.elements == 32) check_products(kernels, format, 8, kernels.panel + 1, 1056);
    for (const Compute compute : {Compute::bf16, Compute::int8}) check_same_bits(kernels, format, compute);
    for (const DType type : {DType::f16, DType::bf16}) check_halves(kernels, format, type);
    CHECK(kernels.has_int8(format.type) == (&format != &kOther), "%s %s: has_int8", kernels.name, format.name);
    if (&format == &kOther) return;
    check_extremes(kernels, format);
    check_damaged_scales(kernels, format);
    check_odd_activations(kernels, format);
}

} // namespace

int main() {
    for (const Kernels* kernels : usable_kernels()) {
        for (const Format& format : kFormats) check_format(*kernels, format);
        check_format(*kernels, kOther);
    }
}
