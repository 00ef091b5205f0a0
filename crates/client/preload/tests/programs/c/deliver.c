// Delivers files as mail is: makes each in tmp, and renames it to new, where somebody else takes it: deliver DIRECTORY FILES.
// Says what is not as POSIX has it, and nothing else.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 3 || chdir(arguments[1])) return 2;
    int files = atoi(arguments[2]);
    char made[64], delivered[64];
    for (int n = 0; n < files; n++) {
        snprintf(made, sizeof made, "tmp/%d", n);
        snprintf(delivered, sizeof delivered, "new/%d", n);
        int fd = open(made, O_CREAT | O_EXCL | O_WRONLY, 0640);
        int right = fd >= 0 && write(fd, made, strlen(made)) == (ssize_t)strlen(made) && close(fd) == 0;
        if (!right || rename(made, delivered)) {
            printf("%d: %s\n", n, strerror(errno));
            return 1;
        }
        if (access(made, F_OK) == 0 || errno != ENOENT) {
            printf("%d is still there: %s\n", n, strerror(errno));
            return 1;
        }
    }
    return 0;
}
