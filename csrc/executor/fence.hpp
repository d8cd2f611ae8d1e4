// How our own work on a device is ordered against what ggml's stock backend runs there.
//
// ggml gives no access to the stream of a backend, but its events can be recorded and waited for on it. A fence pairs
// one stream of ours with one backend by such events; CUDA implements it, and so does the mock device of the tests.
#pragma once

#include <stdexcept>
#include <string>

namespace edgedit {

/// A queue of device work in order: a cudaStream_t on CUDA, a worker thread in the mock. Opaque here.
struct Stream;

/// A call on the device failed; the message names it.
class DeviceError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Orders `stream()` against a backend. None of the calls waits for the device; each throws DeviceError on failure.
class Fence {
public:
    virtual ~Fence() = default;

    virtual Stream* stream() = 0;

    /// What our stream is given from now on runs after everything that the backend was given so far.
    virtual void enter() = 0;

    /// Remembers under `mark` (0, 1, ...) everything that our stream was given so far.
    virtual void record(int mark) = 0;

    /// What the backend is given from now on runs after what was remembered under `mark`.
    virtual void leave(int mark) = 0;
};

} // namespace edgedit
