#include "transport/segment.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace edgedit::transport {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

std::string unused_name() {
    static std::atomic<unsigned> count{0};
    return "/dev/shm/edgedit-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

} // namespace

Segment Segment::create(std::size_t nbytes, bool named) {
    std::string path;
    int descriptor = -1;
    if (named) {
        path = unused_name();
        descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    } else {
        descriptor = memfd_create("edgedit", MFD_CLOEXEC);
        path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor);
    }
    if (descriptor < 0) refuse(named ? "creating " + path : "memfd_create");
    Segment segment(descriptor, nbytes, std::move(path), named);
    if (ftruncate(descriptor, static_cast<off_t>(nbytes)) != 0) {
        refuse("sizing a shared segment to " + std::to_string(nbytes) + " bytes");
    }
    // A file system that is too small for the segment would only say so by a signal, when its memory is first written.
    if (const int error = named ? posix_fallocate(descriptor, 0, static_cast<off_t>(nbytes)) : 0; error != 0) {
        errno = error;
        refuse("reserving " + std::to_string(nbytes) + " bytes of /dev/shm");
    }
    void* address = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) refuse("mapping a shared segment of " + std::to_string(nbytes) + " bytes");
    segment.data_ = static_cast<std::byte*>(address);
    return segment;
}

Segment Segment::open(const std::string& path, std::size_t nbytes) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) refuse("opening " + path);
    Segment segment(descriptor, nbytes, path, false);
    struct stat facts{};
    if (fstat(descriptor, &facts) != 0 || static_cast<std::size_t>(facts.st_size) != nbytes) {
        throw std::runtime_error(path + " is no shared segment of " + std::to_string(nbytes) + " bytes");
    }
    void* address = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) refuse("mapping " + path);
    segment.data_ = static_cast<std::byte*>(address);
    segment.forget_path();
    return segment;
}

Segment::Segment(int descriptor, std::size_t nbytes, std::string path, bool named)
    : nbytes_(nbytes), path_(std::move(path)), descriptor_(descriptor), named_(named) {}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), nbytes_(other.nbytes_), path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)), named_(std::exchange(other.named_, false)) {}

Segment::~Segment() {
    forget_path();
    if (data_ != nullptr) munmap(data_, nbytes_);
}

void Segment::forget_path() {
    if (named_) unlink(path_.c_str());
    if (descriptor_ >= 0) ::close(descriptor_);
    named_ = false;
    descriptor_ = -1;
    path_.clear();
}

} // namespace edgedit::transport
