/* Appends records, syncs after each, reads them all back, and overwrites the first one. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int count = atoi(argv[2]), bytes = atoi(argv[3]);
    char *buffer = malloc(bytes);
    int fd = open(argv[1], O_CREAT | O_RDWR | O_TRUNC, 0644);
    if (argc != 4 || fd < 0)
        return 1;
    for (int i = 0; i < count; i++) {
        memset(buffer, 'a' + i % 26, bytes);
        if (write(fd, buffer, bytes) != bytes || fsync(fd) != 0)
            return 2;
    }
    if (lseek(fd, 0, SEEK_SET) != 0)
        return 3;
    for (int i = 0; i < count; i++) {
        if (read(fd, buffer, bytes) != bytes || buffer[bytes - 1] != 'a' + i % 26)
            return 4;
        if (pread(fd, buffer, bytes, 0) != bytes || buffer[0] != 'a')
            return 5;
        if (pwrite(fd, buffer, bytes, 0) != bytes || lseek(fd, 0, SEEK_CUR) != (i + 1L) * bytes)
            return 6;
    }
    return read(fd, buffer, 1) != 0;
}
