// Linear layers, attention and convolutions on the CPU, in families for different processors.
//
// Plain functions over plain data: no ggml, no Python, no threads of their own. Every function does the part of
// `thread` out of `num_threads`, which follows from the problem and these two numbers alone; the caller's threads
// call it side by side, each once, and nothing is complete before all of them have returned.
//
// What every kernel keeps to: the result of an output row depends on that row's inputs only, bit for bit. It does not
// matter how many rows there are, in which tile, batch or thread the row lands, or how many sources hold its inputs.
// Only products of oneDNN differ by the order of their sums.
#pragma once

#include <cstdint>

#include "dtype.hpp"

namespace edgedit::kernels {

/// ggml's type numbers. Any other number of a type that ggml can decode serves as the type of a weight, too.
enum class Type : std::int32_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q8_0 = 8,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    bf16 = 30,
};

enum class Activation : std::int32_t {
    none,
    gelu_tanh,  ///< x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
    gelu_erf,   ///< x (1 + erf(x / sqrt(2))) / 2
    gelu_quick, ///< x / (1 + exp(-1.702 x))
    silu,       ///< x / (1 + exp(-x))
    relu,
};

/// What is multiplied. Sums are f32, except for int8: int32 within a block of 32.
enum class Compute : std::int32_t { f32, bf16, int8 };

/// Rows of a matrix in two levels: row m starts at data + (m / tokens) * batch_stride + (m % tokens) * row_stride, in
/// bytes. A stride of 0 broadcasts. The elements of a row are dense.
struct Rows {
    const void* data;
    Type type; ///< f32, f16 or bf16; a source of a product in int8 may be q8_0, too, if all have whole blocks
    std::int64_t tokens;
    std::int64_t batch_stride;
    std::int64_t row_stride;
};

/// [columns, inner], as y = x W^T takes it.
struct Weight {
    Type type;
    /// f32, f16, bf16: panels as `Kernels::pack` of the same family made them, aligned to 64 bytes.
    /// Quantised: ggml's blocks, one row of `inner` after another.
    const void* data;
    std::int64_t columns;
    std::int64_t inner;
    std::int64_t row_nbytes; ///< from one row to the next, where the weight is quantised
    /// ggml's decoder of a quantised type: `count` elements, whole blocks.
    void (*to_float)(const void* blocks, float* values, std::int64_t count);
};

constexpr int kMaxSources = 2;

/// y = activation(x W^T + bias); out = residual + gate * y.
struct LinearProblem {
    std::int64_t rows;
    /// x, or two parts of it that stand side by side along the inner axis: inner[0] + inner[1] == weight.inner.
    int num_sources;
    Rows sources[kMaxSources];
    std::int64_t inner[kMaxSources];
    Weight weight;
    /// int8 quantises the activations in blocks of 32, for the quantised types that have code for it. Whatever else it
    /// says: f32 weights are multiplied in f32, all others in bf16 if the family `has_bf16`, else in f32.
    Compute compute;
    const float* bias; ///< [columns], or null
    Activation activation;
    Rows gate;     ///< `data` null: 1
    Rows residual; ///< `data` null: 0. May be `out` itself
    void* out;
    /// f32, f16, bf16; or q8_0, of whole blocks: a scale of f16 for 32 columns and integers in [-127, 127], for a
    /// product in int8 to read. A block with an infinity, a NaN or more than 127 * 65504 comes to NaNs.
    Type out_type;
    std::int64_t out_tokens;
    std::int64_t out_batch_stride; ///< bytes, as in Rows
    std::int64_t out_row_stride;
};

/// [batch, token, head, channel] with byte strides; channels are dense. Keys and values may have fewer heads only in
/// the form of a head stride of 0.
struct HeadsView {
    const void* data;
    DType type;
    std::int64_t batch_stride;
    std::int64_t token_stride;
    std::int64_t head_stride;
};

