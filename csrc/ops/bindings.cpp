// Operators for Python: their addresses as callbacks of ggml's custom nodes, and specs as objects that own their
// memory. Whoever builds a node keeps its spec object for as long as the graph can run.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "ops/callbacks.hpp"
#include "ops/rows.hpp"
#include "ops/tensor.hpp"

namespace py = pybind11;
using namespace edgedit;
using namespace edgedit::ops;

void register_products(py::module_& ops); // ops/product_bindings.cpp

namespace {

template <typename Spec> Spec fresh() {
    Spec spec{};
    spec.version = kSpecVersion;
    spec.nbytes = sizeof(Spec);
    return spec;
}

template <typename Spec> std::uintptr_t address_of(const Spec& spec) { return reinterpret_cast<std::uintptr_t>(&spec); }

void require(bool condition, const std::string& message) {
    if (!condition) throw py::value_error(message);
}

DType dtype_named(const std::string& name) {
    if (name == "f32") return DType::f32;
    if (name == "f16") return DType::f16;
    if (name == "bf16") return DType::bf16;
    throw py::value_error("dtype '" + name + "' is none of f32, f16, bf16");
}

/// An ExchangeSpec with the target list that it points to.
struct OwnedExchange {
    ExchangeSpec spec = fresh<ExchangeSpec>();
    std::vector<void*> targets;
};

OwnedExchange make_exchange(bool to_heads, int ranks, int rank, const std::vector<std::int64_t>& tokens,
                            std::int64_t heads, std::int64_t head_dim, std::int64_t batch, bool padded,
                            const std::vector<std::string>& wire) {
    const auto streams = static_cast<std::int32_t>(tokens.size()), planes = static_cast<std::int32_t>(wire.size());
    require(streams >= 1 && streams <= layout::kMaxStreams, std::to_string(streams) + " streams; 1 to 4 are possible");
    require(planes >= 1 && planes <= kMaxPlanes, std::to_string(planes) + " planes; 1 to 4 are possible");
    require(to_heads || planes == 1, "head -> sequence carries one plane, not " + std::to_string(planes));
    OwnedExchange owned;
    ExchangeSpec& spec = owned.spec;
    spec.direction = to_heads ? Direction::seq_to_head : Direction::head_to_seq;
    spec.rank = rank;
    spec.num_streams = streams;
    spec.num_planes = planes;
    spec.layout = {ranks, head_dim, planes, heads,
                   batch, streams,  {},     padded ? layout::Split::padded : layout::Split::uneven};
    for (std::int32_t stream = 0; stream < streams; ++stream)
        spec.layout.tokens[stream] = tokens[static_cast<std::size_t>(stream)];
    for (std::int32_t plane = 0; plane < planes; ++plane)
        spec.wire[plane] = dtype_named(wire[static_cast<std::size_t>(plane)]);
    require(layout::valid(spec.layout),
            "ranks, heads, head_dim and batch must be at least 1 and token counts at least 0");
    require(rank >= 0 && rank < ranks,
            "rank " + std::to_string(rank) + " is not one of " + std::to_string(ranks) + " ranks");
    require(head_dim <= kMaxHeadDim,
            "head_dim " + std::to_string(head_dim) + " is more than " + std::to_string(kMaxHeadDim));
    return owned;
}

void limit(OwnedExchange& self, int first_stream, int num_streams, int first_plane, int num_planes) {
    const layout::Layout& layout = self.spec.layout;
    require(first_stream >= 0 && num_streams >= 1 && first_stream + num_streams <= layout.streams,
            "streams out of range");
    require(first_plane >= 0 && num_planes >= 1 && first_plane + num_planes <= layout.planes, "planes out of range");
    self.spec.first_stream = first_stream;
    self.spec.num_streams = num_streams;
    self.spec.first_plane = first_plane;
    self.spec.num_planes = num_planes;
}

/// norms[stream][plane] is the address of a ggml tensor, or 0.
void prepare(OwnedExchange& self, const std::vector<std::vector<std::uintptr_t>>& norms,
             const std::vector<bool>& rotated, float eps) {
    Preparation& preparation = self.spec.preparation;
    const auto streams = static_cast<std::size_t>(self.spec.layout.streams),
               planes = static_cast<std::size_t>(self.spec.layout.planes);
    require(norms.size() == streams && rotated.size() == planes,
            "norms need one list per stream, rotated one flag per plane");
    for (std::size_t stream = 0; stream < streams; ++stream) {
        require(norms[stream].size() == planes, "norms need one address per plane");
        for (std::size_t plane = 0; plane < planes; ++plane)
            preparation.norm[stream][plane] = reinterpret_cast<const Tensor*>(norms[stream][plane]);
    }
    for (std::size_t plane = 0; plane < planes; ++plane) {
        require(!rotated[plane] || self.spec.layout.head_dim % 2 == 0, "a head of odd size cannot be rotated");
        preparation.rotated[plane] = rotated[plane];
    }
    preparation.eps = eps;
}

void set_targets(OwnedExchange& self, const std::vector<std::uintptr_t>& addresses) {
    const auto ranks = static_cast<std::size_t>(self.spec.layout.ranks);
    require(addresses.empty() || addresses.size() == ranks,
            std::to_string(addresses.size()) + " targets for " + std::to_string(ranks) + " ranks");
    self.targets.clear();
    for (const std::uintptr_t address : addresses) self.targets.push_back(reinterpret_cast<void*>(address));
    self.spec.targets = self.targets.empty() ? nullptr : self.targets.data();
}

py::dict tensor_offsets() {
    py::dict offsets;
    offsets["type"] = offsetof(Tensor, type);
    offsets["ne"] = offsetof(Tensor, ne);
    offsets["nb"] = offsetof(Tensor, nb);
    offsets["op_params"] = offsetof(Tensor, op_params);
    offsets["src"] = offsetof(Tensor, src);
    offsets["view_src"] = offsetof(Tensor, view_src);
    offsets["data"] = offsetof(Tensor, data);
    return offsets;
}

} // namespace

