// What the tests of quantised weights share: ggml's formats with decoders written from their definition, layers over
// them, and their products in double precision.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernel_testing.hpp"

namespace edgedit::kernels {

using Index = std::int64_t;
using Bytes = std::vector<std::uint8_t>;

inline float half_at(const std::uint8_t* at) {
    const int bits = at[0] | at[1] << 8, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
    return static_cast<float>(bits & 0x8000 ? -size : size);
}

// Decoders of one block, element by element. The scalar products that ggml rounds are rounded here.

inline void decode_q4_0(const std::uint8_t* block, float* values) {
    for (int i = 0; i < 32; ++i) {
        const int nibble = i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4;
        values[i] = static_cast<float>(nibble - 8) * half_at(block);
    }
}

inline void decode_q8_0(const std::uint8_t* block, float* values) {
    for (int i = 0; i < 32; ++i)
        values[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * half_at(block);
}

/// Scale and minimum of part `part` out of the 12 bytes that q4_k and q5_k hold them in.
inline std::array<int, 2> six_bits(const std::uint8_t* packed, int part) {
    if (part < 4) return {packed[part] & 63, packed[part + 4] & 63};
    return {(packed[part + 4] & 15) + 16 * (packed[part - 4] >> 6), (packed[part + 4] >> 4) + 16 * (packed[part] >> 6)};
}

inline void decode_with_minima(const std::uint8_t* block, const std::uint8_t* high, const std::uint8_t* nibbles,
                        float* values) {
    for (int i = 0; i < 256; ++i) {
        const int part = i / 32, byte = nibbles[part / 2 * 32 + i % 32];
        const int quant = (part % 2 == 0 ? byte & 15 : byte >> 4) + (high != nullptr && high[i % 32] >> part & 1) * 16;
        const auto [scale, minimum] = six_bits(block + 4, part);
        const float of_part = half_at(block) * static_cast<float>(scale);
        values[i] = of_part * static_cast<float>(quant) - half_at(block + 2) * static_cast<float>(minimum);
    }
}

inline void decode_q4_k(const std::uint8_t* block, float* values) { decode_with_minima(block, nullptr, block + 16, values); }

inline void decode_q5_k(const std::uint8_t* block, float* values) {
    decode_with_minima(block, block + 16, block + 48, values);
}

inline void decode_q6_k(const std::uint8_t* block, float* values) {
    for (int i = 0; i < 256; ++i) {
        const int half = i / 128, run = i % 128 / 32, place = i % 32;
        const int byte = block[half * 64 + run % 2 * 32 + place], bits = block[128 + half * 32 + place] >> 2 * run & 3;
        const int quant = (run < 2 ? byte & 15 : byte >> 4) + 16 * bits - 32;
        const auto scale = static_cast<float>(static_cast<std::int8_t>(block[192 + i / 16]));
        values[i] = half_at(block + 208) * scale * static_cast<float>(quant);
    }
}

/// A format of its own, which the kernels cannot know.
inline void decode_other(const std::uint8_t* block, float* values) {
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

inline const Format kFormats[] = {
    {"q4_0", Type::q4_0, 32, 18, {0}, decode_q4_0},        {"q8_0", Type::q8_0, 32, 34, {0}, decode_q8_0},
    {"q4_k", Type::q4_k, 256, 144, {0, 2}, decode_q4_k},   {"q5_k", Type::q5_k, 256, 176, {0, 2}, decode_q5_k},
    {"q6_k", Type::q6_k, 256, 210, {208}, decode_q6_k},
};
inline const Format kOther{"other", static_cast<Type>(99), 32, 32, {}, decode_other};

inline void decode_blocks(const Format& format, const void* blocks, float* values, Index count) {
    const auto* block = static_cast<const std::uint8_t*>(blocks);
    for (Index i = 0; i < count; i += format.elements, block += format.nbytes) format.decode(block, values + i);
}

inline void other_to_float(const void* blocks, float* values, Index count) { decode_blocks(kOther, blocks, values, count); }
inline void never_to_float(const void*, float*, Index) { CHECK(false, "a format with code of its own went through to_float"); }

/// Any bytes are quants; only f16 scales have to be sane: 2^-6 to 2^-4, of either sign.
inline void fill_blocks(const Format& format, Bytes& blocks, Values& values) {
    for (auto& byte : blocks) byte = static_cast<std::uint8_t>(values.below(256));
    for (std::size_t start = 0; start < blocks.size(); start += static_cast<std::size_t>(format.nbytes))
        for (const Index half : format.halves) {
            auto& high = blocks[start + static_cast<std::size_t>(half) + 1];
            high = static_cast<std::uint8_t>((high & 0x83) | (9 + values.below(2)) << 2);
        }
}

inline float to_bf16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    std::memcpy(&value, &bits, sizeof bits);
    return value;
}

/// What int8 makes of 32 activations.
inline void quantise(float* x) {
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

inline void run(const Kernels& kernels, const LinearProblem& problem, int num_threads = 1) {
    for (int thread = 0; thread < num_threads; ++thread) kernels.linear(problem, thread, num_threads);
}

inline std::vector<float> result(const Kernels& kernels, const Layer& layer, Compute compute, int num_threads = 1) {
    std::vector<float> out;
    run(kernels, layer.problem(compute, out), num_threads);
    return out;
}

/// The product in double precision, and the largest that any order of adding it up can be off by per unit of rounding.
struct Product {
    std::vector<double> sums;
    std::vector<double> sizes;
};

inline Product product(const Layer& layer, const std::vector<float>& x, const std::vector<float>& weight) {
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

inline void check_close(const char* what, const Kernels& kernels, const Layer& layer, const std::vector<float>& got,
                 const Product& expected, double tolerance) {
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double error = std::fabs(got[i] - expected.sums[i]);
        CHECK(error <= tolerance * expected.sizes[i], "%s %s %s: [%lld, %lld, %lld] element %zu is off by %g of %g",
              kernels.name, layer.format.name, what, static_cast<long long>(layer.rows),
              static_cast<long long>(layer.columns), static_cast<long long>(layer.inner), i, error, expected.sizes[i]);
    }
}

inline double relative_error(const std::vector<float>& got, const Product& expected) {
    double error = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        error += (got[i] - expected.sums[i]) * (got[i] - expected.sums[i]);
        size += expected.sums[i] * expected.sums[i];
    }
    return std::sqrt(error / size);
}

inline std::vector<float> rounded(std::vector<float> values) {
    for (float& value : values) value = to_bf16(value);
    return values;
}

inline std::vector<float> quantised(std::vector<float> x) {
    for (std::size_t i = 0; i < x.size(); i += 32) quantise(&x[i]);
    return x;
}

inline bool is_same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

} // namespace edgedit::kernels
