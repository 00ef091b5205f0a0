/* What POSIX says of descriptors, offsets, children and signals, by the way of libc. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

extern char **environ;
static const char *directory;

static int new_file(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
}

static char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static int holds(int fd, const char *expected)
{
    char found[256];
    ssize_t bytes = pread(fd, found, sizeof found, 0);
    return bytes == (ssize_t)strlen(expected) && memcmp(found, expected, bytes) == 0;
}

static int exit_status(pid_t child)
{
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

static void streams(void)
{
    FILE *f = fopen(path_of("stream"), "w+");
    CHECK(f != NULL);
    for (int i = 0; i < 10000; i++)
        fprintf(f, "%d\n", i);
    CHECK(ftell(f) == 48890);
    fseek(f, 0, SEEK_SET);
    int value, wrong = 0;
    for (int i = 0; i < 10000; i++)
        wrong += fscanf(f, "%d", &value) != 1 || value != i;
    CHECK(wrong == 0);
    char line[16];
    fseek(f, -5, SEEK_END);
    CHECK(fgets(line, sizeof line, f) && strcmp(line, "9999\n") == 0);
    CHECK(fclose(f) == 0);
    struct stat status;
    CHECK(stat(path_of("stream"), &status) == 0 && status.st_size == 48890);
    f = fopen(path_of("stream"), "a");
    fputs("end\n", f);
    fclose(f);
    CHECK(stat(path_of("stream"), &status) == 0 && status.st_size == 48894);
}

static void duplicates(void)
{
    int fd = new_file("duplicates");
    int second = dup(fd), third = dup2(fd, 100), fourth = fcntl(fd, F_DUPFD, 200);
    CHECK(write(fd, "abc", 3) == 3 && lseek(second, 0, SEEK_CUR) == 3);
    CHECK(write(third, "def", 3) == 3 && lseek(fourth, 0, SEEK_CUR) == 6);
    close(fd);
    close(third);
    CHECK(write(second, "ghi", 3) == 3 && lseek(fourth, 0, SEEK_CUR) == 9);
    CHECK(holds(fourth, "abcdefghi"));
    close(second);
    CHECK(fcntl(fourth, F_SETFL, O_APPEND) == 0 && fcntl(fourth, F_GETFL) & O_APPEND);
    CHECK(lseek(fourth, 0, SEEK_SET) == 0 && write(fourth, "X", 1) == 1);
    CHECK(lseek(fourth, 0, SEEK_CUR) == 10 && holds(fourth, "abcdefghiX"));
    close(fourth);
    char byte;
    CHECK(read(fourth, &byte, 1) == -1 && errno == EBADF);
    fd = new_file("closed");
    CHECK(close_range(3, ~0U, 0) == 0 && write(fd, "x", 1) == -1 && errno == EBADF);
    fd = new_file("again");
    CHECK(write(fd, "x", 1) == 1 && holds(fd, "x"));
    close(fd);
}

static void children(void)
{
    int fd = new_file("children");
    CHECK(write(fd, "A", 1) == 1);
    for (char c = 'a'; c < 'f'; c++) {
        pid_t child = fork();
        if (child == 0)
            _exit(write(fd, &c, 1) != 1 || lseek(fd, 0, SEEK_CUR) != c - 'a' + 2);
        CHECK(exit_status(child) == 0);
    }
    CHECK(lseek(fd, 0, SEEK_CUR) == 6 && write(fd, "B", 1) == 1 && holds(fd, "AabcdeB"));
    close(fd);
}

static void images(void)
{
    char *echo[] = {"echo", "two", NULL};
    pid_t child;
    int fd = new_file("exec");
    CHECK(write(fd, "one\n", 4) == 4);
    if ((child = fork()) == 0) {
        dup2(fd, 1);
        execvp("echo", echo);
        _exit(1);
    }
    CHECK(exit_status(child) == 0 && write(fd, "three\n", 6) == 6);
    CHECK(holds(fd, "one\ntwo\nthree\n"));
    close(fd);

    posix_spawn_file_actions_t actions;
    fd = new_file("spawn");
    CHECK(write(fd, "one\n", 4) == 4);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    CHECK(posix_spawnp(&child, "echo", &actions, NULL, echo, environ) == 0);
    CHECK(exit_status(child) == 0 && write(fd, "three\n", 6) == 6);
    CHECK(holds(fd, "one\ntwo\nthree\n"));
    close(fd);

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, path_of("opened"), O_CREAT | O_WRONLY, 0644);
    CHECK(posix_spawnp(&child, "echo", &actions, NULL, echo, environ) == 0);
    CHECK(exit_status(child) == 0);
    fd = open(path_of("opened"), O_RDWR);
    CHECK(holds(fd, "two\n"));
    if ((child = vfork()) == 0) {
        execlp("true", "true", NULL);
        _exit(1);
    }
    CHECK(exit_status(child) == 0 && write(fd, "T", 1) == 1 && holds(fd, "Two\n"));
    close(fd);
}

static void vectors_and_sizes(void)
{
    char first[3], second[10];
    struct iovec from[3] = {{"ab", 2}, {"", 0}, {"cdef", 4}};
    struct iovec to[2] = {{first, 3}, {second, 10}};
    struct stat status;
    struct statx extended;
    int fd = new_file("vectors");
    CHECK(writev(fd, from, 3) == 6 && preadv(fd, to, 2, 0) == 6);
    CHECK(memcmp(first, "abc", 3) == 0 && memcmp(second, "def", 3) == 0);
    CHECK(pwritev2(fd, from, 3, -1, RWF_APPEND) == 6 && lseek(fd, 0, SEEK_END) == 12);
    CHECK(pwritev2(fd, from, 1, 0, RWF_SYNC) == 2 && pwritev2(fd, from, 1, 0, RWF_DSYNC | RWF_HIPRI) == 2);
    CHECK(syncfs(fd) == 0 && syncfs(-1) == -1 && errno == EBADF);
    sync();
    /* Flags that nobody knows: done at the offset, or refused. */
    CHECK(lseek(fd, 3, SEEK_SET) == 3 && preadv2(fd, to, 1, -1, 0x40000000) == -1);
    ssize_t done = pwritev2(fd, from, 1, -1, 0x20 /* RWF_NOAPPEND */);
    CHECK(lseek(fd, 0, SEEK_CUR) == (done == -1 ? 3 : 5));
    CHECK(done == -1 || (done == 2 && holds(fd, "abcabfabcdef")));
    CHECK(ftruncate(fd, 5) == 0 && fstat(fd, &status) == 0 && status.st_size == 5);
    CHECK(posix_fallocate(fd, 0, 10000) == 0 && fstat(fd, &status) == 0);
    CHECK(status.st_size == 10000 && S_ISREG(status.st_mode) && status.st_nlink == 1);
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &extended) == 0 && extended.stx_size == 10000);
    CHECK(pread(fd, first, 3, -1) == -1 && errno == EINVAL);
    CHECK(lseek(fd, -1, SEEK_SET) == -1 && errno == EINVAL);
    CHECK(syscall(1 /* write */, fd, NULL, 5) == -1 && errno == EFAULT);
    close(fd);
    fd = open(path_of("vectors"), O_RDONLY);
    CHECK(write(fd, "x", 1) == -1 && errno == EBADF);
    CHECK(ftruncate(fd, 0) == -1 && errno == EINVAL);
    close(fd);
}

