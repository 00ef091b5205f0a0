/* What children do with descriptors of their own between vfork and exec changes nothing for their
   parent, and what they pass on has the right offset. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

extern char **environ;
static const char *directory;

static const char *path_of(const char *name)
{
    static _Thread_local char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static int new_file(const char *name, int flags)
{
    return open(path_of(name), O_CREAT | O_RDWR | O_TRUNC | flags, 0644);
}

static int holds(int fd, const char *expected)
{
    char found[256];
    ssize_t bytes = pread(fd, found, sizeof found - 1, 0);
    found[bytes < 0 ? 0 : bytes] = 0;
    if (strcmp(found, expected) != 0)
        printf("found %s\n", found);
    return strcmp(found, expected) == 0;
}

static int ended(pid_t child)
{
    int status = -1;
    return waitpid(child, &status, 0) == child && status == 0;
}

/* A shell that appends "child" to descriptor `to` of its own. */
static char *echo_to(int to)
{
    static char command[64];
    snprintf(command, sizeof command, "printf child >&%d", to);
    return command;
}

static void exec_echo_to(int to)
{
    execl("/bin/bash", "bash", "-c", echo_to(to), NULL);
    _exit(9);
}

static void spawned(posix_spawn_file_actions_t *actions, char *command)
{
    char *arguments[] = {"bash", "-c", command, NULL};
    pid_t child;
    CHECK(posix_spawn(&child, "/bin/bash", actions, NULL, arguments, environ) == 0);
    CHECK(ended(child));
}

/* The child has a pipe where its parent has a file. */
static void replaced(void)
{
    int fd = new_file("replaced", 0), ends[2];
    char got[8] = {0};
    CHECK(pipe(ends) == 0 && write(fd, "0123456789", 10) == 10);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], fd);
    spawned(&actions, echo_to(fd));
    CHECK(read(ends[0], got, 5) == 5 && strcmp(got, "child") == 0);
    CHECK(write(fd, "end", 3) == 3 && holds(fd, "0123456789end"));
    for (int i = 0; i < 100; i++)
        CHECK(lseek(fd, 0, SEEK_CUR) == 13);
    close(fd);
    close(ends[0]);
    close(ends[1]);
}

/* The child has one of its parent's files where its parent has another one. */
static void exchanged(void)
{
    for (int flags = 0; flags <= O_CLOEXEC; flags += O_CLOEXEC) {
        int a = new_file("a", flags), b = new_file("b", flags);
        CHECK(write(a, "0123456789", 10) == 10 && write(b, "abc", 3) == 3);
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, a, b);
        spawned(&actions, echo_to(b));
        CHECK(write(a, "A", 1) == 1 && write(b, "B", 1) == 1);
        CHECK(holds(a, "0123456789childA") && holds(b, "abcB"));
        close(a);
        close(b);
    }
}

/* The child closes a number and opens another file, which gets it. */
static void reopened(void)
{
    int fd = new_file("closed", 0);
    CHECK(write(fd, "0123456789", 10) == 10);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, fd);
    posix_spawn_file_actions_addopen(&actions, fd, path_of("opened"), O_CREAT | O_WRONLY, 0644);
    spawned(&actions, echo_to(fd));
    CHECK(write(fd, "end", 3) == 3 && holds(fd, "0123456789end"));
    close(fd);
    fd = open(path_of("opened"), O_RDONLY);
    CHECK(holds(fd, "child"));
    close(fd);
}

static void by_hand(void)
{
    int fd = new_file("by hand", O_CLOEXEC), other = new_file("other", 0), second;
    CHECK(write(fd, "0123456789", 10) == 10 && write(other, "ab", 2) == 2);
    pid_t child;
    if ((child = vfork()) == 0) {
        second = dup(fd);
        close(fd);
        exec_echo_to(second);
    }
    CHECK(ended(child) && write(fd, "1", 1) == 1);
    if ((child = vfork()) == 0) {
        second = fcntl(fd, F_DUPFD, 50);
        close_range(0, 49, 0);
        exec_echo_to(second);
    }
    CHECK(ended(child) && write(fd, "2", 1) == 1);
    if ((child = vfork()) == 0) {
        if (fcntl(fd, F_SETFD, 0) != 0 || dup2(999, fd) != -1 || execl("/none", "none", NULL) != -1)
            _exit(8);
        exec_echo_to(fd);
    }
    CHECK(ended(child) && write(fd, "3", 1) == 1);
    if ((child = vfork()) == 0)
        _exit(dup2(other, fd) != fd || write(other, "cd", 2) != 2);
    CHECK(ended(child) && write(fd, "4", 1) == 1 && write(other, "e", 1) == 1);
    CHECK(holds(fd, "0123456789child1child2child34") && holds(other, "abcde"));
    close(fd);
    close(other);
}

/* A child of a child, with memory of its own and the child's descriptors. */
static void grandchild(void)
{
    int fd = new_file("grandchild", O_CLOEXEC), other = new_file("other", O_CLOEXEC);
    CHECK(write(fd, "0123456789", 10) == 10 && write(other, "ab", 2) == 2);
    pid_t child = vfork();
    if (child == 0) {
        if (dup2(other, fd) != fd)
            _exit(8);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(write(fd, "child", 5) != 5 || close(fd) != 0 || write(other, "!", 1) != 1);
        _exit(!ended(grandchild));
    }
    CHECK(ended(child) && write(fd, "end", 3) == 3 && write(other, "c", 1) == 1);
    CHECK(holds(fd, "0123456789end") && holds(other, "abchild!c"));
    close(fd);
    close(other);
}

static volatile int stop;

/* Opens, moves and closes files all the time, at whatever numbers there are. */
static void *busy(void *name)
{
    char expected[64];
    for (int i = 0; !stop; i++) {
        int fd = new_file(name, 0), second = dup(fd);
        int bytes = snprintf(expected, sizeof expected, "%s %d", (char *)name, i);
        CHECK(write(fd, expected, bytes) == bytes && close(fd) == 0);
        CHECK(write(second, "-", 1) == 1 && write(second, "+", 1) == 1);
        strcat(expected, "-+");
        CHECK(holds(second, expected));
        close(second);
    }
    return NULL;
}

static void while_others_open(void)
{
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, busy, "one");
    pthread_create(&threads[1], NULL, busy, "two");
    char expected[256] = "0";
    int fd = new_file("log", 0);
    CHECK(write(fd, "0", 1) == 1);
    for (int i = 1; i < 20; i++) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, 100);
        spawned(&actions, echo_to(100));
        CHECK(write(fd, ",", 1) == 1);
        strcat(expected, "child,");
    }
    CHECK(holds(fd, expected));
    stop = 1;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    close(fd);
}

int main(int argc, char **argv)
{
    directory = argv[1];
    setvbuf(stdout, NULL, _IONBF, 0);
    replaced();
    if (argc > 2)
        return failures != 0;
    exchanged();
    reopened();
    by_hand();
    grandchild();
    while_others_open();
    return failures != 0;
}
