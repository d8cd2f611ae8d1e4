#include "kernels/onednn/matmul.hpp"

#include <initializer_list>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/onednn/api.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels::onednn {

namespace {

template <typename Object> using Owned = std::unique_ptr<Object, Status (*)(Object*)>;

void check(Status status, const char* what) {
    if (status != 0)
        throw std::runtime_error(std::string("oneDNN: ") + what + " failed with status " + std::to_string(status));
}

/// While one exists, oneDNN takes no other thread than the one that calls: those of ggml are all busy.
class OneThread {
public:
    OneThread() {
        if (api()->omp_set_num_threads == nullptr) return;
        before_ = api()->omp_get_max_threads();
        api()->omp_set_num_threads(1);
    }
    ~OneThread() {
        if (before_ != 0) api()->omp_set_num_threads(before_);
    }
    OneThread(const OneThread&) = delete;
    OneThread& operator=(const OneThread&) = delete;

private:
    int before_ = 0;
};

/// The processor, for all threads; never given back, since threads may outlive whatever would.
Engine* engine() {
    static Engine* const cpu = [] {
        Engine* created = nullptr;
        check(api()->engine_create(&created, kCpu, 0), "an engine");
        return created;
    }();
    return cpu;
}

Stream* stream() {
    static thread_local const Owned<Stream> own = [] {
        Stream* created = nullptr;
        check(api()->stream_create(&created, engine(), kInOrder), "a stream");
        return Owned<Stream>(created, api()->stream_destroy);
    }();
    return own.get();
}

using Descriptor = Owned<MemoryDescriptor>;

/// A matrix as it stands, `strides` elements apart.
Descriptor matrix(std::int64_t rows, std::int64_t columns, int type, std::int64_t row_stride,
                  std::int64_t column_stride) {
    const Dimensions dims = {rows, columns}, strides = {row_stride, column_stride};
    MemoryDescriptor* created = nullptr;
    check(api()->memory_desc_create_with_strides(&created, 2, dims, type, strides), "a layout");
    return {created, api()->memory_desc_destroy};
}

int type_of(bool is_bf16) { return is_bf16 ? kBf16 : kF32; }

/// A matmul, or null where oneDNN has none for this processor. `weights` null: in the layout that it likes best.
Owned<PrimitiveDescriptor> matmul(bool is_bf16, std::int64_t count, std::int64_t inner, std::int64_t row_stride,
                                  const MemoryDescriptor* weights) {
    Attributes* attributes = nullptr;
    check(api()->primitive_attr_create(&attributes), "attributes");
    const Owned<Attributes> owned(attributes, api()->primitive_attr_destroy);
    check(api()->primitive_attr_set_scratchpad_mode(attributes, kUserScratchpad), "a mode");
    const Descriptor rows = matrix(count, inner, type_of(is_bf16), row_stride, 1);
    const Descriptor sums = matrix(count, kPanel, kF32, kPanel, 1);
    const Dimensions dims = {inner, kPanel};
    MemoryDescriptor* any = nullptr;
    check(api()->memory_desc_create_with_tag(&any, 2, dims, type_of(is_bf16), kAnyLayout), "a layout");
    const Descriptor best(any, api()->memory_desc_destroy);
    PrimitiveDescriptor* created = nullptr;
    const Status status = api()->matmul_primitive_desc_create(
        &created, engine(), rows.get(), weights != nullptr ? weights : best.get(), nullptr, sums.get(), attributes);
    return {status == 0 ? created : nullptr, api()->primitive_desc_destroy};
}

/// How oneDNN wants a panel for a product of as many rows as there may be. All products of the panel take it like that.
class Layout {
public:
    Layout(bool is_bf16, std::int64_t inner) : matmul_(matmul(is_bf16, kRows, inner, inner, nullptr)) {
        check(matmul_ == nullptr, "a product");
    }
    const MemoryDescriptor* descriptor() const {
        return api()->primitive_desc_query_md(matmul_.get(), kWeightsDescriptor, 0);
    }

private:
    Owned<PrimitiveDescriptor> matmul_;
};

/// Kept for each thread: it takes longer to ask for than a small product.
const Layout& layout_of_panel(bool is_bf16, std::int64_t inner) {
    static thread_local std::map<std::pair<bool, std::int64_t>, Layout> kept;
    const std::pair shape(is_bf16, inner);
    const auto found = kept.find(shape);
    return found != kept.end() ? found->second : kept.try_emplace(shape, is_bf16, inner).first->second;
}

Owned<Primitive> primitive(const PrimitiveDescriptor* of) {
    Primitive* created = nullptr;
    check(api()->primitive_create(&created, of), "a primitive");
    return {created, api()->primitive_destroy};
}

Owned<Memory> memory(const MemoryDescriptor* layout, void* data) {
    Memory* created = nullptr;
    check(api()->memory_create(&created, layout, engine(), data), "a memory");
    return {created, api()->memory_destroy};
}

void execute(const Primitive* of, std::initializer_list<Argument> arguments) {
    check(api()->primitive_execute(of, stream(), static_cast<int>(arguments.size()), arguments.begin()), "a primitive");
    check(api()->stream_wait(stream()), "a stream");
}

/// Of one shape and one thread: a primitive and the memory that it is given, which changes from call to call.
class Product {
public:
    Product(bool is_bf16, std::int64_t count, std::int64_t inner, std::int64_t row_stride) {
        const MemoryDescriptor* layout = layout_of_panel(is_bf16, inner).descriptor();
        const auto descriptor = matmul(is_bf16, count, inner, row_stride, layout);
        check(descriptor == nullptr, "a product");
        const auto* room = api()->primitive_desc_query_md(descriptor.get(), kScratchDescriptor, 0);
        room_nbytes_ = api()->memory_desc_get_size(room);
        primitive_ = primitive(descriptor.get());
        rows_ = memory(matrix(count, inner, type_of(is_bf16), row_stride, 1).get(), nullptr);
        panel_ = memory(layout, nullptr);
        sums_ = memory(matrix(count, kPanel, kF32, kPanel, 1).get(), nullptr);
        room_ = memory(room, nullptr);
    }

