/* Stores to the mapping of the update log, as a stray pointer would: protect FILE.
 * Prints how the child that does it ends; then what threads, children and handlers of signals write
 * is in the file all the same. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int fd;

static char *end_of_log(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096], *at = NULL;
    unsigned long from, to;
    char rights[5];
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && !strcmp(rights, "rw-s") &&
            strstr(line, "/nvm/") && !strstr(line, "/seg-"))
            at = (char *)to - 1;
    if (maps) fclose(maps);
    return at;
}

static int ended(pid_t child) {
    int status;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static void handler(int signal) {
    (void)signal;
    must(pwrite(fd, "h", 1, 2) == 1, "handler");
}

static void *thread(void *none) {
    must(pwrite(fd, "t", 1, 1) == 1, "thread");
    return none;
}

int main(int count, char **arguments) {
    pthread_t id;
    pid_t child;
    char found[5] = "";
    must(count == 2 && (fd = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0, "open");
    must(pwrite(fd, "m", 1, 0) == 1, "write");
    volatile char *log = end_of_log();
    must(log != NULL, "log");
    if ((child = fork()) == 0) {
        *log = *log;
        _exit(0);
    }
    printf("%d", ended(child));
    must(pthread_create(&id, NULL, thread, NULL) == 0, "thread");
    pthread_join(id, NULL);
    signal(SIGUSR1, handler);
    for (int i = 0; i < 1000; i++) {
        raise(SIGUSR1);
        must(pwrite(fd, "m", 1, 0) == 1, "write");
    }
    if ((child = fork()) == 0) _exit(pwrite(fd, "c", 1, 3) != 1);
    must(ended(child) == 0, "child");
    must(pread(fd, found, 4, 0) == 4, "read");
    /* A thread's own stray store, too. */
    if ((child = fork()) == 0) {
        must(pwrite(fd, "m", 1, 0) == 1, "write");
        log = end_of_log();
        must(log != NULL, "log of the child");
        *log = *log;
        _exit(0);
    }
    printf(" %s %d\n", found, ended(child));
    return 0;
}
