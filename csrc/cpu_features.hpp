// Which vector and matrix extensions this processor and its operating system offer.
#pragma once

#include <utility>
#include <vector>

namespace edgedit {

/// Names in the order of their age, each with whether it can be used; empty on other than x86-64.
std::vector<std::pair<const char*, bool>> cpu_features();

} // namespace edgedit
