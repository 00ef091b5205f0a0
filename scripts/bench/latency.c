/* Time of one call, in ns: the median over batches of calls.
 *
 *   latency floor FILE          copies to and from a mapping of the file: what the bytes cost
 *   latency calls FILE          appends to an empty file; reads and writes of a whole one
 *   latency synced FILE         the same, with fdatasync after each write
 *
 * One line for each: operation, bytes, ns. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES (64L << 20) /* twice the last-level cache */
#define BATCH 16

static char *buffer, *mapping;
static int fd, synced;
static long times[1 << 16];

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

__attribute__((target("avx512f"))) static void stream_512(char *to, const char *from, long bytes)
{
    for (long i = 0; i < bytes; i += 64)
        _mm512_stream_si512((void *)(to + i), _mm512_loadu_si512(from + i));
}

static void stream(char *to, const char *from, long bytes)
{
    if (__builtin_cpu_supports("avx512f"))
        stream_512(to, from, bytes);
    else
        for (long i = 0; i < bytes; i += 16)
            _mm_stream_si128((void *)(to + i), _mm_loadu_si128((void *)(from + i)));
    _mm_sfence();
}

static void floor_write(long at, long bytes) { stream(mapping + at, buffer, bytes); }
static void floor_read(long at, long bytes)
{
    memcpy(buffer, mapping + at, bytes);
    __asm__ volatile("" : : "r"(buffer) : "memory");
}
static void check(int good)
{
    if (!good) {
        perror("latency");
        exit(1);
    }
}
static void sync_it(void) { check(!synced || fdatasync(fd) == 0); }
static void call_write(long at, long bytes) { (void)at; check(write(fd, buffer, bytes) == bytes); sync_it(); }
static void call_pwrite(long at, long bytes) { check(pwrite(fd, buffer, bytes, at) == bytes); sync_it(); }
static void call_read(long at, long bytes) { (void)at; check(read(fd, buffer, bytes) == bytes); }
static void call_pread(long at, long bytes) { check(pread(fd, buffer, bytes, at) == bytes); }

static void measure(const char *name, long bytes, void (*one)(long, long))
{
    long calls = FILE_BYTES / bytes, batches = 0;
    if (calls > (synced ? 2000 : 16384))
        calls = synced ? 2000 : 16384;
    if (fd >= 0)
        check(lseek(fd, 0, SEEK_SET) == 0);
    for (long call = 0; call + BATCH <= calls; call += BATCH) {
        long begin = now();
        for (long i = 0; i < BATCH; i++)
            one((call + i) * bytes, bytes);
        times[batches++] = now() - begin;
    }
    qsort(times, batches, sizeof *times, by_value);
    printf("%s %ld %.1f\n", name, bytes, times[batches / 2] / (double)BATCH);
}

/* Makes the file as long as it is read and overwritten. */
static void fill(void)
{
    for (long at = 0; at < FILE_BYTES; at += 1 << 20)
        check(pwrite(fd, buffer, 1 << 20, at) == 1 << 20);
    check(fsync(fd) == 0);
}

int main(int argc, char **argv)
{
    static const long sizes[] = {128, 1024, 4096, 65536};
    if (argc != 3)
        return 2;
    int is_floor = strcmp(argv[1], "floor") == 0;
    synced = strcmp(argv[1], "synced") == 0;
    buffer = aligned_alloc(4096, 1 << 20);
    memset(buffer, 'x', 1 << 20);
    fd = open(argv[2], O_RDWR | O_CREAT, 0644);
    check(fd >= 0);
    fill();
    if (is_floor) {
        mapping = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        check(mapping != MAP_FAILED);
        fd = -1;
    }
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (is_floor) {
            measure("append", sizes[i], floor_write);
            measure("write", sizes[i], floor_write);
            measure("pwrite", sizes[i], floor_write);
            measure("read", sizes[i], floor_read);
            measure("pread", sizes[i], floor_read);
        } else {
            int whole = fd;
            check((fd = open(argv[2], O_RDWR | O_APPEND)) >= 0 && ftruncate(fd, 0) == 0);
            measure("append", sizes[i], call_write);
            check(close(fd) == 0);
            fd = whole;
            fill();
            measure("write", sizes[i], call_write);
            measure("pwrite", sizes[i], call_pwrite);
            measure("read", sizes[i], call_read);
            measure("pread", sizes[i], call_pread);
        }
    }
    return 0;
}
