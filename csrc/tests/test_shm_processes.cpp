// The shm transport between processes: many exchanges, a rank that is always ahead, a rank that is killed.
#include <chrono>
#include <csignal>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm_exchanges.hpp"
#include "transport/segment.hpp"

using namespace shm_exchanges;

namespace {

/// Ranks as children of this process. Each child maps the segments by their path, as ranks of a launch do.
class Ranks {
  public:
    Ranks(int ranks, int slots) : slots_(slots) {
        const std::size_t nbytes = segment_nbytes(ranks, slots);
        for (int rank = 0; rank < ranks; ++rank) segments_.push_back(Segment::create(nbytes, false));
        void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED, "no shared memory");
        signs_ = static_cast<std::int32_t*>(memory); // [ranks]: has left; [ranks]: trouble
    }
    ~Ranks() { munmap(signs_, 4096); }

    void start(int count, int hasty_rank, double deadline_s = 0) {
        for (int rank = 0; rank < size(); ++rank) {
            const pid_t child = fork();
            CHECK(child >= 0, "no child process");
            if (child == 0) _exit(run(rank, count, rank == hasty_rank, deadline_s));
            children_.push_back(child);
        }
    }

    void kill(int rank) { ::kill(children_[static_cast<std::size_t>(rank)], SIGKILL); }
    void report_trouble() { __atomic_store_n(&signs_[size()], 1, __ATOMIC_RELEASE); }
    void report_left(int rank) { __atomic_store_n(&signs_[rank], 1, __ATOMIC_RELEASE); }

    /// What the rank's run returned; -1 if it was killed.
    int result(int rank) {
        int status = 0;
        CHECK(waitpid(children_[static_cast<std::size_t>(rank)], &status, 0) > 0, "child lost");
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

    int size() const { return static_cast<int>(segments_.size()); }

  private:
    int run(int rank, int count, bool hasty, double deadline_s) {
        alarm(static_cast<unsigned>(120 + count / 100)); // a hang ends as a failure
        std::vector<Segment> mapped;
        std::vector<std::byte*> addresses;
        for (const Segment& segment : segments_) {
            mapped.push_back(Segment::open(segment.path(), segment.nbytes()));
            addresses.push_back(mapped.back().data());
        }
        Watch watch{signs_, size(), nullptr, deadline_s};
        return static_cast<int>(Rank(rank, size(), slots_, addresses, watch).run(count, hasty));
    }

    const int slots_;
    std::vector<Segment> segments_;
    std::int32_t* signs_;
    std::vector<pid_t> children_;
};

void check_all_arrive(int ranks, int slots, int count, int hasty_rank) {
    Ranks group(ranks, slots);
    group.start(count, hasty_rank);
    for (int rank = 0; rank < ranks; ++rank) {
        const int result = group.result(rank);
        CHECK(result == 0, "%d ranks, %d slots: rank %d ended with %d", ranks, slots, rank, result);
    }
    std::printf("%d ranks, %d slots: %d exchanges\n", ranks, slots, count);
}

/// `tell` says to the others that rank 1 is gone; returns after how long they ended with `expected`.
template <typename Tell>
void check_loss(const char* name, Code expected, double within_s, double deadline_s, const Tell& tell) {
    using Clock = std::chrono::steady_clock;
    Ranks group(3, 2);
    group.start(100'000'000, -1, deadline_s);
    pause_us(100'000);
    group.kill(1);
    CHECK(group.result(1) == -1, "rank 1 was to be killed");
    const auto killed = Clock::now();
    tell(group);
    for (const int rank : {0, 2}) {
        const int result = group.result(rank);
        CHECK(result == static_cast<int>(expected), "%s: rank %d ended with %d", name, rank, result);
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - killed).count();
    CHECK(seconds < within_s, "%s: noticed after %.1f s", name, seconds);
    std::printf("a lost peer is noticed by its %s after %.1f s\n", name, seconds);
}

} // namespace

int main(int argc, char** argv) {
    const int count = count_from(argc, argv, 10'000);
    check_all_arrive(3, 2, count, 0);
    check_all_arrive(2, 2, count / 4, -1);
    check_all_arrive(4, 3, count / 4, 3);
    check_loss("sign", Code::trouble, 3, 0, [](Ranks& group) { group.report_trouble(); });
    check_loss("departure", Code::peer_left, 8, 0, [](Ranks& group) {
        for (int rank = 0; rank < group.size(); ++rank) group.report_left(rank); // those it waits for in turn
    });
    check_loss("deadline", Code::deadline, 4, 0.5, [](Ranks&) {});
    return 0;
}
