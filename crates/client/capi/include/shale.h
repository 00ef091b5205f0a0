/* Shale: a cross-media file system, in the caller's own process.
 *
 * A program attaches to a mounted volume and from then on reads and writes its files without a
 * system call. FUSE clients, programs under `shale run` and other users of this library
 * see what it does at once, and it sees what they do.
 *
 * RESULTS. Every function that returns a number returns 0, a count or an offset, or -errno: a
 * negative error number of <errno.h>. `errno` itself is not changed. Any function may return, besides
 * what it names:
 *   -EBADF     a handle is NULL
 *   -EFAULT    another pointer is NULL where it may not be
 *   -ENOTCONN  the handle was made before a fork(), and this is the child
 *   -EIO       the medium failed, the daemon is gone or has cut this process off, or there is a
 *              mistake in the library; nothing is known of what the call did. If the daemon was
 *              started again, detach and attach again: what returned before is kept.
 *   -ENOSPC    (what changes something) the volume is full
 *   -ENOMEM    (but shale_close, shale_closedir, shale_detach) the process may have no more memory; nothing
 *              was done. Functions that need none may succeed all the same
 *
 * DURABILITY. On a volume with the policy `strict` everything is durable when the call returns,
 * in the order of the calls, without shale_fsync(): it survives the end of the process, of the
 * daemon and, on persistent memory, a power cut. A call that a power cut ended is done wholly or not at all,
 * except that a long write may be cut at a multiple of 1 MiB.
 *
 * PATHS are strings that end with a zero byte. They begin at the root of the volume, with or without a
 * slash: "/a/b" and "a/b" are one file. Symbolic links are followed inside the volume. At most 4,095
 * bytes (-ENAMETOOLONG), of which a name has at most 255. All functions with a path may return -ENOENT,
 * -ENOTDIR, -EACCES, -ELOOP, -ENAMETOOLONG.
 *
 * RIGHTS are those of the effective user and group, and files are made with the umask, that the process
 * had in shale_attach(); further groups of the user do not count.
 *
 * THREADS. All functions may be called by several threads at once, also with one handle. A
 * handle must not be used in or after the call that ends it (shale_detach, shale_close, shale_closedir).
 * No function may be called from a signal handler.
 *
 * FORK. A child has to attach for itself; the handles of its parent are refused there (except to a
 * child made by a bare clone system call, which must not use them) and cannot be freed.
 *
 * MEMORY. A buffer must not be changed by others while it is written from, and must not be a
 * mapping of a file of the same volume.
 */
#ifndef SHALE_H
#define SHALE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct stat;    /* <sys/stat.h> */
struct statvfs; /* <sys/statvfs.h> */

/* A volume that this process is attached to. */
typedef struct shale shale_t;
/* An open file or directory, with an offset of its own. */
typedef struct shale_file shale_file_t;
/* A walk through the entries of a directory. */
typedef struct shale_dir shale_dir_t;

/* An entry of a directory. */
struct shale_dirent {
    uint64_t d_ino;       /* inode number */
    unsigned char d_type; /* DT_REG, DT_DIR, ... of <dirent.h> */
    char d_name[256];     /* ends with a zero byte */
};

/* For shale_rename(), the same numbers as of renameat2(2). */
#define SHALE_RENAME_NOREPLACE 1u
#define SHALE_RENAME_EXCHANGE 2u
#define SHALE_RENAME_WHITEOUT 4u

/* Modes of leases. */
#define SHALE_LEASE_SHARED 1    /* to read; several clients at once */
#define SHALE_LEASE_EXCLUSIVE 2 /* to read and write; one client */

/* ---- The library ---- */

/* "MAJOR.MINOR.PATCH"; lives for ever. */
const char *shale_version(void);

/* What an error number means, negative or not; 0: "Success". Never NULL; valid until the
 * thread's next call of this function. */
const char *shale_strerror(int error);

/* ---- Attaching ---- */

