# Tests of the device side that need no device: where the CUDA kernels find each head, and the executor on a mock.

add_core_test(test_device_maps)
foreach(name test_device_maps test_device_maps_sanitized)
  if(TARGET ${name})
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/csrc/cuda/exchange.cpp)
  endif()
endforeach()

# test_device_executor needs the installed ggml and, for its mock device, ggml's private headers. Those are in no wheel:
# they come from the source distribution of the installed release, downloaded once into the build tree.
include(${PROJECT_SOURCE_DIR}/cmake/GgmlPython.cmake)

function(skip_device_executor reason)
  message(WARNING "test_device_executor is skipped: ${reason}")
  add_test(NAME test_device_executor COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${reason}")
  set_tests_properties(test_device_executor PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: ")
endfunction()

if(NOT GGML_PYTHON_FOUND)
  skip_device_executor("no ggml-python is installed for ${Python_EXECUTABLE}")
  return()
endif()

set(ggml_sources ${PROJECT_BINARY_DIR}/ggml_python-${GGML_PYTHON_VERSION})
set(ggml_private ${ggml_sources}/vendor/ggml/src)
if(NOT EXISTS ${ggml_private}/ggml-backend-impl.h)
  # pip asks a source distribution for its metadata, for which the build tools of this environment serve.
  execute_process(
    COMMAND ${Python_EXECUTABLE} -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation
      --no-binary :all: --dest ${PROJECT_BINARY_DIR} ggml-python==${GGML_PYTHON_VERSION}
    RESULT_VARIABLE status ERROR_VARIABLE output OUTPUT_VARIABLE output)
  set(archive ${PROJECT_BINARY_DIR}/ggml_python-${GGML_PYTHON_VERSION}.tar.gz)
  if(NOT EXISTS ${archive})
    message(STATUS "${output}")
    skip_device_executor("pip could not download the source distribution of ggml-python ${GGML_PYTHON_VERSION}")
    return()
  endif()
  file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${PROJECT_BINARY_DIR}
    PATTERNS "*/vendor/ggml/src/ggml-backend-impl.h" "*/vendor/ggml/src/ggml-impl.h")
endif()

find_package(Threads REQUIRED)
function(add_device_executor_test name)
  add_executable(${name} test_device_executor.cpp ${PROJECT_SOURCE_DIR}/csrc/executor/device_executor.cpp)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/csrc)
  target_include_directories(${name} SYSTEM PRIVATE ${ggml_private})
  target_link_libraries(${name} PRIVATE ggml_python::base ggml_python::cpu Threads::Threads)
  target_compile_options(${name} PRIVATE -Wall -Wextra ${ARGN})
  target_link_options(${name} PRIVATE ${ARGN})
  set_target_properties(${name} PROPERTIES BUILD_RPATH ${GGML_PYTHON_SITE}/ggml/lib)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 60)
endfunction()

add_device_executor_test(test_device_executor)
if(EDGEDIT_HAVE_SANITIZERS)
  add_device_executor_test(test_device_executor_sanitized -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all)
endif()
