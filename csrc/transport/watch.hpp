// The only way in which native code waits for other ranks: it gives up the core soon, and looks for reasons to stop.
//
// Waiting goes from a short spin over yields to rests. While it rests it looks at signs that another thread sets (a
// rank died or failed, a rank has left), at a deadline, and at the signals of the interpreter.
#pragma once

#include <cstdint>
#include <functional>

#include <sched.h>

namespace edgedit::transport {

enum class Code : std::int32_t {
    ok,
    trouble,     ///< some rank of the world died or failed
    peer_left,   ///< the peer waited for has closed its context
    deadline,
    interrupted, ///< a signal handler of the interpreter raised
    transport,   ///< the library that moves the data reported an error
};

struct Watch {
    /// [world_size + 1]: not 0 where that world rank has left; the last: where no collective will finish any more.
    const std::int32_t* signs = nullptr;
    int world_size = 0;
    /// Runs the interpreter's signal handlers; true if one raised. Null where there is no interpreter.
    bool (*interrupted)() = nullptr;
    double deadline_s = 0; ///< longest wait for one peer; 0: no limit

    bool in_trouble() const { return signs != nullptr && __atomic_load_n(&signs[world_size], __ATOMIC_ACQUIRE) != 0; }
    bool has_left(int world_rank) const {
        return signs != nullptr && __atomic_load_n(&signs[world_rank], __ATOMIC_ACQUIRE) != 0;
    }

    /// Wait until `ready`, calling `rest` in between: the slow part of `wait_for`.
    Code wait_resting(int world_rank, const std::function<bool()>& ready, const std::function<void()>& rest) const;
};

inline void relax_core() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

constexpr int kSpins = 400;
constexpr int kYields = 40;

/// Wait for something that `world_rank` will do. `rest` sleeps, for a millisecond or until it is woken.
template <typename Ready, typename Rest>
Code wait_for(const Watch& watch, int world_rank, const Ready& ready, const Rest& rest) {
    for (int spin = 0; spin < kSpins; ++spin) {
        if (ready()) return Code::ok;
        relax_core();
    }
    for (int yield = 0; yield < kYields; ++yield) {
        if (ready()) return Code::ok;
        sched_yield();
    }
    return watch.wait_resting(world_rank, ready, rest);
}

/// Sleeps that grow from 20 us to 1 ms, for things that cannot wake a sleeper.
class Naps {
  public:
    void operator()();

  private:
    std::int64_t nanoseconds_ = 20'000;
};

} // namespace edgedit::transport
