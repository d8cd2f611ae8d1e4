// Linear layers over quantised weights: ggml's formats against decoders written from their definition, products against
// double precision, and the integers of int8 against the same quantisation done here.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernel_testing.hpp"

using namespace edgedit;
using namespace edgedit::kernels;

namespace {

using Index = std::int64_t;
using Bytes = std::vector<std::uint8_t>;

float half_at(const std::uint8_t* at) {
    const int bits = at[0] | at[1] << 8, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
    return static_cast<float>(bits & 0x8000 ? -size : size);
}

// Decoders of one block, element by element. The scalar products that ggml rounds are rounded here.

void decode_q4_0(const std::uint8_t* block, float* values) {
    for (int i = 0; i < 32; ++i) {
        const int nibble = i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4;
        values[i] = static_cast<float>(nibble - 8) * half_at(block);
    }
}

void decode_q8_0(const std::uint8_t* block, float* values) {
    for (int i = 0; i < 32; ++i)
        values[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * half_at(block);
}

/// Scale and minimum of part `part` out of the 12 bytes that q4_k and q5_k hold them in.
std::array<int, 2> six_bits(const std::uint8_t* packed, int part) {
    if (part < 4) return {packed[part] & 63, packed[part + 4] & 63};
    return {(packed[part + 4] & 15) + 16 * (packed[part - 4] >> 6), (packed[part + 4] >> 4) + 16 * (packed[part] >> 6)};
}

void decode_with_minima(const std::uint8_t* block, const std::uint8_t* high, const std::uint8_t* nibbles,
                        float* values) {
    for (int i = 0; i < 256; ++i) {
        const int part = i / 32, byte = nibbles[part / 2 * 32 + i % 32];
        const int quant = (part % 2 == 0 ? byte & 15 : byte >> 4) + (high != nullptr && high[i % 32] >> part & 1) * 16;
        const auto [scale, minimum] = six_bits(block + 4, part);
        const float of_part = half_at(block) * static_cast<float>(scale);
        values[i] = of_part * static_cast<float>(quant) - half_at(block + 2) * static_cast<float>(minimum);
    }
}

void decode_q4_k(const std::uint8_t* block, float* values) { decode_with_minima(block, nullptr, block + 16, values); }

void decode_q5_k(const std::uint8_t* block, float* values) {
    decode_with_minima(block, block + 16, block + 48, values);
}

void decode_q6_k(const std::uint8_t* block, float* values) {
    for (int i = 0; i < 256; ++i) {
        const int half = i / 128, run = i % 128 / 32, place = i % 32;
        const int byte = block[half * 64 + run % 2 * 32 + place], bits = block[128 + half * 32 + place] >> 2 * run & 3;
        const int quant = (run < 2 ? byte & 15 : byte >> 4) + 16 * bits - 32;
        const auto scale = static_cast<float>(static_cast<std::int8_t>(block[192 + i / 16]));
        values[i] = half_at(block + 208) * scale * static_cast<float>(quant);
    }
}

/// A format of its own, which the kernels cannot know.
void decode_other(const std::uint8_t* block, float* values) {
    for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(static_cast<std::int8_t>(block[31 - i])) / 64;
}

struct Format {
    const char* name;
    Type type;
    Index elements;
    Index nbytes;
    std::vector<Index> halves; ///< where f16 scales start in a block
    void (*decode)(const std::uint8_t*, float*);
};

const Format kFormats[] = {
    {"q4_0", Type::q4_0, 32, 18, {0}, decode_q4_0},        {"q8_0", Type::q8_0, 32, 34, {0}, decode_q8_0},
    {"q4_k", Type::q4_k, 256, 144, {0, 2}, decode_q4_k},   {"q5_k", Type::q5_k, 256, 176, {0, 2}, decode_q5_k},
    {"q6_k", Type::q6_k, 256, 210, {208}, decode_q6_k},
};
const Format kOther{"other", static_cast<Type>(99), 32, 32, {}, decode_other};

void decode_blocks(const Format& format, const void* blocks, float* values, Index count) {
    const auto* block = static_cast<const std::uint8_t*>(blocks);
    for (Index i = 0; i < count; i += format.elements, block += format.nbytes) format.decode(block, values + i);
}

void other_to_float(const void* blocks, float* values, Index count) { decode_blocks(kOther, blocks, values, count); }
void never_to_float(const void*, float*, Index) { CHECK(false, "a format with code of its own went through to_float"); }

/// Any bytes are quants; only f16 scales have to be sane: 2^-6 to 2^-4, of either sign.
void fill_blocks(const Format& format, Bytes& blocks, Values& values) {
    for (auto& byte : blocks) byte = static_cast<std::uint8_t>(values.below(256));
    for (std::size_t start = 0; start < blocks.size(); start += static_cast<std::size_t>(format.nbytes))
        for (const Index half : format.halves) {
            auto& high = blocks[start + static_cast<std::size_t>(half) + 1];
            high = static_cast<std::uint8_t>((high & 0x83) | (9 + values.below(2)) << 2);
        }
}

float to_bf16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    std::memcpy(&value, &bits, sizeof bits);
    return value;
}

/// What int8 makes of 32 activations.
void quantise(float* x) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    for (int i = 0; i < 32; ++i) x[i] = largest / 127 * std::nearbyint(x[i] * (127 / largest));
}