/// out = softmax(scale q k^T + mask) v, for every batch and head.
struct AttentionProblem {
    std::int64_t batch;
    std::int64_t heads;
    std::int64_t queries;
    std::int64_t keys;
    std::int64_t head_dim;
    HeadsView q;
    HeadsView k;
    HeadsView v;
    /// Added to the scores: [batch, head, query, key], f32 or f16, keys dense, byte strides (0 broadcasts); null: none.
    /// -inf leaves a key out. A query without any key gives 0, and -inf for its lse.
    const void* mask;
    DType mask_type;
    std::int64_t mask_batch_stride;
    std::int64_t mask_head_stride;
    std::int64_t mask_query_stride;
    float scale;
    Compute compute; ///< f32, or bf16, which families without bf16 products take as f32
    void* out;       ///< [batch, query, head, channel], byte strides, channels dense
    DType out_type;
    std::int64_t out_batch_stride;
    std::int64_t out_token_stride;
    std::int64_t out_head_stride;
    /// Natural logarithm of the sum of the exponentials of the masked, scaled scores: [batch, head, query] with byte
    /// strides; null: not wanted.
    float* lse;
    std::int64_t lse_batch_stride;
    std::int64_t lse_head_stride;
    std::int64_t lse_query_stride;
};

/// out = activation(conv(x, weight) + bias) + residual, all f32; no dilation, no groups.
struct Conv2dProblem {
    std::int64_t batch;
    std::int64_t in_channels;
    std::int64_t in_height;
    std::int64_t in_width;
    std::int64_t out_channels;
    std::int64_t kernel_height;
    std::int64_t kernel_width;
    std::int64_t stride_y;
    std::int64_t stride_x;
    std::int64_t pad_top;
    std::int64_t pad_bottom;
    std::int64_t pad_left;
    std::int64_t pad_right;
    const float* x; ///< [batch, in_channels, in_height, in_width]: byte strides, pixels of a line dense
    std::int64_t x_batch_stride;
    std::int64_t x_channel_stride;
    std::int64_t x_line_stride;
    const float* weight; ///< [out_channels, in_channels * kernel_height * kernel_width], dense
    const float* bias;   ///< [out_channels], or null
    Activation activation;
    const float* residual; ///< dense, the shape of out; null: none. May be `out` itself
    float* out;            ///< [batch, out_channels, out height, out width], dense
};

/// A family: what it is called and what it can do.
struct Kernels {
    const char* name;
    std::int64_t panel; ///< columns of a panel of a packed weight
    bool has_bf16;      ///< multiplies pairs of bf16, so that activations that only feed products are best in bf16

    /// Size of a packed weight; 0 for types that are not packed (the quantised ones: their blocks are read as they are).
    std::int64_t (*packed_nbytes)(Type type, std::int64_t columns, std::int64_t inner);

    /// Put rows [first, first + count) of a weight [columns, inner] into their place in `packed` and fill up with
    /// zeros. `rows` holds these rows only, dense, in the weight's type. `first` is a multiple of `panel`, and so is
    /// `count` unless the last row is among them.
    void (*pack)(Type type, std::int64_t columns, std::int64_t inner, std::int64_t first, std::int64_t count,
                 const void* rows, void* packed);

    void (*linear)(const LinearProblem& problem, int thread, int num_threads);
    void (*attention)(const AttentionProblem& problem, int thread, int num_threads);
    void (*conv2d)(const Conv2dProblem& problem, int thread, int num_threads);

    /// Whether products with a weight of that type are done in int8 where they may be.
    bool (*has_int8)(Type type);
};

/// "avx512", "avx2" or "portable", or "onednn" where that is installed; null for any other name and for a family that
/// this processor cannot run.
const Kernels* find(const char* name);

/// Name of the fastest family here: "onednn" where there is AMX, "avx512" or "avx2", or "ggml" where ggml's own nodes
/// are to be used.
const char* best();

// The families, one per translation unit; null where the compiler does not build for the processor.
extern const Kernels* const avx512_kernels;
extern const Kernels* const avx2_kernels;
extern const Kernels* const portable_kernels;

} // namespace edgedit::kernels
