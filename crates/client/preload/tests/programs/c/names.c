// Names, by every call about them, each with its result. names DIR
// It prints the same whoever serves it: on a mount without the library, and with names in the process.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "said.h"

static void content(const char *path) {
    char bytes[64] = "";
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, bytes, sizeof bytes - 1);
    printf("%s has %zd '%s'\n", path, n, bytes);
    if (fd >= 0)
        close(fd);
}

static void attributes(const char *path) {
    struct stat s, l;
    struct statx x;
    if (stat(path, &s) || lstat(path, &l) || statx(AT_FDCWD, path, 0, STATX_BASIC_STATS | STATX_BTIME, &x)) {
        printf("%s: no attributes: %s\n", path, strerror(errno));
        return;
    }
    printf("%s: mode %o links %lu owner %u.%u size %lld link %o; %d %d %d %d blocks %d attributes %llx of %llx\n", path, s.st_mode,
           (unsigned long)s.st_nlink, s.st_uid, s.st_gid, S_ISDIR(s.st_mode) ? 0LL : (long long)s.st_size, l.st_mode,
           x.stx_mode == s.st_mode, x.stx_ino == s.st_ino, (dev_t)makedev(x.stx_dev_major, x.stx_dev_minor) == s.st_dev,
           x.stx_mtime.tv_sec == s.st_mtim.tv_sec, s.st_blksize == (blksize_t)x.stx_blksize,
           (unsigned long long)x.stx_attributes, (unsigned long long)x.stx_attributes_mask);
}

// Errors of every kind.
static void errors(void) {
    int fd;
    char name[300], path[PATH_MAX + 10];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    memset(path, '/', sizeof path - 1);
    path[sizeof path - 1] = 0;
    OPENS(fd, open("missing", O_RDWR));
    OPENS(fd, open("missing/x", O_CREAT | O_RDWR, 0644));
    OPENS(fd, open("file", O_CREAT | O_EXCL | O_RDWR, 0640));
    close(fd);
    OPENS(fd, open("file", O_CREAT | O_EXCL | O_RDWR, 0640));
    OPENS(fd, open("file/x", O_CREAT | O_RDWR, 0640));
    OPENS(fd, open("file/", O_RDWR));
    OPENS(fd, open("new/", O_CREAT | O_RDWR, 0644));
    OPENS(fd, open(".", O_RDWR));
    OPENS(fd, open("", O_RDWR));
    OPENS(fd, open(name, O_CREAT | O_RDWR, 0644));
    OPENS(fd, open(path, O_RDONLY));
    SAY(mkdir("dir", 0755));
    SAY(mkdir("dir", 0755));
    SAY(mkdir("file", 0755));
    SAY(mkdir("file/dir", 0755));
    SAY(mkdir("dir/", 0755));
    SAY(mkdir("dir/.", 0755));
    SAY(rmdir("file"));
    SAY(rmdir("missing"));
    SAY(rmdir("."));
    SAY(rmdir("dir/.."));
    SAY(unlink("dir"));
    SAY(unlink("missing"));
    SAY(unlink("file/"));
    SAY(unlinkat(AT_FDCWD, "file", 7));
    SAY(symlink("loop", "loop"));
    OPENS(fd, open("loop", O_RDONLY));
    OPENS(fd, open("loop", O_RDONLY | O_NOFOLLOW));
    SAY(access("file", R_OK | W_OK));
    SAY(access("file", X_OK));
    SAY(access("missing", F_OK));
    SAY(access("file", 99));
    SAY(faccessat(AT_FDCWD, "dir", X_OK, AT_EACCESS));
    SAY(rename("missing", "x"));
    SAY(rename("dir", "file"));
    SAY(rename("file", "dir"));
    SAY(rename("dir", "dir/sub"));
    SAY(link("missing", "x"));
    SAY(link("dir", "x"));
    SAY(link("file", "dir"));
    SAY(truncate("file", -1));
    SAY(truncate("dir", 0));
    SAY(readlink("file", path, 10));
    SAY(syscall(SYS_readlink, "loop", path, 0));
    SAY(chmod("missing", 0600));
    SAY(syscall(SYS_openat, AT_FDCWD, 0, 0));
    SAY(unlink("loop"));
}

