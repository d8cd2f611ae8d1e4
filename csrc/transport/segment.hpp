// Memory that several processes of one host map.
//
// A segment has no name: it is a memfd, which other processes of the same user reach through /proc/PID/fd while its
// creator holds it open. So nothing is left behind, however a process ends. Where the system refuses that way, a named
// one is created instead, whose name goes as soon as all have mapped it.
#pragma once

#include <cstddef>
#include <string>

namespace edgedit::transport {

class Segment {
  public:
    /// Throws std::runtime_error where the system refuses.
    static Segment create(std::size_t nbytes, bool named);
    /// Map a segment of another process by what its `path` is there.
    static Segment open(const std::string& path, std::size_t nbytes);

    Segment(Segment&& other) noexcept;
    Segment& operator=(Segment&&) = delete;
    ~Segment();

    std::byte* data() const { return data_; }
    std::size_t nbytes() const { return nbytes_; }
    /// What other processes open; only until `forget_path`.
    const std::string& path() const { return path_; }
    /// All have mapped it: give up descriptor and name.
    void forget_path();

  private:
    Segment(int descriptor, std::size_t nbytes, std::string path, bool named);

    std::byte* data_ = nullptr;
    std::size_t nbytes_;
    std::string path_;
    int descriptor_;
    bool named_;
};

} // namespace edgedit::transport
