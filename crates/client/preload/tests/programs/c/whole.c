/* One write call of many MiB after the other by a child that is killed in the midst of it: the file
   holds what one call wrote, all of it. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 40, PARTS = 9 };

static size_t bytes;
static char *buffers[2];

static ssize_t once(const char *how, int fd, const char *data)
{
    if (strcmp(how, "append") == 0)
        return write(fd, data, bytes);
    if (strcmp(how, "vector") == 0) {
        struct iovec parts[PARTS];
        size_t each = bytes / PARTS;
        for (int n = 0; n < PARTS; n++) {
            parts[n].iov_base = (char *)data + n * each;
            parts[n].iov_len = n < PARTS - 1 ? each : bytes - n * each;
        }
        return pwritev(fd, parts, PARTS, 0);
    }
    return pwrite(fd, data, bytes, strcmp(how, "odd") == 0 ? 100 : 0);
}

/* Writes until it is killed. */
static void child(const char *how, const char *path, int *written)
{
    int flags = O_RDWR | O_CREAT | (strcmp(how, "append") == 0 ? O_APPEND | O_TRUNC : 0);
    int fd = open(path, flags, 0600);
    while (fd >= 0) {
        ssize_t n = once(how, fd, buffers[*written % 2]);
        if (n != (ssize_t)bytes) {
            dprintf(1, "call %d: %zd (errno %d)\n", *written, n, errno);
            _exit(1);
        }
        ++*written;
        if (strcmp(how, "append") == 0 && *written % 4 == 0 && ftruncate(fd, 0) != 0)
            _exit(1);
    }
    _exit(1);
}

/* Whether each call is there as a whole or not at all. */
static int torn(const char *how, const char *path)
{
    int fd = open(path, O_RDONLY);
    off_t at = strcmp(how, "odd") == 0 ? 100 : 0, end = lseek(fd, 0, SEEK_END);
    int bad = fd < 0 || (end - at) % (off_t)bytes != 0;
    char *data = malloc(bytes);
    for (; !bad && at < end; at += bytes) {
        bad |= pread(fd, data, bytes, at) != (ssize_t)bytes;
        bad |= data[0] == 0 || memcmp(data, data + 1, bytes - 1) != 0;
    }
    close(fd);
    free(data);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const char *how = argv[1], *path = argv[2];
    bytes = strtoul(argv[3], NULL, 0);
    for (int n = 0; n < 2; n++) {
        buffers[n] = malloc(bytes);
        memset(buffers[n], 'a' + n, bytes);
    }
    int *written = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int bad = 0;
    srandom(bytes);
    for (int round = 0; round < ROUNDS; round++) {
        *written = 0;
        pid_t pid = fork();
        if (pid == 0)
            child(how, path, written);
        int status = 0, waited = 0;
        while (*(volatile int *)written < 2 && waitpid(pid, &status, WNOHANG) == 0 && waited++ < 20000)
            usleep(1000);
        usleep(random() % 10000);
        kill(pid, SIGKILL);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        bad += torn(how, path);
    }
    if (bad)
        printf("%s of %zu bytes: %d of %d kills left old and new mixed\n", how, bytes, bad, ROUNDS);
    return 0;
}
