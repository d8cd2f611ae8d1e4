// Transports and programs for Python: objects that a plan keeps, and addresses of the callbacks that ggml gets.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "transport/channels.hpp"
#include "transport/mpi_transport.hpp"
#include "transport/nodes.hpp"
#include "transport/program.hpp"
#include "transport/segment.hpp"
#include "transport/shm_transport.hpp"

namespace py = pybind11;
using namespace edgedit::transport;

namespace {

using Address = std::uintptr_t;
using BlockFields = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

template <typename Pointer>
Pointer pointer(Address address) {
    return reinterpret_cast<Pointer>(address);
}

template <typename Pointer>
Address address(Pointer pointer) {
    return reinterpret_cast<Address>(pointer);
}

std::vector<std::byte*> pointers(const std::vector<Address>& addresses) {
    std::vector<std::byte*> result;
    for (const Address address : addresses) result.push_back(pointer<std::byte*>(address));
    return result;
}

std::vector<Block> blocks_of(const std::vector<BlockFields>& fields) {
    std::vector<Block> blocks;
    for (const auto& [send, send_nbytes, recv, recv_nbytes, remote] : fields) {
        blocks.push_back({send, send_nbytes, recv, recv_nbytes, remote});
    }
    return blocks;
}

std::pair<double, double> seconds_of(const ExchangeTimes& times) { return {times.wait_s, times.move_s}; }

/// What a signal handler raised while native code waited, until Python asks for it.
std::optional<py::error_already_set>& raised() {
    static auto* error = new std::optional<py::error_already_set>; // outlives the interpreter
    return *error;
}

bool run_signal_handlers() {
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) return false;
    raised().emplace();
    return true;
}

void raise_interrupt() {
    if (!raised()) throw std::logic_error("no signal handler has raised");
    py::error_already_set error = std::move(*raised());
    raised().reset();
    throw error;
}

/// A program with the user data of its nodes, which stays where it is.
class BoundProgram {
  public:
    BoundProgram(Address signs, int world_size, bool with_signals)
        : program_(Watch{pointer<const std::int32_t*>(signs), world_size,
                         with_signals ? run_signal_handlers : nullptr, 0}) {}

    Program& operator*() { return program_; }
    Program* operator->() { return &program_; }

    int add_exchange(std::shared_ptr<Transport> transport, Address send, Address recv,
                     const std::vector<BlockFields>& blocks, int slot) {
        if (blocks.size() != transport->world_ranks().size()) {
            throw py::value_error(std::to_string(blocks.size()) + " blocks for a group of " +
                                  std::to_string(transport->size()));
        }
        Exchange exchange;
        exchange.send = pointer<const std::byte*>(send);
        exchange.recv = pointer<std::byte*>(recv);
        exchange.blocks = blocks_of(blocks);
        exchange.slot = slot;
        return program_.add_exchange(std::move(transport), std::move(exchange));
    }

    int add_all_reduce(int parts, int whole, int element, int reduce, int ranks, std::int64_t count) {
        return program_.add_all_reduce(
            parts, whole, {static_cast<Element>(element), static_cast<Reduce>(reduce), ranks, count});
    }

    Address node(int collective) {
        nodes_.push_back(std::make_unique<NodeOfProgram>(NodeOfProgram{&program_, collective}));
        return address(nodes_.back().get());
    }

    Address producer(int collective, Address run, Address userdata) {
        program_.set_written_by_producer(collective);
        producers_.push_back(std::make_unique<ProducerNode>(
            ProducerNode{&program_, collective, pointer<decltype(ProducerNode::run)>(run), pointer<void*>(userdata)}));
        return address(producers_.back().get());
    }

  private:
    Program program_;
    std::vector<std::unique_ptr<NodeOfProgram>> nodes_;
    std::vector<std::unique_ptr<ProducerNode>> producers_;
};

std::shared_ptr<MpiTransport> make_mpi_transport(int rank, std::vector<int> world_ranks,
                                                 const std::vector<Address>& functions, MpiHandle byte_type,
                                                 MpiHandle comm, int tag) {
    if (functions.size() != 4) throw py::value_error("functions are Isend, Irecv, Test, Error_string");
    const MpiLibrary library{
        pointer<decltype(MpiLibrary::isend)>(functions[0]), pointer<decltype(MpiLibrary::irecv)>(functions[1]),
        pointer<decltype(MpiLibrary::test)>(functions[2]), pointer<decltype(MpiLibrary::error_string)>(functions[3]),
        byte_type};
    return std::make_shared<MpiTransport>(rank, std::move(world_ranks), library, comm, tag);
}

