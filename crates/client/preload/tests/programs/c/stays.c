/* Files that are used little, much, by several at once, and by others: see stays.rs.
 *
 *   stays files DIRECTORY COUNT      makes, writes, syncs, changes, reads and removes small files
 *   stays one FILE COUNT             writes and reads one file
 *   stays shared FILE COUNT          two threads and a child write records at one offset, by descriptors of their own
 *   stays inline FILE COUNT          the same, the child is made without libc
 *   stays appends FILE COUNT         the same, with O_APPEND, one of them by pwrite
 *   stays young FILE COUNT           one descriptor is used much, others of the file hardly, and they see the same
 *   stays mapped FILE COUNT          maps files and lets them grow, while a thread makes the process a client by another
 *   stays asks FILE COUNT            asks about the file by its name between its writes
 *   stays locks FILE COUNT           locks the file for every few writes
 *   stays beside FILE OTHER          becomes a client by FILE, appends to OTHER once, says so, and waits
 */
#define _GNU_SOURCE
#include "check.h"
#include "inline_fork.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORD = 16, WRITERS = 3 };
static int count, appends, without_libc;
static struct writer {
    int number, fd;
} writer[WRITERS];

static int opened(const char *path, int flags)
{
    int fd = open(path, flags, 0644);
    CHECK(fd >= 0);
    return fd;
}

static void files(const char *dir)
{
    char path[4096], data[3000];
    memset(data, 'x', sizeof data);
    for (int n = 0; n < count; n++) {
        snprintf(path, sizeof path, "%s/small-%d", dir, n);
        int fd = opened(path, O_CREAT | O_EXCL | O_WRONLY);
        CHECK(write(fd, data, 1000) == 1000 && write(fd, data, 2000) == 2000);
        CHECK(fsync(fd) == 0 && fchmod(fd, 0600) == 0 && fchown(fd, 0, 0) == 0 && close(fd) == 0);
    }
    for (int n = 0; n < count; n++) {
        snprintf(path, sizeof path, "%s/small-%d", dir, n);
        int fd = opened(path, O_RDONLY);
        CHECK(read(fd, data, sizeof data) == 3000 && read(fd, data, sizeof data) == 0);
        char *map = mmap(NULL, sizeof data, PROT_READ, MAP_PRIVATE, fd, 0);
        CHECK(map != MAP_FAILED && map[2999] == 'x' && munmap(map, sizeof data) == 0);
        CHECK(close(fd) == 0 && (n % 2 == 0 || unlink(path) == 0));
    }
}

static void one(const char *path)
{
    int fd = opened(path, O_CREAT | O_RDWR), n, back;
    for (n = 0; n < count; n++)
        CHECK(pwrite(fd, &n, sizeof n, n * 8L) == sizeof n);
    for (n = 0; n < count; n++)
        CHECK(pread(fd, &back, sizeof back, n * 8L) == sizeof back && back == n);
    close(fd);
}

static void *writes(void *of)
{
    struct writer *w = of;
    char text[64];
    for (int n = 0; n < count; n++) {
        snprintf(text, sizeof text, "%d writes %06d\n", w->number, n);
        ssize_t done = appends && w->number == 1 ? pwrite(w->fd, text, RECORD, 0) : write(w->fd, text, RECORD);
        if (done != RECORD)
            CHECK(!"a record was not written");
    }
    return NULL;
}

static pid_t forked(void)
{
    return without_libc ? inline_fork() : fork();
}

/* Whatever goes over from the mount to the library in between: each record is there once, as a whole, and those of
 * one writer are in order. */
static void together(const char *path)
{
    pthread_t thread[2];
    /* Of the first file that a thread opens the library knows at once whose it is. */
    close(opened(path, O_CREAT | O_RDWR));
    int fd = opened(path, O_RDWR | (appends ? O_APPEND : 0));
    for (int i = 0; i < WRITERS; i++)
        writer[i] = (struct writer){i, i == 0 ? fd : dup(fd)};
    pid_t child = forked();
    if (child == 0) {
        writes(&writer[2]);
        _exit(0);
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&thread[i], NULL, writes, &writer[i]) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    int status, next[WRITERS] = {0};
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) <= (off_t)WRITERS * count * RECORD);
    CHECK(appends || lseek(fd, 0, SEEK_CUR) == (off_t)WRITERS * count * RECORD);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    char text[RECORD + 1] = "";
    for (int n = 0; n < WRITERS * count; n++) {
        int number, record;
        CHECK(read(fd, text, RECORD) == RECORD);
        CHECK(sscanf(text, "%d writes %d\n", &number, &record) == 2 && number >= 0 && number < WRITERS);
        if (record != next[number]++)
            CHECK(!"a record is missing, or there twice");
    }
    CHECK(read(fd, text, RECORD) == 0);
}

