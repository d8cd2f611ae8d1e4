#include "cuda/nccl.hpp"

#include <chrono>
#include <thread>

#include <dlfcn.h>

#include "cuda/check.hpp"

namespace edgedit::cuda {
namespace {

// Values of nccl.h, the same since 2.14.
constexpr int kSuccess = 0, kInProgress = 7, kUint8 = 1;

/// ncclConfig_t as of 2.14. NCCL reads as many bytes as `size` says and fills in what later versions added.
struct Config {
    std::size_t size = sizeof(Config);
    unsigned int magic = 0xcafebeef;
    unsigned int version = 21400;
    int blocking = 0;
};

/// ncclUniqueId, which NCCL takes by value.
struct Id {
    char bytes[128];
};

} // namespace

struct Nccl::Functions {
    int (*ncclGetVersion)(int*);
    int (*ncclGetUniqueId)(Id*);
    const char* (*ncclGetErrorString)(int);
    const char* (*ncclGetLastError)(void*);
    int (*ncclCommInitRankConfig)(void**, int, Id, int, Config*);
    int (*ncclCommGetAsyncError)(void*, int*);
    int (*ncclCommAbort)(void*);
    int (*ncclGroupStart)();
    int (*ncclGroupEnd)();
    int (*ncclSend)(const void*, std::size_t, int, int, void*, cudaStream_t);
    int (*ncclRecv)(void*, std::size_t, int, int, void*, cudaStream_t);
    int (*ncclAllGather)(const void*, void*, std::size_t, int, void*, cudaStream_t);
    int (*ncclBroadcast)(const void*, void*, std::size_t, int, int, void*, cudaStream_t);
};

Nccl::Nccl(const std::string& path) : functions_(std::make_shared<Functions>()) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); // never closed: NCCL keeps threads
    if (library == nullptr) {
        throw DeviceError("NCCL could not be loaded (" + std::string(dlerror()) + "); pip install nvidia-nccl-cu13 or nvidia-nccl-cu12");
    }
    const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
        if (function == nullptr) throw DeviceError(path + " has no " + name + "; NCCL 2.14 or later is needed");
    };
    Functions& f = *functions_;
#define FIND(name) find(f.name, #name)
    FIND(ncclGetVersion), FIND(ncclGetUniqueId), FIND(ncclGetErrorString), FIND(ncclGetLastError);
    FIND(ncclCommInitRankConfig), FIND(ncclCommGetAsyncError), FIND(ncclCommAbort);
    FIND(ncclGroupStart), FIND(ncclGroupEnd), FIND(ncclSend), FIND(ncclRecv), FIND(ncclAllGather), FIND(ncclBroadcast);
#undef FIND
    check("ncclGetVersion", f.ncclGetVersion(&version_));
}

const Nccl& Nccl::load(const std::string& path) {
    static const Nccl nccl(path);
    return nccl;
}

void Nccl::check(const char* call, int result) const {
    if (result == kSuccess) return;
    throw DeviceError(std::string(call) + ": " + functions_->ncclGetErrorString(result) + " (" + functions_->ncclGetLastError(nullptr) + ")");
}

UniqueId Nccl::unique_id() const {
    Id id{};
    check("ncclGetUniqueId", functions_->ncclGetUniqueId(&id));
    UniqueId bytes;
    std::copy(std::begin(id.bytes), std::end(id.bytes), bytes.begin());
    return bytes;
}

Communicator::Communicator(const Nccl& nccl, const UniqueId& id, int rank, int size, int device, double timeout_s, Stop stop)
    : Channel(rank, size), nccl_(nccl), device_(device), timeout_s_(timeout_s), stop_(std::move(stop)) {
    const OnDevice on(device_);
    Id native_id{};
    std::copy(id.begin(), id.end(), native_id.bytes);
    Config config;
    try {
        settle("ncclCommInitRankConfig", nccl_.functions_->ncclCommInitRankConfig(&handle_, size, native_id, rank, &config));
    } catch (...) {
        abort();
        throw;
    }
}

Communicator::~Communicator() {
    // Aborting needs no peer, and by now every run has ended.
    try {
        abort();
    } catch (const DeviceError&) {
    }
}

