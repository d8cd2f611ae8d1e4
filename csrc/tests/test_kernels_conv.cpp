// Convolutions of every family against sums in double precision, and that a pixel's result depends on nothing else.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernel_testing.hpp"

using namespace edgedit::kernels;

namespace {

double activated(Activation kind, double x) {
    switch (kind) {
        case Activation::gelu_tanh: return x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) / 2;
        case Activation::gelu_erf: return x * std::erfc(-x / std::sqrt(2.0)) / 2;
        case Activation::gelu_quick: return x / (1 + std::exp(-1.702 * x));
        case Activation::silu: return x / (1 + std::exp(-x));
        case Activation::relu: return x > 0 ? x : 0;
        case Activation::none: break;
    }
    return x;
}

struct Shape {
    std::int64_t batch, in_channels, out_channels, lines, columns, kernel_height, kernel_width, stride_y, stride_x;
};

/// A convolution of a given shape with random padding and data. Lines of the image stand apart by up to two NaN, and
/// the memory ends with the last pixel.
struct Case {
    Conv2dProblem p{};
    std::int64_t height = 0, width = 0;
    std::vector<float> image, weight, bias, residual, out;

    Case(Values& values, const Shape& shape, bool with_bias, bool with_residual, Activation activation) {
        const std::int64_t slack = values.below(3), line = shape.columns + slack;
        p.batch = shape.batch, p.in_channels = shape.in_channels, p.out_channels = shape.out_channels;
        p.in_height = shape.lines, p.in_width = shape.columns;
        p.kernel_height = shape.kernel_height, p.kernel_width = shape.kernel_width;
        p.stride_y = shape.stride_y, p.stride_x = shape.stride_x;
        p.pad_top = values.below(p.kernel_height), p.pad_bottom = values.below(p.kernel_height);
        p.pad_left = values.below(p.kernel_width), p.pad_right = values.below(p.kernel_width);
        if (p.in_height + p.pad_top + p.pad_bottom < p.kernel_height) p.pad_bottom = p.kernel_height;
        if (p.in_width + p.pad_left + p.pad_right < p.kernel_width) p.pad_right = p.kernel_width;
        height = (p.in_height + p.pad_top + p.pad_bottom - p.kernel_height) / p.stride_y + 1;
        width = (p.in_width + p.pad_left + p.pad_right - p.kernel_width) / p.stride_x + 1;
        const auto fill = [&](std::vector<float>& array, std::int64_t count) {
            array.resize(static_cast<std::size_t>(count));
            for (float& value : array) value = values.next(edgedit::DType::f32);
        };
        fill(image, p.batch * p.in_channels * p.in_height * line - slack);
        for (std::size_t i = 0; i < image.size(); ++i)
            if (static_cast<std::int64_t>(i) % line >= p.in_width) image[i] = NAN;
        fill(weight, p.out_channels * p.in_channels * p.kernel_height * p.kernel_width);
        fill(bias, p.out_channels);
        fill(residual, p.batch * p.out_channels * height * width);
        out.assign(residual.size() + 1, 777.0f); // one more, which must stay
        p.x = image.data();
        p.x_line_stride = line * 4, p.x_channel_stride = p.in_height * p.x_line_stride;
        p.x_batch_stride = p.in_channels * p.x_channel_stride;
        p.weight = weight.data();
        p.bias = with_bias ? bias.data() : nullptr;
        p.residual = with_residual ? residual.data() : nullptr;
        p.activation = activation;
        p.out = out.data();
    }

