/* One process alone makes a file longer and shorter, below what the kernel knows of it each time,
   and reads it; now and then another program looks what is there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LARGE = 600000, SMALL = 1000, TAIL = 3000 };

static char data[LARGE], found[LARGE];

/* What a program without the library finds in the file is `size` bytes, and right. */
static int seen(const char *path, int size)
{
    char command[4200];
    snprintf(command, sizeof command, "LD_PRELOAD= cat '%s'", path);
    FILE *cat = popen(command, "r");
    if (!cat)
        return 0;
    int n = fread(found, 1, LARGE, cat);
    int failed = pclose(cat);
    if (n != size || failed)
        printf("%d bytes of %d, status %d\n", n, size, failed);
    return n == size && !failed && memcmp(found, data, n) == 0;
}

int main(int argc, char **argv)
{
    int rounds = argc == 3 ? atoi(argv[2]) : 0;
    int fd = rounds ? open(argv[1], O_CREAT | O_RDWR | O_CLOEXEC, 0644) : -1;
    if (fd < 0)
        return 2;
    for (int round = 1; round <= rounds; round++) {
        int large = round % 100 ? 20 * SMALL : LARGE, small = SMALL + round % 977;
        memset(data, 'a' + round % 26, large);
        if (pwrite(fd, data, large, 0) != large)
            return 3;
        /* Now the kernel knows how large it is. */
        int again = open(argv[1], O_RDONLY | O_CLOEXEC);
        if (again < 0 || close(again) != 0 || ftruncate(fd, small) != 0)
            return 4;
        if (round % 200 == 0 && !seen(argv[1], small))
            return 5;
        /* A hole, and something behind it. */
        if (pwrite(fd, data, TAIL, 2 * SMALL + TAIL) != TAIL)
            return 6;
        int size = 2 * (SMALL + TAIL);
        memset(data + small, 0, 2 * SMALL + TAIL - small);
        if (pread(fd, found, large, 0) != size || memcmp(found, data, size) != 0)
            return 7;
        if (round % 200 == 100 && !seen(argv[1], size))
            return 8;
    }
    return 0;
}
