// Finds oneDNN.
#include <dlfcn.h>

#include <string>

#include "kernels/onednn/api.hpp"

namespace edgedit::kernels::onednn {

namespace {

struct Library {
    Api api{};
    bool is_usable = false;
    std::string description;
};

std::string& folder() {
    static std::string path;
    return path;
}

template <typename Function> bool find_function(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
}

/// Name of the first function that a library lacks, else null.
const char* missing_function(void* library, Api& api) {
#define EDGEDIT_FIND(name)                                                                                             \
    if (!find_function(library, "dnnl_" #name, api.name)) return "dnnl_" #name;
    EDGEDIT_FIND(version)
    EDGEDIT_FIND(get_effective_cpu_isa)
    EDGEDIT_FIND(engine_create)
    EDGEDIT_FIND(stream_create)
    EDGEDIT_FIND(stream_destroy)
    EDGEDIT_FIND(stream_wait)
    EDGEDIT_FIND(primitive_attr_create)
    EDGEDIT_FIND(primitive_attr_destroy)
    EDGEDIT_FIND(primitive_attr_set_scratchpad_mode)
    EDGEDIT_FIND(memory_desc_create_with_strides)
    EDGEDIT_FIND(memory_desc_create_with_tag)
    EDGEDIT_FIND(memory_desc_destroy)
    EDGEDIT_FIND(memory_desc_get_size)
    EDGEDIT_FIND(memory_create)
    EDGEDIT_FIND(memory_destroy)
    EDGEDIT_FIND(memory_set_data_handle)
    EDGEDIT_FIND(matmul_primitive_desc_create)
    EDGEDIT_FIND(reorder_primitive_desc_create)
    EDGEDIT_FIND(primitive_desc_query_md)
    EDGEDIT_FIND(primitive_desc_destroy)
    EDGEDIT_FIND(primitive_create)
    EDGEDIT_FIND(primitive_destroy)
    EDGEDIT_FIND(primitive_execute)
#undef EDGEDIT_FIND
    return nullptr;
}

/// Why this oneDNN cannot be used, else nothing. Threads are ggml's: oneDNN's own must be such that it does without.
std::string refusal(void* library, Api& api) {
    if (const char* name = missing_function(library, api)) return std::string(kLibrary) + " has no " + name;
    const Version& version = *api.version();
    if (version.major != kMajorVersion) return "oneDNN has version " + std::to_string(version.major) + ", not 3";
    if (version.cpu_runtime == kSequential) return "";
    if (version.cpu_runtime != kOpenMp) return "oneDNN runs its threads by neither OpenMP nor itself alone";
    const bool found = find_function(library, "omp_get_max_threads", api.omp_get_max_threads) &&
                       find_function(library, "omp_set_num_threads", api.omp_set_num_threads);
    return found ? "" : "oneDNN's OpenMP cannot be told its number of threads";
}

Library load() {
    Library library;
    void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr && !folder().empty())
        handle = dlopen((folder() + "/" + kLibrary).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        library.description = dlerror();
        return library;
    }
    library.description = refusal(handle, library.api);
    library.is_usable = library.description.empty();
    if (!library.is_usable) return library;
    const Version& version = *library.api.version();
    library.description = "oneDNN " + std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
                          std::to_string(version.patch) + " (" + version.hash + "), instructions " +
                          std::to_string(library.api.get_effective_cpu_isa());
    return library;
}

const Library& library() {
    static const Library loaded = load();
    return loaded;
}

} // namespace

const Api* api() { return library().is_usable ? &library().api : nullptr; }

const std::string& description() { return library().description; }

void set_folder(const std::string& path) { folder() = path; }

} // namespace edgedit::kernels::onednn
