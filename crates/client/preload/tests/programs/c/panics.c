/* Calls of several threads whose results and effects are certain, whatever serves them.
 * panics DIR THREADS */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROUNDS = 120, LINE = 32, LONG = 4096 };
static const char *dir;
static int threads, shared;

static int in_dir(const char *name, int thread, int flags) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s%d", dir, name, thread);
    return open(path, flags | O_CREAT | O_CLOEXEC, 0644);
}

static off_t size(int fd) {
    struct stat found = {0};
    CHECK(fstat(fd, &found) == 0);
    return found.st_size;
}

/* The line of a round. */
static void make(char *line, int thread, int round) {
    memset(line, '.', LINE);
    line[snprintf(line, LINE, "thread %d line %d", thread, round)] = ' ';
    line[LINE - 1] = '\n';
}

static void check(int fd, int thread) {
    char line[LINE], found[LINE];
    CHECK(size(fd) == ROUNDS * LINE);
    for (int i = 0; i < ROUNDS; i++) {
        make(line, thread, i);
        CHECK(pread(fd, found, LINE, i * LINE) == LINE && memcmp(line, found, LINE) == 0);
    }
}

static void *thread(void *arg) {
    int me = (int)(long)arg;
    char line[LINE], found[LINE];
    int appended = in_dir("appended", me, O_RDWR | O_APPEND);
    int written = in_dir("written", me, O_RDWR);
    int placed = in_dir("placed", me, O_RDWR);
    int longer = in_dir("longer", me, O_RDWR);
    CHECK(appended >= 0 && written >= 0 && placed >= 0 && longer >= 0);
    for (int i = 0; i < ROUNDS; i++) {
        make(line, me, i);
        CHECK(write(appended, line, LINE) == LINE);
        CHECK(write(shared, line, LINE) == LINE);
        CHECK(write(written, line, LINE) == LINE);
        CHECK(pwrite(placed, line, LINE, i * LINE) == LINE);
        CHECK(pread(placed, found, LINE, i * LINE) == LINE && memcmp(line, found, LINE) == 0);
        CHECK(lseek(written, 0, SEEK_CUR) == (i + 1) * LINE);
        CHECK(size(appended) == (i + 1) * LINE);
        if (i % 20 == 0) {
            CHECK(pwrite(longer, line, LINE, 0) == LINE);
            CHECK(ftruncate(longer, LONG) == 0);
            CHECK(fallocate(longer, 0, LONG, LONG) == 0);
            CHECK(size(longer) == 2 * LONG);
            CHECK(pread(longer, found, LINE, 0) == LINE && memcmp(line, found, LINE) == 0);
            CHECK(ftruncate(longer, 0) == 0);
        }
    }
    check(appended, me);
    check(written, me);
    check(placed, me);
    CHECK(!close(appended) && !close(written) && !close(placed) && !close(longer));
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    dir = argv[1], threads = atoi(argv[2]);
    shared = in_dir("shared", 0, O_WRONLY | O_APPEND);
    pthread_t all[16];
    for (int i = 0; i < threads; i++) CHECK(!pthread_create(&all[i], NULL, thread, (void *)(long)i));
    for (int i = 0; i < threads; i++) CHECK(!pthread_join(all[i], NULL));
    if (size(shared) != (off_t)threads * ROUNDS * LINE) fprintf(stderr, "shared has %ld bytes, wanted %ld\n", (long)size(shared), (long)threads * ROUNDS * LINE);
    CHECK(size(shared) == (off_t)threads * ROUNDS * LINE);
    return failures != 0;
}
