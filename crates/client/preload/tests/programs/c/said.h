/* Says what each call gave: its text and its result, or why it failed. */
#ifndef SAID_H
#define SAID_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

static long said(const char *what, long result) {
    if (result < 0)
        printf("%s: %s\n", what, strerror(errno));
    else
        printf("%s: %ld\n", what, result);
    fflush(stdout);
    return result;
}
#define SAY(call) said(#call, (long)(call))
// Of calls whose result is a descriptor: whether there is one.
#define OPENS(fd, call) ((fd) = (call), said(#call, (fd) < 0 ? -1 : 0))

#endif
