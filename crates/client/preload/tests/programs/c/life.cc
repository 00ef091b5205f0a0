// Ends in the way that it is told, with as much as possible left to be written then.
// life DIR HOW FORK LIBRARY-TO-KEEP LIBRARY-TO-CLOSE
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir, *how, *forks;
static FILE *buffered, *updated;
static int all, numbered;
static pthread_key_t key;

static int in_dir(const char *name, int flags) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return open(path, flags | O_CLOEXEC, 0644);
}

static void failed(const char *who, const char *what) {
    char said[256];
    int n = snprintf(said, sizeof said, "%s: %s: %s\n", who, what, strerror(errno));
    if (write(2, said, n) != n) abort();
}

// What every handler and destructor does: uses files that are open, and makes one. A name that was
// used before goes on in its file.
static void late(const char *who) {
    char line[64];
    int n = snprintf(line, sizeof line, "%s\n", who);
    if (write(all, line, n) != n) failed(who, "append");
    if (write(numbered, line, n) != n) failed(who, "write at the offset");
    if (pwrite(numbered, "!", 1, 3) != 1) failed(who, "write at a position");
    // Stays in the buffer: libc writes it last of all.
    if (buffered) fprintf(buffered, "from %s\n", who);
    int fd = in_dir(who, O_RDWR | O_CREAT | O_APPEND);
    if (fd < 0) return failed(who, "open");
    for (int i = 0; i < 40; i++) {
        n = snprintf(line, sizeof line, "%s line %04d\n", who, i);
        if (write(fd, line, n) != n) failed(who, "write");
    }
    char again[64];
    off_t end = lseek(fd, 0, SEEK_END);
    if (pread(fd, again, n, end - n) != n || memcmp(again, line, n)) failed(who, "read");
    struct stat found;
    if (fstat(fd, &found) || found.st_size != end) failed(who, "stat");
    if (ftruncate(fd, end - 7) || fsync(fd)) failed(who, "cut");
    if (close(fd)) failed(who, "close");
}

struct Static {
    const char *who;
    std::ofstream stream;
    ~Static() {
        if (!dir) return;
        late(who);
        stream << "the end of " << who << std::endl << "and a line that is not flushed";
    }
};
static Static first{"static", {}};

struct Local {
    const char *who = nullptr;
    ~Local() {
        if (who) late(who);
    }
};
static thread_local Local local;

static void of_key(void *value) {
    late((const char *)value);
    // Destructors of keys run again while there are values, after those of `thread_local`.
    if (!strcmp((const char *)value, "key")) pthread_setspecific(key, "key again");
}

// Its first call about any file is in the destructor of its key.
static void *thread_with_key(void *value) {
    pthread_setspecific(key, value);
    return nullptr;
}

static void *thread_with_all(void *) {
    local.who = "local of a thread";
    pthread_setspecific(key, "key of a thread");
    late("thread");
    return nullptr;
}

static void run(void *(*f)(void *), const char *value) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, f, (void *)value) || pthread_join(thread, nullptr)) abort();
}

static void child_of_handler(bool exits) {
    pid_t child = fork();
    if (child == 0) {
        late("child of a handler");
        if (!exits) _exit(0);
        exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status) failed("fork", "in a handler");
}

static bool in_child;
static void at_exit_first() { late("handler"); }
static void at_exit_second() {
    late("last handler");
    if (in_child) return;
    in_child = true;
    if (!strcmp(forks, "handler")) child_of_handler(false);
    if (!strcmp(forks, "handler-exit")) child_of_handler(true);
    run(thread_with_key, "key in a handler");
}
static void at_quick() { late("quick handler"); }

static void *exits(void *) {
    exit(5);
    return nullptr;
}

// Outlives the main thread; then the process ends as by `exit`.
static void *is_last(void *main_thread) {
    if (pthread_join(*(pthread_t *)main_thread, nullptr)) abort();
    local.who = "local of the last";
    late("last thread");
    return nullptr;
}

static void end(char **argv) {
    pthread_t thread;
    if (!strcmp(how, "exit")) exit(4);
    if (!strcmp(how, "thread")) {
        if (pthread_create(&thread, nullptr, exits, nullptr)) abort();
        for (;;) pause();
    }
    if (!strcmp(how, "_exit")) _exit(3);
    if (!strcmp(how, "quick")) quick_exit(6);
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "term")) raise(SIGTERM);
    if (!strcmp(how, "kill")) raise(SIGKILL);
    if (!strcmp(how, "last")) {
        static pthread_t main_thread = pthread_self();
        if (pthread_create(&thread, nullptr, is_last, &main_thread)) abort();
        pthread_exit(nullptr);
    }
    if (!strcmp(how, "exec")) execl("/bin/true", "true", (char *)nullptr);
    if (!strcmp(how, "noexec")) execl(argv[0][0] ? "/nonexistent" : "", "x", (char *)nullptr);
}

static void begin() {
    for (int i = 0; i < 3000; i++) fprintf(buffered, "line %06d\n", i);
    // Read and written by turns, so that its buffer has an offset that is not the kernel's.
    for (int i = 0; i < 500; i++) fprintf(updated, "line %06d\n", i);
    fseek(updated, 2400, SEEK_SET);
    char line[32];
    if (!fgets(line, sizeof line, updated)) failed("updated", "read");
    fseek(updated, 0, SEEK_CUR);
    fprintf(updated, "in its middle");
    late("begin");
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    dir = argv[1], how = argv[2], forks = argv[3];
    char path[512];
    snprintf(path, sizeof path, "%s/static-stream", dir);
    first.stream.open(path);
    snprintf(path, sizeof path, "%s/buffered", dir);
    buffered = fopen(path, "we");
    snprintf(path, sizeof path, "%s/updated", dir);
    updated = fopen(path, "w+e");
    all = in_dir("all", O_WRONLY | O_CREAT | O_APPEND);
    numbered = in_dir("numbered", O_RDWR | O_CREAT);
    if (!buffered || !updated || all < 0 || numbered < 0) return 2;
    setenv("LIFE_DIR", dir, 1);
    pthread_key_create(&key, of_key);
    atexit(at_exit_second);
    atexit(at_exit_first);
    at_quick_exit(at_quick);
    void *kept = dlopen(argv[4], RTLD_NOW), *closed = dlopen(argv[5], RTLD_NOW);
    if (!kept || !closed) return 2;
    begin();
    run(thread_with_all, nullptr);
    run(thread_with_key, "key of a new thread");
    dlclose(closed);
    if (!strcmp(forks, "before")) {
        pid_t child = fork();
        int status = 0;
        if (child > 0) waitpid(child, &status, 0);
        late(child ? "parent" : "child");
        printf("child: %d\n", status);
    }
    local.who = "local";
    pthread_setspecific(key, "key");
    end(argv);
    return 9;
}
