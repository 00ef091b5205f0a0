/* short FILE: bytes that are far from each other are written while the process may have no more memory than it
 * has. Each is written, or the call says ENOMEM; with memory again all goes on. Prints nothing if so. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* At most: how many find memory depends on what a write takes. */
#define BYTES 400000
#define REFUSED 1000
#define APART 100

static char written[BYTES];

static void check(int good, const char *what)
{
    if (!good) {
        printf("%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static long mapped(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    check(f && fscanf(f, "%ld", &pages) == 1, "statm");
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
    struct rlimit limit, all;
    long refused = 0, done = 0;
    char byte = 'x';
    check(argc == 2 && fd >= 0 && pwrite(fd, &byte, 1, 0) == 1 && pread(fd, &byte, 1, 0) == 1, "begin");
    check(getrlimit(RLIMIT_AS, &all) == 0, "getrlimit");
    limit = all;
    limit.rlim_cur = mapped();
    check(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
    long tried = 0;
    for (long i = 0; i < BYTES && refused < REFUSED; i++, tried++) {
        byte = 'a' + i % 26;
        if (pwrite(fd, &byte, 1, i * APART) == 1)
            done += written[i] = 1;
        else {
            check(errno == ENOMEM, "pwrite");
            refused++;
        }
    }
    check(lseek(fd, 0, SEEK_END) > 0, "lseek");
    int other = open(argv[1], O_RDONLY);
    check(other >= 0 && pread(other, &byte, 1, 0) == 1 && byte == 'a' && close(other) == 0, "open");
    check(setrlimit(RLIMIT_AS, &all) == 0, "setrlimit");
    /* How many are refused depends on how fast the log is digested: what is digested gives its memory back. */
    check(done > 1000, "most are done");
    byte = '!';
    check(pwrite(fd, &byte, 1, tried * APART) == 1, "with memory again");
    for (long i = 0; i < tried; i++) {
        check(pread(fd, &byte, 1, i * APART) == 1, "pread");
        check(byte == (written[i] ? 'a' + i % 26 : i ? 0 : 'x'), "what was read");
    }
    return 0;
}
