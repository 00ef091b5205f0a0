// Makes many names in one directory, and asks about files of another: maker DIRECTORY OTHER FILES.
// Says what is not as POSIX has it, and nothing else.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int wrong;

static void check(int right, const char *what, int n) {
    if (right) return;
    printf("%s %d: %s\n", what, n, strerror(errno));
    if (++wrong > 20) exit(1);
}

static void make(const char *name, int n) {
    int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0640);
    check(fd >= 0, "create", n);
    check(write(fd, name, strlen(name)) == (ssize_t)strlen(name), "write", n);
    check(close(fd) == 0, "close", n);
}

int main(int count, char **arguments) {
    if (count != 4 || chdir(arguments[1])) return 2;
    int files = atoi(arguments[3]);
    char name[64], other[64], path[4096];
    struct stat status;
    mkdir("sub", 0750);
    for (int n = 0; n < files; n++) {
        snprintf(name, sizeof name, n % 3 ? "new%d" : "sub/new%d", n);
        snprintf(other, sizeof other, n % 5 ? "file%d" : "sub/file%d", n);
        make(name, n);
        check(rename(name, other) == 0, "rename", n);
        check(stat(name, &status) == -1 && errno == ENOENT, "old name", n);
        check(stat(other, &status) == 0 && status.st_size == (off_t)strlen(name), "new name", n);
        check(status.st_mode == (S_IFREG | 0640), "mode", n);
        // Of the other directory nothing is made.
        snprintf(path, sizeof path, "%s/there", arguments[2]);
        check(stat(path, &status) == 0 && status.st_size == 5, "other", n);
        if (n % 2) check(unlink(other) == 0, "unlink", n);
        // A program that is started sees all of it, and this one what that one does.
        if (n % 500 == 499) {
            make("before", n);
            check(system("test -f before && mv before after && mkdir made && rmdir made") == 0, "child", n);
            check(stat("before", &status) == -1 && errno == ENOENT, "child's rename", n);
            check(unlink("after") == 0, "child's name", n);
        }
    }
    int left = 0;
    for (int n = 0; n < files; n++) {
        snprintf(name, sizeof name, n % 3 ? "new%d" : "sub/new%d", n);
        snprintf(other, sizeof other, n % 5 ? "file%d" : "sub/file%d", n);
        int fd = open(other, O_RDONLY);
        check((fd >= 0) == (n % 2 == 0), "left", n);
        if (fd < 0) continue;
        left++;
        ssize_t got = read(fd, path, sizeof path);
        check(got == (ssize_t)strlen(name) && !memcmp(path, name, got), "content", n);
        close(fd);
    }
    check(left == (files + 1) / 2, "count", left);
    return wrong != 0;
}
