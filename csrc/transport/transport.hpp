// What an exchange between the ranks of a group is, and the interface of what carries it.
//
// Every collective is one exchange of blocks, or (all-reduce) two with a sum in between: each rank has a block for each
// rank of the group, itself included. A transport belongs to one group of ranks, and one thread calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/stopwatch.hpp"
#include "transport/watch.hpp"

namespace edgedit::transport {

/// What this rank sends to one rank of the group and receives from it, in bytes.
struct Block {
    std::int64_t send_offset;   ///< in the send tensor
    std::int64_t send_nbytes;
    std::int64_t recv_offset;   ///< in the receive tensor
    std::int64_t recv_nbytes;
    std::int64_t remote_offset; ///< where the peer's shared segment takes what is sent; without meaning elsewhere
};

struct Exchange {
    const std::byte* send = nullptr;
    std::byte* recv = nullptr;
    std::vector<Block> blocks; ///< one per rank of the group
    int slot = 0;              ///< of a transport with slots
    /// What is sent already stands where it belongs: the operator that made it wrote to `Transport::target`.
    bool written_by_producer = false;

    // While it is under way:
    bool acquired = false;
    std::uint32_t sequence = 0;          ///< uses of the slot up to this one
    std::vector<std::int64_t> requests;  ///< of MPI
    std::vector<int> request_peers;      ///< receives first
    std::size_t num_receives = 0;

    /// Spent waiting until peers sent something or took it, summed over all uses.
    Clock::duration waited{};
};

class Transport {
  public:
    Transport(int rank, std::vector<int> world_ranks) : rank_(rank), world_ranks_(std::move(world_ranks)) {}
    virtual ~Transport() = default;
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;

    /// Return once the peers' memory for this exchange may be written.
    virtual Code acquire(Exchange& exchange, const Watch&) { return exchange.acquired = true, Code::ok; }
    /// Send every block, `acquire` included where it was not called.
    virtual Code start(Exchange& exchange, const Watch& watch) = 0;
    /// Return once every block is here and the send tensor is free again.
    virtual Code wait(Exchange& exchange, const Watch& watch) = 0;
    /// Nobody reads the receive tensor any more.
    virtual void release(Exchange&) {}
    /// Move along what is under way.
    virtual void progress(Exchange&) {}
    /// Positions in the group of the ranks whose blocks are not here yet; if all are, of those that took none of this one.
    virtual std::vector<int> missing(const Exchange&) const { return {}; }
    /// Where the block for `peer` may be written by its producer, between `acquire` and `start`; null if nowhere.
    virtual std::byte* target(const Exchange&, int /*peer*/) const { return nullptr; }
    /// Says more about `Code::transport`.
    const std::string& error_text() const { return error_text_; }

    int rank() const { return rank_; }
    int size() const { return static_cast<int>(world_ranks_.size()); }
    const std::vector<int>& world_ranks() const { return world_ranks_; }

  protected:
    static void copy_own_block(const Exchange& exchange, int rank);
    /// Every rank starts with its neighbour, so that no rank is everyone's first target.
    int peer_after(int shift) const { return (rank_ + shift) % size(); }

    const int rank_; ///< position in the group
    const std::vector<int> world_ranks_;
    std::string error_text_;
};

/// The transport of a group of one.
class CopyTransport final : public Transport {
  public:
    explicit CopyTransport(int world_rank) : Transport(0, {world_rank}) {}
    Code start(Exchange& exchange, const Watch&) override { return copy_own_block(exchange, 0), Code::ok; }
    Code wait(Exchange&, const Watch&) override { return Code::ok; }
};

} // namespace edgedit::transport
