// The kernel families for Python: which there are, and the packed form of their weights.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kernels/kernels.hpp"
#include "kernels/onednn/api.hpp"

namespace py = pybind11;
using namespace edgedit::kernels;

namespace {

const Kernels& family(const std::string& name) {
    const Kernels* found = find(name.c_str());
    if (found == nullptr) throw py::value_error("this processor has no kernels '" + name + "'");
    return *found;
}

std::vector<std::string> families() {
    std::vector<std::string> usable;
    for (const char* name : {"avx512", "avx2", "portable"}) {
        if (find(name) != nullptr) usable.emplace_back(name);
    }
    return usable;
}

std::pair<bool, std::string> found_onednn() {
    const bool is_usable = find("onednn") != nullptr, is_useless = !is_usable && onednn::api() != nullptr;
    return {is_usable, onednn::description() + (is_useless ? ", which is of no use on this processor" : "")};
}

void pack(const std::string& name, std::int32_t type, std::int64_t columns, std::int64_t inner, std::int64_t first,
          std::int64_t count, std::uintptr_t rows, std::uintptr_t packed) {
    const Kernels& kernels = family(name);
    const bool last = first + count == columns;
    if (first < 0 || count < 0 || first + count > columns || first % kernels.panel != 0 ||
        (count % kernels.panel != 0 && !last))
        throw py::value_error("rows " + std::to_string(first) + " to " + std::to_string(first + count) +
                              " are no whole panels of " + std::to_string(kernels.panel));
    const py::gil_scoped_release release;
    kernels.pack(static_cast<Type>(type), columns, inner, first, count, reinterpret_cast<const void*>(rows),
                 reinterpret_cast<void*>(packed));
}

} // namespace

void register_kernels(py::module_& module) {
    using namespace py::literals;
    py::module_ kernels = module.def_submodule("kernels", "Kernel families of the CPU and their packed weights.");
    onednn::set_folder(py::module_::import("sys").attr("prefix").cast<std::string>() + "/lib");
    kernels.def("families", &families, "Those of our own that this processor can run, best first.");
    kernels.def("onednn", &found_onednn, "Whether there is oneDNN, and which or why not.");
    kernels.def("best", [] { return std::string(best()); }, "The fastest here, or \"ggml\".");
    kernels.def("panel", [](const std::string& name) { return family(name).panel; }, "family"_a);
    kernels.def("has_bf16", [](const std::string& name) { return family(name).has_bf16; }, "family"_a);
    kernels.def(
        "has_int8",
        [](const std::string& name, std::int32_t type) { return family(name).has_int8(static_cast<Type>(type)); },
        "family"_a, "type"_a);
    kernels.def(
        "packed_nbytes",
        [](const std::string& name, std::int32_t type, std::int64_t columns, std::int64_t inner) {
            return family(name).packed_nbytes(static_cast<Type>(type), columns, inner);
        },
        "family"_a, "type"_a, "columns"_a, "inner"_a);
    kernels.def("pack", &pack, "family"_a, "type"_a, "columns"_a, "inner"_a, "first"_a, "count"_a, "rows"_a,
                "packed"_a);
}
