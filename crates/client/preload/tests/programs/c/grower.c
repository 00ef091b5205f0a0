// Makes a tree of directories with three files and three directories each, the first third of it by whole paths and the rest by paths from
// its working directory, and reads meanwhile by a whole path what it made first: grower DIRECTORY DEPTH.
// Says what is not as POSIX has it, and nothing else.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EACH = 3, PATH = 4096 };

static char first[PATH];

static void check(int right, const char *path) {
    if (right) return;
    printf("%s: %s\n", path, strerror(errno));
    exit(1);
}

static void make(const char *path) {
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0640);
    check(fd >= 0 && write(fd, path, strlen(path)) == (ssize_t)strlen(path) && close(fd) == 0, path);
}

static void look(void) {
    char content[PATH];
    int fd = open(first, O_RDONLY);
    check(fd >= 0 && read(fd, content, sizeof content) == (ssize_t)strlen(first) && close(fd) == 0, first);
    check(memcmp(content, first, strlen(first)) == 0, "content");
}

static void grow(char *path, int depth) {
    size_t end = strlen(path);
    check(mkdir(path, 0750) == 0, path);
    for (int n = 0; n < EACH; n++) {
        snprintf(path + end, PATH - end, "/file%d", n);
        make(path);
    }
    look();
    for (int n = 0; depth && n < EACH; n++) {
        snprintf(path + end, PATH - end, "/%d", n);
        grow(path, depth - 1);
    }
    path[end] = 0;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    int depth = atoi(arguments[2]);
    char path[PATH];
    snprintf(path, PATH, "%s/first", arguments[1]);
    check(mkdir(path, 0750) == 0, path);
    snprintf(first, PATH, "%s/first/file", arguments[1]);
    make(first);
    snprintf(path, PATH, "%s/0", arguments[1]);
    grow(path, depth - 1);
    check(chdir(arguments[1]) == 0, arguments[1]);
    for (int n = 1; n < EACH; n++) {
        snprintf(path, PATH, "%d", n);
        grow(path, depth - 1);
    }
    return 0;
}
