// Every version of the row loops: conversions against all 16-bit patterns and against rounding done in double,
// norms and rotations against double precision, and all versions against each other.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"
#include "ops/rows.hpp"

using namespace edgedit::ops;

namespace {

/// Value of a 16-bit pattern with the given number of exponent bits, by definition.
double value_of(std::uint16_t bits, int exponent_bits) {
    const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits & 0x7fff) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

void check_conversions(const Rows& rows, DType type, int exponent_bits) {
    std::vector<std::uint16_t> patterns(65536), back(65536);
    std::vector<float> wide(65536);
    for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
    rows.move(DType::f32, type, false)(wide.data(), patterns.data(), 65536);
    rows.move(type, DType::f32, false)(back.data(), wide.data(), 65536);
    for (std::size_t i = 0; i < patterns.size(); ++i) {
        const double expected = value_of(patterns[i], exponent_bits);
        if (std::isnan(expected)) {
            CHECK(std::isnan(wide[i]) && std::isnan(value_of(back[i], exponent_bits)), "%s: %zx is a NaN", rows.name,
                  i);
        } else {
            CHECK(wide[i] == expected, "%s: %zx is %g, not %g", rows.name, i, expected, static_cast<double>(wide[i]));
            CHECK(back[i] == patterns[i], "%s: %zx came back as %x", rows.name, i, back[i]);
        }
    }
    // between two neighbours: to the nearer, half-way to the even one
    const std::uint16_t last = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
    for (std::uint16_t low = 0; low + 1 < last; ++low) {
        const double a = value_of(low, exponent_bits), b = value_of(static_cast<std::uint16_t>(low + 1), exponent_bits);
        for (const double at : {0.25, 0.5, 0.75}) {
            const auto between = static_cast<float>(a + (b - a) * at);
            std::uint16_t rounded;
            rows.move(type, DType::f32, false)(&rounded, &between, 1);
            const int expected = at < 0.5 ? low : at > 0.5 ? low + 1 : low + (low & 1);
            CHECK(rounded == expected, "%s: %a became %x, not %x", rows.name, static_cast<double>(between), rounded,
                  expected);
        }
    }
}

std::vector<float> random_floats(std::size_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(generator);
    return values;
}

void check_close(const char* what, const std::vector<float>& got, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double error = std::fabs(got[i] - expected[i]);
        CHECK(error <= 1e-6 + 1e-6 * std::fabs(expected[i]), "%s: element %zu is off by %g", what, i, error);
    }
}

void check_arithmetic(const Rows& rows, std::size_t count) {
    const auto n = static_cast<std::int64_t>(count);
    const auto x = random_floats(count, 1), w = random_floats(count, 2), z = random_floats(count, 3);
    std::vector<double> expected(count);

    double squares = 0, mean = 0, variance = 0;
    for (const float value : x) squares += static_cast<double>(value) * value, mean += value;
    squares /= static_cast<double>(count), mean /= static_cast<double>(count);
    for (const float value : x) variance += (value - mean) * (value - mean) / static_cast<double>(count);

    auto y = x;
    rows.rms_norm(y.data(), w.data(), n, 1e-6f);
    for (std::size_t i = 0; i < count; ++i) expected[i] = x[i] / std::sqrt(squares + 1e-6) * w[i];
    check_close("rms_norm", y, expected);

    rows.modulate(y.data(), x.data(), w.data(), z.data(), n, 1e-6f);
    for (std::size_t i = 0; i < count; ++i)
        expected[i] = (x[i] - mean) / std::sqrt(variance + 1e-6) * (1.0 + w[i]) + z[i];
    check_close("modulate", y, expected);

    rows.gated_residual(y.data(), x.data(), w.data(), z.data(), n);
    for (std::size_t i = 0; i < count; ++i) expected[i] = x[i] + static_cast<double>(w[i]) * z[i];
    check_close("gated_residual", y, expected);

    if (count % 2 == 0) {
        y = x;
        rows.rotate(y.data(), w.data(), n);
        for (std::size_t i = 0; i < count; i += 2) {
            expected[i] = static_cast<double>(x[i]) * w[i] - static_cast<double>(x[i + 1]) * w[i + 1];
            expected[i + 1] = static_cast<double>(x[i]) * w[i + 1] + static_cast<double>(x[i + 1]) * w[i];
        }
        check_close("rotate", y, expected);
    }
}

/// What all versions compute of rows of one length, one after another.
std::vector<float> results(const Rows& rows, std::size_t count) {
    const auto n = static_cast<std::int64_t>(count);
    const auto x = random_floats(count, 4), w = random_floats(count, 5), z = random_floats(count, 6);
    auto normed = x, modulated = x, gated = x, rotated = x;
    rows.rms_norm(normed.data(), w.data(), n, 1e-6f);
    rows.modulate(modulated.data(), x.data(), w.data(), z.data(), n, 1e-6f);
    rows.gated_residual(gated.data(), x.data(), w.data(), z.data(), n);
    if (count % 2 == 0) rows.rotate(rotated.data(), w.data(), n);
    std::vector<float> all;
    for (const auto& part : {normed, modulated, gated, rotated}) all.insert(all.end(), part.begin(), part.end());
    return all;
}

/// Ranks on unlike processors take unlike versions.
void check_same_bits(const Rows& rows, std::size_t count) {
    const auto got = results(rows, count), expected = results(portable_rows, count);
    for (std::size_t i = 0; i < got.size(); ++i)
        CHECK(std::memcmp(&got[i], &expected[i], sizeof(float)) == 0, "%s: %zu elements: number %zu is %a, not %a",
              rows.name, count, i, static_cast<double>(got[i]), static_cast<double>(expected[i]));
}

/// Streaming or not, aligned or not, every length: the same bytes, and none beyond.
void check_moves(const Rows& rows) {
    const std::vector<DType> types = {DType::f32, DType::f16, DType::bf16};
    for (const DType from : types)
        for (const DType to : types)
            for (std::size_t count = 0; count < 100; ++count) {
                const auto values = random_floats(count, static_cast<unsigned>(count));
                std::vector<char> source(count * 4);
                portable_rows.move(from, DType::f32, false)(source.data(), values.data(),
                                                            static_cast<std::int64_t>(count));
                std::vector<char> expected(count * static_cast<std::size_t>(itemsize(to)));
                portable_rows.move(to, from, false)(expected.data(), source.data(), static_cast<std::int64_t>(count));
                for (const bool streaming : {false, true})
                    for (const std::size_t shift : {0, 4, 16}) {
                        alignas(64) char target[512];
                        std::memset(target, 0x5a, sizeof target);
                        rows.move(to, from, streaming)(target + shift, source.data(), static_cast<std::int64_t>(count));
                        rows.fence();
                        CHECK(std::equal(expected.begin(), expected.end(), target + shift), "%s: %zu elements differ",
                              rows.name, count);
                        CHECK(target[shift + expected.size()] == 0x5a, "%s: wrote beyond %zu elements", rows.name,
                              count);
                    }
            }
}

} // namespace

int main() {
    const Rows* versions[2];
    const int count = usable_rows(versions);
    for (int version = 0; version < count; ++version) {
        check_conversions(*versions[version], DType::f16, 5);
        check_conversions(*versions[version], DType::bf16, 8);
        for (const std::size_t length : {1, 2, 15, 16, 40, 128, 3072}) {
            check_arithmetic(*versions[version], length);
            check_same_bits(*versions[version], length);
        }
        check_moves(*versions[version]);
        std::printf("%s rows are right\n", versions[version]->name);
    }
    return 0;
}
