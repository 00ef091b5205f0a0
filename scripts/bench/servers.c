/* The four server loads of Filebench, with its published parameters (fileserver.f, webserver.f, webproxy.f, varmail.f), in one program.

   servers LOAD DIR SECONDS THREADS [FILES] [MEAN_FILE_KIB] [IO_KIB] [APPEND_KIB] [SEED]

   LOAD is fileserver, webserver, webproxy or varmail. It makes FILES files in directories below DIR, then runs THREADS threads for SECONDS
   seconds and prints one line: operations (each open, read, write, append, fsync, close, stat, create and unlink is one), operations a second,
   bytes written, bytes read. 0 for a number takes Filebench's default. File and append sizes are of a gamma distribution with shape 1.5, as
   Filebench's. What is not taken over: its rate limits, and names of files, which here are numbers. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DIR_BYTES = 3000 };

struct load {
	const char *name;
	long files, width, file_kib, io_kib, append_kib;
};

static const struct load LOADS[] = {
	{ "fileserver", 10000, 20, 128, 1024, 16 },
	{ "webserver", 1000, 20, 16, 1024, 16 },
	{ "webproxy", 10000, 1000000, 16, 1024, 16 },
	{ "varmail", 1000, 1000000, 16, 1024, 16 },
};

static struct load load;
static const char *dir;
static unsigned long seed = 1;
static atomic_int over;
/* For each number: 0 no such file, 1 there, 2 a thread has it. */
static atomic_char *state;
static int log_fd = -1;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

struct thread {
	pthread_t id;
	unsigned long random;
	unsigned long long ops, written, read;
	char *buffer;
};

static void fail(const char *what, const char *name)
{
	fprintf(stderr, "servers: %s %s: %s\n", what, name, strerror(errno));
	exit(1);
}

static unsigned long next(struct thread *t)
{
	unsigned long z = t->random += 0x9e3779b97f4a7c15UL;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
	return z ^ (z >> 31);
}

static double unit(struct thread *t)
{
	return ((next(t) >> 11) + 1) * (1.0 / 9007199254740993.0);
}

/* Gamma of shape 1.5: an exponential and half the square of a normal. */
static long size_of(struct thread *t, long mean)
{
	double normal = sqrt(-2 * log(unit(t))) * cos(6.283185307179586 * unit(t));
	double gamma = -log(unit(t)) + normal * normal / 2;
	long bytes = (long)(gamma / 1.5 * mean);
	return bytes < 1 ? 1 : bytes;
}

static void path_of(long n, char *path)
{
	long dirs = (load.files + load.width - 1) / load.width;
	if (dirs > 1)
		snprintf(path, DIR_BYTES + 64, "%s/%04ld/%06ld", dir, n % dirs, n);
	else
		snprintf(path, DIR_BYTES + 64, "%s/%06ld", dir, n);
}

/* A file in state `from`, which is the caller's until it puts it back; -1: none was met. */
static long take(struct thread *t, char from)
{
	for (long tries = 0; tries < 4 * load.files; tries++) {
		long n = next(t) % load.files;
		char expected = from;
		if (atomic_compare_exchange_strong(&state[n], &expected, 2))
			return n;
	}
	return -1;
}

/* The same, with its path. */
static long take_path(struct thread *t, char from, char *path)
{
	long n = take(t, from);
	if (n >= 0)
		path_of(n, path);
	return n;
}

static void write_all(struct thread *t, int fd, long bytes, const char *path)
{
	long io = load.io_kib * 1024;
	while (bytes > 0) {
		long n = bytes < io ? bytes : io;
		if (write(fd, t->buffer, n) != n)
			fail("write", path);
		t->written += n;
		bytes -= n;
		t->ops++;
	}
}

static int open_it(struct thread *t, const char *path, int flags)
{
	int fd = open(path, flags, 0644);
	if (fd < 0)
		fail("open", path);
	t->ops++;
	return fd;
}

static void close_it(struct thread *t, int fd)
{
	if (close(fd) != 0)
		fail("close", "a file");
	t->ops++;
}

/* Closes file number n, after fsync if it has a path here, and puts it back. */
static void finish(struct thread *t, int fd, long n, const char *synced)
{
	if (synced != NULL) {
		if (fsync(fd) != 0)
			fail("fsync", synced);
		t->ops++;
	}
	close_it(t, fd);
	atomic_store(&state[n], 1);
}

static void read_whole(struct thread *t, int fd, const char *path)
{
	for (;;) {
		long n = read(fd, t->buffer, load.io_kib * 1024);
		if (n < 0)
			fail("read", path);
		t->ops++;
		t->read += n;
		if (n == 0)
			return;
	}
}

static void read_one(struct thread *t)
{
	char path[DIR_BYTES + 64];
	long n = take_path(t, 1, path);
	if (n < 0)
		return;
	int fd = open_it(t, path, O_RDONLY);
	read_whole(t, fd, path);
	finish(t, fd, n, NULL);
}

static void create_one(struct thread *t, long mean, int synced)
{
	char path[DIR_BYTES + 64];
	long n = take_path(t, 0, path);
	if (n < 0)
		return;
	int fd = open_it(t, path, O_CREAT | O_EXCL | O_WRONLY);
	write_all(t, fd, size_of(t, mean), path);
	finish(t, fd, n, synced ? path : NULL);
}

