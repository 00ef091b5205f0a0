// Programs with rights, and the ways to change them.
//
//   rights make DIR GROUP    files MODE-WAY, each a copy of this program; run and looked at once
//   rights change DIR        changes each file by its way, as the user who runs this; prints errno
//   rights look DIR UID      what each file is now, and what it may do when UID runs it
//
// The changes are behind the program's own bytes, so that it still runs.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/falloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CAPABILITY "security.capability"
#define TAIL (64 << 10)
#define CAP_NET_RAW_BIT 13

static const char *const modes[] = {"4777", "2777", "6777", "2767", "6767", "0777", "c0777", "c4777", "4755"};
static const char *const ways[] = {
    "nothing", "write",    "pwrite",   "pwritev",  "append",    "empty",    "direct",   "truncate",
    "cut",     "ftruncate", "same",     "trunc",    "allocate",  "keep",     "punch",    "zero",
    "zerokeep", "collapse", "insert",   "mapped",   "copy",      "sendfile", "splice",   "large",
    "chmod",   "chown",    "chgrp",    "chownnone", "touch",     "user",     "twice",    "child",    "given",
};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static off_t size_of(const char *file) {
    struct stat s;
    if (stat(file, &s)) fail(file);
    return s.st_size;
}

// Where this program's own bytes end, rounded up.
static off_t tail_at(const char *file) { return size_of(file) - TAIL; }

static void make(const char *dir, gid_t group) {
    char path[4096], self[1 << 20];
    int fd = open("/proc/self/exe", O_RDONLY);
    ssize_t n = read(fd, self, sizeof self);
    if (n <= 0 || n == sizeof self) fail("this program");
    close(fd);
    size_t end = ((size_t)n + 4095) & ~4095UL;
    for (size_t m = 0; m < COUNT(modes); m++)
        for (size_t w = 0; w < COUNT(ways); w++) {
            snprintf(path, sizeof path, "%s/%s-%s", dir, modes[m], ways[w]);
            fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0700);
            if (fd < 0 || pwrite(fd, self, n, 0) != n) fail(path);
            for (int i = 0; i < TAIL / 4096; i++) {
                char block[4096];
                memset(block, 'a' + i, sizeof block);
                if (pwrite(fd, block, sizeof block, end + i * 4096) != sizeof block) fail(path);
            }
            int capable = modes[m][0] == 'c';
            mode_t mode = strtol(modes[m] + capable, NULL, 8);
            if (fchown(fd, 0, group) || fchmod(fd, mode)) fail(path);
            if (capable) {
                struct vfs_cap_data cap = {.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE};
                cap.data[0].permitted = 1 << CAP_NET_RAW_BIT;
                if (fsetxattr(fd, CAPABILITY, &cap, sizeof cap, 0)) fail(CAPABILITY);
            }
            close(fd);
        }
}

static int to(const char *file, int flags) {
    int fd = open(file, flags);
    if (fd < 0) return -1;
    return fd;
}

