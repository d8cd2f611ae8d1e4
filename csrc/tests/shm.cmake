# The shm transport between processes (plain and under AddressSanitizer with UBSan) and between threads (plain and
# under ThreadSanitizer, where its runtime can start). EDGEDIT_EXCHANGES sets how many exchanges each does.
include(CheckCXXSourceRuns)
find_package(Threads REQUIRED)

set(CMAKE_REQUIRED_FLAGS "-fsanitize=thread")
check_cxx_source_runs("int main() { return 0; }" EDGEDIT_HAVE_THREAD_SANITIZER)
unset(CMAKE_REQUIRED_FLAGS)

add_core_test(test_shm_processes)

add_executable(test_shm_threads test_shm_threads.cpp)
target_link_libraries(test_shm_threads PRIVATE edgedit_core Threads::Threads)
target_compile_options(test_shm_threads PRIVATE -Wall -Wextra)
add_test(NAME test_shm_threads COMMAND test_shm_threads)
if(EDGEDIT_HAVE_THREAD_SANITIZER)
  set(transport_sources channels counter shm_transport transport watch)
  list(TRANSFORM transport_sources REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/csrc/transport/\\1.cpp")
  add_executable(test_shm_threads_sanitized test_shm_threads.cpp ${transport_sources})
  target_include_directories(test_shm_threads_sanitized PRIVATE ${PROJECT_SOURCE_DIR}/csrc)
  target_compile_options(test_shm_threads_sanitized PRIVATE -Wall -Wextra -O1 -g -fsanitize=thread)
  target_link_options(test_shm_threads_sanitized PRIVATE -fsanitize=thread)
  target_link_libraries(test_shm_threads_sanitized PRIVATE Threads::Threads)
  add_test(NAME test_shm_threads_sanitized COMMAND test_shm_threads_sanitized)
endif()
