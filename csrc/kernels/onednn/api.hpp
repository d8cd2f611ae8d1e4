// What is used of oneDNN's C API, version 3, declared here so that nothing of oneDNN is needed where edgedit is built.
//
// oneDNN is looked for when the program runs. Its C interface is the same throughout a major version: opaque objects,
// numbers and arrays of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace edgedit::kernels::onednn {

constexpr int kMajorVersion = 3;
constexpr const char* kLibrary = "libdnnl.so.3";

struct Engine;
struct Stream;
struct Attributes;
struct Memory;
struct MemoryDescriptor;
struct PrimitiveDescriptor;
struct Primitive;

using Status = int; ///< 0: success
using Dimensions = std::int64_t[12];

struct Version {
    int major;
    int minor;
    int patch;
    const char* hash;
    unsigned cpu_runtime; ///< who runs its threads
    unsigned gpu_runtime;
};

struct Argument {
    int index;
    Memory* memory;
};

// oneDNN's numbers.
constexpr int kCpu = 1;                                          // kinds of engines
constexpr unsigned kInOrder = 1;                                 // flags of streams
constexpr int kBf16 = 2, kF32 = 3;                               // types
constexpr int kAnyLayout = 1;                                    // format tags
constexpr int kUserScratchpad = 1;                               // modes
constexpr int kWeightsDescriptor = 131, kScratchDescriptor = 136; // queries
constexpr int kSource = 1, kDestination = 17, kWeights = 33, kScratchpad = 80; // arguments
constexpr unsigned kSequential = 1, kOpenMp = 2;                 // runtimes

/// oneDNN's functions by their names less "dnnl_", and those of its OpenMP, null where it has none.
struct Api {
    const Version* (*version)();
    int (*get_effective_cpu_isa)();
    Status (*engine_create)(Engine**, int kind, std::size_t index);
    Status (*stream_create)(Stream**, Engine*, unsigned flags);
    Status (*stream_destroy)(Stream*);
    Status (*stream_wait)(Stream*);
    Status (*primitive_attr_create)(Attributes**);
    Status (*primitive_attr_destroy)(Attributes*);
    Status (*primitive_attr_set_scratchpad_mode)(Attributes*, int mode);
    Status (*memory_desc_create_with_strides)(MemoryDescriptor**, int num_dims, const Dimensions, int type,
                                              const Dimensions strides);
    Status (*memory_desc_create_with_tag)(MemoryDescriptor**, int num_dims, const Dimensions, int type, int tag);
    Status (*memory_desc_destroy)(MemoryDescriptor*);
    std::size_t (*memory_desc_get_size)(const MemoryDescriptor*);
    Status (*memory_create)(Memory**, const MemoryDescriptor*, Engine*, void* data);
    Status (*memory_destroy)(Memory*);
    Status (*memory_set_data_handle)(Memory*, void* data);
    Status (*matmul_primitive_desc_create)(PrimitiveDescriptor**, Engine*, const MemoryDescriptor* source,
                                           const MemoryDescriptor* weights, const MemoryDescriptor* bias,
                                           const MemoryDescriptor* destination, const Attributes*);
    Status (*reorder_primitive_desc_create)(PrimitiveDescriptor**, const MemoryDescriptor* source, Engine*,
                                            const MemoryDescriptor* destination, Engine*, const Attributes*);
    const MemoryDescriptor* (*primitive_desc_query_md)(const PrimitiveDescriptor*, int what, int index);
    Status (*primitive_desc_destroy)(PrimitiveDescriptor*);
    Status (*primitive_create)(Primitive**, const PrimitiveDescriptor*);
    Status (*primitive_destroy)(Primitive*);
    Status (*primitive_execute)(const Primitive*, Stream*, int num_arguments, const Argument*);

    int (*omp_get_max_threads)();
    void (*omp_set_num_threads)(int);
};

/// The functions, from the first call on; null where oneDNN cannot be used.
const Api* api();

/// Version and instructions of what `api` found, which a layout of weights depends on; else why there is none.
const std::string& description();

/// A folder to look into after those of the system's loader. Before the first call of `api`.
void set_folder(const std::string& folder);

} // namespace edgedit::kernels::onednn
