// What the kernel has to know of files that are opened in the process: whose locks are lost, and what descriptors are named by paths of
// /proc, by requests and by rules. reach DIR
// It prints the same whoever serves it: on a mount without the library, and with names in the process.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/loop.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "said.h"

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

// A directory by its descriptor's name in /proc.
static void by_proc(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[64], bytes[4096];
    int at, socket_fd, watch, fd;
    SAY(mkdir("sockets", 0755));
    OPENS(at, open("sockets", O_RDONLY | O_DIRECTORY));
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/socket", at);
    OPENS(socket_fd, socket(AF_UNIX, SOCK_STREAM, 0));
    SAY(bind(socket_fd, (struct sockaddr *)&address, sizeof address));
    SAY(access("sockets/socket", F_OK));
    SAY(listen(socket_fd, 1));
    close(at);
    OPENS(at, open("sockets", O_RDONLY | O_DIRECTORY));
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/socket", at);
    OPENS(fd, socket(AF_UNIX, SOCK_STREAM, 0));
    SAY(connect(fd, (struct sockaddr *)&address, sizeof address));
    close(fd);
    close(socket_fd);
    close(at);
    SAY(mkdir("watched", 0755));
    OPENS(at, open("watched", O_RDONLY | O_DIRECTORY));
    snprintf(path, sizeof path, "/proc/self/fd/%d", at);
    OPENS(watch, inotify_init1(IN_NONBLOCK));
    SAY(inotify_add_watch(watch, path, IN_CREATE));
    // The kernel makes that itself, and so tells of it.
    SAY(mkfifo("watched/fifo", 0600));
    SAY(read(watch, bytes, sizeof bytes) > 0);
    close(watch);
    close(at);
}

// A descriptor in what a request or a rule is about.
static void by_request(void) {
    int file, control, device = -1, number;
    long set = -1;
    char path[64];
    OPENS(file, open("image", O_CREAT | O_RDWR, 0644));
    SAY(ftruncate(file, 1 << 20));
    control = open("/dev/loop-control", O_RDWR);
    // Others take loop devices, too.
    for (int tries = 0; control >= 0 && set < 0 && tries < 20; tries++) {
        number = ioctl(control, LOOP_CTL_GET_FREE);
        snprintf(path, sizeof path, "/dev/loop%d", number);
        device = open(path, O_RDWR);
        struct loop_config config = {.fd = file};
        set = ioctl(device, LOOP_CONFIGURE, &config);
        if (set && errno != EBUSY)
            break;
    }
    SAY(set);
    if (!set)
        SAY(ioctl(device, LOOP_CLR_FD));
    close(device);
    close(control);
    close(file);
}

// A rule that lets files be read below one directory.
static void by_rule(void) {
    struct landlock_ruleset_attr rights = {.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE};
    struct landlock_path_beneath_attr below = {.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE};
    int rules, fd, status;
    SAY(mkdir("may", 0755));
    SAY(mkdir("may not", 0755));
    OPENS(fd, open("may/file", O_CREAT | O_RDWR, 0644));
    close(fd);
    OPENS(fd, open("may not/file", O_CREAT | O_RDWR, 0644));
    close(fd);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        OPENS(rules, syscall(SYS_landlock_create_ruleset, &rights, sizeof rights, 0));
        OPENS(below.parent_fd, open("may", O_PATH | O_DIRECTORY));
        SAY(syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0));
        SAY(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        SAY(syscall(SYS_landlock_restrict_self, rules, 0));
        OPENS(fd, open("may/file", O_RDONLY));
        OPENS(fd, open("may not/file", O_RDONLY));
        _exit(0);
    }
    waitpid(child, &status, 0);
    SAY(status);
}

static int in_child(int mounts) {
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (!child)
        _exit((mounts ? mount("none", "below", "tmpfs", 0, 0) : umount("below")) ? errno : 0);
    waitpid(child, &status, 0);
    return status;
}

// What a child mounts covers what is below at once.
static void mounted(void) {
    int fd;
    SAY(mkdir("below", 0755));
    SAY(in_child(1));
    OPENS(fd, open("below/file", O_CREAT | O_RDWR, 0644));
    close(fd);
    SAY(in_child(0));
    SAY(access("below/file", F_OK));
}

int main(int, char **arguments) {
    umask(022);
    if (chdir(arguments[1]))
        return 1;
    locks();
    nowhere(arguments[1]);
    by_proc();
    by_request();
    by_rule();
    // That ends the serving of names.
    mounted();
    return 0;
}
