/* Private mappings of FILE: what they show, while the file is rewritten and in children. With a second
 * argument they are expected to lie in NVM. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <signal.h>
#define CHECK(x) do { if (!(x)) { printf("line %d: %s (%s)\n", __LINE__, #x, strerror(errno)); exit(1); } } while (0)
static int lies_in(void *at, const char *what) {
    FILE *f = fopen("/proc/self/maps", "r"); char line[4096]; int hit = 0;
    while (fgets(line, sizeof line, f)) {
        unsigned long a, b; sscanf(line, "%lx-%lx", &a, &b);
        if (a <= (unsigned long)at && (unsigned long)at < b) hit = strstr(line, what) != 0;
    }
    fclose(f); return hit;
}
static char byte(size_t i) { return (char)(i * 7 + i / 4096); }
static void fill(int fd, size_t from, size_t bytes) {
    char *b = malloc(bytes); for (size_t i = 0; i < bytes; i++) b[i] = byte(from + i);
    CHECK(pwrite(fd, b, bytes, from) == (ssize_t)bytes); free(b);
}
static int same(const char *p, size_t from, size_t bytes) { for (size_t i = 0; i < bytes; i++) if (p[i] != byte(from + i)) return 0; return 1; }
int main(int argc, char **argv) {
    int direct = argc > 2;
    size_t bytes = 100 * 4096 + 1234;
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644); CHECK(fd >= 0);
    fill(fd, 0, bytes);
    char *p = mmap(0, bytes, PROT_READ, MAP_PRIVATE, fd, 0); CHECK(p != MAP_FAILED);
    CHECK(same(p, 0, bytes));
    for (size_t i = bytes; i < 101 * 4096; i++) CHECK(p[i] == 0);
    if (direct) CHECK(lies_in(p, "/seg-"));
    // a part, writable: the file stays
    char *q = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 10 * 4096); CHECK(q != MAP_FAILED);
    CHECK(same(q, 10 * 4096, 3 * 4096)); memset(q, 'x', 3 * 4096);
    char b[4096]; CHECK(pread(fd, b, 4096, 10 * 4096) == 4096 && same(b, 10 * 4096, 4096));
    CHECK(same(p, 0, bytes));
    // the file goes on by itself: rewritten many times over, what is mapped stays whole
    memset(b, 'y', sizeof b);
    for (int round = 0; round < 20; round++) for (size_t i = 0; i < bytes; i += 4096) CHECK(pwrite(fd, b, 4096, i) == 4096);
    fsync(fd);
    if (direct) CHECK(same(p, 0, bytes));
    for (int i = 0; i < 3 * 4096; i++) CHECK(q[i] == 'x');
    // executable afterwards
    CHECK(mprotect(q, 4096, PROT_READ | PROT_EXEC) == 0); CHECK(q[5] == 'x' && q[4096] == 'x');
    // at a fixed place, over anonymous memory
    char *a = mmap(0, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(a, 'a', 16 * 4096);
    CHECK(mmap(a + 4096, 2 * 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 4096) == a + 4096);
    CHECK(a[4095] == 'a' && a[4096] == 'y' && a[3 * 4096 - 1] == 'y' && a[3 * 4096] == 'a');
    CHECK(mmap(a, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0) == MAP_FAILED && errno == EEXIST);
    // a child has what its parent had, longer than the parent
    int pipes[2]; CHECK(pipe(pipes) == 0);
    int status;
    pid_t pid = fork(); CHECK(pid >= 0);
    if (pid == 0) {
        char c; close(pipes[1]); CHECK(read(pipes[0], &c, 1) == 0);
        if (direct) CHECK(same(p, 0, bytes));
        _exit(0);
    }
    CHECK(munmap(p, bytes) == 0);
    CHECK(munmap(q, 3 * 4096) == 0 && munmap(a, 16 * 4096) == 0);
    for (int round = 0; round < 20; round++) for (size_t i = 0; i < bytes; i += 4096) CHECK(pwrite(fd, b, 4096, i) == 4096);
    fsync(fd); sleep(1);
    close(pipes[1]);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(mremap(mmap(0, 8192, PROT_READ, MAP_PRIVATE, fd, 0), 8192, 4096, 0) != MAP_FAILED);
    CHECK(mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 77) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(0, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EINVAL);
    int wo = open(argv[1], O_WRONLY); CHECK(mmap(0, 4096, PROT_READ, MAP_PRIVATE, wo, 0) == MAP_FAILED && errno == EACCES);
    // behind the end
    pid = fork(); CHECK(pid >= 0);
    if (pid == 0) {
        signal(SIGBUS, _exit);
        char *over = mmap(0, bytes + 8192, PROT_READ, MAP_PRIVATE, fd, 0); CHECK(over != MAP_FAILED);
        CHECK(over[bytes - 1] == 'y' || over[bytes-1] == byte(bytes-1));
        volatile char c = over[101 * 4096]; (void)c; _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == SIGBUS);
    printf("ok\n"); return 0;
}
