#include "transport/counter.hpp"

#include <climits>
#include <ctime>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace edgedit::transport {

namespace {

// Sleepers also look at signs that wake nobody: failures, signals, the deadline.
constexpr timespec kLongestSleep{0, 10'000'000};

} // namespace

#if defined(__linux__)

// The memory is shared between processes, so the futexes are not private ones. Both orders of "raise, look for
// sleepers" and "become a sleeper, look at the value" must be seen alike by both sides: hence sequential consistency.
void Counter::publish(std::uint32_t to) {
    value.store(to, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) {
        syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&value), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }
}

void Counter::sleep(std::uint32_t target) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = value.load(std::memory_order_seq_cst);
    if (static_cast<std::int32_t>(seen - target) < 0) {
        syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&value), FUTEX_WAIT, seen, &kLongestSleep, nullptr, 0);
    }
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

#else

void Counter::publish(std::uint32_t to) { value.store(to, std::memory_order_release); }

void Counter::sleep(std::uint32_t) {
    const timespec pause{0, 100'000};
    nanosleep(&pause, nullptr);
}

#endif

} // namespace edgedit::transport
