# ggml as the installed ggml-python brings it: targets ggml_python::base and ggml_python::cpu, GGML_PYTHON_FOUND,
# GGML_PYTHON_VERSION and GGML_PYTHON_SITE (the folder that holds the package and include/).
#
# The wheel installs its libraries twice. The pair in ggml/lib is the one that `import ggml` loads; its own CMake package
# points at the other, which would be mapped as a second copy. IMPORTED_NO_SONAME links by name, so that an installed
# extension finds them by the run path $ORIGIN/../ggml/lib.
include_guard(GLOBAL)

find_package(Python QUIET COMPONENTS Interpreter)
set(GGML_PYTHON_FOUND FALSE)
if(Python_Interpreter_FOUND)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "from importlib import metadata as m; d = m.distribution('ggml-python'); print(d.version, d.locate_file(''), sep=';')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    list(GET found 0 GGML_PYTHON_VERSION)
    list(GET found 1 GGML_PYTHON_SITE)
    if(EXISTS ${GGML_PYTHON_SITE}/ggml/lib/libggml-base.so AND EXISTS ${GGML_PYTHON_SITE}/include/ggml.h)
      set(GGML_PYTHON_FOUND TRUE)
      foreach(part base cpu)
        add_library(ggml_python::${part} SHARED IMPORTED GLOBAL)
        set_target_properties(ggml_python::${part} PROPERTIES
          IMPORTED_LOCATION ${GGML_PYTHON_SITE}/ggml/lib/libggml-${part}.so
          IMPORTED_NO_SONAME TRUE
          INTERFACE_INCLUDE_DIRECTORIES ${GGML_PYTHON_SITE}/include)
      endforeach()
    endif()
  endif()
endif()
