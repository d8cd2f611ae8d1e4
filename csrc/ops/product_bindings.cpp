// The specs of linear, attention and conv2d for Python.
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "ops/callbacks.hpp"
#include "ops/product_spec.hpp"

namespace py = pybind11;
using namespace edgedit::ops;
namespace kernels = edgedit::kernels;

namespace {

template <typename Spec> Spec fresh(const std::string& family) {
    Spec spec{};
    spec.version = kSpecVersion;
    spec.nbytes = sizeof(Spec);
    spec.family = kernels::find(family.c_str());
    if (spec.family == nullptr) throw py::value_error("this processor has no kernels '" + family + "'");
    return spec;
}

template <typename Spec> std::uintptr_t address_of(const Spec& spec) { return reinterpret_cast<std::uintptr_t>(&spec); }

const Tensor* tensor_at(std::uintptr_t address) { return reinterpret_cast<const Tensor*>(address); }

kernels::Activation activation_named(const std::optional<std::string>& name) {
    if (!name) return kernels::Activation::none;
    if (*name == "gelu") return kernels::Activation::gelu_tanh;
    if (*name == "gelu_erf") return kernels::Activation::gelu_erf;
    if (*name == "gelu_quick") return kernels::Activation::gelu_quick;
    if (*name == "silu") return kernels::Activation::silu;
    if (*name == "relu") return kernels::Activation::relu;
    throw py::value_error("activation '" + *name + "' is none of gelu, gelu_erf, gelu_quick, silu, relu");
}

kernels::Compute compute_named(const std::string& name) {
    if (name == "f32") return kernels::Compute::f32;
    if (name == "bf16") return kernels::Compute::bf16;
    if (name == "int8") return kernels::Compute::int8;
    throw py::value_error("compute '" + name + "' is none of f32, bf16, int8");
}

LinearSpec make_linear(const std::string& family, std::uintptr_t weight, std::int32_t type, std::int64_t columns,
                       std::int64_t inner, std::uintptr_t to_float, std::uintptr_t bias, const std::string& compute,
                       const std::optional<std::string>& activation, int num_inputs, bool has_gate,
                       bool has_residual) {
    if (num_inputs < 1 || num_inputs > kernels::kMaxSources)
        throw py::value_error(std::to_string(num_inputs) + " inputs; 1 or 2 are possible");
    auto spec = fresh<LinearSpec>(family);
    spec.weight = tensor_at(weight);
    spec.bias = tensor_at(bias);
    spec.type = static_cast<kernels::Type>(type);
    spec.compute = compute_named(compute);
    spec.activation = activation_named(activation);
    spec.columns = columns;
    spec.inner = inner;
    spec.to_float = reinterpret_cast<decltype(spec.to_float)>(to_float);
    spec.num_inputs = num_inputs;
    spec.has_gate = has_gate;
    spec.has_residual = has_residual;
    return spec;
}

AttentionSpec make_attention(const std::string& family, const std::string& compute, float scale, bool has_mask) {
    auto spec = fresh<AttentionSpec>(family);
    spec.compute = compute_named(compute);
    spec.scale = scale;
    spec.has_mask = has_mask;
    return spec;
}

Conv2dSpec make_conv2d(const std::string& family, std::uintptr_t weight, std::uintptr_t bias,
                       const std::optional<std::string>& activation, int stride,
                       const std::tuple<int, int, int, int>& padding, bool has_residual) {
    auto spec = fresh<Conv2dSpec>(family);
    spec.weight = tensor_at(weight);
    spec.bias = tensor_at(bias);
    spec.activation = activation_named(activation);
    spec.stride = stride;
    std::tie(spec.pad_top, spec.pad_bottom, spec.pad_left, spec.pad_right) = padding;
    spec.has_residual = has_residual;
    return spec;
}

} // namespace

void register_products(py::module_& ops) {
    using namespace py::literals;
    ops.attr("linear") = reinterpret_cast<std::uintptr_t>(&edgedit_linear);
    ops.attr("attention") = reinterpret_cast<std::uintptr_t>(&edgedit_attention);
    ops.attr("attention_partial") = reinterpret_cast<std::uintptr_t>(&edgedit_attention_partial);
    ops.attr("attention_merge") = reinterpret_cast<std::uintptr_t>(&edgedit_attention_merge);
    ops.attr("conv2d") = reinterpret_cast<std::uintptr_t>(&edgedit_conv2d);
    py::class_<LinearSpec>(ops, "LinearSpec")
        .def(py::init(&make_linear), "family"_a, "weight"_a, "type"_a, "columns"_a, "inner"_a, "to_float"_a, "bias"_a,
             "compute"_a, "activation"_a, "num_inputs"_a, "has_gate"_a, "has_residual"_a)
        .def_property_readonly("address", &address_of<LinearSpec>);
    py::class_<AttentionSpec>(ops, "AttentionSpec")
        .def(py::init(&make_attention), "family"_a, "compute"_a, "scale"_a, "has_mask"_a)
        .def_property_readonly("address", &address_of<AttentionSpec>);
    py::class_<Conv2dSpec>(ops, "Conv2dSpec")
        .def(py::init(&make_conv2d), "family"_a, "weight"_a, "bias"_a, "activation"_a, "stride"_a, "padding"_a,
             "has_residual"_a)
        .def_property_readonly("address", &address_of<Conv2dSpec>);
}
