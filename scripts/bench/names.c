// Calls about names, each by itself: what they take, in nanoseconds, the median of ROUNDS. names DIR ROUNDS
// And mail: messages that are delivered, read and removed. names DIR ROUNDS mail
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double *took;
static int rounds;
static char bytes[4096];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int made(const char *name) {
    int fd = open(name, O_CREAT | O_EXCL | O_RDWR, 0644);
    if (fd < 0)
        fail(name);
    return fd;
}

static void put(int fd) {
    if (pwrite(fd, bytes, sizeof bytes, 0) != sizeof bytes)
        fail("pwrite");
}

#define EACH(what, ...)                                                                                                                  \
    do {                                                                                                                                 \
        for (int n = 0; n < rounds; n++) {                                                                                               \
            char name[32], other[32];                                                                                                    \
            snprintf(name, sizeof name, "%s%d", "f", n);                                                                                 \
            snprintf(other, sizeof other, "%s%d", "g", n);                                                                               \
            double begun = now();                                                                                                        \
            __VA_ARGS__;                                                                                                                 \
            took[n] = now() - begun;                                                                                                     \
        }                                                                                                                                \
        qsort(took, rounds, sizeof *took, compare);                                                                                      \
        printf("%s %.0f\n", what, took[rounds / 2]);                                                                                     \
    } while (0)
#define OK(call)                                                                                                                         \
    if ((call) < 0)                                                                                                                      \
    fail(#call)

static void mail(void) {
    char name[300], other[64];
    OK(mkdir("tmp", 0700));
    OK(mkdir("new", 0700));
    double begun = now();
    for (int n = 0; n < rounds; n++) {
        snprintf(name, sizeof name, "tmp/%d.message", n);
        snprintf(other, sizeof other, "new/%d.message", n);
        int fd = made(name);
        put(fd);
        OK(fsync(fd));
        OK(close(fd));
        OK(rename(name, other));
        // The reader takes what there is, every twenty messages.
        if (n % 20 != 19)
            continue;
        DIR *listing = opendir("new");
        struct dirent *entry;
        while ((entry = readdir(listing))) {
            if (entry->d_name[0] == '.')
                continue;
            snprintf(name, sizeof name, "new/%s", entry->d_name);
            fd = open(name, O_RDONLY);
            if (fd < 0 || read(fd, bytes, sizeof bytes) != sizeof bytes)
                fail(name);
            OK(close(fd));
            OK(unlink(name));
        }
        closedir(listing);
    }
    printf("message %.0f\n", (now() - begun) / rounds);
    OK(rmdir("tmp"));
    OK(rmdir("new"));
}

int main(int count, char **arguments) {
    struct stat s;
    rounds = atoi(arguments[2]);
    took = calloc(rounds, sizeof *took);
    OK(chdir(arguments[1]));
    if (count > 3) {
        mail();
        return 0;
    }
    // What a process needs to be a client, and pages of what it uses.
    EACH("warm", int fd = made(name); put(fd); OK(close(fd)); OK(unlink(name)));
    EACH("create+close", int fd = made(name); OK(close(fd)));
    EACH("stat", OK(stat(name, &s)));
    EACH("open+close", int fd = open(name, O_RDONLY); OK(fd); OK(close(fd)));
    EACH("rename", OK(rename(name, other)));
    EACH("unlink", OK(unlink(other)));
    EACH("mkdir", OK(mkdir(name, 0755)));
    EACH("rmdir", OK(rmdir(name)));
    EACH("create+4K+unlink", int fd = made(name); put(fd); OK(close(fd)); OK(unlink(name)));
    int database = made("database");
    // A transaction of SQLite's with a rollback journal: journal, data, end.
    EACH("commit", int fd = made("journal"); put(fd); OK(fsync(fd)); put(database); OK(fsync(database)); OK(close(fd)); OK(unlink("journal")));
    OK(close(database));
    OK(unlink("database"));
    return 0;
}
