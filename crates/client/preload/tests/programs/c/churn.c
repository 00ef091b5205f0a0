// Files that are made, written, asked about, renamed and removed. churn DIR ROUNDS
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int, char **arguments) {
    struct stat s;
    if (chdir(arguments[1]))
        return 1;
    for (int n = atoi(arguments[2]); n > 0; n--) {
        int fd = open("new", O_CREAT | O_EXCL | O_RDWR, 0644);
        if (fd < 0 || write(fd, "new", 3) != 3 || fstat(fd, &s) || s.st_size != 3 || close(fd))
            return 2;
        if (stat("new", &s) || rename("new", "renamed") || access("renamed", R_OK) || chmod("renamed", 0600))
            return 3;
        if (mkdir("dir", 0755) || link("renamed", "dir/linked") || unlink("dir/linked") || rmdir("dir") || unlink("renamed"))
            return 4;
    }
    return 0;
}
