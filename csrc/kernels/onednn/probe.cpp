// Whether oneDNN multiplies here: not every processor has products of bf16.
#include <cstring>
#include <exception>
#include <initializer_list>
#include <vector>

#include "kernels/onednn/matmul.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels::onednn {

namespace {

constexpr std::int64_t kInner = 100; // no multiple of any block

// Whole numbers, whose products have sums that are exact in any order.
float row_value(std::int64_t row, std::int64_t k) { return static_cast<float>((3 * row + k) % 5 - 2); }
float panel_value(std::int64_t column, std::int64_t k) { return static_cast<float>((column + 2 * k) % 7 - 3); }

/// [count, kInner] as f32, or as bf16, which is the upper half of f32.
template <typename Value> std::vector<char> matrix(bool is_bf16, std::int64_t count, const Value& value) {
    const std::size_t size = is_bf16 ? 2 : 4;
    std::vector<char> bytes(static_cast<std::size_t>(count * kInner) * size);
    char* to = bytes.data();
    for (std::int64_t row = 0; row < count; ++row)
        for (std::int64_t k = 0; k < kInner; ++k, to += size) {
            const float number = value(row, k);
            std::memcpy(to, reinterpret_cast<const char*>(&number) + sizeof number - size, size);
        }
    return bytes;
}

bool is_right(std::int64_t count, const std::vector<float>& sums) {
    for (std::int64_t row = 0; row < count; ++row)
        for (std::int64_t column = 0; column < kPanel; ++column) {
            float expected = 0;
            for (std::int64_t k = 0; k < kInner; ++k) expected += row_value(row, k) * panel_value(column, k);
            if (sums[static_cast<std::size_t>(row * kPanel + column)] != expected) return false;
        }
    return true;
}

} // namespace

bool can_multiply(bool is_bf16) {
    try {
        void* const packed = scratch(Scratch::panels, panel_nbytes(is_bf16, kInner));
        pack_panel(is_bf16, kInner, matrix(is_bf16, kPanel, panel_value).data(), packed);
        for (const std::int64_t count : {std::int64_t{1}, std::int64_t{33}}) {
            const std::vector<char> rows = matrix(is_bf16, count, row_value);
            std::vector<float> sums(static_cast<std::size_t>(count * kPanel));
            multiply(is_bf16, count, kInner, rows.data(), kInner, packed, sums.data());
            if (!is_right(count, sums)) return false;
        }
        return true;
    } catch (const std::exception&) {
        return false;
    }
}

} // namespace edgedit::kernels::onednn
