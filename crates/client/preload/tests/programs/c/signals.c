// Signals that come together while the library serves a call: signals FILE SIGNALS. Each write beyond the limit on file sizes raises
// SIGXFSZ in the middle of its call, and a child sends SIGUSR1 and SIGUSR2 all the while, each time when the last ones have arrived.
// Says which did not arrive, and nothing else.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT = 65536, KINDS = 2 };
static volatile int *arrived;
static volatile long exceeded;

static void note(int signal) { arrived[signal == SIGUSR2]++; }

static void limit(int signal) {
    if (signal == SIGXFSZ) exceeded++;
}

static long ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int send_all(pid_t to, int signals) {
    static const int kinds[KINDS] = {SIGUSR1, SIGUSR2};
    for (int n = 1; n <= signals; n++) {
        for (int kind = 0; kind < KINDS; kind++) kill(to, kinds[kind]);
        for (int kind = 0; kind < KINDS; kind++) {
            for (long begun = ms(); arrived[kind] < n;) {
                sched_yield();
                if (ms() - begun < 20000) continue;
                printf("signal %d did not arrive the %dth time\n", kinds[kind], n);
                fflush(stdout);
                return 1;
            }
        }
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    arrived = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    struct rlimit most = {LIMIT, RLIM_INFINITY};
    char bytes[4096] = {1};
    if (arrived == MAP_FAILED || fd < 0 || setrlimit(RLIMIT_FSIZE, &most)) return 2;
    for (int n = 0; n < LIMIT / 4096; n++) {
        if (pwrite(fd, bytes, 4096, n * 4096) != 4096) return 2;
    }
    signal(SIGUSR1, note);
    signal(SIGUSR2, note);
    signal(SIGXFSZ, limit);
    pid_t parent = getpid(), child = fork();
    if (child == 0) _exit(send_all(parent, atoi(arguments[2])));
    long calls = 0;
    int status;
    do {
        for (int n = 0; n < 64; n++) {
            errno = 0;
            if (pwrite(fd, bytes, 1, LIMIT) != -1 || errno != EFBIG) {
                printf("beyond the limit: %d\n", errno);
                kill(child, SIGKILL);
                return 1;
            }
            calls++;
        }
    } while (waitpid(child, &status, WNOHANG) == 0);
    if (exceeded != calls) printf("%ld of %ld SIGXFSZ\n", exceeded, calls);
    return !WIFEXITED(status) || WEXITSTATUS(status);
}
