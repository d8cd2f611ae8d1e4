#include "cuda/peer.hpp"

#include <algorithm>
#include <cstring>

#include "cuda/check.hpp"

namespace edgedit::cuda {
namespace {

constexpr int kSlots = 2;
constexpr std::int64_t kFlagsNbytes = 4096, kLine = 128;
// CUDA shares whole allocations of this size with another process; a smaller block would share it with strangers.
constexpr std::int64_t kGranularity = std::int64_t{2} << 20;

enum Flag { posted, emptied };

std::uint32_t* flag(char* block, Flag which, int slot) {
    return reinterpret_cast<std::uint32_t*>(block + (which * kSlots + slot) * kLine);
}

char* slot_of(char* block, int slot, std::int64_t slot_nbytes) { return block + kFlagsNbytes + slot * slot_nbytes; }

/// One thread: returns when the count has been reached or the host says stop. Counts wrap, hence the difference.
__global__ void await_count(const volatile std::uint32_t* count, std::uint32_t target, const volatile int* stop) {
    while (static_cast<std::int32_t>(*count - target) < 0 && *stop == 0) __nanosleep(500);
    __threadfence_system();
}

/// The copies before it on the stream are done; makes that visible to the peer.
__global__ void raise_count(volatile std::uint32_t* count, std::uint32_t value) {
    __threadfence_system();
    *count = value;
    __threadfence_system();
}

void copy_async(void* to, const void* from, std::int64_t nbytes, cudaStream_t stream) {
    if (nbytes == 0 || to == from) return;
    CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(nbytes), cudaMemcpyDefault, stream));
}

} // namespace

PeerChannel::PeerChannel(int rank, int device, std::int64_t slot_nbytes)
    : Channel(rank, 2), device_(device), slot_nbytes_((slot_nbytes + 255) / 256 * 256) {
    const OnDevice on(device_);
    const std::int64_t nbytes = (kFlagsNbytes + kSlots * slot_nbytes_ + kGranularity - 1) / kGranularity * kGranularity;
    try {
        CUDA_CHECK(cudaMalloc(&own_, static_cast<std::size_t>(nbytes)));
        CUDA_CHECK(cudaMemset(own_, 0, kFlagsNbytes));
        CUDA_CHECK(cudaHostAlloc(&stop_, sizeof(int), cudaHostAllocMapped));
        *stop_ = 0;
        CUDA_CHECK(cudaDeviceSynchronize()); // the flags are 0 before the peer hears of them
    } catch (...) {
        release();
        throw;
    }
}

PeerChannel::~PeerChannel() {
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(device_);
    abort();
    cudaDeviceSynchronize();
    release();
    cudaSetDevice(before);
}

void PeerChannel::release() {
    if (peer_ != nullptr) cudaIpcCloseMemHandle(peer_);
    if (own_ != nullptr) cudaFree(own_);
    if (stop_ != nullptr) cudaFreeHost(stop_);
}

IpcHandle PeerChannel::handle() const {
    static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(IpcHandle));
    const OnDevice on(device_);
    cudaIpcMemHandle_t native_handle;
    CUDA_CHECK(cudaIpcGetMemHandle(&native_handle, own_));
    IpcHandle bytes;
    std::memcpy(bytes.data(), &native_handle, sizeof native_handle);
    return bytes;
}

void PeerChannel::open(const IpcHandle& peer_handle) {
    const OnDevice on(device_);
    cudaIpcMemHandle_t native_handle;
    std::memcpy(&native_handle, peer_handle.data(), sizeof native_handle);
    void* address = nullptr;
    CUDA_CHECK(cudaIpcOpenMemHandle(&address, native_handle, cudaIpcMemLazyEnablePeerAccess));
    peer_ = static_cast<char*>(address);
}

void PeerChannel::exchange(const void* send, void* recv, const Block* blocks, Stream* stream) {
    if (peer_ == nullptr) throw DeviceError("the cuda-ipc channel was not opened");
    if (*stop_ != 0) throw DeviceError("the cuda-ipc channel was stopped by an earlier failure");
    const OnDevice on(device_);
    const Block& own = blocks[rank_];
    const Block& other = blocks[1 - rank_];
    if (std::max(other.send_nbytes, other.recv_nbytes) > slot_nbytes_) {
        throw DeviceError("an exchange of " + std::to_string(std::max(other.send_nbytes, other.recv_nbytes)) +
                          " bytes over cuda-ipc, whose slots have " + std::to_string(slot_nbytes_));
    }
    const cudaStream_t on_stream = native(stream);
    const auto* from = static_cast<const char*>(send);
    auto* to = static_cast<char*>(recv);
    copy_async(to + own.recv_offset, from + own.send_offset, own.recv_nbytes, on_stream);

    const int slot = static_cast<int>(uses_ % kSlots);
    const std::uint32_t turn = uses_ / kSlots; // earlier uses of this slot
    ++uses_;
    await_count<<<1, 1, 0, on_stream>>>(flag(own_, emptied, slot), turn, stop_);
    CUDA_CHECK_LAUNCH("await_count");
    copy_async(slot_of(peer_, slot, slot_nbytes_), from + other.send_offset, other.send_nbytes, on_stream);
    raise_count<<<1, 1, 0, on_stream>>>(flag(peer_, posted, slot), turn + 1);
    CUDA_CHECK_LAUNCH("raise_count");
    await_count<<<1, 1, 0, on_stream>>>(flag(own_, posted, slot), turn + 1, stop_);
    CUDA_CHECK_LAUNCH("await_count");
    copy_async(to + other.recv_offset, slot_of(own_, slot, slot_nbytes_), other.recv_nbytes, on_stream);
    raise_count<<<1, 1, 0, on_stream>>>(flag(peer_, emptied, slot), turn + 1);
    CUDA_CHECK_LAUNCH("raise_count");
}

void PeerChannel::all_gather(const void* send, void* recv, std::int64_t nbytes, Stream* stream) {
    const Block blocks[2] = {{0, nbytes, 0, nbytes}, {0, nbytes, nbytes, nbytes}};
    exchange(send, recv, blocks, stream);
}

void PeerChannel::broadcast(const void* send, void* recv, std::int64_t nbytes, int root, Stream* stream) {
    Block blocks[2] = {};
    if (rank_ == root) {
        blocks[rank_] = {0, nbytes, 0, nbytes};
        blocks[1 - rank_] = {0, nbytes, 0, 0};
    } else {
        blocks[root] = {0, 0, 0, nbytes};
    }
    exchange(send, recv, blocks, stream);
}

std::string PeerChannel::failure() const { return *stop_ != 0 ? "the channel was stopped" : ""; }

void PeerChannel::abort() {
    if (stop_ != nullptr) *static_cast<volatile int*>(stop_) = 1;
}

} // namespace edgedit::cuda
