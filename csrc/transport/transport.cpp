#include "transport/transport.hpp"

#include <cstring>

namespace edgedit::transport {

void Transport::copy_own_block(const Exchange& exchange, int rank) {
    const Block& own = exchange.blocks[static_cast<std::size_t>(rank)];
    const std::byte* source = exchange.send + own.send_offset;
    std::byte* target = exchange.recv + own.recv_offset;
    if (own.send_nbytes > 0 && source != target) std::memcpy(target, source, static_cast<std::size_t>(own.send_nbytes));
}

} // namespace edgedit::transport
