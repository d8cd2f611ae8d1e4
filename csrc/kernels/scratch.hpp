// Memory that a thread keeps for its kernels.
#pragma once

#include <cstddef>

namespace edgedit::kernels {

/// What of a kernel the memory is for: each has its own, so that they can be held at the same time.
enum class Scratch : int { rows, panels, sums, values, count };

/// At least `nbytes` of this thread, aligned to 64 bytes. It grows and is never given back before the thread ends; what
/// stands in it is lost when it grows. Ends the process if there is no memory.
void* scratch(Scratch use, std::size_t nbytes);

} // namespace edgedit::kernels
