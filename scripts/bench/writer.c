/* One process that overwrites a file of its own, block by block, and says what a call took.
 *
 *   writer FILE BYTES CALLS      waits for a byte on its input between filling and writing
 *
 * Prints bytes, median and 99th percentile of single calls in ns, the clock's own time taken off. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES (16L << 20)

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    long bytes = atol(argv[2]), calls = atol(argv[3]), clock = 1 << 20;
    long *times = malloc(calls * sizeof *times);
    char *buffer = aligned_alloc(4096, 1 << 20);
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
    memset(buffer, 'w', 1 << 20);
    memset(times, 0, calls * sizeof *times);
    for (long at = 0; at < FILE_BYTES; at += 1 << 20)
        if (pwrite(fd, buffer, 1 << 20, at) != 1 << 20)
            return 1;
    for (int i = 0; i < 1000; i++) {
        long begin = now(), took = now() - begin;
        clock = took < clock ? took : clock;
    }
    char go;
    if (read(0, &go, 1) != 1)
        return 1;
    for (long i = 0; i < calls; i++) {
        long begin = now();
        if (pwrite(fd, buffer, bytes, i * bytes % FILE_BYTES) != bytes)
            return 1;
        times[i] = now() - begin - clock;
    }
    qsort(times, calls, sizeof *times, by_value);
    printf("%ld %ld %ld\n", bytes, times[calls / 2], times[calls / 100 * 99]);
    return 0;
}