static void handed_around(void)
{
    int fd = new_file("from"), other = new_file("to");
    CHECK(write(fd, "hello", 5) == 5 && lseek(fd, 1, SEEK_SET) == 1);
    CHECK(sendfile(other, fd, NULL, 3) == 3);
    CHECK(lseek(fd, 0, SEEK_CUR) == 4 && lseek(other, 0, SEEK_CUR) == 3 && holds(other, "ell"));
    /* The first calls after the kernel had the offset: they have their own. */
    CHECK(sendfile(other, fd, NULL, 1) == 1 && lseek(other, 3, SEEK_SET) == 3);
    char found[8];
    CHECK(pread(fd, found, 2, 0) == 2 && lseek(fd, 0, SEEK_CUR) == 5);
    CHECK(sendfile(fd, other, NULL, 1) == 1 && pwrite(other, "x", 1, 90) == 1);
    CHECK(lseek(other, 0, SEEK_CUR) == 4 && ftruncate(other, 3) == 0 && ftruncate(fd, 5) == 0);
    CHECK(lseek(other, 3, SEEK_SET) == 3);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && copy_file_range(fd, NULL, other, NULL, 5, 0) == 5);
    CHECK(lseek(other, 0, SEEK_CUR) == 8 && holds(other, "ellhello"));

    /* The library does not know which file this is; the kernel knows an older size. */
    struct stat status;
    off_t at = 5;
    snprintf(found, sizeof found, "%d", fd);
    char way[64] = "/proc/self/fd/";
    int same = open(strcat(way, found), O_RDONLY);
    CHECK(fstat(same, &status) == 0 && status.st_size == 5 && pread(same, found, 8, 0) == 5);
    CHECK(pwrite(fd, "more", 4, 5) == 4 && sendfile(other, same, &at, 4) == 4);
    CHECK(ftruncate(other, 8) == 0 && lseek(other, 8, SEEK_SET) == 8 && ftruncate(fd, 5) == 0);
    close(same);

    /* A caller that receives a descriptor shares its offset. */
    int pair[2];
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1,
                             .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &other, sizeof other);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && sendmsg(pair[0], &message, 0) == 1);
    CHECK(recvmsg(pair[1], &message, 0) == 1);
    int received;
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    CHECK(write(received, "!", 1) == 1 && write(other, "?", 1) == 1);
    CHECK(holds(fd, "hello") && holds(other, "ellhello!?"));
    close(received);
    close(other);

    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && memcmp(map, "hello", 5) == 0);
    CHECK(pwrite(fd, "J", 1, 0) == 1 && map[0] == 'J');
    map[1] = 'E';
    CHECK(holds(fd, "JEllo"));
    munmap(map, 4096);
    close(fd);
}

