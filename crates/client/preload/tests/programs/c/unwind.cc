// Unwinding by the program's own unwinder: exceptions, also from a signal handler, and threads that are cancelled. unwind DIR
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int destroyed;

struct Counts {
    ~Counts() { __atomic_add_fetch(&destroyed, 1, __ATOMIC_SEQ_CST); }
};

static int fd, ends[2];
static std::string fifo;
// As it is declared, nothing is thrown from it.
static int (*volatile raise_signal)(int) = raise;
static char block[4096];

static void write_block(int n) {
    if (pwrite(fd, block, sizeof block, n % 16 * 4096L) != sizeof block)
        throw std::runtime_error("pwrite");
}

static void thrower(int) {
    Counts counts;
    write_block(1);
    throw 7;
}

static void *waits(void *) {
    Counts counts;
    write_block(2);
    // No cancellation point.
    (void)lseek(fd, 0, SEEK_SET);
    char byte;
    // A cancellation point in which it stays.
    (void)!read(ends[0], &byte, 1);
    return nullptr;
}

static void *writes(void *) {
    Counts counts;
    for (int n = 0;; n++)
        write_block(n);
}

// A call that is made for the program and waits, in a thread of which the library knows nothing yet.
static void *opens(void *) {
    Counts counts;
    (void)!open(fifo.c_str(), O_RDONLY);
    return nullptr;
}

// By way of a call site of libc, not of a function that the library has in its place.
static void *writes_vectors(void *) {
    Counts counts;
    for (int n = 0;; n++) {
        iovec vector = {block, sizeof block};
        if (pwritev(fd, &vector, 1, n % 16 * 4096L) != sizeof block)
            abort();
    }
}

int main(int, char **arguments) {
    const int rounds = 60;
    void *(*const kinds[])(void *) = {waits, writes, writes_vectors, opens};
    fd = open((std::string(arguments[1]) + "/file").c_str(), O_CREAT | O_RDWR, 0644);
    fifo = std::string(arguments[1]) + "/fifo";
    unlink(fifo.c_str());
    if (fd < 0 || pipe(ends) || mkfifo(fifo.c_str(), 0600))
        abort();
    // Until the file is served.
    for (int n = 0; n < 2000; n++)
        write_block(n);
    struct sigaction action = {};
    action.sa_handler = thrower;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGUSR1, &action, nullptr);
    int caught = 0;
    for (int n = 0; n < rounds; n++) {
        try {
            Counts counts;
            write_block(n);
            raise_signal(SIGUSR1);
        } catch (int number) {
            caught += number == 7;
        }
    }
    int cancelled = 0;
    for (int n = 0; n < rounds; n++) {
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, nullptr, kinds[n % 4], nullptr))
            abort();
        usleep(300 + n * 97 % 1500);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    int closed = fd;
    fd = -1;
    try {
        write_block(0);
    } catch (const std::runtime_error &error) {
        caught += strcmp(error.what(), "pwrite") == 0;
    }
    fd = closed;
    write_block(0);
    printf("%d caught, %d cancelled, %d destroyed\n", caught, cancelled, destroyed);
    return 0;
}
