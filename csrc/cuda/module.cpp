// edgedit._cuda: bindings only. Kernels and NCCL stand in the other files of this folder, none of which knows Python.
#include <cstddef>
#include <cstdint>
#include <map>

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <ggml.h>

#include "cuda/check.hpp"
#include "cuda/operators.hpp"
#include "cuda/queue.hpp"
#include "cuda/run.hpp"
#include "ops/tensor.hpp"

namespace py = pybind11;
using namespace edgedit;
using namespace edgedit::cuda;

// Operators read tensors through a mirror of ggml's public struct.
static_assert(offsetof(ops::Tensor, type) == offsetof(ggml_tensor, type));
static_assert(offsetof(ops::Tensor, ne) == offsetof(ggml_tensor, ne));
static_assert(offsetof(ops::Tensor, nb) == offsetof(ggml_tensor, nb));
static_assert(offsetof(ops::Tensor, src) == offsetof(ggml_tensor, src));
static_assert(offsetof(ops::Tensor, data) == offsetof(ggml_tensor, data));

namespace {

int device_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/// Why there are no devices; empty where there are some.
std::string why_no_device() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    return count == 0 ? "no CUDA device was found" : "";
}

py::tuple versions() {
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    return py::make_tuple(runtime, driver);
}

bool peer_access(int device, int other) {
    int possible = 0;
    if (device != other) CUDA_CHECK(cudaDeviceCanAccessPeer(&possible, device, other));
    return device == other || possible != 0;
}

/// Waits on the host ask Python now and then: for signals, and for trouble of other ranks.
Stop with_interpreter(const std::function<bool()>& stop) {
    return [stop] {
        const py::gil_scoped_acquire gil;
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        return stop && stop();
    };
}

template <std::size_t Size> std::array<char, Size> bytes_of(const std::string& text, const char* what) {
    if (text.size() != Size) throw py::value_error(std::string(what) + " has " + std::to_string(text.size()) + " bytes, not " + std::to_string(Size));
    std::array<char, Size> bytes;
    std::copy(text.begin(), text.end(), bytes.begin());
    return bytes;
}

std::vector<Block> blocks_of(const std::vector<std::array<std::int64_t, 4>>& rows) {
    std::vector<Block> blocks;
    for (const auto& row : rows) blocks.push_back({row[0], row[1], row[2], row[3]});
    return blocks;
}

const std::map<std::string, Launch> kOperators = {
    {"pack", pack}, {"receive", receive}, {"rope_table", rope_table}, {"modulate", modulate}, {"gated_residual", gated_residual},
    {"attention_partial", attention_partial}, {"attention_merge", attention_merge},
};

Launch operator_named(const std::string& name) {
    const auto found = kOperators.find(name);
    if (found == kOperators.end()) throw py::value_error("no CUDA operator is called " + name);
    return found->second;
}

using Address = std::uintptr_t;

template <typename T> T* at(Address address) { return reinterpret_cast<T*>(address); }

void bind_channels(py::module_& module) {
    py::class_<Channel, std::shared_ptr<Channel>>(module, "Channel", "How a group exchanges device memory.")
        .def_property_readonly("rank", &Channel::rank)
        .def_property_readonly("size", &Channel::size)
        .def("failure", &Channel::failure, "The error that came up since work was enqueued, or \"\".")
        .def("abort", &Channel::abort, "End device work that waits for a peer.");
    py::class_<Communicator, Channel, std::shared_ptr<Communicator>>(module, "Communicator")
        .def(py::init([](const std::string& library, const std::string& id, int rank, int size, int device, double timeout_s,
                         const std::function<bool()>& stop) {
                 const py::gil_scoped_release release;
                 return std::make_shared<Communicator>(Nccl::load(library), bytes_of<128>(id, "a unique id"), rank, size, device,
                                                       timeout_s, with_interpreter(stop));
             }),
             py::arg("library"), py::arg("id"), py::arg("rank"), py::arg("size"), py::arg("device"), py::arg("timeout_s"),
             py::arg("stop") = nullptr, "All ranks make it together, with the unique id of one of them.");
    py::class_<PeerChannel, Channel, std::shared_ptr<PeerChannel>>(module, "PeerChannel")
        .def(py::init<int, int, std::int64_t>(), py::arg("rank"), py::arg("device"), py::arg("slot_nbytes"))
        .def("handle", [](const PeerChannel& channel) { const IpcHandle h = channel.handle(); return py::bytes(h.data(), h.size()); })
        .def("open", [](PeerChannel& channel, const std::string& handle) { channel.open(bytes_of<64>(handle, "an IPC handle")); })
        .def_property_readonly("slot_nbytes", &PeerChannel::slot_nbytes);
    module.def("try_channel", &try_channel, py::arg("channel"), py::arg("device"), py::call_guard<py::gil_scoped_release>(),
               "Why a channel of two ranks does not work, or \"\"; both ranks call it together.");
    py::class_<Queue>(module, "Queue", "A stream of its own, for collectives that are called one by one.")
        .def(py::init<int>(), py::arg("device"))
        .def("exchange", [](Queue& queue, Channel& channel, Address send, Address recv, const std::vector<std::array<std::int64_t, 4>>& blocks) {
            return queue.exchange(channel, at<void>(send), at<void>(recv), blocks_of(blocks));
        }, py::arg("channel"), py::arg("send"), py::arg("recv"), py::arg("blocks"))
        .def("reduce", [](Queue& queue, Address to, Address parts, int num_parts, std::int64_t count, int type, int op) {
            queue.reduce(at<void>(to), at<void>(parts), num_parts, count, type, op);
        }, py::arg("to"), py::arg("parts"), py::arg("num_parts"), py::arg("count"), py::arg("type"), py::arg("op"))
        .def("has_done", &Queue::has_done, py::arg("number"))
        .def("synchronize", &Queue::synchronize, py::call_guard<py::gil_scoped_release>());
    module.def("nccl_version", [](const std::string& library) { return Nccl::load(library).version(); }, py::arg("library"));
    module.def("nccl_unique_id", [](const std::string& library) {
        const UniqueId id = Nccl::load(library).unique_id();
        return py::bytes(id.data(), id.size());
    }, py::arg("library"));
}