// Changes a file; 0 or -1 with errno.
static int change(const char *file, const char *way) {
    char page[4096] __attribute__((aligned(4096)));
    memset(page, 'x', sizeof page);
    off_t tail = tail_at(file);
    int fd, result = -1;
#define IS(name) (!strcmp(way, name))
    if (IS("nothing")) return 0;
    if (IS("chmod")) return chmod(file, 0770);
    if (IS("chown")) return chown(file, 2, -1);
    if (IS("chgrp")) return chown(file, -1, 2);
    if (IS("chownnone")) return chown(file, -1, -1);
    if (IS("user")) return setxattr(file, "user.x", "y", 1, 0);
    if (IS("touch")) return utimensat(AT_FDCWD, file, NULL, 0);
    if (IS("truncate")) return truncate(file, tail + TAIL + 100);
    if (IS("cut")) return truncate(file, tail + 100);
    if (IS("trunc")) return (fd = to(file, O_WRONLY | O_TRUNC)) < 0 ? -1 : close(fd);
    if (IS("child") || IS("given")) {
        // By a child, with a descriptor from before; of another user if may be.
        if ((fd = to(file, O_WRONLY)) < 0) return -1;
        pid_t pid = fork();
        if (pid == 0 && IS("given") && geteuid() == 0)
            if (setgroups(0, NULL) || setresgid(1000, 1000, 1000) || setresuid(1000, 1000, 1000)) _exit(EPERM);
        if (pid == 0) _exit(pwrite(fd, page, 10, tail) == 10 ? 0 : errno);
        int status;
        close(fd);
        waitpid(pid, &status, 0);
        errno = WEXITSTATUS(status);
        return status ? -1 : 0;
    }
    int flags = O_RDWR;
    if (IS("append")) flags |= O_APPEND;
    if (IS("direct")) flags |= O_DIRECT;
    if ((fd = to(file, flags)) < 0) return -1;
    struct iovec v[2] = {{page, 10}, {page, 20}};
    if (IS("write")) result = lseek(fd, tail, SEEK_SET) == tail && write(fd, page, 10) == 10 ? 0 : -1;
    if (IS("twice")) {
        result = lseek(fd, tail, SEEK_SET) == tail && write(fd, page, 10) == 10 ? 0 : -1;
        char back[30];
        if (!result && (write(fd, page, 20) != 20 || pread(fd, back, 30, tail) != 30 || memcmp(back, page, 30)))
            errno = EILSEQ, result = -1;
    }
    if (IS("append")) result = write(fd, page, 10) == 10 ? 0 : -1;
    if (IS("empty")) result = write(fd, page, 0);
    if (IS("pwrite")) result = pwrite(fd, page, 10, tail) == 10 ? 0 : -1;
    if (IS("pwritev")) result = pwritev(fd, v, 2, tail) == 30 ? 0 : -1;
    if (IS("direct")) result = pwrite(fd, page, 4096, tail) == 4096 ? 0 : -1;
    if (IS("large")) {
        size_t bytes = 5 << 18;
        char *all = malloc(bytes);
        memset(all, 'l', bytes);
        result = pwrite(fd, all, bytes, tail) == (ssize_t)bytes ? 0 : -1;
        free(all);
    }
    if (IS("ftruncate")) result = ftruncate(fd, tail + 100);
    if (IS("same")) result = ftruncate(fd, tail + TAIL);
    if (IS("allocate")) result = fallocate(fd, 0, tail, 3 * TAIL);
    if (IS("keep")) result = fallocate(fd, FALLOC_FL_KEEP_SIZE, tail, 3 * TAIL);
    if (IS("punch")) result = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, tail, 4096);
    if (IS("zero")) result = fallocate(fd, FALLOC_FL_ZERO_RANGE, tail, 4096);
    if (IS("zerokeep")) result = fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, tail, 3 * TAIL);
    if (IS("collapse")) result = fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, tail, 4096);
    if (IS("insert")) result = fallocate(fd, FALLOC_FL_INSERT_RANGE, tail, 4096);
    if (IS("mapped")) {
        char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, tail);
        if (at != MAP_FAILED) {
            at[5] = 'm';
            result = msync(at, 4096, MS_SYNC);
            munmap(at, 4096);
        }
    }
    loff_t from = 0, into = tail;
    if (IS("copy")) result = copy_file_range(fd, &from, fd, &into, 4096, 0) == 4096 ? 0 : -1;
    if (IS("sendfile")) {
        int other = open("/proc/self/exe", O_RDONLY);
        result = lseek(fd, tail, SEEK_SET) == tail && sendfile(fd, other, NULL, 100) == 100 ? 0 : -1;
        close(other);
    }
    if (IS("splice")) {
        int ends[2];
        if (pipe(ends) || write(ends[1], page, 100) != 100) return -1;
        result = splice(ends[0], NULL, fd, &into, 100, 0) == 100 ? 0 : -1;
        close(ends[0]), close(ends[1]);
    }
    int e = errno;
    close(fd);
    errno = e;
    return result;
}

// What this program may do.
static void probe(void) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "CapEff:", 7)) line[strcspn(line, "\n")] = 0, printf("euid %d egid %d %s", geteuid(), getegid(), line + 8);
    fflush(stdout);
}

static void look(const char *file, uid_t uid) {
    struct stat s;
    int ends[2];
    char said[256] = "";
    if (pipe(ends)) fail("pipe");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)) fail("setresuid");
        execl(file, "probe", NULL);
        printf("errno %d", errno);
        fflush(stdout);
        _exit(0);
    }
    close(ends[1]);
    // Run first, so that nothing but the start of a program asks for the mode.
    ssize_t n = 0, got;
    while ((got = read(ends[0], said + n, sizeof said - 1 - n)) > 0) n += got;
    close(ends[0]);
    waitpid(pid, NULL, 0);
    if (stat(file, &s)) fail(file);
    char cap[64];
    ssize_t capable = getxattr(file, CAPABILITY, cap, sizeof cap);
    printf("%s mode %o owner %d.%d capability %zd: %s\n", strrchr(file, '/') + 1, s.st_mode & 07777, s.st_uid,
           s.st_gid, capable, said);
}

int main(int argc, char **argv) {
    if (!strcmp(argv[0], "probe")) return probe(), 0;
    if (argc == 4 && !strcmp(argv[1], "make")) return make(argv[2], atoi(argv[3])), 0;
    if (argc < 3) return 2;
    for (size_t m = 0; m < COUNT(modes); m++)
        for (size_t w = 0; w < COUNT(ways); w++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s-%s", argv[2], modes[m], ways[w]);
            if (!strcmp(argv[1], "look")) {
                look(path, atoi(argv[3]));
            } else {
                errno = 0;
                int result = change(path, ways[w]);
                printf("%s-%s %d\n", modes[m], ways[w], result ? errno : 0);
            }
        }
    return 0;
}
