# The CPU kernels, as part of edgedit_core.
target_sources(edgedit_core PRIVATE
  csrc/kernels/kernels.cpp csrc/kernels/scratch.cpp
  csrc/kernels/avx512.cpp csrc/kernels/avx2.cpp csrc/kernels/portable.cpp
  csrc/kernels/onednn/family.cpp csrc/kernels/onednn/library.cpp csrc/kernels/onednn/matmul.cpp
  csrc/kernels/onednn/probe.cpp)
target_link_libraries(edgedit_core PUBLIC ${CMAKE_DL_LIBS})
include(${CMAKE_CURRENT_LIST_DIR}/flags.cmake)