/* Attaches to the volume that is mounted at `mountpoint` (any path on the mount will do). `*volume`:
 * the handle, set only on success; end it with shale_detach(). Takes some milliseconds and memory for
 * this process's update log, as much as the volume's client_log_bytes or log_bytes say.
 * -ENODEV: nothing of Shale's is mounted there; -ECONNREFUSED: the daemon does not answer (it may be
 * starting again: try once more); -EPERM, -EACCES: the volume is another user's, and does not trust this
 * one; errors of stat(2). */
int shale_attach(const char *mountpoint, shale_t **volume);

/* Detaches. What was done is in the volume when this returns. -EBUSY: files or directories are open
 * still, and nothing was done. Whatever else it returns, the handle is gone. */
int shale_detach(shale_t *volume);

/* ---- Files ---- */

/* Opens a file, as open(2). `flags`: O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND,
 * O_NOFOLLOW, O_DIRECTORY, O_TMPFILE, O_PATH; others are ignored. `mode`: permissions of a file that is
 * made, less the umask; ignored otherwise. `*file`: the handle, set only on success; end it with
 * shale_close().
 * -EEXIST, -EISDIR, -EINVAL as open(2); -ENXIO: a device, FIFO or socket, which only a kernel opens. */
int shale_open(shale_t *volume, const char *path, int flags, mode_t mode, shale_file_t **file);

/* Ends a handle. A file without a name is freed with its last handle. */
int shale_close(shale_file_t *file);

/* Reads up to `bytes` at the handle's offset and moves it. Returns the bytes read, fewer only at the
 * end of the file. `into`: space for `bytes`; may be NULL if that is 0. -EISDIR; -EBADF: not
 * open for reading; -EINVAL: too many bytes. */
ssize_t shale_read(shale_file_t *file, void *into, size_t bytes);

/* Writes `bytes` at the handle's offset, with O_APPEND at the end of the file (up to 1 MiB in one piece,
 * also when others append), and moves the offset behind them. Returns the bytes written, fewer only if there is no
 * space for all. `from`: may be NULL if `bytes` is 0. -EBADF: not open for writing; -EFBIG; -EINVAL. */
ssize_t shale_write(shale_file_t *file, const void *from, size_t bytes);

/* As shale_read() and shale_write(), at byte `offset`; the handle's own stays. With O_APPEND a write goes
 * to the end of the file all the same, as on Linux. -EINVAL: `offset` is negative. */
ssize_t shale_pread(shale_file_t *file, void *into, size_t bytes, int64_t offset);
ssize_t shale_pwrite(shale_file_t *file, const void *from, size_t bytes, int64_t offset);

/* Moves the offset as lseek(2), SEEK_DATA and SEEK_HOLE too; returns it. -EINVAL, -ENXIO, -EOVERFLOW. */
int64_t shale_lseek(shale_file_t *file, int64_t by, int whence);

/* Makes the file durable: what is not so already (see DURABILITY). */
int shale_fsync(shale_file_t *file);
int shale_fdatasync(shale_file_t *file);

/* Sets the size. -EINVAL: not open for writing, or `bytes` is negative; -EFBIG. */
int shale_ftruncate(shale_file_t *file, int64_t bytes);

/* As fallocate(2), with its modes. -EBADF: not open for writing; -EINVAL; -EFBIG; -EOPNOTSUPP. */
int shale_fallocate(shale_file_t *file, int mode, int64_t offset, int64_t bytes);

/* Attributes of an open file. `*status` is written only on success. */
int shale_fstat(shale_file_t *file, struct stat *status);

/* ---- Names ---- */

/* Attributes of what the path leads to (shale_lstat: of a symbolic link itself); st_dev is the mount's.
 * `*status` is written only on success. */
int shale_stat(shale_t *volume, const char *path, struct stat *status);
int shale_lstat(shale_t *volume, const char *path, struct stat *status);

/* Whether the caller may: R_OK, W_OK, X_OK of <unistd.h> together, or F_OK. -EACCES: no. -EINVAL. */
int shale_access(shale_t *volume, const char *path, int mode);

/* Makes a directory. -EEXIST, -EMLINK. */
int shale_mkdir(shale_t *volume, const char *path, mode_t mode);

