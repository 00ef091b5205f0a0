/* One process makes a file longer, piece by piece, and says how far it is in memory that both
   share; another reads on at the end, and must find all that was there when it began. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 100, PIECES_MAX = 400000 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    static char data[1 << 20];
    int count = argc == 5 ? open(argv[3], O_RDWR) : -1;
    _Atomic long *done = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, count, 0);
    int file = argc == 5 ? open(argv[2], O_RDWR) : -1;
    if (file < 0 || done == MAP_FAILED)
        return 2;
    double end = now() + atof(argv[4]);
    memset(data, 'x', sizeof data);
    if (argv[1][0] == 'w') {
        for (long at = 0; now() < end && at < (long)PIECE * PIECES_MAX; at += PIECE) {
            if (pwrite(file, data, PIECE, at) != PIECE)
                return 3;
            atomic_store(done, at + PIECE);
            if (at / PIECE % 16 == 0)
                usleep(20);
        }
        return 0;
    }
    for (long at = 0, round = 0; now() < end; round++) {
        long least = atomic_load(done);
        for (long n; (n = pread(file, data, sizeof data, at)) > 0; at += n)
            for (long i = 0; i < n; i++)
                if (data[i] != 'x') {
                    printf("byte %ld is %d\n", at + i, data[i]);
                    return 1;
                }
        if (at < least) {
            printf("%ld bytes of %ld\n", at, least);
            return 1;
        }
        if (round % 4)
            usleep(argv[1][1] == 's' ? 10000 : 0);
    }
    return 0;
}
