// The one assertion of the C++ tests: prints what failed and where, then ends the program with status 1.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition, ...)                                                                  \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s failed: ", __FILE__, __LINE__, #condition);        \
            std::fprintf(stderr, __VA_ARGS__);                                                 \
            std::fprintf(stderr, "\n");                                                        \
            std::exit(1);                                                                      \
        }                                                                                      \
    } while (0)
