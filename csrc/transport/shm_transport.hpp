// Exchanges between ranks of one host: each writes its blocks straight into the receive slots of its peers.
//
// Every rank has one shared segment, which all ranks of the group have mapped:
//
//   [counters][slot 0][slot 1]...
//
// An exchange uses one slot; the next one uses the next, in turn. For each slot, `posted[writer]` is raised by a writer
// once its block stands in the slot, and `released` by the owner once it has read everything. Both hold how often the
// slot has been used so far. A writer waits for the release of the use before its own, so a rank that runs ahead never
// writes into memory that a peer still reads; nothing ever needs all ranks at one point.
#pragma once

#include <cstddef>
#include <vector>

#include "transport/counter.hpp"
#include "transport/transport.hpp"

namespace edgedit::transport {

class ShmTransport final : public Transport {
  public:
    /// `segments[p]` is where the segment of rank p of the group is mapped here; fresh segments are zeroed.
    ShmTransport(int rank, std::vector<int> world_ranks, int slots, std::vector<std::byte*> segments);

    /// Where the slots begin in a segment: the same on all ranks. What is in them is the owner's own affair.
    static std::size_t slots_offset(int ranks, int slots);

    Code acquire(Exchange& exchange, const Watch& watch) override;
    Code start(Exchange& exchange, const Watch& watch) override;
    Code wait(Exchange& exchange, const Watch& watch) override;
    void release(Exchange& exchange) override;
    std::vector<int> missing(const Exchange& exchange) const override;
    std::byte* target(const Exchange& exchange, int peer) const override;

  private:
    Counter& released(int owner, int slot) const;
    Counter& posted(int owner, int slot, int writer) const;
    /// Return once the counter of `peer` reaches `value`; the time counts as waiting of the exchange.
    Code wait_on(Exchange& exchange, Counter& counter, std::uint32_t value, int peer, const Watch& watch) const;

    const std::vector<std::byte*> segments_;
    const int slots_;
    std::vector<std::uint32_t> uses_; ///< per slot
};

} // namespace edgedit::transport
