// Where a program says that its time went: waiting for a peer apart from moving bytes.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "transport/channels.hpp"
#include "transport/mpi_transport.hpp"
#include "transport/nodes.hpp"
#include "transport/program.hpp"
#include "transport/shm_transport.hpp"

using namespace edgedit::transport;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t kNbytes = 4096;
constexpr auto kLate = 60ms;
constexpr double kLateSeconds = 0.060;

/// Two ranks that send each other one block.
class Pair {
  public:
    Pair() {
        for (std::byte*& segment : segments_) {
            segment = static_cast<std::byte*>(std::aligned_alloc(4096, nbytes()));
            std::memset(segment, 0, nbytes());
        }
    }
    ~Pair() {
        for (std::byte* segment : segments_) std::free(segment);
    }

    /// One run of rank `rank`, with `prepare` before its collective starts.
    template <typename Prepare>
    ExchangeTimes run(int rank, const Prepare& prepare) {
        std::vector<std::byte> sent(kNbytes, std::byte{1});
        Program program{Watch{}};
        auto transport = std::make_shared<ShmTransport>(rank, std::vector<int>{0, 1}, 2, segments_);
        Exchange exchange;
        exchange.send = sent.data();
        exchange.recv = segments_[static_cast<std::size_t>(rank)] + offset();
        for (int peer = 0; peer < 2; ++peer) {
            const std::int64_t place = peer * kNbytes / 2, remote = static_cast<std::int64_t>(offset());
            exchange.blocks.push_back({place, kNbytes / 2, place, kNbytes / 2, remote + rank * kNbytes / 2});
        }
        const int collective = program.add_collective(program.add_exchange(transport, exchange));
        program.begin();
        prepare(program, collective);
        program.start(collective);
        program.wait(collective);
        program.end();
        CHECK(program.failure().code == Code::ok, "rank %d failed", rank);
        const ExchangeTimes times = program.times(), alone = program.times(collective);
        CHECK(times.wait_s == alone.wait_s && times.move_s == alone.move_s, "the sum is not that of its only part");
        program.begin();
        CHECK(program.times().wait_s == 0 && program.times().move_s == 0, "a run begins with the times of the last");
        return times;
    }

  private:
    static std::size_t offset() { return ShmTransport::slots_offset(2, 2); }
    static std::size_t nbytes() { return (offset() + kNbytes + 4095) / 4096 * 4096; }

    std::vector<std::byte*> segments_ = {nullptr, nullptr};
};

void the_rank_that_comes_first_waits() {
    Pair pair;
    ExchangeTimes early{}, late{};
    const auto nothing = [](Program&, int) {};
    const auto pause = [](Program&, int) { std::this_thread::sleep_for(kLate); };
    std::thread peer([&] { late = pair.run(1, pause); });
    early = pair.run(0, nothing);
    peer.join();
    CHECK(early.wait_s > 0.8 * kLateSeconds, "the early rank waited %g s", early.wait_s);
    CHECK(early.move_s < 0.5 * early.wait_s, "the early rank moved bytes for %g s", early.move_s);
    CHECK(late.wait_s < 0.5 * early.wait_s, "the late rank waited %g s", late.wait_s);
}

void slow_producer(ggml_tensor*, int, int, void*) { std::this_thread::sleep_for(kLate); }

void a_producer_that_writes_to_the_peers_moves_bytes() {
    Pair pair;
    const auto produce = [](Program& program, int collective) {
        ProducerNode node{&program, collective, slow_producer, nullptr};
        edgedit_collective_producer(nullptr, 0, 1, &node);
    };
    std::thread peer([&] { pair.run(1, produce); });
    const ExchangeTimes times = pair.run(0, produce);
    peer.join();
    CHECK(times.move_s > 0.8 * kLateSeconds, "moved bytes for %g s", times.move_s);
}

// An MPI whose messages need a number of tests, each of a given length.
int tests_left = 0;
std::chrono::microseconds test_length{};

int post_send(const void*, int, MpiHandle, int, int, MpiHandle, std::int64_t*) { return 0; }
int post_recv(void*, int, MpiHandle, int, int, MpiHandle, std::int64_t*) { return 0; }
int test(std::int64_t*, int* done, void*) {
    const auto end = Clock::now() + test_length;
    while (Clock::now() < end) {}
    *done = --tests_left <= 0;
    return 0;
}
int error_string(int, char*, int*) { return 0; }

ExchangeTimes over_mpi(int tests, std::chrono::microseconds length) {
    tests_left = tests;
    test_length = length;
    std::vector<std::byte> received(kNbytes);
    Program program{Watch{}};
    const MpiLibrary library{post_send, post_recv, test, error_string, 0};
    auto transport = std::make_shared<MpiTransport>(0, std::vector<int>{0, 1}, library, 0, 1);
    Exchange exchange;
    exchange.recv = received.data();
    exchange.blocks = {{}, {0, 0, 0, kNbytes, 0}};
    const int collective = program.add_collective(program.add_exchange(transport, exchange));
    program.begin();
    program.start(collective);
    program.wait(collective);
    return program.times();
}

void mpi_waits_while_its_tests_find_nothing() {
    const ExchangeTimes idle = over_mpi(700, 0us), busy = over_mpi(20, 2000us);
    CHECK(idle.wait_s > 4 * idle.move_s, "idle tests: waited %g s, moved for %g s", idle.wait_s, idle.move_s);
    CHECK(busy.move_s > 0.035, "long tests: waited %g s, moved for %g s", busy.wait_s, busy.move_s);
    CHECK(busy.move_s > 4 * busy.wait_s, "long tests: waited %g s, moved for %g s", busy.wait_s, busy.move_s);
}

void channels_count_what_they_copy() {
    constexpr std::size_t kRing = 4096;
    std::vector<std::byte> memory(Channels::inbox_nbytes(1, kRing) + 64), sent(1 << 20), received(1 << 20);
    auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    begin = (begin + 63) / 64 * 64;
    Channels channels(0, {reinterpret_cast<std::byte*>(begin)}, kRing);
    CHECK(channels.moved() == Clock::duration::zero(), "moved before anything was posted");
    channels.test(channels.post(sent.data(), received.data(), {{0, 1 << 20, 0, 1 << 20, 0}}));
    CHECK(channels.moved() > Clock::duration::zero(), "a copy took no time");
}

} // namespace

int main() {
    the_rank_that_comes_first_waits();
    a_producer_that_writes_to_the_peers_moves_bytes();
    mpi_waits_while_its_tests_find_nothing();
    channels_count_what_they_copy();
    std::printf("times of exchanges are told apart\n");
    return 0;
}
