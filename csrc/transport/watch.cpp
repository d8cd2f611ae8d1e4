#include "transport/watch.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>

namespace edgedit::transport {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// What a rank did before it ran into trouble still counts if it is seen within this time.
constexpr auto kLastChance = 300ms;
// The same for a rank that closed its context in order; its messages may still be on their way.
constexpr auto kInFlight = 3s;
constexpr auto kSignalInterval = 50ms;

/// Whether a condition has held at every look for `duration`.
class Lasting {
  public:
    bool holds(bool condition, Clock::time_point now, Clock::duration duration) {
        if (!condition) return false;
        if (!seen_) seen_ = true, since_ = now;
        return now - since_ >= duration;
    }

  private:
    bool seen_ = false;
    Clock::time_point since_{};
};

} // namespace

Code Watch::wait_resting(int world_rank, const std::function<bool()>& ready, const std::function<void()>& rest) const {
    const auto begin = Clock::now();
    auto next_signal = begin + kSignalInterval;
    Lasting trouble, left;
    while (!ready()) {
        const auto now = Clock::now();
        if (trouble.holds(in_trouble(), now, kLastChance)) return Code::trouble;
        if (left.holds(has_left(world_rank), now, kInFlight)) return Code::peer_left;
        if (deadline_s > 0 && std::chrono::duration<double>(now - begin).count() > deadline_s) return Code::deadline;
        if (interrupted != nullptr && now >= next_signal) {
            if (interrupted()) return Code::interrupted;
            next_signal = now + kSignalInterval;
        }
        rest();
    }
    return Code::ok;
}

void Naps::operator()() {
    const timespec pause{0, static_cast<long>(nanoseconds_)};
    nanosleep(&pause, nullptr);
    nanoseconds_ = std::min<std::int64_t>(nanoseconds_ + nanoseconds_ / 4, 1'000'000);
}

} // namespace edgedit::transport
