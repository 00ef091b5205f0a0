// Makes numbered files, of which the last twenty are there, until it is killed; says each number when its file has its name. kept DIR
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int, char **arguments) {
    char name[32], text[32];
    if (chdir(arguments[1]))
        return 1;
    for (int n = 0;; n++) {
        int bytes = snprintf(text, sizeof text, "%d", n);
        int fd = open("new", O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (fd < 0 || write(fd, text, bytes) != bytes || close(fd))
            return 2;
        snprintf(name, sizeof name, "f%d", n);
        if (rename("new", name))
            return 3;
        snprintf(name, sizeof name, "f%d", n - 20);
        if (n >= 20 && unlink(name))
            return 4;
        text[bytes++] = '\n';
        if (write(1, text, bytes) != bytes)
            return 5;
    }
}
