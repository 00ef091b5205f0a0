/* Runs a command in which no code can be made writable (PR_SET_MDWE), if the kernel can do that. */
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    if (count < 2 || prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0) != 0)
        return 77;
    execvp(arguments[1], arguments + 1);
    perror(arguments[1]);
    return 1;
}