void register_ops(py::module_& module) {
    using namespace py::literals;
    py::module_ ops = module.def_submodule("ops", "CPU operators and their specs.");
    ops.attr("pack") = reinterpret_cast<std::uintptr_t>(&edgedit_pack);
    ops.attr("receive") = reinterpret_cast<std::uintptr_t>(&edgedit_receive);
    ops.attr("rope_table") = reinterpret_cast<std::uintptr_t>(&edgedit_rope_table);
    ops.attr("modulate") = reinterpret_cast<std::uintptr_t>(&edgedit_modulate);
    ops.attr("gated_residual") = reinterpret_cast<std::uintptr_t>(&edgedit_gated_residual);
    ops.attr("max_streams") = layout::kMaxStreams;
    ops.attr("max_planes") = kMaxPlanes;
    ops.attr("max_head_dim") = kMaxHeadDim;
    ops.def("rows", [] { return rows().name; }, "Which version of the row loops this processor runs.");
    ops.def("tensor_offsets", &tensor_offsets, "Where the operators look for the fields of a ggml tensor.");

    py::class_<OwnedExchange>(ops, "ExchangeSpec")
        .def(py::init(&make_exchange), "to_heads"_a, "ranks"_a, "rank"_a, "tokens"_a, "heads"_a, "head_dim"_a,
             "batch"_a, "padded"_a, "wire"_a)
        .def("limit", &limit, "first_stream"_a, "num_streams"_a, "first_plane"_a, "num_planes"_a)
        .def("prepare", &prepare, "norms"_a, "rotated"_a, "eps"_a)
        .def("pack_planes", [](OwnedExchange& self) { self.spec.target = Target::planes; })
        .def("set_targets", &set_targets, "addresses"_a)
        .def_property_readonly("row_nbytes", [](const OwnedExchange& self) { return row_nbytes(self.spec); })
        .def_property_readonly("address", [](const OwnedExchange& self) { return address_of(self.spec); });
    py::class_<RopeTableSpec>(ops, "RopeTableSpec")
        .def(py::init([](int axes) {
                 require(axes >= 1 && axes <= kMaxAxes, std::to_string(axes) + " axes; 1 to 8 are possible");
                 auto spec = fresh<RopeTableSpec>();
                 spec.axes = axes;
                 return spec;
             }),
             "axes"_a)
        .def_property_readonly("address", &address_of<RopeTableSpec>);
    py::class_<PointwiseSpec>(ops, "PointwiseSpec")
        .def(py::init([](float eps) {
                 auto spec = fresh<PointwiseSpec>();
                 spec.eps = eps;
                 return spec;
             }),
             "eps"_a = 0.0f)
        .def_property_readonly("address", &address_of<PointwiseSpec>);
    py::class_<MergeSpec>(ops, "MergeSpec")
        .def(py::init(&fresh<MergeSpec>))
        .def_property_readonly("address", &address_of<MergeSpec>);
    register_products(ops);
}
