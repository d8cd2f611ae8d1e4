// NCCL, found when it is asked for: from the pip wheel nvidia-nccl-cu12/13 or the system. Nothing links to it, and only
// the handful of functions below is declared.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "cuda/channel.hpp"

namespace edgedit::cuda {

using UniqueId = std::array<char, 128>;

/// Called now and then while the host waits for NCCL; true ends the wait.
using Stop = std::function<bool()>;

/// The functions of one loaded library.
class Nccl {
public:
    /// `path`: a file, or a name that the dynamic linker knows. Loaded once per process; the first path counts.
    /// Throws DeviceError where it cannot be loaded or is older than 2.14, the first with non-blocking communicators.
    static const Nccl& load(const std::string& path);

    int version() const { return version_; } ///< as NCCL counts: 22703 is 2.27.3
    UniqueId unique_id() const;

private:
    friend class Communicator;
    struct Functions;
    explicit Nccl(const std::string& path);
    void check(const char* call, int result) const;

    std::shared_ptr<Functions> functions_;
    int version_ = 0;
};

/// The ranks of one group, each on one device. All calls come from one thread.
class Communicator final : public Channel {
public:
    /// Returns once all `size` ranks have called it with the id of one of them. Throws DeviceError when NCCL reports an
    /// error, when `timeout_s` has passed, or when `stop` says so; then nothing is left behind.
    Communicator(const Nccl& nccl, const UniqueId& id, int rank, int size, int device, double timeout_s, Stop stop);
    ~Communicator() override;

    void exchange(const void* send, void* recv, const Block* blocks, Stream* stream) override;
    void all_gather(const void* send, void* recv, std::int64_t nbytes, Stream* stream) override;
    void broadcast(const void* send, void* recv, std::int64_t nbytes, int root, Stream* stream) override;
    std::string failure() const override;
    void abort() override;

private:
    void settle(const char* call, int result);
    void check_open() const;

    const Nccl& nccl_;
    const int device_;
    const double timeout_s_;
    const Stop stop_;
    void* handle_ = nullptr;
};

} // namespace edgedit::cuda