    /// One output value and the sum of the sizes of its terms.
    double expected(std::int64_t b, std::int64_t o, std::int64_t y, std::int64_t x, double& size) const {
        double sum = p.bias != nullptr ? p.bias[o] : 0;
        size = std::fabs(sum);
        for (std::int64_t c = 0; c < p.in_channels; ++c)
            for (std::int64_t ky = 0; ky < p.kernel_height; ++ky)
                for (std::int64_t kx = 0; kx < p.kernel_width; ++kx) {
                    const std::int64_t iy = y * p.stride_y - p.pad_top + ky, ix = x * p.stride_x - p.pad_left + kx;
                    if (iy < 0 || iy >= p.in_height || ix < 0 || ix >= p.in_width) continue;
                    const std::int64_t k = (c * p.kernel_height + ky) * p.kernel_width + kx;
                    const double term =
                        static_cast<double>(p.weight[o * p.in_channels * p.kernel_height * p.kernel_width + k]) *
                        p.x[(b * p.x_batch_stride + c * p.x_channel_stride + iy * p.x_line_stride) / 4 + ix];
                    sum += term;
                    size += std::fabs(term);
                }
        sum = activated(p.activation, sum);
        if (p.residual != nullptr) {
            const double added = p.residual[((b * p.out_channels + o) * height + y) * width + x];
            sum += added;
            size += std::fabs(added);
        }
        return sum;
    }

    std::vector<float> run(const Kernels& kernels, int num_threads) {
        for (float& value : out) value = 777.0f;
        for (int thread = num_threads - 1; thread >= 0; --thread) kernels.conv2d(p, thread, num_threads);
        CHECK(out.back() == 777.0f, "%s wrote beyond its result", kernels.name);
        return out;
    }
};

/// f32: sums in some order of f32, 2^-23 of the terms' sizes a step at worst, far less in the mean.
constexpr double kTolerance = 1e-6;

void check_against_oracle(const Kernels& kernels, Case& c) {
    const std::vector<float> got = c.run(kernels, 1);
    std::size_t at = 0;
    for (std::int64_t b = 0; b < c.p.batch; ++b)
        for (std::int64_t o = 0; o < c.p.out_channels; ++o)
            for (std::int64_t y = 0; y < c.height; ++y)
                for (std::int64_t x = 0; x < c.width; ++x) {
                    double size = 0;
                    const double want = c.expected(b, o, y, x, size);
                    CHECK(std::fabs(got[at] - want) <= kTolerance * (1 + size), "%s: %g for %g at %zu", kernels.name,
                          static_cast<double>(got[at]), want, at);
                    ++at;
                }
    for (const int threads : {2, 3, 4, 7})
        CHECK(c.run(kernels, threads) == got, "%s on %d threads", kernels.name, threads);
}

void test_shapes(const Kernels& kernels) {
    Values values(7);
    for (int trial = 0; trial < 60; ++trial) {
        const std::int64_t kernel = values.pick({1, 1, 2, 3, 3, 3, 5}), stride = values.pick({1, 1, 2, 3});
        const bool is_square = values.below(3) != 0;
        const Shape shape = {1 + values.below(2),
                             1 + values.below(9),
                             1 + values.below(20),
                             1 + values.below(14),
                             1 + values.below(90),
                             kernel,
                             is_square ? kernel : 1 + values.below(4),
                             stride,
                             is_square ? stride : 1 + values.below(3)};
        Case c(values, shape, values.below(2) != 0, values.below(2) != 0,
               values.pick({Activation::none, Activation::silu, Activation::gelu_tanh, Activation::gelu_erf,
                            Activation::gelu_quick, Activation::relu}));
        check_against_oracle(kernels, c);
    }
}

