/* Adds one to a counter in a file, under a lock of the file, again and again.
 *
 *   locks FILE KIND ROUNDS      KIND: posix, ofd (both of a range of bytes), flock;
 *                               none, to see that the count is wrong then
 *
 * The lock's hand-over has to be the data's: whoever has it reads what the last one wrote. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int fd;

static void must(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "locks: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void lock(const char *kind, int take)
{
    if (!strcmp(kind, "none"))
        return;
    if (!strcmp(kind, "flock")) {
        must(flock(fd, take ? LOCK_EX : LOCK_UN) == 0, "flock");
        return;
    }
    struct flock range = { .l_type = take ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET, .l_start = 4096, .l_len = 8 };
    int command = !strcmp(kind, "ofd") ? F_OFD_SETLKW : F_SETLKW;
    while (fcntl(fd, command, &range) != 0)
        must(errno == EINTR, "fcntl");
}

int main(int count, char **arguments)
{
    must(count == 4, "usage: locks FILE KIND ROUNDS");
    fd = open(arguments[1], O_RDWR | O_CREAT, 0600);
    must(fd >= 0, "open");
    for (long round = atol(arguments[3]); round > 0; round--) {
        char text[32] = "";
        lock(arguments[2], 1);
        must(pread(fd, text, sizeof text - 1, 4096) >= 0, "read");
        int bytes = snprintf(text, sizeof text, "%ld\n", atol(text) + 1);
        must(pwrite(fd, text, bytes, 4096) == bytes, "write");
        lock(arguments[2], 0);
    }
    return 0;
}
