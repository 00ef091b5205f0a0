// What this process does to names a child that runs on the mount sees, and the other way round. turns DIR ROUNDS
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what, int n) {
    printf("%s in round %d\n", what, n);
    exit(1);
}

static void turn(int to, int from) {
    char byte = 0;
    if (write(to, "x", 1) != 1 || read(from, &byte, 1) != 1)
        exit(1);
}

// In its child, which runs this program again without the library: takes each name away, and makes another one.
static void other(int rounds) {
    char byte, name[32];
    for (int n = 0; n < rounds; n++) {
        if (read(0, &byte, 1) != 1)
            exit(0);
        snprintf(name, sizeof name, "a%d", n);
        if (access(name, F_OK))
            exit(1);
        if (unlink(name))
            exit(2);
        snprintf(name, sizeof name, "b%d", n);
        int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (fd < 0 || write(fd, name, 4) != 4 || close(fd))
            exit(3);
        if (write(1, "x", 1) != 1)
            exit(4);
    }
    exit(0);
}

int main(int count, char **arguments) {
    int rounds = atoi(arguments[2]), there[2], back[2];
    if (chdir(arguments[1]))
        return 1;
    if (count > 3)
        other(rounds);
    if (pipe(there) || pipe(back))
        return 1;
    pid_t child = fork();
    if (!child) {
        dup2(there[0], 0);
        dup2(back[1], 1);
        close(there[1]);
        char *variables[] = {"LD_PRELOAD=", 0};
        execle("/proc/self/exe", "turns", arguments[1], arguments[2], "other", (char *)0, variables);
        _exit(9);
    }
    close(there[0]);
    close(back[1]);
    for (int n = 0; n < rounds; n++) {
        char name[32], other[32];
        struct stat s;
        snprintf(name, sizeof name, "a%d", n);
        snprintf(other, sizeof other, "b%d", n);
        // Nobody has it yet, and that is known.
        if (!access(other, F_OK))
            fail("a name that nobody made", n);
        int fd = open("made", O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (fd < 0 || close(fd) || rename("made", name))
            fail("not made", n);
        turn(there[1], back[0]);
        if (!stat(name, &s))
            fail("a name that was removed", n);
        if (stat(other, &s) || s.st_size != 4)
            fail("a name that is missing", n);
        if (unlink(other))
            fail("not removed", n);
    }
    close(there[1]);
    int status;
    waitpid(child, &status, 0);
    if (status)
        printf("the other one ended with %d\n", status);
    return 0;
}