struct Layer {
    const Format& format;
    Index rows, columns, inner;
    Bytes blocks;
    std::vector<float> weight; ///< decoded
    std::vector<float> x;

    Layer(const Format& format, Index rows, Index columns, Index inner, unsigned seed)
        : format(format), rows(rows), columns(columns), inner(inner),
          blocks(static_cast<std::size_t>(columns * row_nbytes())), weight(static_cast<std::size_t>(columns * inner)),
          x(static_cast<std::size_t>(rows * inner)) {
        Values values(seed);
        fill_blocks(format, blocks, values);
        for (float& value : x) value = values.next(DType::f32);
        decode();
    }

    Index row_nbytes() const { return inner / format.elements * format.nbytes; }

    void decode() { decode_blocks(format, blocks.data(), weight.data(), columns * inner); }

    LinearProblem problem(Compute compute, std::vector<float>& out) const {
        out.assign(static_cast<std::size_t>(rows * columns), NAN);
        LinearProblem problem{};
        problem.rows = rows;
        problem.num_sources = 1;
        problem.sources[0] = {x.data(), Type::f32, rows, 0, inner * 4};
        problem.inner[0] = inner;
        problem.weight = {format.type, blocks.data(), columns, inner, row_nbytes(),
                          &format == &kOther ? other_to_float : never_to_float};
        problem.compute = compute;
        problem.out = out.data();
        problem.out_type = Type::f32;
        problem.out_tokens = rows;
        problem.out_row_stride = columns * 4;
        return problem;
    }
};

void run(const Kernels& kernels, const LinearProblem& problem, int num_threads = 1) {
    for (int thread = 0; thread < num_threads; ++thread) kernels.linear(problem, thread, num_threads);
}

std::vector<float> result(const Kernels& kernels, const Layer& layer, Compute compute, int num_threads = 1) {
    std::vector<float> out;
    run(kernels, layer.problem(compute, out), num_threads);
    return out;
}

/// The product in double precision, and the largest that any order of adding it up can be off by per unit of rounding.
struct Product {
    std::vector<double> sums;
    std::vector<double> sizes;
};

Product product(const Layer& layer, const std::vector<float>& x, const std::vector<float>& weight) {
    Product product;
    for (Index m = 0; m < layer.rows; ++m)
        for (Index n = 0; n < layer.columns; ++n) {
            double sum = 0, size = 0;
            for (Index k = 0; k < layer.inner; ++k) {
                const double term = static_cast<double>(x[static_cast<std::size_t>(m * layer.inner + k)]) *
                                    weight[static_cast<std::size_t>(n * layer.inner + k)];
                sum += term;
                size += std::fabs(term);
            }
            product.sums.push_back(sum);
            product.sizes.push_back(size);
        }
    return product;
}

void check_close(const char* what, const Kernels& kernels, const Layer& layer, const std::vector<float>& got,
                 const Product& expected, double tolerance) {
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double error = std::fabs(got[i] - expected.sums[i]);
        CHECK(error <= tolerance * expected.sizes[i], "%s %s %s: [%lld, %lld, %lld] element %zu is off by %g of %g",
              kernels.name, layer.format.name, what, static_cast<long long>(layer.rows),
              static_cast<long long>(layer.columns), static_cast<long long>(layer.inner), i, error, expected.sizes[i]);
    }
}

double relative_error(const std::vector<float>& got, const Product& expected) {
    double error = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        error += (got[i] - expected.sums[i]) * (got[i] - expected.sums[i]);
        size += expected.sums[i] * expected.sums[i];
    }
    return std::sqrt(error / size);
}

std::vector<float> rounded(std::vector<float> values) {
    for (float& value : values) value = to_bf16(value);
    return values;
}

std::vector<float> quantised(std::vector<float> x) {
    for (std::size_t i = 0; i < x.size(); i += 32) quantise(&x[i]);
    return x;
}

bool is_same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

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
    check_values(kernels, format);
    check_products(kernels, format, 1, 1, 256);
    check_products(kernels, format, 7, kernels.panel, 512);
    check_products(kernels, format, 13, kernels.panel * 9 + 3, 1280);
    check_products(kernels, format, 20, kernels.panel - 1, 2304);
    if (format.elements == 32) check_products(kernels, format, 8, kernels.panel + 1, 1056);
    for (const Compute compute : {Compute::bf16, Compute::int8}) check_same_bits(kernels, format, compute);
    for (const DType type : {DType::f16, DType::bf16}) check_halves(kernels, format, type);
    for (const Compute compute : {Compute::bf16, Compute::int8}) check_quantised_results(kernels, format, compute);
    CHECK(kernels.has_int8(format.type) == (&format != &kOther), "%s %s: has_int8", kernels.name, format.name);
    if (&format == &kOther) return;
    check_extremes(kernels, format);
    check_damaged_scales(kernels, format);
    check_odd_activations(kernels, format);
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
