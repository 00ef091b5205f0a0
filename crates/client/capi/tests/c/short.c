/* Writes bytes that are far from each other while the process may have no more memory than it has: each
 * is written, or the call says ENOMEM. With memory again all goes on, and what was written is there.
 *
 *   short MOUNTPOINT FILE [fits]     FILE: a path inside the volume; fits: NVM is so small that digests, which
 *                                    free space, free memory as fast as it is used: nothing need be refused
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <shale.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES 100000
#define APART 100

static char written[BYTES];

static void check(int good, const char *what, long long result)
{
    if (!good) {
        fprintf(stderr, "short: %s: %s\n", what, shale_strerror((int)result));
        exit(1);
    }
}

static void expect(long long result, long long wanted, const char *what)
{
    check(result == wanted, what, result);
}

static long mapped(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    check(f && fscanf(f, "%ld", &pages) == 1, "statm", -EIO);
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    struct rlimit limit, all;
    struct stat status;
    shale_t *volume, *second = NULL;
    shale_file_t *file, *other;
    long refused = 0, done = 0;
    int fits = argc == 4;
    char byte = 'x';
    long long result;

    if (argc != 3 && argc != 4)
        return 2;
    expect(shale_attach(argv[1], &volume), 0, "attach");
    expect(shale_open(volume, argv[2], O_RDWR | O_CREAT, 0600, &file), 0, "open");
    expect(shale_pwrite(file, &byte, 1, 0), 1, "pwrite");
    check(getrlimit(RLIMIT_AS, &all) == 0, "getrlimit", -errno);
    limit = all;
    limit.rlim_cur = (rlim_t)mapped();
    check(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit", -errno);
    for (long i = 0; i < BYTES; i++) {
        byte = (char)('a' + i % 26);
        result = shale_pwrite(file, &byte, 1, i * APART);
        check(result == 1 || result == -ENOMEM, "pwrite without memory", result);
        written[i] = result == 1;
        done += result == 1;
        refused += result == -ENOMEM;
    }
    check(done > 1000 && (refused > 0 || fits), "both happen", 0);
    result = shale_fstat(file, &status);
    check(result == -ENOMEM || (fits && result == 0), "fstat is refused", result);
    expect(shale_attach(argv[1], &second), -ENOMEM, "so is one more attach");
    result = shale_open(volume, argv[2], O_RDONLY, 0, &other);
    check(result == -ENOMEM || (fits && result == 0), "and open", result);
    if (result == 0)
        expect(shale_close(other), 0, "close the other");
    check(setrlimit(RLIMIT_AS, &all) == 0, "setrlimit", -errno);

    byte = '!';
    expect(shale_pwrite(file, &byte, 1, (long)BYTES * APART), 1, "with memory again");
    for (long i = 0; i < BYTES; i++) {
        expect(shale_pread(file, &byte, 1, i * APART), 1, "pread");
        check(byte == (written[i] ? (char)('a' + i % 26) : i ? 0 : 'x'), "what was written", -EIO);
    }
    expect(shale_close(file), 0, "close");
    expect(shale_detach(volume), 0, "detach");
    printf("%ld written, %ld refused\n", done, refused);
    return 0;
}
