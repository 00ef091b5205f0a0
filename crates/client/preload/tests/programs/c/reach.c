// What the kernel has to know of files that are opened in the process: whose locks are lost. reach DIR
// It prints the same whoever serves it: on a mount without the library, and with names in the process.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long said(const char *what, long result) {
    if (result < 0)
        printf("%s: %s\n", what, strerror(errno));
    else
        printf("%s: %ld\n", what, result);
    fflush(stdout);
    return result;
}
#define SAY(call) said(#call, (long)(call))
// Of calls whose result is a descriptor: whether there is one.
#define OPENS(fd, call) ((fd) = (call), said(#call, (fd) < 0 ? -1 : 0))

// Whether another process may lock the file.
static int may_be_locked(const char *path) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (!child)
        _exit(fcntl(open(path, O_RDWR), F_SETLK, &lock) ? errno : 0);
    waitpid(child, &status, 0);
    return status ? 0 : 1;
}

// A process has no lock on a file any more once it has closed one of its descriptors, whichever (fcntl(2)).
static void locks(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd, other, null;
    OPENS(fd, open("locked", O_CREAT | O_RDWR, 0644));
    OPENS(null, open("/dev/null", O_RDONLY));
    for (int way = 0; way < 4; way++) {
        if (way == 1)
            OPENS(other, open("locked", O_RDONLY));
        SAY(fcntl(fd, F_SETLK, &lock));
        SAY(may_be_locked("locked"));
        if (way != 1)
            OPENS(other, open("locked", O_RDONLY));
        if (way == 2)
            dup2(null, other);
        if (way == 3)
            syscall(SYS_close_range, other, other, 0);
        else
            close(other);
        SAY(may_be_locked("locked"));
    }
    // That of another file is kept.
    SAY(fcntl(fd, F_SETLK, &lock));
    OPENS(other, open("not locked", O_CREAT | O_RDONLY, 0644));
    close(other);
    SAY(may_be_locked("locked"));
    close(null);
    close(fd);
}

// A working directory that has no name any more.
static void nowhere(const char *dir) {
    struct stat s;
    int fd;
    SAY(mkdir("stays", 0755));
    SAY(mkdir("goes", 0755));
    SAY(chdir("goes"));
    SAY(mkdir("in", 0755));
    SAY(rmdir("in"));
    SAY(rmdir("../goes"));
    SAY(stat(".", &s) ? -1 : (long)s.st_nlink);
    SAY(stat("..", &s));
    SAY(access("../stays", F_OK));
    SAY(access("in", F_OK));
    OPENS(fd, open(".", O_RDONLY | O_DIRECTORY));
    close(fd);
    OPENS(fd, open("in", O_CREAT | O_RDWR, 0644));
    SAY(mkdir("in", 0755));
    SAY(rmdir("."));
    SAY(symlink("in", "link"));
    SAY(chdir("."));
    SAY(chmod(".", 0700));
    SAY(stat(".", &s) ? -1 : (long)s.st_mode);
    SAY(chdir(".."));
    SAY(access("stays", F_OK));
    SAY(chdir(dir));
}

int main(int, char **arguments) {
    umask(022);
    if (chdir(arguments[1]))
        return 1;
    locks();
    nowhere(arguments[1]);
    return 0;
}
