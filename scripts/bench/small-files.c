/* Loads of scripts/bench/run-beside-mount.sh.
 *
 *   small-files mail DIRECTORY FILES ROUNDS   a mail server's: of FILES files each round takes one away, makes it
 *                                             anew (16 KiB in two appends, fsync), appends to another one (4 KiB,
 *                                             fsync), reads that and a third
 *   small-files calls FILE CALLS BYTES        CALLS each of pwrite and pread of BYTES on one file, at places of 64 MiB
 *
 * Prints operations a second (of `mail` rounds of four, of `calls` calls). */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char data[1 << 20];
static uint64_t state = 88172645463325252u;

static uint64_t any(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int opened(const char *dir, uint64_t n, int flags)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/mail-%06lu", dir, (unsigned long)n);
    int fd = open(path, flags, 0600);
    if (fd < 0)
        fail(path);
    return fd;
}

static void put(int fd, size_t bytes)
{
    if (write(fd, data, bytes) != (ssize_t)bytes)
        fail("write");
}

static void done_with(int fd)
{
    if (fsync(fd) != 0 || close(fd) != 0)
        fail("fsync");
}

static void whole(int fd)
{
    ssize_t n;
    while ((n = read(fd, data, sizeof data)) > 0)
        ;
    if (n < 0 || close(fd) != 0)
        fail("read");
}

static void make(const char *dir, uint64_t n)
{
    int fd = opened(dir, n, O_CREAT | O_EXCL | O_WRONLY | O_APPEND);
    put(fd, 8192);
    put(fd, 8192);
    done_with(fd);
}

static uint64_t mail(const char *dir, uint64_t files, uint64_t rounds)
{
    char path[4096];
    for (uint64_t n = 0; n < files; n++)
        make(dir, n);
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t n = any(files), other = any(files);
        snprintf(path, sizeof path, "%s/mail-%06lu", dir, (unsigned long)n);
        if (unlink(path) != 0)
            fail(path);
        make(dir, n);
        int fd = opened(dir, other, O_WRONLY | O_APPEND);
        put(fd, 4096);
        done_with(fd);
        whole(opened(dir, other, O_RDONLY));
        whole(opened(dir, any(files), O_RDONLY));
    }
    return files + 4 * rounds;
}

static uint64_t calls(const char *path, uint64_t count, size_t bytes)
{
    int fd = open(path, O_CREAT | O_RDWR, 0600);
    if (fd < 0 || bytes > sizeof data)
        fail(path);
    uint64_t places = (64u << 20) / bytes;
    for (uint64_t n = 0; n < count; n++)
        if (pwrite(fd, data, bytes, (off_t)(any(places) * bytes)) != (ssize_t)bytes)
            fail("pwrite");
    for (uint64_t n = 0; n < count; n++)
        if (pread(fd, data, bytes, (off_t)(any(places) * bytes)) < 0)
            fail("pread");
    close(fd);
    return 2 * count;
}

int main(int count, char **args)
{
    struct timespec begin, end;
    if (count != 5)
        return 2;
    memset(data, 'x', sizeof data);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    uint64_t first = strtoull(args[3], NULL, 10), second = strtoull(args[4], NULL, 10);
    uint64_t done = args[1][0] == 'm' ? mail(args[2], first, second) : calls(args[2], first, second);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double s = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    printf("%.0f\n", (double)done / s);
    return 0;
}
