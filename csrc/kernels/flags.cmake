# Flags of the kernel families, one translation unit each. Properties of source files hold in one directory only:
# whoever compiles them includes this.
#
# Contraction would round differently from one unrolled copy of a loop to the next; where one rounding is wanted, the
# code says fma.
set(edgedit_kernels ${CMAKE_CURRENT_LIST_DIR})
set(flags -ffp-contract=off)
set_property(SOURCE ${edgedit_kernels}/portable.cpp PROPERTY COMPILE_OPTIONS ${flags} -Wno-psabi)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set_property(SOURCE ${edgedit_kernels}/avx2.cpp ${edgedit_kernels}/onednn/family.cpp PROPERTY COMPILE_OPTIONS
    ${flags} -mavx2 -mfma -mf16c)
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag("-mavx512bf16 -mavx512vnni" EDGEDIT_HAVE_AVX512)
  if(EDGEDIT_HAVE_AVX512)
    # GCC 12 warns of its own intrinsics, which start from a value that is undefined on purpose.
    set_property(SOURCE ${edgedit_kernels}/avx512.cpp PROPERTY COMPILE_OPTIONS ${flags}
      -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vnni
      -Wno-maybe-uninitialized)
  endif()
endif()
