/* Maps a file that another process writes, and writes from and reads into that mapping. Prints
 * how long the longest round took, in ms. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES (256L << 10)
#define PIECE (64L << 10)

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000L + t.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
    int rounds = atoi(argv[3]), other;
    char *zeros = calloc(1, FILE_BYTES);
    int own = open(argv[1], O_CREAT | O_RDWR, 0644);
    if (argc != 4 || pwrite(own, zeros, FILE_BYTES, 0) != FILE_BYTES)
        return 1;
    while ((other = open(argv[2], O_RDWR)) < 0 || lseek(other, 0, SEEK_END) < FILE_BYTES) {
        close(other);
        usleep(1000);
    }
    char *map = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
    long longest = 0;
    for (int i = 0; i < rounds; i++) {
        long at = i % 4 * PIECE, begin = now();
        /* Every page of it has to be fetched again. */
        madvise(map, FILE_BYTES, MADV_DONTNEED);
        if (pwrite(own, map + at, PIECE, at) != PIECE || pread(own, map + at, 16, at) != 16)
            return 2;
        if (now() - begin > longest)
            longest = now() - begin;
    }
    printf("%ld\n", longest);
    return 0;
}
