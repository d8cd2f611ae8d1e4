// The shm transport between threads over one mapping, so that ThreadSanitizer sees every access; and the byte rings.
#include <thread>
#include <utility>

#include "shm_exchanges.hpp"
#include "transport/channels.hpp"

using namespace shm_exchanges;

namespace {

/// Zeroed memory whose alignment suits counters.
class Memory {
  public:
    explicit Memory(std::size_t nbytes) : nbytes_((nbytes + 63) / 64 * 64), data_(std::aligned_alloc(64, nbytes_)) {
        std::memset(data_, 0, nbytes_);
    }
    Memory(Memory&& other) noexcept : nbytes_(other.nbytes_), data_(std::exchange(other.data_, nullptr)) {}
    ~Memory() { std::free(data_); }
    std::byte* data() const { return static_cast<std::byte*>(data_); }

  private:
    std::size_t nbytes_;
    void* data_;
};

template <typename Body>
void on_threads(int ranks, const Body& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
}

std::vector<std::byte*> addresses(const std::vector<Memory>& memories) {
    std::vector<std::byte*> result;
    for (const Memory& memory : memories) result.push_back(memory.data());
    return result;
}

void check_slots(int ranks, int slots, int count, int hasty_rank) {
    std::vector<Memory> segments;
    for (int rank = 0; rank < ranks; ++rank) segments.emplace_back(segment_nbytes(ranks, slots));
    on_threads(ranks, [&](int rank) {
        Rank worker(rank, ranks, slots, addresses(segments), Watch{});
        CHECK(worker.run(count, rank == hasty_rank) == Code::ok, "rank %d failed", rank);
    });
    std::printf("%d threads, %d slots: %d exchanges\n", ranks, slots, count);
}

/// What one rank sends and receives in one exchange over rings.
struct Trade {
    std::vector<std::byte> sent, received;
    std::uint64_t ticket;

    Trade(Channels& channels, int rank, int ranks, int number)
        : sent(static_cast<std::size_t>(ranks * kMaxBlock)), received(sent.size()) {
        std::vector<Block> blocks;
        for (int peer = 0; peer < ranks; ++peer) {
            const std::int64_t begin = peer * kMaxBlock, nbytes = block_nbytes(number, rank, peer);
            for (std::int64_t i = 0; i < nbytes; ++i) {
                sent[static_cast<std::size_t>(begin + i)] = std::byte{value(number, rank, peer, i)};
            }
            blocks.push_back({begin, nbytes, begin, block_nbytes(number, peer, rank), 0});
        }
        ticket = channels.post(sent.data(), received.data(), blocks);
    }

    void check(int rank, int ranks, int number) const {
        for (int peer = 0; peer < ranks; ++peer) {
            for (std::int64_t i = 0; i < block_nbytes(number, peer, rank); ++i) {
                const std::byte got = received[static_cast<std::size_t>(peer * kMaxBlock + i)];
                CHECK(got == std::byte{value(number, peer, rank, i)}, "rank %d, exchange %d, from %d, byte %ld", rank,
                      number, peer, static_cast<long>(i));
            }
        }
    }
};

/// Every rank posts two exchanges at a time and waits for the later one first; blocks are longer than the rings.
void check_rings(int ranks, int count) {
    constexpr std::size_t kRing = 256;
    std::vector<Memory> inboxes;
    for (int rank = 0; rank < ranks; ++rank) inboxes.emplace_back(Channels::inbox_nbytes(ranks, kRing));
    on_threads(ranks, [&](int rank) {
        Channels channels(rank, addresses(inboxes), kRing);
        for (int number = 0; number < count; number += 2) {
            const Trade first(channels, rank, ranks, number), second(channels, rank, ranks, number + 1);
            for (const Trade* trade : {&second, &first}) {
                while (!channels.test(trade->ticket)) std::this_thread::yield();
                CHECK(channels.missing(trade->ticket).empty(), "done, yet something is missing");
            }
            first.check(rank, ranks, number);
            second.check(rank, ranks, number + 1);
        }
    });
    std::printf("%d threads over rings: %d exchanges\n", ranks, count);
}

} // namespace

int main(int argc, char** argv) {
    const int count = count_from(argc, argv, 10'000);
    check_slots(3, 2, count, 1);
    check_slots(2, 2, count / 4, -1);
    check_rings(3, count / 4);
    return 0;
}
