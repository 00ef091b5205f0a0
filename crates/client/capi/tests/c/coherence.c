/* Every function of the library against the same call on the mount, turn by turn, while the program is
 * attached: what one side does, the other side sees at once.
 *
 *   coherence MOUNTPOINT DIRECTORY     DIRECTORY: an empty one, as a path inside the volume
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <shale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static int failures;
static shale_t *volume;
static char inside[2][4096], outside[2][8192];
static const char *mountpoint, *directory;

#define CHECK(what)                                                                            \
    do {                                                                                       \
        if (!(what)) {                                                                         \
            failures++;                                                                        \
            fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
        }                                                                                      \
    } while (0)

/* The same name for the library and for the mount. */
static const char *in(int which, const char *name)
{
    snprintf(inside[which], sizeof inside[which], "%s/%s", directory, name);
    return inside[which];
}

static const char *out(int which, const char *name)
{
    snprintf(outside[which], sizeof outside[which], "%s/%s/%s", mountpoint, directory, name);
    return outside[which];
}

static void same_status(const char *name)
{
    struct stat ours, kernels;
    CHECK(shale_lstat(volume, in(0, name), &ours) == 0);
    CHECK(lstat(out(0, name), &kernels) == 0);
    CHECK(ours.st_dev == kernels.st_dev && ours.st_ino == kernels.st_ino);
    CHECK(ours.st_mode == kernels.st_mode && ours.st_nlink == kernels.st_nlink);
    CHECK(ours.st_uid == kernels.st_uid && ours.st_gid == kernels.st_gid);
    CHECK(ours.st_size == kernels.st_size && ours.st_blksize == kernels.st_blksize);
    CHECK(ours.st_mtim.tv_sec == kernels.st_mtim.tv_sec);
    CHECK(ours.st_mtim.tv_nsec == kernels.st_mtim.tv_nsec);
}

static void files(void)
{
    shale_file_t *file;
    char got[64];
    int fd;
    CHECK(shale_open(volume, in(0, "f"), O_RDWR | O_CREAT | O_EXCL, 0644, &file) == 0);
    fd = open(out(0, "f"), O_RDWR);
    CHECK(fd >= 0);
    CHECK(shale_write(file, "library", 7) == 7);
    CHECK(read(fd, got, sizeof got) == 7 && memcmp(got, "library", 7) == 0);
    CHECK(pwrite(fd, "KERNEL", 6, 4) == 6);
    CHECK(shale_pread(file, got, sizeof got, 0) == 10 && memcmp(got, "librKERNEL", 10) == 0);
    CHECK(shale_pwrite(file, "!", 1, 20) == 1);
    CHECK(lseek(fd, 0, SEEK_END) == 21);
    CHECK(ftruncate(fd, 3) == 0);
    CHECK(shale_lseek(file, 0, SEEK_END) == 3);
    CHECK(shale_ftruncate(file, 8) == 0);
    CHECK(pread(fd, got, sizeof got, 0) == 8 && memcmp(got, "lib\0\0\0\0\0", 8) == 0);
    CHECK(shale_fallocate(file, 0, 0, 100000) == 0);
    same_status("f");
    CHECK(shale_fsync(file) == 0 && shale_fdatasync(file) == 0);
    CHECK(shale_lease_file(file, SHALE_LEASE_EXCLUSIVE) == 0);
    CHECK(pwrite(fd, "x", 1, 0) == 1);
    CHECK(shale_pread(file, got, 1, 0) == 1 && got[0] == 'x');
    CHECK(shale_lease(volume, in(0, "f"), SHALE_LEASE_SHARED) == 0);
    CHECK(shale_give_back(volume, in(0, "f")) == 0);
    CHECK(shale_detach(volume) == -EBUSY);
    CHECK(unlink(out(0, "f")) == 0);
    CHECK(shale_pread(file, got, 1, 0) == 1 && got[0] == 'x');
    CHECK(shale_close(file) == 0 && close(fd) == 0);
    CHECK(shale_access(volume, in(0, "f"), F_OK) == -ENOENT);
}

static void names(void)
{
    struct stat status;
    char got[64];
    CHECK(shale_mkdir(volume, in(0, "d"), 0755) == 0);
    same_status("d");
    CHECK(symlink("towards", out(0, "d/l")) == 0);
    CHECK(shale_readlink(volume, in(0, "d/l"), got, sizeof got) == 7 && memcmp(got, "towards", 7) == 0);
    CHECK(shale_symlink(volume, "away", in(0, "d/m")) == 0);
    CHECK(readlink(out(0, "d/m"), got, sizeof got) == 4 && memcmp(got, "away", 4) == 0);
    CHECK(mknod(out(0, "d/a"), S_IFREG | 0600, 0) == 0);
    CHECK(shale_link(volume, in(0, "d/a"), in(1, "d/b")) == 0);
    same_status("d/b");
    CHECK(shale_rename(volume, in(0, "d/a"), in(1, "d/b"), SHALE_RENAME_NOREPLACE) == -EEXIST);
    CHECK(shale_rename(volume, in(0, "d/a"), in(1, "d/c"), 0) == 0);
    CHECK(access(out(0, "d/a"), F_OK) == -1 && access(out(0, "d/c"), F_OK) == 0);
    CHECK(rename(out(0, "d/c"), out(1, "d/a")) == 0);
    CHECK(shale_stat(volume, in(0, "d/c"), &status) == -ENOENT);
    CHECK(shale_stat(volume, in(0, "d/a"), &status) == 0 && status.st_nlink == 2);
    CHECK(shale_rmdir(volume, in(0, "d")) == -ENOTEMPTY);
}

