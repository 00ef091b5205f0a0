/* Checks of a program that goes on after one that fails. Includers end with `failures != 0`. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>

static int failures;

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            failures++;                                                         \
            printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno);    \
        }                                                                       \
    } while (0)

#endif
