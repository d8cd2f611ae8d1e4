#include "kernels/scratch.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace edgedit::kernels {

namespace {

constexpr std::size_t kAlignment = 64;

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

struct Memory {
    std::unique_ptr<void, Free> start;
    std::size_t nbytes = 0;
};

thread_local Memory memories[static_cast<int>(Scratch::count)];

} // namespace

void* scratch(Scratch use, std::size_t nbytes) {
    Memory& memory = memories[static_cast<int>(use)];
    if (memory.nbytes < nbytes) {
        memory.start.reset();
        memory.nbytes = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
        memory.start.reset(std::aligned_alloc(kAlignment, memory.nbytes));
        if (memory.start == nullptr) {
            std::fprintf(stderr, "edgedit: no memory for %zu bytes of scratch of a kernel\n", nbytes);
            std::abort();
        }
    }
    return memory.start.get();
}

} // namespace edgedit::kernels
