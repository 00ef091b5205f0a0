/* N programs at once that make what they write durable, call by call: the loads of scripts/bench/ssd.py.
 *
 *   synced DIRECTORY append|random|create BYTES WRITERS SECONDS
 *       each writer is a process with files of its own: appends BYTES and calls fsync; writes BYTES at a random place of
 *       16 MiB and calls fsync; makes a file of BYTES and calls fsync
 *   synced DIRECTORY floor BYTES WRITERS SECONDS
 *       what a commit costs at least: threads of one process hand in BYTES each, and one of them writes what all who wait have, at the next place of a file
 *       that is written already, with O_DIRECT and RWF_DSYNC, rounded up to 4 KiB (a group commit with nothing around it)
 *
 * Prints calls a second of all writers, and median and 99th percentile of a call in us. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WRITERS_MAX 64
#define CALLS_MAX 100000
#define FILE_BYTES (16L << 20)
#define FLOOR_BYTES (256L << 20)
#define BATCH_BYTES (4L << 20)

struct results {
    volatile int ready, go;
    int calls[WRITERS_MAX];
    float us[WRITERS_MAX][CALLS_MAX];
};
static struct results *all;
static const char *directory, *what;
static long bytes;
static int writers;
static double seconds;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *of)
{
    perror(of);
    exit(1);
}

static int opened(const char *format, int writer, int number, int flags)
{
    char name[64], path[4096];
    snprintf(name, sizeof name, format, writer, number);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, flags, 0644);
    if (fd < 0)
        fail(path);
    return fd;
}

/* Counts one call; 0 once the time is over. */
static int noted(int writer, double begin, double until)
{
    double end = now();
    if (all->calls[writer] < CALLS_MAX)
        all->us[writer][all->calls[writer]] = (end - begin) * 1e6;
    all->calls[writer]++;
    return end < until;
}

static void wait_for_all(void)
{
    __sync_fetch_and_add(&all->ready, 1);
    while (!all->go)
        usleep(200);
}

static void work(int writer)
{
    char *data = aligned_alloc(4096, 1 << 20);
    memset(data, 'a' + writer % 26, 1 << 20);
    unsigned long state = 88172645463325252u + writer;
    int create = !strcmp(what, "create"), random = !strcmp(what, "random");
    int fd = create ? -1 : opened("writer-%d", writer, 0, O_CREAT | O_RDWR | (random ? 0 : O_APPEND));
    for (long at = 0; random && at < FILE_BYTES; at += 1 << 20)
        if (pwrite(fd, data, 1 << 20, at) != 1 << 20)
            fail("write");
    if (fd >= 0 && fsync(fd) != 0)
        fail("fsync");
    wait_for_all();
    double begin, until = now() + seconds;
    do {
        begin = now();
        if (create)
            fd = opened("made-%d-%d", writer, all->calls[writer], O_CREAT | O_EXCL | O_WRONLY);
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        long at = state % (FILE_BYTES / bytes) * bytes;
        if ((random ? pwrite(fd, data, bytes, at) : write(fd, data, bytes)) != bytes)
            fail("write");
        if (fsync(fd) != 0 || (create && close(fd) != 0))
            fail("fsync");
    } while (noted(writer, begin, until));
}

/* Guarded by `lock`: callers hand in and get a number; all below `done` are on the device. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long handed, done, place;
static int writing, floor_fd;
static char *batch;

static void commit(void)
{
    pthread_mutex_lock(&lock);
    long mine = ++handed;
    while (done < mine) {
        if (writing) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        writing = 1;
        long upto = handed, size = ((upto - done) * bytes + 4095) / 4096 * 4096;
        pthread_mutex_unlock(&lock);
        if (place + size > FLOOR_BYTES)
            place = 0;
        struct iovec v = { batch, size };
        if (pwritev2(floor_fd, &v, 1, place, RWF_DSYNC) != size)
            fail("write");
        place += size;
        pthread_mutex_lock(&lock);
        writing = 0;
        done = upto;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
}

static void *hand_in(void *number)
{
    int writer = (int)(long)number;
    wait_for_all();
    double begin, until = now() + seconds;
    do {
        begin = now();
        commit();
    } while (noted(writer, begin, until));
    return NULL;
}

static void begin_floor(void)
{
    batch = aligned_alloc(4096, BATCH_BYTES);
    memset(batch, 'f', BATCH_BYTES);
    floor_fd = opened("floor", 0, 0, O_CREAT | O_RDWR | O_DIRECT);
    for (long at = 0; at < FLOOR_BYTES; at += BATCH_BYTES)
        if (pwrite(floor_fd, batch, BATCH_BYTES, at) != BATCH_BYTES)
            fail("write");
    if (fsync(floor_fd) != 0)
        fail("fsync");
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    directory = argv[1], what = argv[2], bytes = atol(argv[3]), writers = atoi(argv[4]), seconds = atof(argv[5]);
    int is_floor = !strcmp(what, "floor");
    if (writers < 1 || writers > WRITERS_MAX || bytes < 1 || bytes > 65536
        || (!is_floor && strcmp(what, "append") && strcmp(what, "random") && strcmp(what, "create")))
        return 2;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        fail("mmap");
    if (is_floor)
        begin_floor();
    pthread_t threads[WRITERS_MAX];
    for (long n = 0; n < writers; n++) {
        if (is_floor) {
            pthread_create(&threads[n], NULL, hand_in, (void *)n);
        } else if (fork() == 0) {
            work(n);
            exit(0);
        }
    }
    while (all->ready < writers)
        if (!is_floor && waitpid(-1, NULL, WNOHANG) > 0)
            return 1;
        else
            usleep(1000);
    double begin = now();
    all->go = 1;
    int status, bad = 0;
    for (int n = 0; n < writers; n++) {
        if (is_floor)
            pthread_join(threads[n], NULL);
        else if (wait(&status) < 0 || status != 0)
            bad = 1;
    }
    double took = now() - begin;
    long calls = 0, kept = 0;
    float *us = malloc(sizeof(float) * CALLS_MAX * (size_t)writers);
    for (int n = 0; n < writers; n++) {
        long of = all->calls[n] < CALLS_MAX ? all->calls[n] : CALLS_MAX;
        memcpy(us + kept, all->us[n], of * sizeof(float));
        kept += of, calls += all->calls[n];
    }
    if (bad || kept == 0)
        return 1;
    qsort(us, kept, sizeof(float), by_value);
    printf("%.0f %.1f %.1f\n", calls / took, us[kept / 2], us[kept * 99 / 100]);
    return 0;
}
