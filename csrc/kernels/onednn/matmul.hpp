// Products by oneDNN, one panel of a weight at a time, on the thread that calls.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgedit::kernels::onednn {

/// Columns of a panel: what oneDNN is given at a time, and what threads share out among them.
constexpr std::int64_t kPanel = 128;

/// Rows that oneDNN is given at a time. With them and a panel, the second-level cache of a core is about full.
constexpr std::int64_t kRows = 128;

/// Whether oneDNN has products of f32, or bf16, for this processor, and right ones.
bool can_multiply(bool is_bf16);

/// Size of a panel [kPanel, inner] in the layout that oneDNN likes best, up to where the next can begin. Throws
/// std::runtime_error where oneDNN fails.
std::size_t panel_nbytes(bool is_bf16, std::int64_t inner);

/// Put a dense panel [kPanel, inner] into this layout. Throws std::runtime_error where oneDNN fails.
void pack_panel(bool is_bf16, std::int64_t inner, const void* panel, void* packed);

/// sums[m][n] = sum over k of rows[m][k] panel[n][k], in f32: [count, kPanel] for up to kRows rows, of the panel's
/// type, `row_stride` elements from one to the next. Throws std::runtime_error where oneDNN fails.
void multiply(bool is_bf16, std::int64_t count, std::int64_t inner, const void* rows, std::int64_t row_stride,
              const void* panel, float* sums);

} // namespace edgedit::kernels::onednn
