// A number in shared memory that one process raises and others wait for.
#pragma once

#include <atomic>
#include <cstdint>

namespace edgedit::transport {

/// On a cache line of its own. Zeroed memory is a valid counter at 0. Values wrap around: they are compared by
/// distance, so the two sides must stay within 2^31 of each other.
struct alignas(64) Counter {
    std::atomic<std::uint32_t> value;
    std::atomic<std::uint32_t> sleepers;

    bool reached(std::uint32_t target) const {
        return static_cast<std::int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
    }
    /// Raise the counter; what was written before is visible to whoever sees it.
    void publish(std::uint32_t to);
    /// Sleep until somebody publishes, at most some milliseconds. May return early.
    void sleep(std::uint32_t target);
};

static_assert(sizeof(Counter) == 64, "one counter a cache line");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "counters are shared between processes");

} // namespace edgedit::transport