/* Removes an empty directory. -ENOTEMPTY, -EBUSY (the root), -EINVAL (".") -EPERM. */
int shale_rmdir(shale_t *volume, const char *path);

/* Removes a name of a file. Who has it open keeps it. -EISDIR, -EPERM. */
int shale_unlink(shale_t *volume, const char *path);

/* Moves a name; what has the new name already is replaced, at once for all who look. `flags`: 0 or one of
 * SHALE_RENAME_*. -EEXIST, -ENOTEMPTY, -EISDIR, -EINVAL, -EBUSY, -EPERM. */
int shale_rename(shale_t *volume, const char *old_path, const char *new_path, unsigned int flags);

/* Gives a file another name; a symbolic link is not followed. -EEXIST, -EMLINK, -EPERM. */
int shale_link(shale_t *volume, const char *old_path, const char *new_path);

/* Makes a symbolic link at `path` that says `target`. -EEXIST. */
int shale_symlink(shale_t *volume, const char *target, const char *path);

/* What a symbolic link says, without a zero byte, cut to `bytes`; returns how many there are in `into`.
 * -EINVAL: not a symbolic link, or `bytes` is 0. */
ssize_t shale_readlink(shale_t *volume, const char *path, char *into, size_t bytes);

/* ---- Directories ---- */

/* Begins a walk. `*dir`: the handle, set only on success; end it with shale_closedir(). */
int shale_opendir(shale_t *volume, const char *path, shale_dir_t **dir);

/* The next entry, without "." and "..": 1, and `*entry` is written; 0: there are no more. An entry that is
 * neither made nor removed during the walk comes exactly once. */
int shale_readdir(shale_dir_t *dir, struct shale_dirent *entry);

/* Ends a walk. */
int shale_closedir(shale_dir_t *dir);

/* ---- Extended attributes: of what the path leads to; names end with a zero byte ---- */

/* Sets one. `value`: may be NULL if `bytes` is 0. `flags`: 0, XATTR_CREATE or XATTR_REPLACE of <sys/xattr.h>.
 * -EEXIST, -ENODATA, -ENOSPC, -E2BIG, -ERANGE, -EOPNOTSUPP, -EPERM. */
int shale_setxattr(shale_t *volume, const char *path, const char *name, const void *value, size_t bytes,
                   int flags);

/* Value of one; returns its length. With `bytes` 0 only the length (`value` may be NULL). -ENODATA: there
 * is none; -ERANGE: it is longer than `bytes`. */
ssize_t shale_getxattr(shale_t *volume, const char *path, const char *name, void *value, size_t bytes);

/* All names, each with its zero byte; returns the bytes of all. As shale_getxattr() otherwise. */
ssize_t shale_listxattr(shale_t *volume, const char *path, char *names, size_t bytes);

/* Removes one. -ENODATA. */
int shale_removexattr(shale_t *volume, const char *path, const char *name);

/* ---- The volume ---- */

/* Makes everything durable that was done by this handle: what is not so already (see DURABILITY). */
int shale_sync(shale_t *volume);

/* Sizes. What was deleted counts as free at once. `*sizes` is written only on success. */
int shale_statfs(shale_t *volume, struct statvfs *sizes);

/* ---- Leases ----
 *
 * Every call gets the lease it needs by itself and keeps it until another client needs it. These calls
 * choose the moment: before a burst of work, or as soon as it is done, so that the next client waits
 * for nothing. They promise nothing beyond that: another client may take the lease at any time. */

/* Gets a lease of `mode` (SHALE_LEASE_*) on the file or directory; others lose theirs. The caller has to
 * be allowed to read it, or to write it. -EACCES; -EINVAL: no such mode. */
int shale_lease(shale_t *volume, const char *path, int mode);
/* -EBADF: not open for reading (shared) or for writing (exclusive). */
int shale_lease_file(shale_file_t *file, int mode);

/* Gives the lease back, if there is one. What was written under it is in the volume when this returns. */
int shale_give_back(shale_t *volume, const char *path);
int shale_give_back_file(shale_file_t *file);

#ifdef __cplusplus
}
#endif

#endif
