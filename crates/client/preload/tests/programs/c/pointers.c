// What calls say of pointers to where nothing is, and that faults of the program itself end it, or are its own: pointers DIRECTORY.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *what, long result) {
    printf("%s: %ld %s\n", what, result, result < 0 ? strerror(errno) : "");
    fflush(stdout);
}

static sigjmp_buf back;
static void jump(int signal) { siglongjmp(back, signal); }
static volatile sig_atomic_t came;
static void note(int signal) { came = signal; }

// How a child ends that does this.
static void ends(const char *what, void (*does)(void *), void *with) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        does(with);
        _exit(3);
    }
    int status;
    waitpid(child, &status, 0);
    printf("%s: %s %d\n", what, WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void touch(void *at) { *(volatile char *)at = 1; }
static void send_segv(void *unused) { kill(getpid(), SIGSEGV); }
static void ignore(void *unused) {
    signal(SIGSEGV, SIG_IGN);
    kill(getpid(), SIGSEGV);
}
static void once(void *at) {
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESETHAND};
    sigaction(SIGSEGV, &action, NULL);
    touch(at);
}

int main(int count, char **arguments) {
    if (count != 2 || chdir(arguments[1])) return 2;
    long page = sysconf(_SC_PAGESIZE);
    char *good = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *bad = good + 2 * page, *constant = good + 3 * page;
    memset(good, 'x', 4 * page);
    mprotect(bad, page, PROT_NONE);
    mprotect(constant, page, PROT_READ);
    int fd = open("file", O_CREAT | O_RDWR, 0644);
    for (int i = 0; i < 100; i++) write(fd, good, 1000);
    lseek(fd, 0, SEEK_SET);
    // Data.
    say("write", write(fd, bad, 100));
    say("write of nothing", write(fd, bad, 0));
    say("write up to there", write(fd, bad - 100, 300));
    say("pwrite", pwrite(fd, bad, 100, 5));
    say("pwrite of what is constant", pwrite(fd, constant, 100, 5));
    struct iovec two[] = {{good, 10}, {bad, 20}, {good, 5}}, first[] = {{bad, 10}, {good, 20}};
    say("writev", writev(fd, two, 3));
    say("writev, first", writev(fd, first, 2));
    say("writev, list", writev(fd, (struct iovec *)bad, 2));
    say("read", read(fd, bad, 100));
    say("read to what is constant", read(fd, constant, 100));
    say("pread", pread(fd, bad, 100, 0));
    say("pread of nothing", pread(fd, bad, 0, 0));
    say("readv", readv(fd, two, 3));
    say("readv, first", readv(fd, first, 2));
    say("readv, list", readv(fd, (struct iovec *)bad, 2));
    say("where", lseek(fd, 0, SEEK_CUR));
    // Attributes.
    say("fstat", fstat(fd, (struct stat *)bad));
    say("fstat to what is constant", fstat(fd, (struct stat *)constant));
    say("stat", stat("file", (struct stat *)bad));
    say("stat across", stat("file", (struct stat *)(bad - 8)));
    say("statx", statx(AT_FDCWD, "file", 0, STATX_ALL, (struct statx *)bad));
    say("FIONREAD", ioctl(fd, FIONREAD, bad));
    say("utimensat", utimensat(AT_FDCWD, "file", (struct timespec *)bad, 0));
    say("futimens", futimens(fd, (struct timespec *)(bad - 8)));
    // Names.
    char *unended = bad - 3;
    memcpy(unended, "abc", 3);
    for (int n = 0; n < 2; n++) {
        const char *name = n ? unended : bad;
        struct stat status;
        say("open", open(name, O_RDWR | O_CREAT, 0644));
        say("stat", stat(name, &status));
        say("access", access(name, F_OK));
        say("mkdir", mkdir(name, 0755));
        say("rmdir", rmdir(name));
        say("unlink", unlink(name));
        say("rename from", rename(name, "to"));
        say("rename to", rename("file", name));
        say("link", link("file", name));
        say("symlink", symlink(name, "link"));
        say("chmod", chmod(name, 0600));
        say("truncate", truncate(name, 5));
        say("chdir", chdir(name));
    }
    strcpy(bad - 5, "file");
    say("a name that ends there", access(bad - 5, F_OK));
    say("symlink", symlink("file", "link"));
    say("readlink", readlink("link", bad, 100));
    say("readlink of less", readlink("link", bad - 2, 2));
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    say("getdents64", syscall(SYS_getdents64, dir, bad, 1000));
    say("getdents64 to what is constant", syscall(SYS_getdents64, dir, constant, 1000));
    // Descriptors, processes, signals.
    loff_t *offset = (loff_t *)bad;
    say("copy_file_range", copy_file_range(fd, offset, dir, NULL, 10, 0));
    say("poll", poll((struct pollfd *)bad, 1, 0));
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    struct msghdr header = {.msg_iov = first, .msg_iovlen = 2, .msg_control = bad, .msg_controllen = 24};
    say("sendmsg", sendmsg(pair[0], (struct msghdr *)bad, 0));
    say("sendmsg, control", sendmsg(pair[0], &header, 0));
    char *none[] = {NULL};
    say("execve", execve(bad, none, none));
    say("execve, environment", execve("/bin/true", none, (char **)bad));
    char *variables[] = {"A=1", bad, NULL};
    say("execve, variable", execve("/bin/true", none, variables));
    say("sigaction", syscall(SYS_rt_sigaction, SIGUSR1, bad, NULL, 8));
    say("sigaction, old", syscall(SYS_rt_sigaction, SIGUSR1, NULL, bad, 8));
    // Faults of the program's own.
    struct sigaction action;
    sigaction(SIGSEGV, NULL, &action);
    printf("default: %d %d\n", action.sa_handler == SIG_DFL, action.sa_flags & (SA_SIGINFO | SA_ONSTACK | SA_RESETHAND));
    ends("touches", touch, bad);
    ends("is sent one", send_segv, NULL);
    ends("ignores it", ignore, NULL);
    ends("handles it once", once, bad);
    int empty = open("empty", O_CREAT | O_RDWR, 0644);
    ftruncate(empty, page);
    char *mapped = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, empty, 0);
    ftruncate(empty, 0);
    ends("touches behind the end", touch, mapped);
    say("write of what is behind the end", write(fd, mapped, 10));
    for (int n = 0; n < 2; n++) {
        signal(SIGSEGV, n ? jump : SIG_DFL);
        say("write", write(fd, bad, 100));
        say("open", open(bad, O_RDONLY));
        if (n == 0) continue;
        int signal = sigsetjmp(back, 1);
        if (signal == 0) touch(bad);
        printf("came back by %d\n", signal);
        say("write", write(fd, bad, 100));
        sigaction(SIGSEGV, NULL, &action);
        printf("its handler: %d\n", action.sa_handler == jump);
    }
    struct sigaction other = {.sa_handler = note};
    sigaction(SIGSEGV, &other, NULL);
    raise(SIGSEGV);
    printf("came: %d\n", came);
    say("the last", pwrite(fd, good, 10, 0));
    return 0;
}
