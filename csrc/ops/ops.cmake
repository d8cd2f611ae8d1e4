# The CPU operators, as part of edgedit_core.
target_sources(edgedit_core PRIVATE
  csrc/ops/pack.cpp csrc/ops/receive.cpp csrc/ops/pointwise.cpp csrc/ops/linear.cpp
  csrc/ops/attention.cpp csrc/ops/conv2d.cpp
  csrc/ops/rows.cpp csrc/ops/rows_portable.cpp csrc/ops/rows_avx2.cpp)
