add_core_test(test_kernels_linear)
add_core_test(test_kernels_conv)
add_core_test(test_kernels_attention)
add_core_test(test_kernels_quant)
add_core_test(test_kernels_q8_0)

# oneDNN need not be installed: linear layers once more with a stand-in for it.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  add_library(mock_onednn SHARED mock_onednn.cpp)
  target_include_directories(mock_onednn PRIVATE ${PROJECT_SOURCE_DIR}/csrc)
  target_compile_options(mock_onednn PRIVATE -Wall -Wextra -O1)
  set_target_properties(mock_onednn PROPERTIES OUTPUT_NAME dnnl SOVERSION 3
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/mock_onednn)
  add_dependencies(test_kernels_linear mock_onednn)
  add_test(NAME test_kernels_linear_mock_onednn COMMAND test_kernels_linear)
  set_tests_properties(test_kernels_linear_mock_onednn PROPERTIES
    ENVIRONMENT "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:mock_onednn>;EDGEDIT_CASES=60"
    PASS_REGULAR_EXPRESSION "onednn: 60 linear layers are right")
endif()