static void delete_one(struct thread *t)
{
	char path[DIR_BYTES + 64];
	long n = take_path(t, 1, path);
	if (n < 0)
		return;
	if (unlink(path) != 0)
		fail("unlink", path);
	t->ops++;
	atomic_store(&state[n], 0);
}

static void append_one(struct thread *t, int reads, int synced)
{
	char path[DIR_BYTES + 64];
	long n = take_path(t, 1, path);
	if (n < 0)
		return;
	int fd = open_it(t, path, O_RDWR | O_APPEND);
	if (reads)
		read_whole(t, fd, path);
	write_all(t, fd, size_of(t, load.append_kib * 1024), path);
	finish(t, fd, n, synced ? path : NULL);
}

static void stat_one(struct thread *t)
{
	char path[DIR_BYTES + 64];
	struct stat found;
	long n = take_path(t, 1, path);
	if (n < 0)
		return;
	if (stat(path, &found) != 0)
		fail("stat", path);
	t->ops++;
	atomic_store(&state[n], 1);
}

static void append_log(struct thread *t)
{
	pthread_mutex_lock(&log_lock);
	write_all(t, log_fd, size_of(t, load.append_kib * 1024), "log");
	pthread_mutex_unlock(&log_lock);
}

static void *work(void *of)
{
	struct thread *t = of;
	while (!atomic_load(&over)) {
		switch (load.name[3]) {
		case 'e': /* fileserver */
			create_one(t, load.file_kib * 1024, 0);
			append_one(t, 0, 0);
			read_one(t);
			delete_one(t);
			stat_one(t);
			break;
		case 's': /* webserver */
			for (int n = 0; n < 10; n++)
				read_one(t);
			append_log(t);
			break;
		case 'p': /* webproxy */
			delete_one(t);
			create_one(t, load.append_kib * 1024, 0);
			for (int n = 0; n < 5; n++)
				read_one(t);
			append_log(t);
			break;
		default: /* varmail */
			delete_one(t);
			create_one(t, load.append_kib * 1024, 1);
			append_one(t, 1, 1);
			read_one(t);
		}
	}
	return NULL;
}

static void make_files(struct thread *t)
{
	char path[DIR_BYTES + 64];
	long dirs = (load.files + load.width - 1) / load.width;
	for (long n = 0; dirs > 1 && n < dirs; n++) {
		snprintf(path, sizeof path, "%s/%04ld", dir, n);
		if (mkdir(path, 0755) != 0 && errno != EEXIST)
			fail("mkdir", path);
	}
	/* Filebench makes 80% of a file set before it begins, so that files can be created. */
	for (long n = 0; n < load.files; n++) {
		if (next(t) % 100 >= 80)
			continue;
		path_of(n, path);
		int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
		if (fd < 0)
			fail("open", path);
		write_all(t, fd, size_of(t, load.file_kib * 1024), path);
		close(fd);
		atomic_store(&state[n], 1);
	}
	snprintf(path, sizeof path, "%s/log", dir);
	log_fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0644);
	if (log_fd < 0)
		fail("open", path);
}

static long given(int argc, char **argv, int n, long usual)
{
	long number = argc > n ? atol(argv[n]) : 0;
	return number > 0 ? number : usual;
}

int main(int argc, char **argv)
{
	const char *wanted = argc > 4 ? argv[1] : "";
	for (size_t n = 0; n < sizeof LOADS / sizeof *LOADS; n++)
		if (strcmp(LOADS[n].name, wanted) == 0)
			load = LOADS[n];
	if (load.name == NULL || strlen(argv[2]) > DIR_BYTES) {
		fprintf(stderr, "usage: servers fileserver|webserver|webproxy|varmail DIR SECONDS THREADS [FILES] [MEAN_FILE_KIB] [IO_KIB] "
				"[APPEND_KIB] [SEED]\n");
		return 2;
	}
	dir = argv[2];
	double seconds = atof(argv[3]);
	long threads = given(argc, argv, 4, 1);
	load.files = given(argc, argv, 5, load.files);
	load.file_kib = given(argc, argv, 6, load.file_kib);
	load.io_kib = given(argc, argv, 7, load.io_kib);
	load.append_kib = given(argc, argv, 8, load.append_kib);
	seed = given(argc, argv, 9, 1);
	state = calloc(load.files, 1);
	struct thread *all = calloc(threads, sizeof *all);
	for (long n = 0; n < threads; n++) {
		all[n].random = seed * 1000003 + n;
		all[n].buffer = malloc(load.io_kib * 1024);
		memset(all[n].buffer, 'a' + n % 26, load.io_kib * 1024);
	}
	make_files(&all[0]);
	/* What was made is no part of what is measured. */
	sync();
	all[0].ops = all[0].written = all[0].read = 0;
	struct timespec begun, ended;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	for (long n = 0; n < threads; n++)
		pthread_create(&all[n].id, NULL, work, &all[n]);
	usleep(seconds * 1e6);
	atomic_store(&over, 1);
	unsigned long long ops = 0, written = 0, read = 0;
	for (long n = 0; n < threads; n++) {
		pthread_join(all[n].id, NULL);
		ops += all[n].ops;
		written += all[n].written;
		read += all[n].read;
	}
	clock_gettime(CLOCK_MONOTONIC, &ended);
	double took = ended.tv_sec - begun.tv_sec + (ended.tv_nsec - begun.tv_nsec) / 1e9;
	printf("%s threads %ld ops %llu ops/s %.0f written %llu read %llu seconds %.3f\n", load.name, threads, ops, ops / took, written, read,
	       took);
	return 0;
}
