// The guard of collective nodes: thread 0 ends the process and names the collective, other threads return.
#include <csignal>
#include <cstring>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "check.hpp"
#include "custom_callbacks.hpp"

namespace {

struct Outcome {
    int status;
    std::string message;
};

Outcome run_in_child(int thread, const char* name) {
    int ends[2];
    CHECK(pipe(ends) == 0, "no pipe");
    const pid_t child = fork();
    CHECK(child >= 0, "no child process");
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        std::signal(SIGABRT, SIG_DFL);
        edgedit_collective_placeholder(nullptr, thread, 2, const_cast<char*>(name));
        _exit(0);
    }
    close(ends[1]);
    std::string message;
    char chunk[256];
    for (ssize_t count; (count = read(ends[0], chunk, sizeof chunk)) > 0;) message.append(chunk, static_cast<std::size_t>(count));
    close(ends[0]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "child lost");
    return {status, message};
}

} // namespace

int main() {
    const Outcome first = run_in_child(0, "block.3.qkv");
    CHECK(WIFSIGNALED(first.status) && WTERMSIG(first.status) == SIGABRT, "status %d", first.status);
    CHECK(first.message.find("'block.3.qkv'") != std::string::npos, "message: %s", first.message.c_str());
    const Outcome unnamed = run_in_child(0, nullptr);
    CHECK(unnamed.message.find("(unnamed)") != std::string::npos, "message: %s", unnamed.message.c_str());
    const Outcome second = run_in_child(1, "block.3.qkv");
    CHECK(WIFEXITED(second.status) && WEXITSTATUS(second.status) == 0 && second.message.empty(), "status %d: %s",
          second.status, second.message.c_str());
    std::printf("the placeholder names its collective and aborts\n");
    return 0;
}
