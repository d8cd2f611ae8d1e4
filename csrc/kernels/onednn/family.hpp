// The family "onednn": linear layers by oneDNN, everything else by a family of ours.
#pragma once

#include "kernels/kernels.hpp"

namespace edgedit::kernels {

/// The family on top of `base`, which the processor runs; null where oneDNN is not to be had or has no products of
/// what `base` multiplies. There is one such family at a time.
const Kernels* onednn_kernels(const Kernels& base);

} // namespace edgedit::kernels
