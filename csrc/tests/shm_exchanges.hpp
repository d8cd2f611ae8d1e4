// What one rank of the shm tests does: many exchanges of varying size, two of them under way at once, with delays.
//
// Every byte depends on exchange, sender, receiver and position. A slot is overwritten with junk before it is released,
// so that a writer that comes too early or a reader that comes too late finds wrong bytes.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include <time.h>

#include "check.hpp"
#include "transport/shm_transport.hpp"

namespace shm_exchanges {

using namespace edgedit::transport;

constexpr std::int64_t kMaxBlock = 600;

/// Exchanges to do: the first argument, else EDGEDIT_EXCHANGES, else `standard`.
inline int count_from(int argc, char** argv, int standard) {
    const char* text = argc > 1 ? argv[1] : std::getenv("EDGEDIT_EXCHANGES");
    return text != nullptr ? std::atoi(text) : standard;
}

inline std::size_t segment_nbytes(int ranks, int slots) {
    return ShmTransport::slots_offset(ranks, slots) + static_cast<std::size_t>(slots * ranks * kMaxBlock);
}

inline std::int64_t block_nbytes(int number, int sender, int receiver) {
    const auto pair = static_cast<std::uint32_t>(sender * 31 + receiver);
    const std::uint32_t mixed = (static_cast<std::uint32_t>(number) * 2654435761u) ^ (pair * 40503u);
    return mixed % 5 == 0 ? 0 : static_cast<std::int64_t>(mixed >> 7) % kMaxBlock;
}

inline unsigned char value(int number, int sender, int receiver, std::int64_t position) {
    return static_cast<unsigned char>(number * 7 + sender * 59 + receiver * 113 + position * 3);
}

inline void pause_us(long us) {
    const timespec pause{0, us * 1000};
    nanosleep(&pause, nullptr);
}

class Rank {
  public:
    Rank(int rank, int ranks, int slots, std::vector<std::byte*> segments, Watch watch)
        : rank_(rank), ranks_(ranks), slots_(slots), segment_(segments[static_cast<std::size_t>(rank)]), watch_(watch),
          transport_(rank, identity(ranks), slots, std::move(segments)), random_(static_cast<unsigned>(rank + 1)),
          exchanges_(static_cast<std::size_t>(slots)), sent_(static_cast<std::size_t>(slots)) {}

    /// Do exchanges [0, count). `hasty` ranks never pause. Returns the first code that is not ok.
    Code run(int count, bool hasty) {
        Code code = Code::ok;
        // The start of one exchange stands before the wait for the one before it.
        for (int number = 0; number <= count && code == Code::ok; ++number) {
            if (number < count) code = start(number, hasty);
            if (number > 0 && code == Code::ok) code = finish(number - 1, hasty);
        }
        return code;
    }

  private:
    static std::vector<int> identity(int ranks) {
        std::vector<int> result;
        for (int rank = 0; rank < ranks; ++rank) result.push_back(rank);
        return result;
    }

    std::int64_t slot_offset(int number) const {
        const auto begin = static_cast<std::int64_t>(ShmTransport::slots_offset(ranks_, slots_));
        return begin + number % slots_ * ranks_ * kMaxBlock;
    }

    void pause(bool hasty) {
        if (!hasty && random_() % 64 == 0) pause_us(static_cast<long>(random_() % 200));
    }

    Code start(int number, bool hasty) {
        Exchange& exchange = exchanges_[static_cast<std::size_t>(number % slots_)];
        std::vector<std::byte>& sent = sent_[static_cast<std::size_t>(number % slots_)];
        sent.assign(static_cast<std::size_t>(ranks_ * kMaxBlock), std::byte{0});
        exchange = Exchange{};
        exchange.send = sent.data();
        exchange.recv = segment_ + slot_offset(number);
        exchange.slot = number % slots_;
        for (int peer = 0; peer < ranks_; ++peer) {
            const std::int64_t nbytes = block_nbytes(number, rank_, peer);
            for (std::int64_t i = 0; i < nbytes; ++i) {
                sent[static_cast<std::size_t>(peer * kMaxBlock + i)] = std::byte{value(number, rank_, peer, i)};
            }
            exchange.blocks.push_back({peer * kMaxBlock, nbytes, peer * kMaxBlock, block_nbytes(number, peer, rank_),
                                       slot_offset(number) + rank_ * kMaxBlock});
        }
        pause(hasty);
        return transport_.start(exchange, watch_);
    }

    Code finish(int number, bool hasty) {
        Exchange& exchange = exchanges_[static_cast<std::size_t>(number % slots_)];
        pause(hasty);
        const Code code = transport_.wait(exchange, watch_);
        if (code != Code::ok) return code;
        pause(hasty);
        for (int peer = 0; peer < ranks_; ++peer) {
            std::byte* block = exchange.recv + peer * kMaxBlock;
            const std::int64_t nbytes = block_nbytes(number, peer, rank_);
            for (std::int64_t i = 0; i < nbytes; ++i) {
                CHECK(block[i] == std::byte{value(number, peer, rank_, i)}, "rank %d, exchange %d, from %d, byte %ld",
                      rank_, number, peer, static_cast<long>(i));
            }
            std::memset(block, 0xee, static_cast<std::size_t>(nbytes));
        }
        transport_.release(exchange);
        return Code::ok;
    }

    const int rank_, ranks_, slots_;
    std::byte* const segment_;
    const Watch watch_;
    ShmTransport transport_;
    std::minstd_rand random_;
    std::vector<Exchange> exchanges_;
    std::vector<std::vector<std::byte>> sent_;
};

} // namespace shm_exchanges