    void run(const void* rows, const void* panel, float* sums) const {
        set(rows_, const_cast<void*>(rows));
        set(panel_, const_cast<void*>(panel));
        set(sums_, sums);
        set(room_, scratch(Scratch::values, room_nbytes_));
        execute(primitive_.get(), {{kSource, rows_.get()},
                                   {kWeights, panel_.get()},
                                   {kDestination, sums_.get()},
                                   {kScratchpad, room_.get()}});
    }

private:
    static void set(const Owned<Memory>& memory, void* data) {
        check(api()->memory_set_data_handle(memory.get(), data), "a memory");
    }

    std::size_t room_nbytes_ = 0;
    Owned<Primitive> primitive_{nullptr, nullptr};
    Owned<Memory> rows_{nullptr, nullptr}, panel_{nullptr, nullptr}, sums_{nullptr, nullptr}, room_{nullptr, nullptr};
};

const Product& product(bool is_bf16, std::int64_t count, std::int64_t inner, std::int64_t row_stride) {
    constexpr std::size_t kMost = 256; // shapes of some pictures; oneDNN itself keeps what it compiled for them
    static thread_local std::map<std::tuple<bool, std::int64_t, std::int64_t, std::int64_t>, Product> kept;
    const std::tuple shape(is_bf16, count, inner, row_stride);
    const auto found = kept.find(shape);
    if (found != kept.end()) return found->second;
    if (kept.size() >= kMost) kept.clear();
    return kept.try_emplace(shape, is_bf16, count, inner, row_stride).first->second;
}

} // namespace

std::size_t panel_nbytes(bool is_bf16, std::int64_t inner) {
    constexpr std::size_t kAlignment = 64;
    const OneThread one;
    const std::size_t nbytes = api()->memory_desc_get_size(layout_of_panel(is_bf16, inner).descriptor());
    return (nbytes + kAlignment - 1) / kAlignment * kAlignment;
}

void pack_panel(bool is_bf16, std::int64_t inner, const void* panel, void* packed) {
    const OneThread one;
    const MemoryDescriptor* layout = layout_of_panel(is_bf16, inner).descriptor();
    const Descriptor dense = matrix(inner, kPanel, type_of(is_bf16), 1, inner);
    PrimitiveDescriptor* created = nullptr;
    check(api()->reorder_primitive_desc_create(&created, dense.get(), engine(), layout, engine(), nullptr),
          "a reorder");
    const Owned<PrimitiveDescriptor> descriptor(created, api()->primitive_desc_destroy);
    const auto reorder = primitive(descriptor.get());
    const auto from = memory(dense.get(), const_cast<void*>(panel)), to = memory(layout, packed);
    execute(reorder.get(), {{kSource, from.get()}, {kDestination, to.get()}});
}

void multiply(bool is_bf16, std::int64_t count, std::int64_t inner, const void* rows, std::int64_t row_stride,
              const void* panel, float* sums) {
    const OneThread one;
    product(is_bf16, count, inner, row_stride).run(rows, panel, sums);
}

} // namespace edgedit::kernels::onednn