static void directories(void)
{
    shale_dir_t *dir;
    struct shale_dirent entry;
    char seen[4] = "", *at = seen;
    int found, links = 0;
    CHECK(sizeof entry == 272);
    CHECK(shale_opendir(volume, in(0, "d"), &dir) == 0);
    while ((found = shale_readdir(dir, &entry)) == 1) {
        CHECK(at < seen + sizeof seen && strlen(entry.d_name) == 1);
        *at++ = entry.d_name[0];
        links += entry.d_type == DT_LNK;
    }
    CHECK(found == 0 && at == seen + 4 && links == 2);
    CHECK(memchr(seen, 'a', 4) && memchr(seen, 'b', 4) && memchr(seen, 'l', 4) && memchr(seen, 'm', 4));
    CHECK(shale_closedir(dir) == 0);
    CHECK(shale_opendir(volume, in(0, "d/a"), &dir) == -ENOTDIR);
    CHECK(shale_unlink(volume, in(0, "d/a")) == 0 && unlink(out(0, "d/b")) == 0);
    CHECK(shale_unlink(volume, in(0, "d/l")) == 0 && shale_unlink(volume, in(0, "d/m")) == 0);
    CHECK(shale_rmdir(volume, in(0, "d")) == 0 && access(out(0, "d"), F_OK) == -1);
}

static void attributes(void)
{
    char got[64];
    struct statvfs ours, kernels;
    CHECK(shale_setxattr(volume, directory, "user.a", "red", 3, XATTR_CREATE) == 0);
    CHECK(getxattr(out(0, "."), "user.a", got, sizeof got) == 3 && memcmp(got, "red", 3) == 0);
    CHECK(setxattr(out(0, "."), "user.a", "green", 5, 0) == 0);
    CHECK(shale_getxattr(volume, directory, "user.a", NULL, 0) == 5);
    CHECK(shale_getxattr(volume, directory, "user.a", got, 4) == -ERANGE);
    CHECK(shale_getxattr(volume, directory, "user.a", got, 5) == 5 && memcmp(got, "green", 5) == 0);
    CHECK(shale_listxattr(volume, directory, got, sizeof got) == 7 && strcmp(got, "user.a") == 0);
    CHECK(shale_removexattr(volume, directory, "user.a") == 0);
    CHECK(getxattr(out(0, "."), "user.a", got, sizeof got) == -1 && errno == ENODATA);
    CHECK(shale_sync(volume) == 0);
    CHECK(shale_statfs(volume, &ours) == 0 && statvfs(out(0, "."), &kernels) == 0);
    CHECK(ours.f_bsize == kernels.f_bsize && ours.f_blocks == kernels.f_blocks);
    CHECK(ours.f_namemax == kernels.f_namemax && ours.f_bavail > 0);
}

static shale_file_t *shared;

static void *append_some(void *letter)
{
    char record[100];
    int i;
    memset(record, *(const char *)letter, sizeof record);
    for (i = 0; i < 500; i++)
        CHECK(shale_write(shared, record, sizeof record) == (ssize_t)sizeof record);
    return NULL;
}

/* Threads share a handle, and a FUSE client appends to the same file. */
static void threads(void)
{
    static char letters[] = "abc", got[100 * 1600];
    pthread_t thread[3];
    int counts[128] = {0}, i, fd;
    ssize_t bytes;
    CHECK(shale_open(volume, in(0, "t"), O_WRONLY | O_CREAT | O_APPEND, 0644, &shared) == 0);
    fd = open(out(0, "t"), O_WRONLY | O_APPEND);
    for (i = 0; i < 3; i++)
        CHECK(pthread_create(&thread[i], NULL, append_some, &letters[i]) == 0);
    memset(got, 'd', 100);
    for (i = 0; i < 100; i++)
        CHECK(write(fd, got, 100) == 100);
    for (i = 0; i < 3; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(close(fd) == 0 && (fd = open(out(0, "t"), O_RDONLY)) >= 0);
    bytes = read(fd, got, sizeof got);
    CHECK(bytes == 100 * 1600);
    for (i = 0; i < bytes; i++) {
        CHECK(got[i] == got[i - i % 100]);
        counts[got[i] & 127]++;
    }
    CHECK(counts['a'] == 50000 && counts['b'] == 50000 && counts['c'] == 50000 && counts['d'] == 10000);
    CHECK(close(fd) == 0 && shale_close(shared) == 0);
}

/* A child has to attach for itself, and can. */
static void children(void)
{
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        shale_t *own;
        shale_file_t *file;
        int right = shale_access(volume, directory, F_OK) == -ENOTCONN
            && shale_detach(volume) == -ENOTCONN && shale_attach(mountpoint, &own) == 0
            && shale_open(own, in(0, "child"), O_WRONLY | O_CREAT, 0600, &file) == 0
            && shale_write(file, "child", 5) == 5 && shale_close(file) == 0 && shale_detach(own) == 0;
        _exit(right ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    same_status("child");
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: coherence MOUNTPOINT DIRECTORY\n");
        return 2;
    }
    mountpoint = argv[1];
    directory = argv[2];
    CHECK(shale_attach("/proc", &volume) == -ENODEV);
    CHECK(shale_attach(NULL, &volume) == -EFAULT);
    CHECK(shale_attach(mountpoint, &volume) == 0);
    if (failures)
        return 1;
    files();
    names();
    directories();
    attributes();
    threads();
    children();
    CHECK(shale_detach(volume) == 0);
    printf("coherence: %d checks failed\n", failures);
    return failures ? 1 : 0;
}
