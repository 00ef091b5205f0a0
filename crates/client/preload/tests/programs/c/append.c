/* Appends numbered lines; says on standard output which ones are done. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int fd = open(argv[1], O_CREAT | O_WRONLY | O_APPEND, 0644);
    int count = argc > 3 ? atoi(argv[3]) : 1 << 30;
    char line[64];
    for (int i = 0; i < count; i++) {
        int bytes = snprintf(line, sizeof line, "%s%08d\n", argv[2], i);
        if (write(fd, line, bytes) != bytes || write(1, line, bytes) != bytes)
            return 1;
    }
    return 0;
}
