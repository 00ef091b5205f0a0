// A program that lets the kernel end it when it makes a system call that it does not need (seccomp(2)), with a file open: restricted HOW FILE OTHER.
// Writes, reads, opens and closes with a filter ("prctl", "seccomp"), or writes and reads in strict mode ("strict"); "start": in a program that is started under a
// filter which refuses what no program needs (membarrier(2), pkey_alloc(2)). Prints nothing.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

enum { TIMES = 500, BYTES = 100 };
static char bytes[BYTES];

static int write_all(int fd) {
    for (int n = 0; n < TIMES; n++) {
        if (write(fd, bytes, BYTES) != BYTES) return 0;
    }
    return 1;
}

static int restrict_calls(const char *how) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(__NR_read), ALLOW(__NR_write), ALLOW(__NR_openat), ALLOW(__NR_close), ALLOW(__NR_pread64),
        ALLOW(__NR_exit_group), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog all = {sizeof filter / sizeof *filter, filter};
    if (!strcmp(how, "strict")) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    if (!strcmp(how, "prctl")) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all);
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &all);
}

static int start_refused(char **arguments) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_membarrier, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_pkey_alloc, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog all = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all)) return 2;
    arguments[1] = "prctl";
    execv(arguments[0], arguments);
    return 2;
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    if (!strcmp(arguments[1], "start")) return start_refused(arguments);
    memset(bytes, 'x', sizeof bytes);
    int fd = open(arguments[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || !write_all(fd) || lseek(fd, 0, SEEK_SET)) return 2;
    if (restrict_calls(arguments[1])) return 2;
    for (int n = 0; n < TIMES; n++) {
        if (read(fd, bytes, BYTES) != BYTES) return 3;
    }
    if (!write_all(fd)) return 4;
    if (!strcmp(arguments[1], "strict")) syscall(SYS_exit, 0);
    if (pread(fd, bytes, BYTES, (2 * TIMES - 1) * BYTES) != BYTES || close(fd)) return 5;
    fd = openat(AT_FDCWD, arguments[3], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || !write_all(fd) || close(fd)) return 6;
    _exit(0);
}
