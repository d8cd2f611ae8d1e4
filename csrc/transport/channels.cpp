#include "transport/channels.hpp"

#include <algorithm>
#include <cstring>

namespace edgedit::transport {

Channels::Channels(int rank, std::vector<std::byte*> inboxes, std::size_t ring_nbytes)
    : rank_(rank), inboxes_(std::move(inboxes)), ring_nbytes_(ring_nbytes), outgoing_(inboxes_.size()),
      incoming_(inboxes_.size()) {}

std::size_t Channels::inbox_nbytes(int ranks, std::size_t ring_nbytes) {
    return static_cast<std::size_t>(ranks) * (sizeof(Ring) + ring_nbytes);
}

Channels::Ring& Channels::ring(int reader, int writer) const {
    const std::size_t offset = static_cast<std::size_t>(writer) * (sizeof(Ring) + ring_nbytes_);
    return *reinterpret_cast<Ring*>(inboxes_[static_cast<std::size_t>(reader)] + offset);
}

std::byte* Channels::ring_data(int reader, int writer) const {
    return reinterpret_cast<std::byte*>(&ring(reader, writer)) + sizeof(Ring);
}

std::uint64_t Channels::post(const std::byte* send, std::byte* recv, const std::vector<Block>& blocks) {
    const std::uint64_t number = ++last_number_;
    int pieces = 0;
    for (std::size_t peer = 0; peer < blocks.size(); ++peer) {
        const Block& block = blocks[peer];
        if (static_cast<int>(peer) == rank_) {
            const std::byte* source = send + block.send_offset;
            std::byte* target = recv + block.recv_offset;
            const auto count = static_cast<std::size_t>(block.send_nbytes);
            const Stopwatch stopwatch(moved_);
            if (count > 0 && source != target) std::memcpy(target, source, count);
            continue;
        }
        if (block.send_nbytes > 0) { // a queue holds pieces to write and pieces to read alike; these are only read
            outgoing_[peer].push_back({number, const_cast<std::byte*>(send) + block.send_offset, block.send_nbytes});
            ++pieces;
        }
        if (block.recv_nbytes > 0) {
            incoming_[peer].push_back({number, recv + block.recv_offset, block.recv_nbytes});
            ++pieces;
        }
    }
    pieces_left_.push_back(pieces);
    return number;
}

bool Channels::test(std::uint64_t number) {
    for (int peer = 0; peer < static_cast<int>(inboxes_.size()); ++peer) {
        if (peer == rank_) continue;
        push(peer);
        pull(peer);
    }
    while (!pieces_left_.empty() && pieces_left_.front() == 0) {
        pieces_left_.pop_front();
        ++first_number_;
    }
    return number < first_number_ || pieces_left_[static_cast<std::size_t>(number - first_number_)] == 0;
}

std::vector<int> Channels::missing(std::uint64_t number) const {
    std::vector<int> peers;
    for (std::size_t peer = 0; peer < incoming_.size(); ++peer) {
        const auto& queue = incoming_[peer];
        const auto belongs = [&](const Piece& piece) { return piece.number == number; };
        if (std::any_of(queue.begin(), queue.end(), belongs)) peers.push_back(static_cast<int>(peer));
    }
    return peers;
}

/// Copy as much of the queue as the ring allows; `position` is the place of this side, `room(position)` how many bytes
/// it may go on by.
template <typename Room, typename Copy>
void Channels::advance(std::deque<Piece>& queue, Counter& position, const Room& room, const Copy& copy) {
    std::uint32_t moved = position.value.load(std::memory_order_relaxed);
    while (!queue.empty()) {
        Piece& piece = queue.front();
        const std::size_t at = moved & (ring_nbytes_ - 1);
        const std::size_t count = std::min({room(moved), ring_nbytes_ - at, static_cast<std::size_t>(piece.nbytes)});
        if (count == 0) return;
        {
            const Stopwatch stopwatch(moved_);
            copy(at, piece.memory, count);
        }
        moved += static_cast<std::uint32_t>(count);
        position.value.store(moved, std::memory_order_release);
        piece.memory += count;
        piece.nbytes -= static_cast<std::int64_t>(count);
        if (piece.nbytes == 0) {
            finish(piece.number);
            queue.pop_front();
        }
    }
}

void Channels::push(int peer) {
    Ring& to = ring(peer, rank_);
    std::byte* data = ring_data(peer, rank_);
    advance(outgoing_[static_cast<std::size_t>(peer)], to.written, [&](std::uint32_t written) {
        return ring_nbytes_ - (written - to.read.value.load(std::memory_order_acquire));
    }, [&](std::size_t at, std::byte* memory, std::size_t count) { std::memcpy(data + at, memory, count); });
}

void Channels::pull(int peer) {
    Ring& from = ring(rank_, peer);
    const std::byte* data = ring_data(rank_, peer);
    advance(incoming_[static_cast<std::size_t>(peer)], from.read, [&](std::uint32_t read) {
        return static_cast<std::size_t>(from.written.value.load(std::memory_order_acquire) - read);
    }, [&](std::size_t at, std::byte* memory, std::size_t count) { std::memcpy(memory, data + at, count); });
}

void Channels::finish(std::uint64_t number) { --pieces_left_[static_cast<std::size_t>(number - first_number_)]; }

} // namespace edgedit::transport
