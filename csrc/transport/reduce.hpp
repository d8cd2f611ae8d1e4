// The arithmetic of all-reduce: in rank order, so that every transport gives every rank the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgedit::transport {

enum class Element : std::int32_t { f32, f16, bf16, i32 };
enum class Reduce : std::int32_t { sum, max, min };

struct Reduction {
    Element element;
    Reduce reduce;
    int ranks;
    std::int64_t count; ///< elements of each part
};

/// parts [ranks][count] -> result [count]. 16-bit floats are reduced in f32 and rounded once.
void reduce_in_order(const Reduction& reduction, const std::byte* parts, std::byte* result);

} // namespace edgedit::transport
