// Linear layers by oneDNN: panels of a weight in its layout, rows as it takes them, and what follows the product by the
// vectors of the family for AVX2, with whose flags this is compiled (flags.cmake).
#include "kernels/onednn/family.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <cstring>

#include "kernels/onednn/api.hpp"
#include "kernels/onednn/matmul.hpp"
#include "kernels/scratch.hpp"
#include "kernels/simd_avx2.hpp"
// after the vectors that they are made of
#include "kernels/impl/epilogue.hpp"
#include "kernels/impl/split.hpp"

namespace edgedit::kernels {
namespace {

/// Does what oneDNN does not: attention, convolutions, and weights of other types.
const Kernels* base_family = nullptr;

bool is_bf16(Type type) { return type != Type::f32; }

/// Without instructions for bf16 oneDNN has no products of bf16 weights, which `base_family` then widens.
bool is_ours(Type type) {
    return type == Type::f32 || (base_family->has_bf16 && (type == Type::bf16 || type == Type::f16));
}

std::int64_t packed_nbytes(Type type, std::int64_t columns, std::int64_t inner) {
    if (!is_ours(type)) return base_family->packed_nbytes(type, columns, inner);
    return ceil_div(columns, onednn::kPanel) * static_cast<Index>(onednn::panel_nbytes(is_bf16(type), inner));
}

void convert(Type from, const void* values, Type to, void* converted, Index count) {
    for (Index i = 0; i < count; i += kLanes)
        store_as(to, converted, i, count - i, load_as(from, values, i, count - i));
}

void pack(Type type, std::int64_t columns, std::int64_t inner, std::int64_t first, std::int64_t count, const void* rows,
          void* packed) {
    if (!is_ours(type)) return base_family->pack(type, columns, inner, first, count, rows, packed);
    const auto panel_nbytes = static_cast<Index>(onednn::panel_nbytes(is_bf16(type), inner));
    const Type to = is_bf16(type) ? Type::bf16 : Type::f32;
    const Index row_nbytes = inner * itemsize(to);
    for (Index column = 0; column < count; column += onednn::kPanel) {
        const Index filled = smaller(count - column, onednn::kPanel);
        const auto room_nbytes = static_cast<std::size_t>(onednn::kPanel * row_nbytes);
        auto* dense = static_cast<char*>(scratch(Scratch::panels, room_nbytes));
        convert(type, static_cast<const char*>(rows) + column * inner * itemsize(type), to, dense, filled * inner);
        std::memset(dense + filled * row_nbytes, 0, static_cast<std::size_t>((onednn::kPanel - filled) * row_nbytes));
        onednn::pack_panel(is_bf16(type), inner, dense,
                           static_cast<char*>(packed) + (first + column) / onednn::kPanel * panel_nbytes);
    }
}

/// Some rows of x, one after another.
struct DenseRows {
    const void* data;
    Index stride; ///< in elements
};

/// Rows [first, first + count) of x as `type`: where they are if they can be read there, else copied.
DenseRows dense_rows(const LinearProblem& problem, Type type, Index first, Index count) {
    constexpr Index kSetsNbytes = 4096; // rows this far apart fall into the same sets of an L1 cache
    const Rows& only = problem.sources[0];
    const bool is_one_batch = first / only.tokens == (first + count - 1) / only.tokens;
    if (problem.num_sources == 1 && only.type == type && is_one_batch && only.row_stride % kSetsNbytes != 0)
        return {tile_rows(only, first, 1).at[0], count == 1 ? problem.weight.inner : only.row_stride / itemsize(type)};
    const Index stride = ceil_div(problem.weight.inner, 32) * 32 + 32, row_nbytes = stride * itemsize(type);
    auto* room = static_cast<char*>(scratch(Scratch::rows, static_cast<std::size_t>(count * row_nbytes)));
    Index begin = 0;
    for (int s = 0; s < problem.num_sources; begin += problem.inner[s++])
        for (Index row = 0; row < count; ++row)
            convert(problem.sources[s].type, tile_rows(problem.sources[s], first + row, 1).at[0], type,
                    room + row * row_nbytes + begin * itemsize(type), problem.inner[s]);
    return {room, stride};
}

/// Where oneDNN fails this ends the process: nothing may be thrown through ggml.
void linear(const LinearProblem& problem, int thread, int num_threads) noexcept {
    if (!is_ours(problem.weight.type)) return base_family->linear(problem, thread, num_threads);
    constexpr Index kTile = 32; // rows that AMX multiplies at once
    const bool in_bf16 = is_bf16(problem.weight.type);
    const Index inner = problem.weight.inner, columns = problem.weight.columns;
    const auto panel_nbytes = static_cast<Index>(onednn::panel_nbytes(in_bf16, inner));
    const Part part = part_of_thread(problem.rows, columns, thread, num_threads, kTile, onednn::kPanel);
    if (part.panels.begin == part.panels.end) return;
    auto* sums = static_cast<float*>(scratch(Scratch::sums, onednn::kRows * onednn::kPanel * sizeof(float)));
    for (Index row = part.rows.begin; row < part.rows.end; row += onednn::kRows) {
        const Index count = smaller(onednn::kRows, part.rows.end - row);
        const DenseRows rows = dense_rows(problem, in_bf16 ? Type::bf16 : Type::f32, row, count);
        for (Index panel = part.panels.begin; panel < part.panels.end; ++panel) {
            onednn::multiply(in_bf16, count, inner, rows.data, rows.stride,
                             static_cast<const char*>(problem.weight.data) + panel * panel_nbytes, sums);
            const Index first_column = panel * onednn::kPanel;
            for (Index r = 0; r < count; r += kTileRows)
                finish_tile(problem, row + r, static_cast<int>(smaller(kTileRows, count - r)), first_column,
                            smaller(onednn::kPanel, columns - first_column), sums + r * onednn::kPanel, onednn::kPanel);
        }
    }
}

} // namespace

const Kernels* onednn_kernels(const Kernels& base) {
    static Kernels table;
    if (onednn::api() == nullptr || !onednn::can_multiply(false) || (base.has_bf16 && !onednn::can_multiply(true)))
        return nullptr;
    base_family = &base;
    table = {"onednn", onednn::kPanel, base.has_bf16, packed_nbytes, pack, linear, base.attention, base.conv2d,
             base.has_int8};
    return &table;
}

} // namespace edgedit::kernels

#else

namespace edgedit::kernels {
const Kernels* onednn_kernels(const Kernels&) { return nullptr; }
}

#endif
