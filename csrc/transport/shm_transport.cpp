#include "transport/shm_transport.hpp"

#include <cstring>

namespace edgedit::transport {

namespace {

constexpr std::size_t kPage = 4096;

} // namespace

ShmTransport::ShmTransport(int rank, std::vector<int> world_ranks, int slots, std::vector<std::byte*> segments)
    : Transport(rank, std::move(world_ranks)), segments_(std::move(segments)), slots_(slots),
      uses_(static_cast<std::size_t>(slots), 0) {}

std::size_t ShmTransport::slots_offset(int ranks, int slots) {
    const std::size_t counters = static_cast<std::size_t>(slots) * static_cast<std::size_t>(1 + ranks);
    return (counters * sizeof(Counter) + kPage - 1) / kPage * kPage;
}

Counter& ShmTransport::released(int owner, int slot) const {
    return reinterpret_cast<Counter*>(segments_[static_cast<std::size_t>(owner)])[slot];
}

Counter& ShmTransport::posted(int owner, int slot, int writer) const {
    return reinterpret_cast<Counter*>(segments_[static_cast<std::size_t>(owner)])[slots_ + slot * size() + writer];
}

Code ShmTransport::acquire(Exchange& exchange, const Watch& watch) {
    if (exchange.acquired) return Code::ok;
    exchange.sequence = ++uses_[static_cast<std::size_t>(exchange.slot)];
    for (int shift = 1; shift < size(); ++shift) {
        const int peer = peer_after(shift);
        if (exchange.blocks[static_cast<std::size_t>(peer)].send_nbytes == 0) continue;
        const Code code = wait_on(exchange, released(peer, exchange.slot), exchange.sequence - 1, peer, watch);
        if (code != Code::ok) return code;
    }
    exchange.acquired = true;
    return Code::ok;
}

Code ShmTransport::start(Exchange& exchange, const Watch& watch) {
    const Code code = acquire(exchange, watch);
    if (code != Code::ok) return code;
    for (int shift = 1; shift < size(); ++shift) {
        const int peer = peer_after(shift);
        const Block& block = exchange.blocks[static_cast<std::size_t>(peer)];
        if (block.send_nbytes == 0) continue;
        if (!exchange.written_by_producer) {
            std::memcpy(target(exchange, peer), exchange.send + block.send_offset,
                        static_cast<std::size_t>(block.send_nbytes));
        }
        posted(peer, exchange.slot, rank_).publish(exchange.sequence);
    }
    if (!exchange.written_by_producer) copy_own_block(exchange, rank_);
    return Code::ok;
}

Code ShmTransport::wait(Exchange& exchange, const Watch& watch) {
    for (int shift = size() - 1; shift > 0; --shift) {
        const int peer = peer_after(shift);
        if (exchange.blocks[static_cast<std::size_t>(peer)].recv_nbytes == 0) continue;
        const Code code = wait_on(exchange, posted(rank_, exchange.slot, peer), exchange.sequence, peer, watch);
        if (code != Code::ok) return code;
    }
    return Code::ok;
}

void ShmTransport::release(Exchange& exchange) {
    exchange.acquired = false;
    released(rank_, exchange.slot).publish(exchange.sequence);
}

std::vector<int> ShmTransport::missing(const Exchange& exchange) const {
    std::vector<int> peers;
    for (int peer = 0; peer < size(); ++peer) {
        const Block& block = exchange.blocks[static_cast<std::size_t>(peer)];
        if (peer == rank_) continue;
        const bool unreleased =
            block.send_nbytes > 0 && !released(peer, exchange.slot).reached(exchange.sequence - 1);
        const bool unposted =
            block.recv_nbytes > 0 && !posted(rank_, exchange.slot, peer).reached(exchange.sequence);
        if (exchange.acquired ? unposted : unreleased) peers.push_back(peer);
    }
    return peers;
}

std::byte* ShmTransport::target(const Exchange& exchange, int peer) const {
    const Block& block = exchange.blocks[static_cast<std::size_t>(peer)];
    if (peer == rank_) return exchange.recv + block.recv_offset;
    return segments_[static_cast<std::size_t>(peer)] + block.remote_offset;
}

Code ShmTransport::wait_on(Exchange& exchange, Counter& counter, std::uint32_t value, int peer,
                           const Watch& watch) const {
    if (counter.reached(value)) return Code::ok;
    const Stopwatch stopwatch(exchange.waited);
    return wait_for(
        watch, world_ranks_[static_cast<std::size_t>(peer)], [&] { return counter.reached(value); },
        [&] { counter.sleep(value); });
}

} // namespace edgedit::transport
