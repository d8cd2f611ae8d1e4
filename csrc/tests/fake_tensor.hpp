// Tensors as the operators see them, without ggml: memory, shape in numpy order, values as floats.
#pragma once

#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "ops/rows.hpp"
#include "ops/tensor.hpp"

namespace edgedit::ops {

class FakeTensor {
public:
    /// [i3, i2, i1, i0] packed, but for `gap` unused elements after each row of i1 rows.
    FakeTensor(DType type, std::vector<std::int64_t> shape, std::int64_t gap = 0) : type_(type) {
        shape.insert(shape.begin(), 4 - shape.size(), 1);
        tensor.type = static_cast<std::int32_t>(type);
        std::int64_t step = itemsize(type);
        for (int axis = 0; axis < 4; ++axis) {
            tensor.ne[axis] = shape[static_cast<std::size_t>(3 - axis)];
            tensor.nb[axis] = static_cast<std::size_t>(step);
            step *= tensor.ne[axis];
            if (axis == 1) step += gap * itemsize(type);
        }
        // exactly as large as it has to be, so that AddressSanitizer sees the first byte too many
        memory_.reset(static_cast<std::byte*>(::operator new(static_cast<std::size_t>(step))));
        nbytes_ = static_cast<std::size_t>(step);
        std::memset(memory_.get(), 0xcd, nbytes_);
        tensor.data = memory_.get();
    }

    std::int64_t count() const { return tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3]; }

    void set(std::int64_t i3, std::int64_t i2, std::int64_t i1, std::int64_t i0, float value) {
        portable_rows.move(type_, DType::f32, false)(at(i3, i2, i1, i0), &value, 1);
    }

    float get(std::int64_t i3, std::int64_t i2, std::int64_t i1, std::int64_t i0) const {
        float value;
        portable_rows.move(DType::f32, type_, false)(&value, at(i3, i2, i1, i0), 1);
        return value;
    }

    ggml_tensor* node(std::initializer_list<FakeTensor*> sources) {
        int index = 0;
        for (FakeTensor* source : sources) tensor.src[index++] = &source->tensor;
        return reinterpret_cast<ggml_tensor*>(&tensor);
    }

    Tensor tensor{};

private:
    struct Free {
        void operator()(std::byte* memory) const { ::operator delete(memory); }
    };

    std::byte* at(std::int64_t i3, std::int64_t i2, std::int64_t i1, std::int64_t i0) const {
        return row(tensor, i1, i2, i3) + i0 * itemsize(type_);
    }

    DType type_;
    std::size_t nbytes_;
    std::unique_ptr<std::byte, Free> memory_;
};

} // namespace edgedit::ops