/* The first calls on a descriptor are the kernel's: they must not miss what is served by others. */
static void young(const char *path)
{
    close(opened(path, O_CREAT | O_RDWR));
    int much = opened(path, O_RDWR), reads = opened(path, O_RDONLY), seldom = opened(path, O_RDWR), n, back;
    CHECK(write(seldom, "12", 2) == 2 && read(reads, &back, 2) == 2);
    CHECK(lseek(reads, 0, SEEK_SET) == 0 && lseek(seldom, 0, SEEK_SET) == 0);
    int other = dup(reads);
    for (n = 0; n < count; n++) {
        CHECK(pwrite(much, &n, sizeof n, n * 4L) == sizeof n);
        CHECK(read(n % 3 ? reads : other, &back, sizeof back) == sizeof back && back == n);
        if (n % (count / 8) == 0) {
            CHECK(pread(seldom, &back, sizeof back, n * 4L) == sizeof back && back == n);
            CHECK(read(seldom, &back, sizeof back) == sizeof back && back == n / (count / 8));
        }
    }
    pid_t child = fork();
    if (child == 0)
        _exit(read(seldom, &back, sizeof back) != sizeof back || back != 8);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(read(seldom, &back, sizeof back) == sizeof back && back == 9);
}

static void *becomes_client(void *path)
{
    one(path);
    return NULL;
}

enum { PAGE = 4096 };

/* What a child has written behind the end, by a descriptor that both have, is there when its parent maps the file. */
static void mapped_after_child(const char *path)
{
    char page[PAGE];
    memset(page, 'x', sizeof page);
    int fd = opened(path, O_CREAT | O_RDWR), status;
    CHECK(write(fd, page, PAGE) == PAGE);
    pid_t child = fork();
    if (child == 0) {
        for (int n = 0; n < count; n++)
            CHECK(pwrite(fd, "z", 1, PAGE + n % PAGE) == 1);
        _exit(failures != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char *map = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(map != MAP_FAILED && map[0] == 'x' && map[PAGE] == 'z' && map[2 * PAGE - 1] == 'z');
}

/* A mapping sees what is written behind the end that the file had, whenever it was made. */
static void mapped(const char *path)
{
    enum { FILES = 200 };
    char *map[FILES], name[4096], page[PAGE];
    int files[FILES];
    pthread_t thread;
    memset(page, 'x', sizeof page);
    snprintf(name, sizeof name, "%s-child", path);
    mapped_after_child(name);
    CHECK(pthread_create(&thread, NULL, becomes_client, (void *)path) == 0);
    for (int n = 0; n < FILES; n++) {
        snprintf(name, sizeof name, "%s-%d", path, n);
        files[n] = opened(name, O_CREAT | O_RDWR);
        CHECK(write(files[n], page, PAGE) == PAGE);
        map[n] = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, files[n], 0);
        CHECK(map[n] != MAP_FAILED);
        usleep(50);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    for (int n = 0; n < FILES; n++) {
        snprintf(name, sizeof name, "%s-%d", path, n);
        int fd = n % 2 ? files[n] : opened(name, O_RDWR);
        for (int at = PAGE; at < PAGE + 100; at++)
            CHECK(pwrite(fd, "y", 1, at) == 1);
        CHECK(map[n][0] == 'x' && map[n][PAGE] == 'y' && map[n][PAGE + 99] == 'y' && map[n][PAGE + 100] == 0);
    }
}

static void asks(const char *path, int locks)
{
    struct stat status;
    int fd = opened(path, O_CREAT | O_RDWR);
    for (int n = 0; n < count; n++) {
        struct flock lock = {.l_type = n % 8 ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET, .l_len = 1};
        if (locks)
            CHECK(n % 4 || fcntl(fd, F_SETLK, &lock) == 0);
        else
            CHECK(n % 4 || (stat(path, &status) == 0 && status.st_size == n * 100L));
        CHECK(pwrite(fd, path, 1, (n + 1) * 100L - 1) == 1);
    }
    CHECK(stat(path, &status) == 0 && status.st_size == count * 100L);
}

static void beside(const char *path, const char *other)
{
    int fd = opened(other, O_CREAT | O_WRONLY | O_APPEND);
    count = 20000;
    one(path);
    CHECK(write(fd, "beside\n", 7) == 7);
    char end;
    if (write(1, "ready\n", 6) != 6 || read(0, &end, 1) != 0)
        exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    count = atoi(argv[3]);
    appends = !strcmp(argv[1], "appends");
    without_libc = !strcmp(argv[1], "inline");
    if (!strcmp(argv[1], "files"))
        files(argv[2]);
    else if (!strcmp(argv[1], "one"))
        one(argv[2]);
    else if (!strcmp(argv[1], "shared") || appends || without_libc)
        together(argv[2]);
    else if (!strcmp(argv[1], "young"))
        young(argv[2]);
    else if (!strcmp(argv[1], "mapped"))
        mapped(argv[2]);
    else if (!strcmp(argv[1], "beside"))
        beside(argv[2], argv[3]);
    else
        asks(argv[2], !strcmp(argv[1], "locks"));
    return failures != 0;
}
