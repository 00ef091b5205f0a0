// Renames as it is told, from standard input, by lines: FROM TO. Answers each with a line: 0, or an error number.
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **arguments) {
    char from[64], to[64];
    if (count != 2 || chdir(arguments[1])) return 2;
    while (scanf("%63s %63s", from, to) == 2) {
        printf("%d\n", rename(from, to) ? errno : 0);
        fflush(stdout);
    }
    return 0;
}
