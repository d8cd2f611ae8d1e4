// Messages of any length between ranks of one host, through a byte ring per ordered pair of ranks.
//
// For calls whose buffers are anywhere in memory: both sides copy. What is queued for one peer goes out in order, and
// whoever calls `progress` moves whatever can be moved, so that the order in which a rank waits does not matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "transport/counter.hpp"
#include "transport/stopwatch.hpp"
#include "transport/transport.hpp"

namespace edgedit::transport {

class Channels {
  public:
    /// `inboxes[p]`: where the rings into rank p's memory begin, one per writer; fresh memory is zeroed.
    Channels(int rank, std::vector<std::byte*> inboxes, std::size_t ring_nbytes);

    /// Bytes of the rings into one rank of a group; `ring_nbytes` is a power of two of at least 64.
    static std::size_t inbox_nbytes(int ranks, std::size_t ring_nbytes);

    /// Queue an exchange; returns its number. Its memory belongs to it until it is done.
    std::uint64_t post(const std::byte* send, std::byte* recv, const std::vector<Block>& blocks);
    /// Move along everything that is queued; returns whether exchange `number` is done.
    bool test(std::uint64_t number);
    /// Positions in the group of the ranks from which `number` still expects something.
    std::vector<int> missing(std::uint64_t number) const;
    /// Spent copying so far.
    Clock::duration moved() const { return moved_; }

  private:
    struct Ring {
        Counter written, read; ///< bytes so far, modulo 2^32
    };
    struct Piece {
        std::uint64_t number;
        std::byte* memory;
        std::int64_t nbytes;
    };

    Ring& ring(int reader, int writer) const;
    std::byte* ring_data(int reader, int writer) const;
    template <typename Room, typename Copy>
    void advance(std::deque<Piece>& queue, Counter& position, const Room& room, const Copy& copy);
    void push(int peer);
    void pull(int peer);
    void finish(std::uint64_t number);

    const int rank_;
    const std::vector<std::byte*> inboxes_;
    const std::size_t ring_nbytes_;
    std::vector<std::deque<Piece>> outgoing_, incoming_; ///< per peer
    std::uint64_t last_number_ = 0;
    std::deque<int> pieces_left_; ///< per exchange, from `first_number_` on
    std::uint64_t first_number_ = 1;
    Clock::duration moved_{};
};

} // namespace edgedit::transport