/// More than the blocks of the loops hold: elements of the sum, elements of a kernel, pixels of a line. And less.
void test_sizes(const Kernels& kernels) {
    Values values(8);
    for (const Shape& shape : {Shape{1, 130, 13, 9, 11, 3, 3, 1, 1}, Shape{1, 2, 7, 33, 40, 17, 19, 1, 1},
                               Shape{1, 3, 9, 48, 64, 16, 16, 16, 16}, Shape{1, 2, 5, 3, 700, 3, 3, 1, 1},
                               Shape{2, 3, 8, 300, 1, 3, 1, 1, 1}, Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
        Case c(values, shape, true, true, Activation::silu);
        check_against_oracle(kernels, c);
    }
}

/// An image alone gives the bits that it gives in a batch, and a channel alone those that it gives among others.
void test_rows_do_not_influence_each_other(const Kernels& kernels) {
    Values values(9);
    Case c(values, {3, 5, 11, 13, 37, 3, 3, 1, 1}, true, false, Activation::none);
    const std::vector<float> whole = c.run(kernels, 1);
    const std::int64_t pixels = c.height * c.width, depth = c.p.in_channels * 9;
    for (std::int64_t b = 0; b < 3; ++b)
        for (const std::int64_t o : {std::int64_t{0}, std::int64_t{7}}) {
            Conv2dProblem one = c.p;
            std::vector<float> out(static_cast<std::size_t>(pixels));
            one.batch = one.out_channels = 1;
            one.x = c.p.x + b * c.p.x_batch_stride / 4;
            one.weight += o * depth;
            one.bias += o;
            one.out = out.data();
            kernels.conv2d(one, 0, 1);
            CHECK(std::memcmp(out.data(), whole.data() + (b * 11 + o) * pixels, out.size() * 4) == 0,
                  "%s: image %d, channel %d", kernels.name, static_cast<int>(b), static_cast<int>(o));
        }
}

/// Padding gives the bits of an image with zeros around it, whose pixels stand elsewhere in their vectors.
void test_padding_equals_zeros(const Kernels& kernels) {
    Values values(11);
    Case padded(values, {1, 4, 7, 12, 40, 3, 3, 1, 1}, true, false, Activation::none);
    Case zeros(values, {1, 4, 7, 14, 45, 3, 3, 1, 1}, true, false, Activation::none);
    for (Case* c : {&padded, &zeros}) c->p.pad_top = c->p.pad_bottom = c->p.pad_left = c->p.pad_right = 0;
    padded.p.pad_top = padded.p.pad_left = padded.p.pad_bottom = padded.p.pad_right = 1;
    padded.height = 12, padded.width = 40, zeros.height = 12, zeros.width = 43;
    std::fill(zeros.image.begin(), zeros.image.end(), 0.0f);
    for (std::int64_t c = 0; c < 4; ++c)
        for (std::int64_t y = 0; y < 12; ++y)
            std::memcpy(&zeros.image[static_cast<std::size_t>(
                            (c * zeros.p.x_channel_stride + (y + 1) * zeros.p.x_line_stride) / 4 + 3)],
                        &padded.image[static_cast<std::size_t>(
                            (c * padded.p.x_channel_stride + y * padded.p.x_line_stride) / 4)],
                        40 * sizeof(float));
    zeros.p.weight = padded.p.weight, zeros.p.bias = padded.p.bias;
    padded.out.assign(7 * 12 * 40 + 1, 0), zeros.out.assign(7 * 12 * 43 + 1, 0);
    padded.p.out = padded.out.data(), zeros.p.out = zeros.out.data();
    const std::vector<float> a = padded.run(kernels, 1), b = zeros.run(kernels, 1);
    for (std::size_t line = 0; line < 7 * 12; ++line)
        CHECK(std::memcmp(&a[line * 40], &b[line * 43 + 2], 40 * sizeof(float)) == 0, "%s: line %zu", kernels.name,
              line);
}

void test_residual_in_place(const Kernels& kernels) {
    Values values(10);
    Case c(values, {1, 4, 6, 8, 21, 3, 3, 1, 1}, true, true, Activation::none);
    std::vector<float> apart = c.run(kernels, 1);
    apart.pop_back();
    c.p.out = c.residual.data(); // which c.p.residual points to as well
    kernels.conv2d(c.p, 0, 1);
    CHECK(c.residual == apart, "%s", kernels.name);
}

} // namespace

int main() {
    for (const Kernels* kernels : usable_kernels()) {
        test_shapes(*kernels);
        test_sizes(*kernels);
        test_rows_do_not_influence_each_other(*kernels);
        test_padding_equals_zeros(*kernels);
        test_residual_in_place(*kernels);
        std::printf("conv2d: %s\n", kernels->name);
    }
    return 0;
}
