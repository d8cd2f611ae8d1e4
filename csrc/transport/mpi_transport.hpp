// Exchanges through MPI, without its header and without linking it: one binary serves MPICH and Open MPI.
//
// Functions and handles come from the MPI library that mpi4py has loaded. Handles are ints in one library and pointers
// in the other; passed by value as pointer-sized integers they suit both. Requests differ in size as array elements, so
// each is a zeroed 64-bit word of its own. A status is 64 bytes that nobody reads.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/transport.hpp"

namespace edgedit::transport {

using MpiHandle = std::intptr_t;

struct MpiLibrary {
    int (*isend)(const void* data, int count, MpiHandle type, int peer, int tag, MpiHandle comm, std::int64_t* request);
    int (*irecv)(void* data, int count, MpiHandle type, int peer, int tag, MpiHandle comm, std::int64_t* request);
    int (*test)(std::int64_t* request, int* done, void* status);
    int (*error_string)(int code, char* text, int* length);
    MpiHandle byte_type;
};

class MpiTransport final : public Transport {
  public:
    /// `comm` holds the ranks of the group in the same order; `tag` is used by nothing else on it.
    MpiTransport(int rank, std::vector<int> world_ranks, MpiLibrary library, MpiHandle comm, int tag)
        : Transport(rank, std::move(world_ranks)), library_(library), comm_(comm), tag_(tag) {}

    Code start(Exchange& exchange, const Watch& watch) override;
    Code wait(Exchange& exchange, const Watch& watch) override;
    void progress(Exchange& exchange) override;
    std::vector<int> missing(const Exchange& exchange) const override;

  private:
    bool post(Exchange& exchange, int peer, bool sending);
    Code wait_for_requests(Exchange& exchange, const Watch& watch);
    bool is_done(std::int64_t& request);
    bool checked(int code);

    const MpiLibrary library_;
    const MpiHandle comm_;
    const int tag_;
    bool failed_ = false;
    Clock::duration moving_{}; ///< inside calls of MPI_Test that moved something
};

} // namespace edgedit::transport