/// A non-blocking communicator answers "in progress" until a thread of NCCL is done with a call; the host waits for that
/// (not for the device), because NCCL takes no other call before.
void Communicator::settle(const char* call, int result) {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s_);
    auto pause = std::chrono::microseconds(2);
    while (result == kInProgress) {
        nccl_.check("ncclCommGetAsyncError", nccl_.functions_->ncclCommGetAsyncError(handle_, &result));
        if (result != kInProgress) break;
        if (stop_ && stop_()) throw DeviceError(std::string(call) + ": given up, another rank is in trouble");
        if (Clock::now() > deadline) {
            throw DeviceError(std::string(call) + ": not all ranks took part within " + std::to_string(timeout_s_) + " s");
        }
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, std::chrono::microseconds(1000));
    }
    nccl_.check(call, result);
}

void Communicator::check_open() const {
    if (handle_ == nullptr) throw DeviceError("the NCCL communicator was aborted by an earlier failure");
}

void Communicator::exchange(const void* send, void* recv, const Block* blocks, Stream* stream) {
    check_open();
    const OnDevice on(device_);
    const Nccl::Functions& f = *nccl_.functions_;
    const auto* from = static_cast<const char*>(send);
    auto* to = static_cast<char*>(recv);
    const Block& own = blocks[rank_];
    if (own.recv_nbytes > 0 && from + own.send_offset != to + own.recv_offset) {
        CUDA_CHECK(cudaMemcpyAsync(to + own.recv_offset, from + own.send_offset, static_cast<std::size_t>(own.recv_nbytes),
                                   cudaMemcpyDeviceToDevice, native(stream)));
    }
    nccl_.check("ncclGroupStart", f.ncclGroupStart());
    int failed = kSuccess; // the group must be closed even then
    const auto note = [&failed](int result) {
        if (failed == kSuccess && result != kInProgress) failed = result;
    };
    for (int shift = 1; shift < size_; ++shift) {
        const int to_peer = (rank_ + shift) % size_, from_peer = (rank_ - shift + size_) % size_;
        const Block& outgoing = blocks[to_peer];
        const Block& incoming = blocks[from_peer];
        if (outgoing.send_nbytes > 0) {
            note(f.ncclSend(from + outgoing.send_offset, static_cast<std::size_t>(outgoing.send_nbytes), kUint8, to_peer,
                            handle_, native(stream)));
        }
        if (incoming.recv_nbytes > 0) {
            note(f.ncclRecv(to + incoming.recv_offset, static_cast<std::size_t>(incoming.recv_nbytes), kUint8, from_peer,
                            handle_, native(stream)));
        }
    }
    const int ended = f.ncclGroupEnd();
    nccl_.check("ncclSend or ncclRecv", failed);
    settle("ncclGroupEnd of an exchange", ended);
}

void Communicator::all_gather(const void* send, void* recv, std::int64_t nbytes, Stream* stream) {
    check_open();
    const OnDevice on(device_);
    settle("ncclAllGather", nccl_.functions_->ncclAllGather(send, recv, static_cast<std::size_t>(nbytes), kUint8, handle_, native(stream)));
}

void Communicator::broadcast(const void* send, void* recv, std::int64_t nbytes, int root, Stream* stream) {
    check_open();
    const OnDevice on(device_);
    settle("ncclBroadcast", nccl_.functions_->ncclBroadcast(send, recv, static_cast<std::size_t>(nbytes), kUint8, root, handle_, native(stream)));
}

std::string Communicator::failure() const {
    if (handle_ == nullptr) return "the communicator was aborted";
    int result = kSuccess;
    nccl_.check("ncclCommGetAsyncError", nccl_.functions_->ncclCommGetAsyncError(handle_, &result));
    if (result == kSuccess || result == kInProgress) return "";
    return std::string(nccl_.functions_->ncclGetErrorString(result)) + " (" + nccl_.functions_->ncclGetLastError(handle_) + ")";
}

void Communicator::abort() {
    if (handle_ == nullptr) return;
    void* const handle = handle_;
    handle_ = nullptr;
    nccl_.check("ncclCommAbort", nccl_.functions_->ncclCommAbort(handle));
}

} // namespace edgedit::cuda