void register_programs(py::module_& module) {
    py::class_<BoundProgram>(module, "Program")
        .def(py::init<Address, int, bool>(), py::arg("signs"), py::arg("world_size"), py::arg("with_signals") = true)
        .def("add_exchange", &BoundProgram::add_exchange, py::arg("transport"), py::arg("send"), py::arg("recv"),
             py::arg("blocks"), py::arg("slot") = 0)
        .def("add_collective", [](BoundProgram& self, int exchange) { return self->add_collective(exchange); })
        .def("add_all_reduce", &BoundProgram::add_all_reduce, py::arg("parts"), py::arg("whole"), py::arg("element"),
             py::arg("reduce"), py::arg("ranks"), py::arg("count"))
        .def("release_at_start",
             [](BoundProgram& self, int collective, int exchange) { self->release_at_start(collective, exchange); })
        .def("release_at_wait",
             [](BoundProgram& self, int collective, int exchange) { self->release_at_wait(collective, exchange); })
        .def("node", &BoundProgram::node)
        .def("producer", &BoundProgram::producer, py::arg("collective"), py::arg("run"), py::arg("userdata"))
        .def("target",
             [](BoundProgram& self, int collective, int peer) { return address(self->target(collective, peer)); })
        .def("begin", [](BoundProgram& self) { self->begin(); })
        .def("end", [](BoundProgram& self) { self->end(); })
        .def("failure",
             [](BoundProgram& self) {
                 const Failure& failure = self->failure();
                 return std::make_tuple(static_cast<int>(failure.code), failure.collective, failure.missing,
                                        failure.text);
             })
        .def_property_readonly("address", [](BoundProgram& self) { return address(&*self); })
        .def("times", [](BoundProgram& self) { return seconds_of(self->times()); })
        .def("times_of",
             [](BoundProgram& self, int collective) { return seconds_of(self->times(collective)); })
        .def_property_readonly("started", [](BoundProgram& self) { return self->started(); })
        .def_property_readonly("waiting_in", [](BoundProgram& self) { return self->waiting_in(); });
    module.attr("collective_start") = address(&edgedit_collective_start);
    module.attr("collective_wait") = address(&edgedit_collective_wait);
    module.attr("collective_producer") = address(&edgedit_collective_producer);
    module.attr("collective_abort") = address(&edgedit_collective_abort);
    module.def("raise_interrupt", &raise_interrupt);
}

void register_transports(py::module_& module) {
    py::class_<Transport, std::shared_ptr<Transport>>(module, "Transport");
    module.def("copy_transport", [](int world_rank) -> std::shared_ptr<Transport> {
        return std::make_shared<CopyTransport>(world_rank);
    });
    module.def(
        "mpi_transport",
        [](int rank, std::vector<int> world_ranks, const std::vector<Address>& functions, MpiHandle byte_type,
           MpiHandle comm, int tag) -> std::shared_ptr<Transport> {
            return make_mpi_transport(rank, std::move(world_ranks), functions, byte_type, comm, tag);
        },
        py::arg("rank"), py::arg("world_ranks"), py::arg("functions"), py::arg("byte_type"), py::arg("comm"),
        py::arg("tag"));
    module.def(
        "shm_transport",
        [](int rank, std::vector<int> world_ranks, int slots,
           const std::vector<Address>& segments) -> std::shared_ptr<Transport> {
            return std::make_shared<ShmTransport>(rank, std::move(world_ranks), slots, pointers(segments));
        },
        py::arg("rank"), py::arg("world_ranks"), py::arg("slots"), py::arg("segments"));
    module.def("shm_slots_offset", &ShmTransport::slots_offset, py::arg("ranks"), py::arg("slots"));
}

void register_memory(py::module_& module) {
    py::class_<Segment>(module, "Segment")
        .def_static("create", &Segment::create, py::arg("nbytes"), py::arg("named"))
        .def_static("open", &Segment::open, py::arg("path"), py::arg("nbytes"))
        .def_property_readonly("address", [](const Segment& self) { return address(self.data()); })
        .def_property_readonly("nbytes", &Segment::nbytes)
        .def_property_readonly("path", &Segment::path)
        .def("forget_path", &Segment::forget_path);
    py::class_<Channels>(module, "Channels")
        .def(py::init([](int rank, const std::vector<Address>& inboxes, std::size_t ring_nbytes) {
                 return std::make_unique<Channels>(rank, pointers(inboxes), ring_nbytes);
             }),
             py::arg("rank"), py::arg("inboxes"), py::arg("ring_nbytes"))
        .def_static("inbox_nbytes", &Channels::inbox_nbytes, py::arg("ranks"), py::arg("ring_nbytes"))
        .def("post",
             [](Channels& self, Address send, Address recv, const std::vector<BlockFields>& blocks) {
                 return self.post(pointer<const std::byte*>(send), pointer<std::byte*>(recv), blocks_of(blocks));
             })
        .def("test", &Channels::test, py::call_guard<py::gil_scoped_release>())
        .def("missing", &Channels::missing)
        .def_property_readonly("moved_s", [](const Channels& self) { return seconds(self.moved()); });
}

} // namespace

void register_transport(py::module_& module) {
    register_transports(module);
    register_programs(module);
    register_memory(module);
}