void bind_plans(py::module_& module) {
    py::class_<Collective>(module, "Collective", "What a start node enqueues.")
        .def_static("exchange", [](std::shared_ptr<Channel> channel, const std::vector<std::array<std::int64_t, 4>>& blocks) {
            return Collective::exchange(std::move(channel), blocks_of(blocks));
        }, py::arg("channel"), py::arg("blocks"), "blocks: (send offset, send bytes, receive offset, receive bytes) per rank.")
        .def_static("all_gather", &Collective::all_gather, py::arg("channel"), py::arg("nbytes"))
        .def_static("broadcast", &Collective::broadcast, py::arg("channel"), py::arg("nbytes"), py::arg("root") = 0)
        .def_static("all_reduce", &Collective::all_reduce, py::arg("channel"), py::arg("counts"), py::arg("type"), py::arg("op"), py::arg("device"));
    py::class_<Plan>(module, "Plan", "The steps of a graph, enqueued by one call.")
        .def(py::init([](Address backend, int device) { return std::make_unique<Plan>(at<ggml_backend>(backend), device); }),
             py::arg("backend"), py::arg("device"))
        .def("segment", [](Plan& plan, Address graph) { plan.add_segment(at<ggml_cgraph>(graph)); }, py::arg("graph"))
        .def("operation", [](Plan& plan, const std::string& name, Address node, Address spec) {
            plan.add_operation(operator_named(name), at<ggml_tensor>(node), at<void>(spec));
        }, py::arg("name"), py::arg("node"), py::arg("spec"))
        .def("start", [](Plan& plan, Address node, const Collective& collective) { return plan.add_start(at<ggml_tensor>(node), collective); },
             py::arg("node"), py::arg("collective"), "Returns the number of the flight, for wait().")
        .def("wait", &Plan::add_wait, py::arg("flight"))
        .def("compile", &Plan::compile, py::arg("fenced") = true,
             "Check all steps; tensors must have memory. fenced=False leaves the ordering out, for tests that need it to fail.")
        .def("run", &Plan::run, py::call_guard<py::gil_scoped_release>(), "Enqueue everything once.")
        .def("has_ended", &Plan::has_ended, "Whether the device has done what the last run enqueued.");
}

} // namespace

PYBIND11_MODULE(_cuda, module) {
    module.doc() = "CUDA side of edgedit: fused operators, the device executor, NCCL and direct copies between two ranks.";
    py::register_exception<DeviceError>(module, "DeviceError", PyExc_RuntimeError);
    module.attr("version") = EDGEDIT_VERSION;
    module.attr("operators") = [] {
        py::list names;
        for (const auto& [name, launch] : kOperators) names.append(name);
        return names;
    }();
    module.attr("max_ranks") = max_ranks();
    module.def("device_count", &device_count, "CUDA devices that can be used; 0 without a driver.");
    module.def("why_no_device", &why_no_device, "What CUDA says where device_count() is 0.");
    module.def("versions", &versions, "(runtime, driver) as CUDA counts: 13000 is 13.0; driver 0: none.");
    module.def("peer_access", &peer_access, py::arg("device"), py::arg("other"));
    module.def("copy_seconds", &copy_seconds, py::arg("nbytes"), py::arg("repeats"), py::arg("device") = 0,
               "Mean time of a copy of that many bytes within the device.");
    bind_channels(module);
    bind_plans(module);
}
