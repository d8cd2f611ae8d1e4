// Where the time of an exchange goes: one clock, and sums that code adds to while it does something.
#pragma once

#include <chrono>

namespace edgedit::transport {

using Clock = std::chrono::steady_clock;

/// Adds the time of its life to a sum.
class Stopwatch {
  public:
    explicit Stopwatch(Clock::duration& sum) : sum_(sum), began_(Clock::now()) {}
    ~Stopwatch() { sum_ += Clock::now() - began_; }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

  private:
    Clock::duration& sum_;
    const Clock::time_point began_;
};

inline double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

} // namespace edgedit::transport