static void kinds(const char *dir) {
    int fd, at;
    char path[PATH_MAX], target[64] = "";
    // Made, written, read again, cut, appended to.
    OPENS(fd, open("kind", O_CREAT | O_WRONLY | O_TRUNC, 0666));
    SAY(write(fd, "hello", 5));
    SAY(read(fd, path, 1));
    SAY(fcntl(fd, F_GETFL));
    SAY(fcntl(fd, F_GETFD));
    close(fd);
    attributes("kind");
    OPENS(fd, open("kind", O_RDWR | O_APPEND | O_CLOEXEC));
    SAY(fcntl(fd, F_GETFD));
    SAY(write(fd, " world", 6));
    SAY(lseek(fd, 0, SEEK_CUR));
    close(fd);
    content("kind");
    SAY(truncate("kind", 4));
    content("kind");
    OPENS(fd, creat("kind", 0600));
    close(fd);
    attributes("kind");
    OPENS(fd, open("fifo", O_RDONLY));
    SAY(mkfifo("fifo", 0600));
    OPENS(fd, open("fifo", O_RDWR));
    close(fd);
    // Directories, links, and ways around.
    SAY(mkdir("d", 01777));
    SAY(chmod("d", 0750));
    SAY(symlink("d", "to_d"));
    SAY(symlink("../kind", "d/up"));
    SAY(symlink("/proc/self/status", "away"));
    SAY(symlink(dir, "absolute"));
    OPENS(fd, open("to_d/in", O_CREAT | O_RDWR, 0644));
    SAY(write(fd, "in", 2));
    close(fd);
    content("d/in");
    content("d/up");
    content("to_d/../kind");
    attributes("d");
    attributes("to_d");
    attributes("d/../d/./in");
    printf("away: %d\n", access("away", R_OK));
    snprintf(path, sizeof path, "absolute/d/in");
    content(path);
    SAY(readlink("to_d", target, sizeof target));
    printf("%s\n", target);
    snprintf(path, sizeof path, "%s/../%s/d/in", dir, strrchr(dir, '/') + 1);
    printf("around: %d\n", access(path, R_OK));
    // From descriptors of directories.
    OPENS(at, open("d", O_RDONLY | O_DIRECTORY));
    OPENS(fd, openat(at, "by_dir", O_CREAT | O_EXCL | O_RDWR, 0644));
    SAY(write(fd, "by", 2));
    SAY(openat(fd, "x", O_RDONLY));
    close(fd);
    SAY(linkat(at, "by_dir", AT_FDCWD, "linked", 0));
    SAY(renameat(at, "by_dir", at, "renamed"));
    SAY(fchmodat(at, "renamed", 0604, 0));
    SAY(fchownat(at, "renamed", 3, 4, 0));
    struct timespec times[2] = {{1, 2}, {3, 4}}, some[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    SAY(utimensat(at, "renamed", times, 0));
    attributes("linked");
    struct stat s;
    SAY(stat("linked", &s));
    printf("times %ld.%09ld %ld.%09ld\n", s.st_atim.tv_sec, s.st_atim.tv_nsec, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    SAY(utimensat(at, "renamed", some, 0));
    SAY(stat("linked", &s));
    printf("times %ld.%09ld %d\n", s.st_atim.tv_sec, s.st_atim.tv_nsec, s.st_mtim.tv_sec > 1000);
    SAY(unlinkat(at, "renamed", 0));
    SAY(mkdirat(at, "sub", 0700));
    SAY(unlinkat(at, "sub", 0));
    SAY(unlinkat(at, "sub", AT_REMOVEDIR));
    close(at);
    // Working directories.
    SAY(chdir("d"));
    content("in");
    SAY(mkdir("deeper", 0755));
    SAY(chdir("deeper"));
    content("../in");
    SAY(rmdir("../deeper"));
    OPENS(fd, open("gone", O_CREAT | O_RDWR, 0644));
    printf("%s\n", getcwd(path, sizeof path) ? "there" : strerror(errno));
    SAY(chdir(dir));
    // Renames with flags.
    SAY(symlink("kind", "other"));
    SAY(syscall(SYS_renameat2, AT_FDCWD, "kind", AT_FDCWD, "other", RENAME_NOREPLACE));
    SAY(syscall(SYS_renameat2, AT_FDCWD, "kind", AT_FDCWD, "other", RENAME_EXCHANGE));
    SAY(readlink("kind", target, sizeof target));
    SAY(syscall(SYS_renameat2, AT_FDCWD, "kind", AT_FDCWD, "other", 99));
    SAY(rename("other", "kind"));
    umask(077);
    OPENS(fd, open("masked", O_CREAT | O_RDWR, 0666));
    close(fd);
    attributes("masked");
    umask(022);
}

// What an open file is to calls that are not served.
static void descriptors(void) {
    int fd, again;
    char bytes[64] = "", path[PATH_MAX] = "", link[64];
    struct stat s, t;
    OPENS(fd, open("open", O_CREAT | O_RDWR, 0644));
    SAY(write(fd, "0123456789", 10));
    SAY(fchmod(fd, 0604));
    SAY(fchown(fd, 5, 6));
    struct timespec times[2] = {{7, 0}, {8, 0}};
    SAY(futimens(fd, times));
    SAY(fstat(fd, &s));
    printf("%o %u %u %ld %ld\n", s.st_mode, s.st_uid, s.st_gid, s.st_mtim.tv_sec, (long)s.st_size);
    SAY(isatty(fd));
    SAY(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
    SAY(fsetxattr(fd, "user.a", "b", 1, 0));
    SAY(fgetxattr(fd, "user.a", bytes, sizeof bytes));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(flock(fd, LOCK_EX | LOCK_NB));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    SAY(fcntl(fd, F_SETLK, &lock));
    close(fd);
    // Each one by itself.
    OPENS(fd, open("open", O_RDWR));
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    SAY(readlink(link, path, sizeof path - 1) > 0);
    printf("%s\n", strrchr(path, '/') ? strrchr(path, '/') : "nothing");
    close(fd);
    OPENS(fd, open("open", O_RDWR));
    snprintf(link, sizeof link, "/dev/fd/%d", fd);
    OPENS(again, open(link, O_RDONLY));
    SAY(read(again, bytes, 3));
    close(again);
    close(fd);
    OPENS(fd, open("open", O_RDWR));
    SAY(read(fd, bytes, 4));
    char *map = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    printf("%.3s\n", map == MAP_FAILED ? "no" : map);
    map[0] = 'm';
    SAY(pread(fd, bytes, 2, 0));
    SAY(lseek(fd, 0, SEEK_CUR));
    munmap(map, 4096);
    close(fd);
    OPENS(fd, open("open", O_RDWR));
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    SAY(poll(&polled, 1, 0));
    close(fd);
    fd_set set;
    OPENS(fd, open("open", O_RDWR));
    FD_ZERO(&set);
    FD_SET(fd, &set);
    SAY(select(fd + 1, &set, 0, 0, 0));
    close(fd);
    // A child has it as well, with one offset.
    OPENS(fd, open("open", O_RDWR));
    SAY(read(fd, bytes, 2));
    pid_t child = fork();
    if (!child) {
        _exit(read(fd, bytes, 3) == 3 && !memcmp(bytes, "234", 3) ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    SAY(status);
    SAY(lseek(fd, 0, SEEK_CUR));
    close(fd);
    // Another program has it as its input, and another one as its output.
    fflush(stdout);
    OPENS(fd, open("open", O_RDONLY));
    int keep = dup(0);
    dup2(fd, 0);
    SAY(system("wc -c"));
    dup2(keep, 0);
    close(keep);
    close(fd);
    OPENS(fd, open("said", O_CREAT | O_RDWR | O_TRUNC, 0644));
    keep = dup(1);
    fflush(stdout);
    dup2(fd, 1);
    status = system("echo said");
    dup2(keep, 1);
    close(keep);
    SAY(status);
    SAY(pread(fd, bytes, 10, 0));
    close(fd);
    // Sent to oneself.
    int pair[2];
    SAY(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    OPENS(fd, open("open", O_RDWR));
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    struct iovec one = {"x", 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    SAY(sendmsg(pair[0], &message, 0));
    close(fd);
    SAY(recvmsg(pair[1], &message, 0));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    SAY(read(fd, bytes, 4));
    close(fd);
    // Without a name; and where another one has its name.
    OPENS(fd, open("nameless", O_CREAT | O_RDWR, 0644));
    SAY(write(fd, "still", 5));
    SAY(unlink("nameless"));
    SAY(fstat(fd, &s));
    SAY(s.st_nlink);
    SAY(pread(fd, bytes, 5, 0));
    SAY(ftruncate(fd, 2));
    SAY(lseek(fd, 0, SEEK_END));
    close(fd);
    SAY(access("nameless", F_OK));
    OPENS(fd, open("below", O_CREAT | O_RDWR, 0644));
    SAY(write(fd, "below", 5));
    OPENS(again, open("above", O_CREAT | O_RDWR, 0644));
    SAY(write(again, "above", 5));
    SAY(rename("above", "below"));
    SAY(pread(fd, bytes, 5, 0));
    printf("%.5s\n", bytes);
    SAY(flock(again, LOCK_SH));
    SAY(pread(again, bytes, 5, 0));
    printf("%.5s\n", bytes);
    close(fd);
    close(again);
    // Two descriptors of one file, one offset; and two files of one inode.
    OPENS(fd, open("below", O_RDWR));
    again = dup(fd);
    SAY(read(fd, bytes, 2));
    SAY(lseek(again, 0, SEEK_CUR));
    close(fd);
    SAY(read(again, bytes, 9));
    OPENS(fd, open("below", O_RDONLY));
    SAY(write(again, "++", 2));
    SAY(read(fd, bytes, 20));
    SAY(fstat(fd, &s));
    SAY(fstat(again, &t));
    SAY(s.st_ino == t.st_ino && s.st_dev == t.st_dev);
    SAY(copy_file_range(fd, 0, again, 0, 9, 0));
    close(fd);
    close(again);
    OPENS(fd, open("below", O_RDONLY));
    OPENS(again, open("copy", O_CREAT | O_WRONLY, 0644));
    SAY(copy_file_range(fd, 0, again, 0, 100, 0));
    SAY(copy_file_range(fd, 0, again, 0, 100, 0));
    close(fd);
    close(again);
    content("copy");
    // From files that the kernel has open, and to files that it has not.
    loff_t from = 1;
    int ends[2];
    OPENS(fd, open("below", O_RDONLY | O_NOATIME));
    OPENS(again, open("copied", O_CREAT | O_RDWR, 0644));
    SAY(copy_file_range(fd, 0, again, 0, 5, 0));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(copy_file_range(fd, &from, again, 0, 100, 0));
    printf("%lld\n", (long long)from);
    SAY(copy_file_range(fd, 0, again, 0, 100, 0));
    SAY(copy_file_range(fd, 0, again, 0, 100, 0));
    SAY(copy_file_range(fd, 0, again, 0, 0, 0));
    SAY(copy_file_range(fd, &from, again, 0, 1, 1));
    close(again);
    OPENS(again, open("copied", O_RDONLY));
    SAY(copy_file_range(fd, &from, again, 0, 1, 0));
    close(again);
    close(fd);
    OPENS(again, open("copied", O_RDWR));
    OPENS(fd, open("below", O_WRONLY | O_NOATIME));
    SAY(copy_file_range(fd, 0, again, 0, 1, 0));
    close(fd);
    OPENS(fd, open("copied", O_RDONLY | O_NOATIME));
    SAY(copy_file_range(fd, 0, again, 0, 9, 0));
    close(fd);
    SAY(pipe(ends));
    SAY(copy_file_range(ends[0], 0, again, 0, 9, 0));
    close(ends[0]);
    close(ends[1]);
    fd = memfd_create("outside", 0);
    SAY(write(fd, "outside", 7));
    from = 0;
    SAY(copy_file_range(fd, &from, again, 0, 9, 0));
    close(fd);
    close(again);
    content("copied");
    // Temporary files.
    strcpy(path, "tmpXXXXXX");
    OPENS(fd, mkstemp(path));
    SAY(fstat(fd, &s));
    printf("%o\n", s.st_mode);
    SAY(unlink(path));
    close(fd);
    FILE *stream = fopen("stream", "w+");
    SAY(fprintf(stream, "%d lines\n", 5));
    rewind(stream);
    printf("%s", fgets(bytes, sizeof bytes, stream));
    fclose(stream);
    OPENS(fd, open(".", O_TMPFILE | O_RDWR, 0600));
    SAY(write(fd, "t", 1));
    close(fd);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void list(const char *path) {
    struct dirent **found;
    int count = scandir(path, &found, 0, by_name);
    printf("%s has %d:", path, count);
    for (int i = 0; i < count; i++)
        printf(" %s %d", found[i]->d_name, found[i]->d_type);
    printf("\n");
}

// Directories that are open.
static void directories(void) {
    int fd, at;
    char bytes[4096], path[PATH_MAX], name[32];
    SAY(mkdir("listed", 0755));
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "listed/%03d", i);
        if (i % 3 == 0 ? mkdir(name, 0700) : (fd = open(name, O_CREAT | O_WRONLY, 0600)) < 0 || close(fd))
            printf("%s: %s\n", name, strerror(errno));
    }
    OPENS(at, open("listed", O_RDONLY));
    SAY(read(at, bytes, 10));
    SAY(write(at, bytes, 10));
    SAY(fcntl(at, F_GETFL));
    SAY(fsync(at));
    SAY(syscall(SYS_getdents64, at, bytes, 10));
    SAY(ftruncate(at, 0));
    DIR *listing = fdopendir(at);
    struct dirent *entry;
    int seen = 0, dirs = 0;
    long middle = 0;
    while ((entry = readdir(listing))) {
        seen++;
        dirs += entry->d_type == DT_DIR;
        if (seen == 100)
            middle = telldir(listing);
    }
    printf("%d entries, %d directories\n", seen, dirs);
    seekdir(listing, middle);
    for (seen = 0; readdir(listing); seen++)
        ;
    printf("%d behind the middle\n", seen);
    // Half of it is removed while it is listed.
    rewinddir(listing);
    for (seen = 0; (entry = readdir(listing)); seen++)
        if (entry->d_name[0] != '.' && unlinkat(dirfd(listing), entry->d_name, entry->d_type == DT_DIR ? AT_REMOVEDIR : 0))
            printf("%s: %s\n", entry->d_name, strerror(errno));
    printf("%d removed\n", seen - 2);
    closedir(listing);
    SAY(rmdir("listed"));
    // One that moves, and is needed by the kernel then; and one that is removed.
    SAY(mkdir("moves", 0755));
    OPENS(at, open("moves", O_RDONLY | O_DIRECTORY));
    SAY(rename("moves", "moved"));
    OPENS(fd, openat(at, "in", O_CREAT | O_RDWR, 0600));
    close(fd);
    SAY(fchdir(at));
    SAY(access("in", F_OK));
    SAY(getcwd(path, sizeof path) && strrchr(path, '/') ? strcmp(strrchr(path, '/'), "/moved") : -1);
    SAY(chdir(".."));
    SAY(unlinkat(at, "in", 0));
    SAY(rmdir("moved"));
    SAY(syscall(SYS_getdents64, at, bytes, sizeof bytes));
    OPENS(fd, openat(at, "late", O_CREAT | O_RDWR, 0600));
    SAY(fsync(at));
    close(at);
    OPENS(at, open("file", O_RDONLY | O_DIRECTORY));
    OPENS(at, open("d", O_RDONLY | O_DIRECTORY));
    fflush(stdout);
    pid_t child = fork();
    if (!child)
        _exit(faccessat(at, "in", F_OK, 0) ? 1 : 0);
    int status;
    waitpid(child, &status, 0);
    SAY(status);
    SAY(faccessat(at, "in", F_OK, 0));
    close(at);
}

// What is opened by its name only.
static void by_name_only(const char *dir) {
    int fd, at, again;
    struct stat s;
    struct statx x;
    char bytes[16], path[64];
    OPENS(fd, open("only", O_CREAT | O_WRONLY, 0644));
    SAY(write(fd, "content", 7));
    close(fd);
    SAY(mkdir("only.d", 0755));
    OPENS(fd, open("only", O_PATH | O_CLOEXEC));
    SAY(fstat(fd, &s));
    printf("mode %o size %lld\n", s.st_mode, (long long)s.st_size);
    SAY(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &x));
    printf("size %lld attributes %llx\n", (long long)x.stx_size, (unsigned long long)x.stx_attributes);
    close(fd);
    // Each of these has one of its own: the first one that is not served has it opened by the kernel.
#define ONLY(name, call) (OPENS(fd, open(name, O_PATH)), SAY(call), close(fd))
    ONLY("only", read(fd, bytes, sizeof bytes));
    ONLY("only", pread(fd, bytes, sizeof bytes, 0));
    ONLY("only", write(fd, "x", 1));
    ONLY("only", lseek(fd, 0, SEEK_END));
    ONLY("only", ftruncate(fd, 1));
    ONLY("only", fsync(fd));
    ONLY("only", fchmod(fd, 0600));
    ONLY("only", fchown(fd, 1, 1));
    ONLY("only", futimens(fd, NULL));
    ONLY("only", posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED) == EBADF);
    ONLY("only", fcntl(fd, F_GETFL) & (O_PATH | O_ACCMODE));
    ONLY("only", fcntl(fd, F_SETFL, O_APPEND));
    ONLY("only", flock(fd, LOCK_EX));
    ONLY("only", mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
    ONLY("only", fsetxattr(fd, "user.a", "b", 1, 0));
    ONLY("only", fchdir(fd));
    ONLY("only", openat(fd, "x", O_RDONLY));
    ONLY("only", linkat(fd, "", AT_FDCWD, "only.linked", AT_EMPTY_PATH));
    ONLY("only.d", getdents64(fd, bytes, sizeof bytes));
    ONLY("only.d", unlinkat(fd, "missing", 0));
    ONLY("only.d", mkdirat(fd, "below", 0755));
    ONLY("only.d", open("only.d/missing", O_PATH));
    ONLY("only.d", open("only", O_PATH | O_DIRECTORY));
    ONLY("only.d", fchdir(fd));
    SAY(chdir(dir));
    // As libc's fchmodat has it, for what may be no symbolic link.
    SAY(fchmodat(AT_FDCWD, "only", 0640, AT_SYMLINK_NOFOLLOW));
    attributes("only");
    SAY(fchmodat(AT_FDCWD, "only.d", 0710, AT_SYMLINK_NOFOLLOW));
    attributes("only.d");
    SAY(symlink("only", "only.link"));
    SAY(fchmodat(AT_FDCWD, "only.link", 0600, AT_SYMLINK_NOFOLLOW));
    OPENS(fd, open("only.link", O_PATH | O_NOFOLLOW));
    SAY(fstat(fd, &s));
    printf("mode %o\n", s.st_mode);
    SAY(readlinkat(fd, "", bytes, sizeof bytes));
    close(fd);
    // A file that is opened by it, and one that moves and goes meanwhile.
    OPENS(fd, open("only", O_PATH));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    content(path);
    OPENS(at, open("only", O_PATH));
    again = dup(at);
    SAY(rename("only", "only.moved"));
    SAY(fstat(again, &s));
    printf("links %lu\n", (unsigned long)s.st_nlink);
    SAY(unlink("only.moved"));
    SAY(unlink("only.linked"));
    SAY(fstat(at, &s));
    printf("links %lu\n", (unsigned long)s.st_nlink);
    close(at);
    close(again);
    close(fd);
    SAY(rmdir("only.d/below"));
    SAY(rmdir("only.d"));
    SAY(unlink("only.link"));
}

// Extended attributes: by path, of links, of what is open, and every error.
static void extended(void) {
    int fd;
    static char bytes[1 << 17], name[300];
    void *volatile nowhere = NULL;
    OPENS(fd, open("has", O_CREAT | O_RDWR, 0640));
    SAY(symlink("has", "has.link"));
    SAY(mkdir("has.d", 0755));
    SAY(mkfifo("has.fifo", 0600));
    SAY(getxattr("has", "user.a", bytes, sizeof bytes));
    SAY(setxattr("has", "user.a", "value", 5, XATTR_REPLACE));
    SAY(setxattr("has", "user.a", "value", 5, XATTR_CREATE));
    SAY(setxattr("has", "user.a", "value", 5, XATTR_CREATE));
    SAY(setxattr("has.link", "user.b", "second", 6, 0));
    SAY(lsetxattr("has.link", "user.b", "x", 1, 0));
    SAY(setxattr("has.d", "user.d", "", 0, 0));
    SAY(setxattr("has.fifo", "user.d", "x", 1, 0));
    SAY(getxattr("has.fifo", "user.d", bytes, sizeof bytes));
    SAY(getxattr("has", "user.b", bytes, sizeof bytes));
    printf("%.6s\n", bytes);
    SAY(getxattr("has", "user.b", NULL, 0));
    SAY(getxattr("has", "user.b", bytes, 5));
    SAY(getxattr("has", "user.b", nowhere, 6));
    SAY(getxattr("has.d", "user.d", bytes, 0));
    SAY(lgetxattr("has.link", "user.b", bytes, sizeof bytes));
    SAY(getxattr("has.link", "user.b", bytes, sizeof bytes));
    SAY(listxattr("has", bytes, sizeof bytes));
    SAY(listxattr("has", NULL, 0));
    SAY(listxattr("has", bytes, 3));
    SAY(llistxattr("has.link", bytes, sizeof bytes));
    SAY(listxattr("has.fifo", bytes, sizeof bytes));
    SAY(fsetxattr(fd, "user.c", "third", 5, 0));
    SAY(fgetxattr(fd, "user.c", bytes, 5));
    SAY(fgetxattr(fd, "user.none", bytes, 5));
    SAY(flistxattr(fd, bytes, sizeof bytes));
    SAY(fremovexattr(fd, "user.c"));
    SAY(fremovexattr(fd, "user.c"));
    SAY(removexattr("has", "user.a"));
    SAY(removexattr("has", "user.a"));
    SAY(lremovexattr("has.link", "user.b"));
    SAY(removexattr("has.link", "user.b"));
    SAY(listxattr("has", bytes, sizeof bytes));
    // Of the system.
    SAY(getxattr("has", "system.posix_acl_access", bytes, sizeof bytes));
    SAY(getxattr("has", "system.posix_acl_default", bytes, sizeof bytes));
    SAY(lgetxattr("has.link", "system.posix_acl_access", bytes, sizeof bytes));
    SAY(getxattr("has", "security.capability", bytes, sizeof bytes));
    SAY(setxattr("has", "trusted.a", "t", 1, 0));
    SAY(getxattr("has", "trusted.a", bytes, sizeof bytes));
    SAY(listxattr("has", bytes, sizeof bytes));
    static const char acl[] = "\2\0\0\0\1\0\6\0\377\377\377\377\2\0\4\0\7\0\0\0\4\0\4\0\377\377\377\377"
                              "\20\0\4\0\377\377\377\377 \0\0\0\377\377\377\377";
    SAY(setxattr("has", "system.posix_acl_access", acl, sizeof acl - 1, 0));
    SAY(getxattr("has", "system.posix_acl_access", bytes, sizeof bytes));
    printf("%d\n", memcmp(bytes, acl, sizeof acl - 1));
    SAY(fgetxattr(fd, "system.posix_acl_access", bytes, sizeof bytes));
    SAY(chmod("has", 0600));
    SAY(getxattr("has", "system.posix_acl_access", bytes, sizeof bytes));
    printf("%d %d\n", bytes[6], bytes[30]);
    // Errors.
    SAY(setxattr("has", "", "x", 1, 0));
    SAY(setxattr("has", "user.", "x", 1, 0));
    SAY(setxattr("has", "nothing", "x", 1, 0));
    SAY(setxattr("has", "system.shale.used", "x", 1, 0));
    SAY(setxattr("has", "user.a", "x", 1, 77));
    SAY(setxattr("has", "user.a", "x", 1, XATTR_CREATE | XATTR_REPLACE));
    SAY(setxattr("has", "user.a", nowhere, 1, 0));
    SAY(setxattr("has", "user.a", bytes, 65537, 0));
    SAY(setxattr("has", "user.a", bytes, 65536, 0));
    SAY(getxattr("has", "user.a", bytes, sizeof bytes));
    SAY(setxattr("has", nowhere, "x", 1, 0));
    SAY(setxattr("missing", "user.a", "x", 1, 0));
    SAY(getxattr("missing", "user.a", bytes, sizeof bytes));
    SAY(listxattr("missing", bytes, sizeof bytes));
    SAY(getxattr("has/x", "user.a", bytes, sizeof bytes));
    memcpy(name, "user.", 5);
    memset(name + 5, 'n', sizeof name - 6);
    name[255] = 0;
    SAY(setxattr("has", name, "long", 4, 0));
    SAY(getxattr("has", name, bytes, sizeof bytes));
    name[255] = 'n';
    SAY(setxattr("has", name, "long", 4, 0));
    SAY(getxattr("has", name, bytes, sizeof bytes));
    // They stay with the file.
    SAY(rename("has", "has.moved"));
    SAY(listxattr("has.moved", bytes, sizeof bytes));
    SAY(unlink("has.moved"));
    SAY(fgetxattr(fd, "user.a", bytes, sizeof bytes));
    close(fd);
    SAY(unlink("has.link"));
    SAY(unlink("has.fifo"));
    SAY(rmdir("has.d"));
}

// Private mappings.
// What the mount says of its space, by path and by descriptor. (How much is free differs by what was logged.)
static void about(const char *what, int failed, const struct statfs *s) {
    if (failed)
        printf("%s: %s\n", what, strerror(errno));
    else
        printf("%s: type %lx block %ld fragment %ld names %ld flags %lx number %x.%x; %d %d\n", what, (long)s->f_type, (long)s->f_bsize,
               (long)s->f_frsize, (long)s->f_namelen, (long)s->f_flags, s->f_fsid.__val[0], s->f_fsid.__val[1],
               s->f_blocks > 0 && s->f_bfree <= s->f_blocks, s->f_files > 0 && s->f_ffree <= s->f_files);
}

static void space(void) {
    struct statfs s;
    const char *paths[] = {".", "with-space", "to-space", "to-nowhere", "missing", "with-space/below", "/proc/self"};
    int fd = open("with-space", O_CREAT | O_RDWR, 0600);
    SAY(symlink("with-space", "to-space"));
    SAY(symlink("nowhere", "to-nowhere"));
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++)
        about(paths[i], statfs(paths[i], &s), &s);
    about("bad pointer", statfs("with-space", (struct statfs *)8), &s);
    about("open", fstatfs(fd, &s), &s);
    about("bad pointer, open", fstatfs(fd, (struct statfs *)8), &s);
    SAY(write(fd, "still open", 10));
    int dir = open(".", O_RDONLY | O_DIRECTORY), path = open("with-space", O_PATH);
    about("directory", fstatfs(dir, &s), &s);
    about("by its name only", fstatfs(path, &s), &s);
    close(fd), close(dir), close(path);
    about("closed", fstatfs(fd, &s), &s);
    SAY(unlink("with-space"));
    SAY(unlink("to-space"));
    SAY(unlink("to-nowhere"));
}

static void mappings(void) {
    int fd;
    struct stat s;
    static char page[4096], bytes[8192];
    for (size_t i = 0; i < sizeof page; i++)
        page[i] = 'a' + i % 26;
    OPENS(fd, open("mapped", O_CREAT | O_RDWR, 0644));
    for (int i = 0; i < 3; i++)
        SAY(write(fd, page, sizeof page));
    SAY(write(fd, "end", 3));
    char *all = mmap(NULL, 4 * 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    printf("%d %d %.3s %d\n", all != MAP_FAILED, memcmp(all + 4096, page, sizeof page), all + 3 * 4096, all[3 * 4096 + 3]);
    char *part = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 4096);
    part[0] = '!';
    printf("%c %c\n", part[0], part[1]);
    SAY(pread(fd, bytes, 1, 4096));
    printf("%c\n", bytes[0]);
    // What is dropped comes back.
    SAY(madvise(part, 4096, MADV_DONTNEED));
    printf("%c\n", part[0]);
    // It stays when the file is closed, changed, and gone.
    SAY(fstat(fd, &s));
    SAY(close(fd));
    SAY(unlink("mapped"));
    printf("%d\n", memcmp(all, page, sizeof page));
    // Children have it.
    pid_t child = fork();
    if (child == 0)
        _exit(memcmp(all + 2 * 4096, page, sizeof page) || part[0] != 'a');
    int status;
    waitpid(child, &status, 0);
    printf("child %d\n", status);
    // A page behind the end is SIGBUS.
    OPENS(fd, open("mapped", O_CREAT | O_RDWR, 0644));
    SAY(write(fd, "x", 1));
    char *behind = mmap(NULL, 2 * 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    child = fork();
    if (child == 0)
        _exit(behind[4096]);
    waitpid(child, &status, 0);
    printf("child %d\n", WTERMSIG(status));
    SAY(munmap(all, 4 * 4096));
    SAY(munmap(part, 4096));
    SAY(munmap(behind, 2 * 4096));
    SAY(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
    SAY(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 5) == MAP_FAILED ? -1 : 0);
    close(fd);
    OPENS(fd, open("mapped", O_WRONLY));
    SAY(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
    close(fd);
    OPENS(fd, open("mapped", O_RDONLY));
    SAY(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    close(fd);
    SAY(unlink("mapped"));
}

int main(int, char **arguments) {
    const char *dir = arguments[1];
    umask(022);
    if (chdir(dir))
        return 1;
    errors();
    list(".");
    kinds(dir);
    list(".");
    list("d");
    descriptors();
    list(".");
    directories();
    list(".");
    by_name_only(dir);
    extended();
    space();
    mappings();
    list(".");
    return 0;
}
