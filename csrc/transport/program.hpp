// The collectives of one planned graph, as the callbacks of its start and wait nodes run them.
//
// ggml calls the callback of a node on every thread of the graph; thread 0, which is the one that called ggml, moves
// data, and the barrier after the node holds the others. A failure is kept here and ends ggml's run through
// `must_stop`, which ggml polls after every node.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/reduce.hpp"
#include "transport/transport.hpp"

namespace edgedit::transport {

/// Seconds of a run that went into exchanges.
struct ExchangeTimes {
    double wait_s; ///< for peers
    double move_s; ///< everything else: moving bytes, producers that write to the peers, sums of all-reduces
};

/// Why a run ended early.
struct Failure {
    Code code = Code::ok;
    int collective = -1;           ///< position in the program; -1 where the run ended between collectives
    std::vector<int> missing;      ///< world ranks that were waited for
    std::string text;              ///< of the transport
};

class Program {
  public:
    explicit Program(Watch watch) : watch_(watch) {}

    // Preparation: every exchange, then every collective in the order of the plan.

    int add_exchange(std::shared_ptr<Transport> transport, Exchange exchange);
    int add_collective(int exchange);
    /// `parts` receives the raw chunks, `whole` the sums: `whole` sends what the sum of the parts puts into its
    /// receive tensor.
    int add_all_reduce(int parts, int whole, Reduction reduction);
    /// `exchange` has no reader any more when the collective begins, or when it is waited for.
    void release_at_start(int collective, int exchange);
    void release_at_wait(int collective, int exchange);

    // Running, on thread 0 of the graph unless said otherwise.

    void begin();
    void start(int collective);
    void wait(int collective);
    /// Every exchange that still is in use has been read.
    void end();
    /// For producers that write straight into the peers' memory; every thread of the graph calls it, and writes only
    /// if it returns true.
    bool open(int collective, int thread);
    std::byte* target(int collective, int peer) const;
    void set_written_by_producer(int collective);
    /// ggml's abort callback.
    bool must_stop();

    const Failure& failure() const { return failure_; }
    ExchangeTimes times(int collective) const;
    ExchangeTimes times() const; ///< of all collectives
    /// The sum of all time that thread 0 spends on a collective.
    Clock::duration& busy(int collective) { return exchanges_[index(collectives_[index(collective)].first)].busy; }

    // For other threads, while the graph runs.

    int started() const { return started_.load(std::memory_order_relaxed); } ///< collectives begun in this run
    int waiting_in() const { return waiting_.load(std::memory_order_relaxed); } ///< collective, or -1

  private:
    struct Flight {
        std::shared_ptr<Transport> transport;
        Exchange exchange;
        bool used = false; ///< started, and not released yet
        bool flying = false;
        Clock::duration busy{}; ///< in this run, waiting included
    };
    struct Collective {
        int first;
        int second; ///< of an all-reduce; else -1
        Reduction reduction;
        std::vector<int> at_start, at_wait;
        bool begun = false; ///< in this run
    };

    static std::size_t index(int position) { return static_cast<std::size_t>(position); }
    void release(const std::vector<int>& exchanges);
    void release(Flight& flight);
    Code start(Flight& flight);
    Code wait(Flight& flight);
    void settle(int collective, Code code, const Flight& flight);
    void begin_collective(int collective);

    const Watch watch_;
    std::vector<Flight> exchanges_;
    std::vector<Collective> collectives_;
    Failure failure_;
    std::atomic<bool> failed_{false};
    std::atomic<int> opened_{-1}; ///< the last collective that was opened
    std::atomic<int> started_{0};
    std::atomic<int> waiting_{-1};
    Clock::time_point next_signal_{}, next_progress_{};
};

} // namespace edgedit::transport