static int signalled;
static volatile int alarms;

static void on_alarm(int number)
{
    (void)number;
    alarms += write(signalled, "s", 1) == 1;
}

static void signals(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/signals", directory);
    signalled = open(path, O_CREAT | O_RDWR | O_TRUNC | O_APPEND, 0644);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, old;
    sigaction(SIGALRM, &action, NULL);
    CHECK(sigaction(SIGALRM, NULL, &old) == 0 && old.sa_handler == on_alarm);
    CHECK(!(old.sa_flags & SA_SIGINFO));
    struct itimerval storm = {{0, 200}, {0, 200}}, quiet = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &storm, NULL);
    int written = 0;
    for (int i = 0; i < 20000; i++)
        written += write(signalled, "w", 1) == 1;
    setitimer(ITIMER_REAL, &quiet, NULL);
    struct stat status;
    fstat(signalled, &status);
    CHECK(written == 20000 && alarms > 0 && status.st_size == written + alarms);
    close(signalled);
}

static void *append_all(void *unused)
{
    char path[512];
    snprintf(path, sizeof path, "%s/threads", directory);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0644);
    for (int i = 0; i < 500; i++)
        CHECK(write(fd, "0123456789", 10) == 10);
    close(fd);
    return unused;
}

static void threads_and_forks(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, append_all, NULL);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            int fd = open(path_of("forks"), O_RDWR | O_CREAT | O_APPEND, 0644);
            _exit(write(fd, "c", 1) != 1);
        }
        CHECK(exit_status(child) == 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    struct stat status;
    CHECK(stat(path_of("threads"), &status) == 0 && status.st_size == 20000);
    CHECK(stat(path_of("forks"), &status) == 0 && status.st_size == 20);
}

/* Its threads have the smallest of stacks. */
static void asynchronous(void)
{
    int fd = new_file("asynchronous");
    struct aiocb blocks[8];
    char data[8][512];
    for (int i = 0; i < 8; i++) {
        memset(&blocks[i], 0, sizeof blocks[i]);
        memset(data[i], '0' + i, sizeof data[i]);
        blocks[i].aio_fildes = fd;
        blocks[i].aio_buf = data[i];
        blocks[i].aio_nbytes = sizeof data[i];
        blocks[i].aio_offset = i * sizeof data[i];
        CHECK(aio_write(&blocks[i]) == 0);
    }
    for (int i = 0; i < 8; i++) {
        while (aio_error(&blocks[i]) == EINPROGRESS)
            usleep(100);
        char byte = 0;
        CHECK(aio_return(&blocks[i]) == 512);
        CHECK(pread(fd, &byte, 1, i * 512 + 511) == 1 && byte == '0' + i);
    }
    close(fd);
}

