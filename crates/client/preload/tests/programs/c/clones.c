/* Children of unusual kinds, and threads with descriptors of their own. Arguments: how, directory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "inline_fork.h"

#define STACK_BYTES (256 << 10)

extern char **environ;
static int first, second, go[2];
static const char *directory;

static int open_file(const char *name, int flags)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return open(path, O_RDWR | flags, 0644);
}

static int has(const char *name, const char *expected)
{
    char found[256];
    int fd = open_file(name, 0);
    ssize_t bytes = read(fd, found, sizeof found - 1);
    found[bytes < 0 ? 0 : bytes] = 0;
    close(fd);
    if (strcmp(found, expected) != 0)
        printf("%s: %s\n", name, found);
    return strcmp(found, expected) == 0;
}

static void *stack(void)
{
    return (char *)malloc(STACK_BYTES) + STACK_BYTES;
}

/* Makes no call that is about a file before its parent has closed its own. */
static int late(void *unused)
{
    (void)unused;
    char byte;
    CHECK(read(go[0], &byte, 1) == 1);
    CHECK(write(first, "child", 5) == 5 && lseek(first, 0, SEEK_CUR) == 15);
    int fd = open_file("third", O_CREAT | O_TRUNC);
    CHECK(write(fd, "c", 1) == 1 && close(fd) == 0 && has("third", "c"));
    _exit(failures != 0);
}

/* As `late`, where the call that made the child returns to. */
static void late_entry(void)
{
    late(NULL);
}

static pid_t made(const char *how)
{
    pid_t child = -1;
    if (strcmp(how, "fork") == 0)
        child = fork();
    if (strcmp(how, "inline") == 0)
        child = inline_fork();
    if (strcmp(how, "clone") == 0)
        child = clone(late, stack(), SIGCHLD, NULL);
    if (strcmp(how, "clone3") == 0) {
        void **top = (void **)((unsigned long)stack() & -16UL) - 2;
        *top = late_entry;
        struct clone_args asked = {.exit_signal = SIGCHLD};
        asked.stack = (unsigned long)top - 4096;
        asked.stack_size = 4096;
        child = syscall(SYS_clone3, &asked, sizeof asked);
    }
    return child;
}

static void late_child(const char *how)
{
    int status = -1;
    CHECK(pipe(go) == 0);
    pid_t child = made(how);
    if (child == 0)
        late(NULL);
    CHECK(close(first) == 0);
    second = open_file("second", O_CREAT | O_TRUNC);
    CHECK(second == first && write(second, "bbbbbbbbbbbbbbb", 15) == 15);
    CHECK(write(go[1], "g", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(write(second, "end", 3) == 3);
    CHECK(has("first", "aaaaaaaaaachild") && has("second", "bbbbbbbbbbbbbbbend"));
}

/* Where descriptors are its own: another file at the same number. */
static void replace(void)
{
    CHECK(close(first) == 0);
    second = open_file("second", O_CREAT | O_TRUNC);
    CHECK(second == first && write(second, "bb", 2) == 2);
}

static void *with_own_descriptors(void *how)
{
    if (strcmp(how, "unshare") == 0)
        CHECK(unshare(CLONE_FILES) == 0);
    else
        CHECK(syscall(SYS_close_range, first, first, CLOSE_RANGE_UNSHARE) == 0 && dup2(1, first) == first);
    replace();
    return NULL;
}

static int with_same_memory(void *unused)
{
    (void)unused;
    replace();
    syscall(SYS_exit, 0);
    return 0;
}

static void shared_in_part(const char *how)
{
    pthread_t thread;
    int status = -1, descriptors_are_shared = 0;
    pid_t child = 0;
    if (strcmp(how, "memory") == 0) {
        child = clone(with_same_memory, stack(), CLONE_VM | SIGCHLD, NULL);
    } else if (strcmp(how, "descriptors") == 0) {
        descriptors_are_shared = 1;
        if ((child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0)) == 0) {
            replace();
            _exit(failures != 0);
        }
    } else {
        pthread_create(&thread, NULL, with_own_descriptors, (void *)how);
        pthread_join(thread, NULL);
    }
    if (child != 0)
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(write(first, "end", 3) == 3);
    CHECK(has("first", descriptors_are_shared ? "aaaaaaaaaa" : "aaaaaaaaaaend"));
    CHECK(has("second", descriptors_are_shared ? "bbend" : "bb"));
    if ((child = fork()) == 0)
        _exit(write(first, "!", 1) != 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(has("first", descriptors_are_shared ? "aaaaaaaaaa" : "aaaaaaaaaaend!"));
}

static int appends(void *file)
{
    _exit(write(*(int *)file, "c", 1) != 1);
}

/* A file of its own again and again, to which a child of each kind in turn appends. */
static void *makes_children(void *number)
{
    int me = *(int *)number;
    char name[32], *arguments[] = {"bash", "-c", "printf c >&50", NULL};
    void *top = stack();
    snprintf(name, sizeof name, "thread %d", me);
    for (int i = 0; i < 100; i++) {
        int fd = open_file(name, O_CREAT | O_TRUNC | (i & 4 ? O_CLOEXEC : 0)), status = -1;
        pid_t child = -1;
        posix_spawn_file_actions_t actions;
        CHECK(write(fd, "0123456789", 10) == 10);
        switch (i % 4) {
        case 0:
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_adddup2(&actions, fd, 50);
            CHECK(posix_spawn(&child, "/bin/bash", &actions, NULL, arguments, environ) == 0);
            break;
        case 1:
            if ((child = fork()) == 0)
                appends(&fd);
            break;
        case 2:
            child = clone(appends, top, SIGCHLD, &fd);
            break;
        default:
            if ((child = vfork()) == 0)
                _exit(dup2(fd, 50) != 50 || close(fd) != 0 || write(50, "c", 1) != 1);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(write(fd, "E", 1) == 1 && has(name, "0123456789cE") && close(fd) == 0);
    }
    return NULL;
}

static void all_at_once(void)
{
    pthread_t threads[4];
    int numbers[4] = {0, 1, 2, 3};
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, makes_children, &numbers[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    (void)argc;
    const char *how = argv[1];
    directory = argv[2];
    setvbuf(stdout, NULL, _IONBF, 0);
    first = open_file("first", O_CREAT | O_TRUNC);
    CHECK(write(first, "aaaaaaaaaa", 10) == 10);
    if (strstr("fork inline clone clone3", how))
        late_child(how);
    else if (strcmp(how, "threads") == 0)
        all_at_once();
    else
        shared_in_part(how);
    return failures != 0;
}
