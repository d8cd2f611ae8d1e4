#include "transport/program.hpp"

namespace edgedit::transport {

namespace {

using namespace std::chrono_literals;

constexpr auto kSignalInterval = 50ms;
// MPI moves long messages only while it is called: a compute node in between may take long.
constexpr auto kProgressInterval = 200us;

} // namespace

int Program::add_exchange(std::shared_ptr<Transport> transport, Exchange exchange) {
    exchanges_.push_back({std::move(transport), std::move(exchange)});
    return static_cast<int>(exchanges_.size()) - 1;
}

int Program::add_collective(int exchange) {
    collectives_.push_back({exchange, -1, {}, {}, {}, false});
    return static_cast<int>(collectives_.size()) - 1;
}

int Program::add_all_reduce(int parts, int whole, Reduction reduction) {
    collectives_.push_back({parts, whole, reduction, {}, {}, false});
    return static_cast<int>(collectives_.size()) - 1;
}

void Program::release_at_start(int collective, int exchange) {
    collectives_[index(collective)].at_start.push_back(exchange);
}

void Program::release_at_wait(int collective, int exchange) {
    collectives_[index(collective)].at_wait.push_back(exchange);
}

void Program::begin() {
    failure_ = {};
    failed_.store(false);
    opened_.store(-1);
    for (Collective& collective : collectives_) collective.begun = false;
    started_.store(0);
    for (Flight& flight : exchanges_) flight.busy = flight.exchange.waited = {};
    next_signal_ = Clock::now() + kSignalInterval;
}

void Program::end() {
    for (Flight& flight : exchanges_) release(flight);
}

void Program::start(int collective) {
    if (failed_.load()) return;
    const Stopwatch stopwatch(busy(collective));
    begin_collective(collective);
    Flight& flight = exchanges_[index(collectives_[index(collective)].first)];
    settle(collective, start(flight), flight);
}

void Program::wait(int collective) {
    if (failed_.load()) return;
    const Stopwatch stopwatch(busy(collective));
    waiting_.store(collective);
    const Collective& entry = collectives_[index(collective)];
    release(entry.at_wait);
    Flight& first = exchanges_[index(entry.first)];
    settle(collective, wait(first), first);
    if (entry.second >= 0 && !failed_.load()) {
        Flight& second = exchanges_[index(entry.second)];
        const Block& own = second.exchange.blocks[index(second.transport->rank())];
        reduce_in_order(entry.reduction, first.exchange.recv, second.exchange.recv + own.recv_offset);
        release(first);
        Code code = start(second);
        if (code == Code::ok) code = wait(second);
        settle(collective, code, second);
    }
    waiting_.store(-1);
}

bool Program::open(int collective, int thread) {
    if (thread != 0) { // thread 0 finds out; the others only have to see it
        Naps nap;
        for (int look = 0; opened_.load() != collective; ++look) {
            if (failed_.load()) return false;
            look < kSpins ? relax_core() : nap();
        }
        return !failed_.load();
    }
    if (failed_.load()) return false;
    const Stopwatch stopwatch(busy(collective));
    begin_collective(collective);
    Flight& flight = exchanges_[index(collectives_[index(collective)].first)];
    const Code code = flight.transport->acquire(flight.exchange, watch_);
    flight.used = true;
    settle(collective, code, flight);
    waiting_.store(-1);
    if (code == Code::ok) opened_.store(collective);
    return code == Code::ok;
}

std::byte* Program::target(int collective, int peer) const {
    const Flight& flight = exchanges_[index(collectives_[index(collective)].first)];
    return flight.transport->target(flight.exchange, peer);
}

void Program::set_written_by_producer(int collective) {
    exchanges_[index(collectives_[index(collective)].first)].exchange.written_by_producer = true;
}

bool Program::must_stop() {
    if (failed_.load()) return true;
    const auto now = Clock::now();
    if (watch_.in_trouble()) {
        failure_.code = Code::trouble;
    } else if (watch_.interrupted != nullptr && now >= next_signal_) {
        next_signal_ = now + kSignalInterval;
        if (watch_.interrupted()) failure_.code = Code::interrupted;
    }
    if (failure_.code != Code::ok) {
        failed_.store(true);
        return true;
    }
    if (now >= next_progress_) {
        next_progress_ = now + kProgressInterval;
        for (Flight& flight : exchanges_) {
            if (!flight.flying) continue;
            const Stopwatch stopwatch(flight.busy);
            flight.transport->progress(flight.exchange);
        }
    }
    return false;
}

ExchangeTimes Program::times(int collective) const {
    const Collective& entry = collectives_[index(collective)];
    Clock::duration busy{}, waited{};
    for (const int exchange : {entry.first, entry.second}) {
        if (exchange < 0) continue;
        busy += exchanges_[index(exchange)].busy;
        waited += exchanges_[index(exchange)].exchange.waited;
    }
    return {seconds(waited), seconds(busy - waited)};
}

ExchangeTimes Program::times() const {
    ExchangeTimes sum{0, 0};
    for (int collective = 0; collective < static_cast<int>(collectives_.size()); ++collective) {
        const auto [wait_s, move_s] = times(collective);
        sum.wait_s += wait_s;
        sum.move_s += move_s;
    }
    return sum;
}

void Program::begin_collective(int collective) {
    waiting_.store(collective);
    Collective& entry = collectives_[index(collective)];
    if (entry.begun) return;
    entry.begun = true;
    release(entry.at_start);
    started_.fetch_add(1);
}

void Program::release(const std::vector<int>& exchanges) {
    for (int exchange : exchanges) release(exchanges_[index(exchange)]);
}

void Program::release(Flight& flight) {
    if (!flight.used) return;
    flight.used = false;
    flight.transport->release(flight.exchange);
}

Code Program::start(Flight& flight) {
    flight.used = flight.flying = true;
    return flight.transport->start(flight.exchange, watch_);
}

Code Program::wait(Flight& flight) {
    const Code code = flight.transport->wait(flight.exchange, watch_);
    flight.flying = code != Code::ok;
    return code;
}

void Program::settle(int collective, Code code, const Flight& flight) {
    if (code == Code::ok) return;
    failure_.code = code;
    failure_.collective = collective;
    failure_.missing.clear();
    for (int peer : flight.transport->missing(flight.exchange)) {
        failure_.missing.push_back(flight.transport->world_ranks()[index(peer)]);
    }
    failure_.text = flight.transport->error_text();
    failed_.store(true);
}

} // namespace edgedit::transport
