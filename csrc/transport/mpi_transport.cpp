#include "transport/mpi_transport.hpp"

#include <algorithm>

namespace edgedit::transport {

namespace {

// MPI counts in an int: longer blocks are cut into pieces that both ends derive from the count.
constexpr std::int64_t kPieceNbytes = std::int64_t{1} << 30;
constexpr std::size_t kMaxErrorText = 1024; // more than the longest of any MPI
constexpr std::int64_t kOver = -1;          // no library uses this value for a request
// MPI does not say whether a test moved bytes. One that found nothing to do is over well within this time.
constexpr auto kIdleTest = std::chrono::microseconds(2);

} // namespace

Code MpiTransport::start(Exchange& exchange, const Watch&) {
    exchange.requests.clear();
    exchange.request_peers.clear();
    std::size_t pieces = 0; // MPI keeps the addresses of requests: the vector must not grow afterwards
    for (const Block& block : exchange.blocks) {
        pieces += static_cast<std::size_t>((block.send_nbytes + kPieceNbytes - 1) / kPieceNbytes);
        pieces += static_cast<std::size_t>((block.recv_nbytes + kPieceNbytes - 1) / kPieceNbytes);
    }
    exchange.requests.reserve(pieces);
    for (int shift = size() - 1; shift > 0; --shift) {
        if (!post(exchange, peer_after(shift), false)) return Code::transport;
    }
    exchange.num_receives = exchange.requests.size();
    for (int shift = 1; shift < size(); ++shift) {
        if (!post(exchange, peer_after(shift), true)) return Code::transport;
    }
    copy_own_block(exchange, rank_);
    return Code::ok;
}

bool MpiTransport::post(Exchange& exchange, int peer, bool sending) {
    const Block& block = exchange.blocks[static_cast<std::size_t>(peer)];
    const std::int64_t nbytes = sending ? block.send_nbytes : block.recv_nbytes;
    for (std::int64_t begin = 0; begin < nbytes; begin += kPieceNbytes) {
        const int count = static_cast<int>(std::min(kPieceNbytes, nbytes - begin));
        std::int64_t& request = exchange.requests.emplace_back(0);
        exchange.request_peers.push_back(peer);
        const int code =
            sending ? library_.isend(exchange.send + block.send_offset + begin, count, library_.byte_type, peer, tag_,
                                     comm_, &request)
                    : library_.irecv(exchange.recv + block.recv_offset + begin, count, library_.byte_type, peer, tag_,
                                     comm_, &request);
        if (!checked(code)) return false;
    }
    return true;
}

Code MpiTransport::wait(Exchange& exchange, const Watch& watch) {
    const auto began = Clock::now();
    const auto moving_before = moving_;
    const Code code = wait_for_requests(exchange, watch);
    exchange.waited += Clock::now() - began - (moving_ - moving_before);
    return code;
}

Code MpiTransport::wait_for_requests(Exchange& exchange, const Watch& watch) {
    for (std::size_t i = 0; i < exchange.requests.size(); ++i) {
        const Code code = wait_for(
            watch, world_ranks_[static_cast<std::size_t>(exchange.request_peers[i])],
            [&] { return is_done(exchange.requests[i]) || failed_; }, Naps());
        if (failed_) return Code::transport;
        if (code != Code::ok) return code;
    }
    return Code::ok;
}

void MpiTransport::progress(Exchange& exchange) {
    for (std::int64_t& request : exchange.requests) is_done(request);
}

std::vector<int> MpiTransport::missing(const Exchange& exchange) const {
    std::vector<int> peers;
    for (std::size_t i = 0; i < exchange.requests.size(); ++i) {
        // A rank that has not taken a block is told of only where none is missing: its own may be what it waits for.
        if (i == exchange.num_receives && !peers.empty()) break;
        if (exchange.requests[i] != kOver) peers.push_back(exchange.request_peers[i]);
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
}

bool MpiTransport::is_done(std::int64_t& request) {
    if (request == kOver) return true;
    int done = 0;
    alignas(8) char status[64];
    const auto began = Clock::now();
    if (checked(library_.test(&request, &done, status)) && done != 0) request = kOver;
    const auto took = Clock::now() - began;
    if (request == kOver || took > kIdleTest) moving_ += took;
    return request == kOver;
}

bool MpiTransport::checked(int code) {
    if (code == 0) return true;
    char text[kMaxErrorText] = "";
    int length = 0;
    library_.error_string(code, text, &length);
    error_text_ = std::string("MPI: ") + text;
    failed_ = true;
    return false;
}

} // namespace edgedit::transport
