/* Threads whose first call is about a file of the mount by another argument than the first one,
 * while the main thread forks: with the locks of malloc, for which such a thread must not wait. So
 * what its end has to run is noted, which allocates, in that call and before; in no other call, since
 * malloc makes some itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, KINDS = 7, ROUNDS = 63 };

typedef int noter(void (*)(void *), void *, void *);

static const char *path;
static int ours, plain, pipes[2], sockets[2];
static pthread_barrier_t start;
static int failures;
static __thread int noted;

/* What the end of a thread has to run. */
int __cxa_thread_atexit_impl(void (*run)(void *), void *object, void *library)
{
    static noter *next;
    if (!next)
        next = (noter *)dlsym(RTLD_NEXT, "__cxa_thread_atexit_impl");
    noted++;
    return next(run, object, library);
}

static void send_ours(void)
{
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1,
                             .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    *(int *)CMSG_DATA(header) = ours;
    if (sendmsg(sockets[0], &message, 0) != 1)
        perror("sendmsg");
}

/* About nothing of the mount. */
static void other_calls(void)
{
    char byte;
    off_t from = 0;
    int spare = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, plain, 0);
    if (spare < 0 || sendfile(spare, plain, &from, 1) != 1 || pread(plain, &byte, 1, 0) != 1)
        perror("other calls");
    munmap(map, 4096);
    close(dup2(plain, spare));
}

static void first_call(int kind)
{
    off_t from = 0, to = 0;
    int spare;
    void *map;
    switch (kind) {
    case 0:
        map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, ours, 0);
        if (map != MAP_FAILED)
            munmap(map, 4096);
        break;
    case 1:
        if (sendfile(plain, ours, &from, 1) != 1)
            perror("sendfile");
        break;
    case 2:
        /* Between two file systems the kernel may refuse. */
        (void)!copy_file_range(plain, &from, ours, &to, 1, 0);
        break;
    case 3:
        if (splice(pipes[0], NULL, ours, &to, 1, 0) != 1)
            perror("splice");
        break;
    case 4:
        spare = dup(ours);
        if (dup3(plain, spare, O_CLOEXEC) != spare)
            perror("dup3");
        close(spare);
        break;
    case 5:
        send_ours();
        break;
    default:
        spare = open(path, O_RDONLY);
        if (spare < 0)
            perror("open");
        close(spare);
    }
}

static void *run(void *kind)
{
    pthread_barrier_wait(&start);
    if ((long)kind == KINDS)
        other_calls();
    else
        first_call((int)(long)kind);
    if ((noted > 0) == ((long)kind == KINDS)) {
        printf("kind %ld: %d noted\n", (long)kind, noted);
        failures++;
    }
    free(malloc(100));
    return NULL;
}

int main(int argc, char **argv)
{
    path = argc > 1 ? argv[1] : "first";
    ours = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    plain = fileno(tmpfile());
    if (ours < 0 || write(ours, "abcd", 4) != 4 || write(plain, "x", 1) != 1 || pipe(pipes) != 0
        || socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) != 0)
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        /* All of one kind, or all kinds together. */
        int kind = round % (KINDS + 2), all = kind > KINDS;
        for (int i = 0; i < (all ? 1 : THREADS); i++)
            if ((all || kind == 3) && write(pipes[1], "p", 1) != 1)
                return 2;
        pthread_barrier_init(&start, NULL, THREADS + 1);
        for (long i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, run, (void *)(all ? i : kind));
        pthread_barrier_wait(&start);
        for (int i = 0; i < 3; i++) {
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            waitpid(child, NULL, 0);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        char byte;
        while (recv(sockets[1], &byte, 1, MSG_DONTWAIT) == 1)
            ;
    }
    return failures != 0;
}