/* What another process finds locked at `start`; -1: nothing. */
static long locked_from(const char *name, long start)
{
    int ends[2];
    long found = -2;
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_start = start, .l_len = 1};
        int fd = open(path_of(name), O_RDWR);
        found = fcntl(fd, F_GETLK, &lock) != 0 ? -3 : lock.l_type == F_UNLCK ? -1 : lock.l_start;
        _exit(write(ends[1], &found, sizeof found) != sizeof found);
    }
    CHECK(exit_status(child) == 0);
    CHECK(read(ends[0], &found, sizeof found) == sizeof found);
    close(ends[0]);
    close(ends[1]);
    return found;
}

/* Locks that begin at the offset and at the end. */
static void locks(void)
{
    char bytes[2000] = {1};
    int fd = new_file("locked"), left = 0;
    CHECK(write(fd, bytes, 1500) == 1500 && lseek(fd, 1000, SEEK_SET) == 1000);
    CHECK(lockf(fd, F_LOCK, 10) == 0);
    CHECK(locked_from("locked", 1005) == 1000);
    CHECK(locked_from("locked", 5) == -1);
    CHECK(lockf(fd, F_ULOCK, 10) == 0 && locked_from("locked", 1005) == -1);
    CHECK(lseek(fd, 0, SEEK_END) == 1500 && write(fd, bytes, 500) == 500);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -5, .l_len = 10};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    CHECK(locked_from("locked", 2000) == 1995 && locked_from("locked", 1500) == -1);
    CHECK(lseek(fd, 2100, SEEK_SET) == 2100);
    CHECK(ioctl(fd, FIONREAD, &left) == 0 && left == -100);
    close(fd);
}

/* A file mapped by way of a descriptor from /proc, and open by its name. */
static void mapped(void)
{
    char link[64], bytes[8] = "........", seen[8];
    int fd = new_file("both"), other;
    CHECK(ftruncate(fd, 8192) == 0 && pwrite(fd, bytes, 8, 0) == 8);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    other = open(link, O_RDWR);
    char *at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
    CHECK(at != MAP_FAILED && memcmp(at, bytes, 8) == 0);
    memcpy(at + 2, "MAPS", 4);
    CHECK(pread(fd, seen, 8, 0) == 8 && memcmp(seen, "..MAPS..", 8) == 0);
    CHECK(pwrite(fd, "WRIT", 4, 4) == 4 && memcmp(at, "..MAWRIT", 8) == 0);
    CHECK(munmap(at, 8192) == 0);
    close(other);
    close(fd);
}

/* What a child stores to a mapping is read by its parent, though it was not written back. */
static void stored(void)
{
    char bytes[8192] = "before", seen[6];
    int fd, ready[2], done[2];
    CHECK(pipe(ready) == 0 && pipe(done) == 0);
    pid_t child = fork();
    if (child == 0) {
        if (read(done[0], seen, 1) != 1)
            _exit(1);
        int own = open(path_of("stored"), O_RDWR);
        char *at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
        if (at == MAP_FAILED || memcmp(at, "before", 6) != 0)
            _exit(2);
        /* Nobody uses the file through the mount meanwhile. */
        usleep(1200000);
        memcpy(at, "stores", 6);
        if (write(ready[1], "x", 1) != 1 || read(done[0], seen, 1) != 1)
            _exit(3);
        _exit(memcmp(at, "parent", 6) != 0);
    }
    fd = new_file("stored");
    CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes && pread(fd, seen, 6, 0) == 6);
    CHECK(write(done[1], "x", 1) == 1 && read(ready[0], seen, 1) == 1);
    CHECK(pread(fd, seen, 6, 0) == 6 && memcmp(seen, "stores", 6) == 0);
    CHECK(pwrite(fd, "parent", 6, 0) == 6 && write(done[1], "x", 1) == 1);
    CHECK(exit_status(child) == 0);
    close(fd);
}

int main(int argc, char **argv)
{
    directory = argc > 1 ? argv[1] : ".";
    setvbuf(stdout, NULL, _IONBF, 0);
    streams();
    duplicates();
    children();
    images();
    vectors_and_sizes();
    handed_around();
    signals();
    threads_and_forks();
    asynchronous();
    locks();
    mapped();
    stored();
    return failures != 0;
}
