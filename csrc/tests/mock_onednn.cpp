// Stands for libdnnl.so.3 in tests: the functions that kernels/onednn calls, with plain loops behind them.
//
// It multiplies f32 and bf16 on every processor and has a layout of its own for weights. A call is refused that does not
// fit what was described, or that would have taken more threads than the one that makes it.
#include <algorithm>
#include <cstring>

#include "kernels/onednn/api.hpp"

namespace edgedit::kernels::onednn {

struct Engine {};
struct Stream {};
struct Attributes {
    bool has_user_scratchpad = false;
};
enum class Kind { strided, any, blocked, scratch };
struct MemoryDescriptor {
    Kind kind = Kind::strided;
    int type = 0;
    std::int64_t dims[2] = {};
    std::int64_t strides[2] = {};

    bool operator==(const MemoryDescriptor& other) const {
        return kind == other.kind && type == other.type && std::equal(dims, dims + 2, other.dims) &&
               std::equal(strides, strides + 2, other.strides);
    }
};
struct Memory {
    MemoryDescriptor descriptor;
    char* data;
};
struct PrimitiveDescriptor {
    bool is_matmul;
    MemoryDescriptor source, weights, destination, scratch;
};
struct Primitive {
    PrimitiveDescriptor descriptor;
};

namespace {

constexpr Status kInvalid = 2, kUnimplemented = 3;
constexpr std::int64_t kBlock = 16, kScratchNbytes = 256;

thread_local int num_threads = 8;

std::int64_t itemsize(int type) { return type == kBf16 ? 2 : 4; }

std::int64_t padded(std::int64_t inner) { return inner + inner % 2; }

/// Elements before [row, column]: blocks of 16 columns, pairs of rows within, the last pair filled up.
std::int64_t offset(const MemoryDescriptor& layout, std::int64_t row, std::int64_t column) {
    if (layout.kind == Kind::strided) return row * layout.strides[0] + column * layout.strides[1];
    return column / kBlock * kBlock * padded(layout.dims[0]) + row / 2 * 2 * kBlock + column % kBlock * 2 + row % 2;
}

float value(const Memory& memory, std::int64_t row, std::int64_t column) {
    const char* at = memory.data + offset(memory.descriptor, row, column) * itemsize(memory.descriptor.type);
    std::uint32_t bits = 0;
    if (memory.descriptor.type == kBf16)
        std::memcpy(reinterpret_cast<char*>(&bits) + 2, at, 2);
    else
        std::memcpy(&bits, at, 4);
    float widened;
    std::memcpy(&widened, &bits, 4);
    return widened;
}

void reorder(const Memory& from, const Memory& to) {
    const std::int64_t size = itemsize(to.descriptor.type);
    for (std::int64_t row = 0; row < to.descriptor.dims[0]; ++row)
        for (std::int64_t column = 0; column < to.descriptor.dims[1]; ++column)
            std::memcpy(to.data + offset(to.descriptor, row, column) * size,
                        from.data + offset(from.descriptor, row, column) * size, static_cast<std::size_t>(size));
}

void multiply(const Memory& source, const Memory& weights, const Memory& destination) {
    for (std::int64_t row = 0; row < destination.descriptor.dims[0]; ++row)
        for (std::int64_t column = 0; column < destination.descriptor.dims[1]; ++column) {
            double sum = 0;
            for (std::int64_t k = 0; k < source.descriptor.dims[1]; ++k)
                sum += static_cast<double>(value(source, row, k)) * static_cast<double>(value(weights, k, column));
            const auto rounded = static_cast<float>(sum);
            std::memcpy(destination.data + offset(destination.descriptor, row, column) * 4, &rounded, 4);
        }
}

template <typename Object> Status destroy(Object* object) {
    delete object;
    return 0;
}

} // namespace

extern "C" {

int omp_get_max_threads() { return num_threads; }
void omp_set_num_threads(int count) { num_threads = count; }

const Version* dnnl_version() {
    static const Version version = {kMajorVersion, 0, 0, "mock", kOpenMp, 0};
    return &version;
}
int dnnl_get_effective_cpu_isa() { return 0; }

Status dnnl_engine_create(Engine** engine, int kind, std::size_t index) {
    static Engine only;
    *engine = &only;
    return kind == kCpu && index == 0 ? 0 : kInvalid;
}
Status dnnl_stream_create(Stream** stream, Engine*, unsigned flags) {
    *stream = new Stream;
    return flags == kInOrder ? 0 : kInvalid;
}
Status dnnl_stream_destroy(Stream* stream) { return destroy(stream); }
Status dnnl_stream_wait(Stream*) { return 0; }

Status dnnl_primitive_attr_create(Attributes** attributes) {
    *attributes = new Attributes;
    return 0;
}
Status dnnl_primitive_attr_destroy(Attributes* attributes) { return destroy(attributes); }
Status dnnl_primitive_attr_set_scratchpad_mode(Attributes* attributes, int mode) {
    attributes->has_user_scratchpad = mode == kUserScratchpad;
    return 0;
}

Status dnnl_memory_desc_create_with_strides(MemoryDescriptor** created, int num_dims, const Dimensions dims, int type,
                                            const Dimensions strides) {
    *created = new MemoryDescriptor{Kind::strided, type, {dims[0], dims[1]}, {strides[0], strides[1]}};
    return num_dims == 2 ? 0 : kInvalid;
}
Status dnnl_memory_desc_create_with_tag(MemoryDescriptor** created, int num_dims, const Dimensions dims, int type,
                                        int tag) {
    *created = new MemoryDescriptor{Kind::any, type, {dims[0], dims[1]}, {}};
    return num_dims == 2 && tag == kAnyLayout ? 0 : kInvalid;
}
Status dnnl_memory_desc_destroy(MemoryDescriptor* descriptor) { return destroy(descriptor); }
std::size_t dnnl_memory_desc_get_size(const MemoryDescriptor* of) {
    if (of->kind == Kind::scratch) return kScratchNbytes;
    return static_cast<std::size_t>(padded(of->dims[0]) * of->dims[1] * itemsize(of->type));
}

Status dnnl_memory_create(Memory** memory, const MemoryDescriptor* descriptor, Engine*, void* data) {
    *memory = new Memory{*descriptor, static_cast<char*>(data)};
    return 0;
}
Status dnnl_memory_destroy(Memory* memory) { return destroy(memory); }
Status dnnl_memory_set_data_handle(Memory* memory, void* data) {
    memory->data = static_cast<char*>(data);
    return 0;
}

Status dnnl_matmul_primitive_desc_create(PrimitiveDescriptor** created, Engine*, const MemoryDescriptor* source,
                                         const MemoryDescriptor* weights, const MemoryDescriptor* bias,
                                         const MemoryDescriptor* destination, const Attributes* attributes) {
    if (bias != nullptr || !attributes->has_user_scratchpad || source->type != weights->type ||
        destination->type != kF32 || source->dims[1] != weights->dims[0] || num_threads != 1)
        return kUnimplemented;
    MemoryDescriptor layout = *weights;
    if (layout.kind == Kind::any) layout.kind = Kind::blocked;
    *created = new PrimitiveDescriptor{true, *source, layout, *destination, {Kind::scratch, 0, {}, {}}};
    return layout.kind == Kind::blocked ? 0 : kUnimplemented;
}
Status dnnl_reorder_primitive_desc_create(PrimitiveDescriptor** created, const MemoryDescriptor* source, Engine*,
                                          const MemoryDescriptor* destination, Engine*, const Attributes*) {
    *created = new PrimitiveDescriptor{false, *source, {}, *destination, {}};
    return source->type == destination->type && destination->kind == Kind::blocked ? 0 : kUnimplemented;
}
const MemoryDescriptor* dnnl_primitive_desc_query_md(const PrimitiveDescriptor* of, int what, int) {
    return what == kWeightsDescriptor ? &of->weights : what == kScratchDescriptor ? &of->scratch : nullptr;
}
Status dnnl_primitive_desc_destroy(PrimitiveDescriptor* descriptor) { return destroy(descriptor); }

Status dnnl_primitive_create(Primitive** primitive, const PrimitiveDescriptor* descriptor) {
    *primitive = new Primitive{*descriptor};
    return 0;
}
Status dnnl_primitive_destroy(Primitive* primitive) { return destroy(primitive); }

Status dnnl_primitive_execute(const Primitive* primitive, Stream*, int num_arguments, const Argument* arguments) {
    const auto find = [&](int index, const MemoryDescriptor& expected) {
        const Argument* const end = arguments + num_arguments;
        const Argument* found = std::find_if(arguments, end, [&](const Argument& a) { return a.index == index; });
        const bool fits = found != end && found->memory->descriptor == expected && found->memory->data != nullptr;
        return fits ? found->memory : nullptr;
    };
    const PrimitiveDescriptor& wanted = primitive->descriptor;
    const Memory* source = find(kSource, wanted.source);
    const Memory* destination = find(kDestination, wanted.destination);
    if (source == nullptr || destination == nullptr || num_threads != 1) return kInvalid;
    if (!wanted.is_matmul) {
        reorder(*source, *destination);
        return 0;
    }
    const Memory* weights = find(kWeights, wanted.weights);
    const Memory* scratch = find(kScratchpad, wanted.scratch);
    if (weights == nullptr || scratch == nullptr) return kInvalid;
    std::memset(scratch->data, 0xff, kScratchNbytes);
    multiply(*source, *weights, *destination);
    return 0;
}

} // extern "C"

} // namespace edgedit::kernels::onednn
