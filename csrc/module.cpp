// edgedit._native: bindings only. What it exposes is written in the other files of this folder.
#include <cstdint>

#include <pybind11/pybind11.h>

#include "cpu_features.hpp"
#include "custom_callbacks.hpp"

namespace py = pybind11;

void register_layout(py::module_& module);    // layout_bindings.cpp
void register_kernels(py::module_& module);   // kernels/bindings.cpp
void register_ops(py::module_& module);       // ops/bindings.cpp
void register_transport(py::module_& module); // transport/bindings.cpp

namespace {

py::dict cpu_features() {
    py::dict features;
    for (const auto& [name, usable] : edgedit::cpu_features()) features[name] = usable;
    return features;
}

py::dict build_info() {
    py::dict info;
    info["version"] = EDGEDIT_VERSION;
    info["build_type"] = EDGEDIT_BUILD_TYPE;
    info["compiler"] = __VERSION__;
#if defined(__clang__)
    info["compiler_family"] = "clang";
#else
    info["compiler_family"] = "gcc";
#endif
    info["pybind11"] = PYBIND11_TOSTRING(PYBIND11_VERSION_MAJOR) "." PYBIND11_TOSTRING(PYBIND11_VERSION_MINOR);
    info["cuda"] = false;
    return info;
}

} // namespace

PYBIND11_MODULE(_native, module) {
    module.doc() = "Native core of edgedit: index maps, kernels, operators, collective nodes, facts about this build.";
    module.attr("version") = EDGEDIT_VERSION;
    module.attr("collective_placeholder") = reinterpret_cast<std::uintptr_t>(&edgedit_collective_placeholder);
    module.attr("no_operation") = reinterpret_cast<std::uintptr_t>(&edgedit_no_operation);
    module.def("cpu_features", &cpu_features, "Extensions of this processor that can be used, by name.");
    module.def("build_info", &build_info, "How this extension was built.");
    register_layout(module);
    register_kernels(module);
    register_ops(module);
    register_transport(module);
}
