#include "custom_callbacks.hpp"

#include <cstdio>
#include <cstdlib>

extern "C" void edgedit_collective_placeholder(ggml_tensor*, int thread, int, void* userdata) {
    if (thread != 0) return; // one message; the barrier after the node holds the other threads
    const char* name = userdata != nullptr ? static_cast<const char*>(userdata) : "(unnamed)";
    std::fprintf(stderr,
                 "edgedit: ggml computed the collective node '%s', which the executor runs between segments. "
                 "Run the graph through its Schedule, not as a whole.\n",
                 name);
    std::fflush(stderr);
    std::abort();
}

extern "C" void edgedit_no_operation(ggml_tensor*, int, int, void*) {}
