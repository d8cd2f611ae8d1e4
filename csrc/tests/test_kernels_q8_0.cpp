// Results of linear layers in blocks of q8_0 against the same quantisation done here, and layers that read such blocks
// against double precision.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "quant_layers.hpp"

using namespace edgedit;
using namespace edgedit::kernels;

namespace {

/// The nearest f16, ties to even, of what is not negative.
float to_half(float value) {
    const double step = std::ldexp(1, std::max(std::ilogb(value), -14) - 10);
    const double rounded = std::nearbyint(value / step) * step;
    return rounded > 65504 ? INFINITY : static_cast<float>(rounded);
}

/// Blocks of q8_0 are what 32 results are as multiples of their largest / 127, for any threads and rows.
void check_blocks(const char* what, const Kernels& kernels, const Layer& layer, Compute compute) {
    const auto floats = result(kernels, layer, compute);
    const Index row_nbytes = layer.columns / 32 * 34;
    for (const int num_threads : {1, 2, 3, 5}) {
        std::vector<float> unused;
        Bytes blocks(static_cast<std::size_t>(layer.rows * row_nbytes));
        LinearProblem problem = layer.problem(compute, unused);
        problem.out = blocks.data();
        problem.out_type = Type::q8_0;
        problem.out_row_stride = row_nbytes;
        run(kernels, problem, num_threads);
        const std::uint8_t* block = blocks.data();
        for (std::size_t first = 0; first < floats.size(); first += 32, block += 34) {
            float largest = 0;
            for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(floats[first + i]));
            const float scale = to_half(largest / 127), factor = scale == 0 ? 0 : 1 / scale;
            CHECK(half_at(block) == scale, "%s %s %s: the scale of %g is %g, not %g", kernels.name, layer.format.name,
                  what, static_cast<double>(largest), static_cast<double>(half_at(block)), static_cast<double>(scale));
            for (std::size_t i = 0; i < 32; ++i) {
                const float expected = std::nearbyint(std::clamp(floats[first + i] * factor, -127.0f, 127.0f));
                CHECK(static_cast<std::int8_t>(block[2 + i]) == static_cast<int>(expected),
                      "%s %s %s, %d threads: element %zu is %d of %g", kernels.name, layer.format.name, what,
                      num_threads, first + i, static_cast<std::int8_t>(block[2 + i]), static_cast<double>(expected));
            }
        }
    }
}

/// Results in blocks: small enough for scales of few digits, too, and for none at all.
void check_quantised_results(const Kernels& kernels, const Format& format, Compute compute) {
    for (const Index columns : {Index{32}, Index{352}, 32 * kernels.panel + 96}) {
        Layer layer(format, 14, columns, 512, 11);
        check_blocks("results", kernels, layer, compute);
        for (Index row = 0; row < layer.rows; ++row)
            for (Index k = 0; k < layer.inner; ++k)
                layer.x[static_cast<std::size_t>(row * layer.inner + k)] *= std::ldexp(1.0f, static_cast<int>(-2 * row));
        check_blocks("small results", kernels, layer, compute);
    }
}

/// Results that no block holds make what reads it not a number: an infinity, a NaN, and a number too large.
void check_odd_results(const Kernels& kernels, const Format& format) {
    Layer first(format, 4, 64, 256, 12), second(format, 4, 3, 64, 13);
    first.x[5] = NAN;
    first.x[256 + 6] = INFINITY;
    for (Index k = 0; k < first.inner; ++k) first.x[static_cast<std::size_t>(2 * first.inner + k)] *= 1e12f;
    std::vector<float> out;
    Bytes blocks(4 * 2 * 34);
    LinearProblem problem = first.problem(Compute::int8, out);
    problem.out = blocks.data();
    problem.out_type = Type::q8_0;
    problem.out_row_stride = 2 * 34;
    run(kernels, problem);
    problem = second.problem(Compute::int8, out);
    problem.sources[0] = {blocks.data(), Type::q8_0, 4, 0, 2 * 34};
    run(kernels, problem);
    for (std::size_t i = 0; i < out.size(); ++i)
        CHECK(std::isnan(out[i]) == (i < 9), "%s %s: from odd results comes %g", kernels.name, format.name,
              static_cast<double>(out[i]));
}

/// Activations in blocks of q8_0 count as the values that they stand for, alone and beside floats.
void check_quantised_activations(const Kernels& kernels, const Format& format) {
    Layer layer(format, 13, kernels.panel + 7, 1280, 14);
    Bytes blocks(static_cast<std::size_t>(layer.rows * layer.inner / 32 * 34));
    Values values(15);
    fill_blocks(kFormats[1], blocks, values);
    for (std::size_t i = 0; i < blocks.size(); ++i)
        if (i % 34 >= 2 && blocks[i] == 0x80) blocks[i] = 0x81; // in [-127, 127]
    const auto floats = quantised(layer.x);
    decode_blocks(kFormats[1], blocks.data(), layer.x.data(), layer.rows * layer.inner);
    const Index row_nbytes = layer.inner / 32 * 34;
    std::vector<float> out;
    LinearProblem problem = layer.problem(Compute::int8, out);
    problem.sources[0] = {blocks.data(), Type::q8_0, layer.rows, 0, row_nbytes};
    run(kernels, problem, 3);
    check_close("quantised activations", kernels, layer, out, product(layer, layer.x, layer.weight), 1e-6);

    const Index first = 320;
    for (Index row = 0; row < layer.rows; ++row)
        std::copy_n(floats.begin() + row * layer.inner, first, layer.x.begin() + row * layer.inner);
    problem.num_sources = 2;
    problem.inner[0] = first;
    problem.inner[1] = layer.inner - first;
    problem.sources[1] = problem.sources[0];
    problem.sources[1].data = blocks.data() + first / 32 * 34;
    problem.sources[0] = {layer.x.data(), Type::f32, layer.rows, 0, layer.inner * 4};
    run(kernels, problem, 2);
    check_close("floats and quantised activations", kernels, layer, out, product(layer, layer.x, layer.weight), 1e-6);
}

void check_format(const Kernels& kernels, const Format& format) {
    for (const Compute compute : {Compute::bf16, Compute::int8}) check_quantised_results(kernels, format, compute);
    if (&format == &kOther) return;
    check_quantised_activations(kernels, format);
    if (format.elements == 32) check_odd_results(kernels, format);
}

} // namespace

int main() {
    for (const Kernels* kernels : usable_kernels()) {
        for (const Format& format : kFormats) check_format(*kernels, format);
        check_format(*kernels, kOther);
    }
}
