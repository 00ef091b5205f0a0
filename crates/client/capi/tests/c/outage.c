/* Writes records until the daemon is killed by somebody else, attaches to the next one, and looks
 * whether everything is there that a call returned for, and at most the record that was under way.
 *
 *   outage MOUNTPOINT FILE     FILE: a path inside the volume, not there yet
 */
#include <errno.h>
#include <fcntl.h>
#include <shale.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define RECORD_BYTES 128
#define SECONDS_MAX 60

static int failed(const char *what, long long result)
{
    fprintf(stderr, "outage: %s: %s\n", what, shale_strerror((int)result));
    return 1;
}

static void make_record(char record[RECORD_BYTES], long long number)
{
    memset(record, (int)('a' + number % 26), RECORD_BYTES);
    memcpy(record, &number, sizeof number);
}

/* Attaches to a daemon that may be starting. */
static int attach(const char *mountpoint, shale_t **volume)
{
    time_t begun = time(NULL);
    const struct timespec pause = {0, 20 * 1000 * 1000};
    int done;
    while ((done = shale_attach(mountpoint, volume)) < 0 && time(NULL) - begun < SECONDS_MAX)
        nanosleep(&pause, NULL);
    return done;
}

int main(int argc, char **argv)
{
    shale_t *volume;
    shale_file_t *file;
    struct stat status;
    char record[RECORD_BYTES], got[RECORD_BYTES];
    long long returned = 0, number, result;
    time_t begun = time(NULL);

    if (argc != 3)
        return 2;
    if ((result = shale_attach(argv[1], &volume)) < 0)
        return failed("attach", result);
    result = shale_open(volume, argv[2], O_RDWR | O_CREAT | O_EXCL | O_APPEND, 0600, &file);
    if (result < 0)
        return failed("open", result);
    for (;;) {
        make_record(record, returned);
        result = shale_write(file, record, RECORD_BYTES);
        if (result != RECORD_BYTES)
            break;
        returned++;
        if (time(NULL) - begun > SECONDS_MAX)
            return failed("nobody killed the daemon", 0);
    }
    if (result != -EIO)
        return failed("the write that the daemon's death ended", result);
    if (shale_detach(volume) != -EBUSY || shale_close(file) != 0)
        return failed("close", 0);
    /* The daemon cannot be notified; the handle ends all the same. */
    shale_detach(volume);

    if ((result = attach(argv[1], &volume)) < 0)
        return failed("attach again", result);
    if ((result = shale_open(volume, argv[2], O_RDONLY, 0, &file)) < 0)
        return failed("open again", result);
    shale_fstat(file, &status);
    printf("%lld records returned, %lld are there\n", returned, (long long)status.st_size / RECORD_BYTES);
    if (status.st_size % RECORD_BYTES != 0 || status.st_size / RECORD_BYTES < returned
        || status.st_size / RECORD_BYTES > returned + 1)
        return failed("the size", 0);
    for (number = 0; number < returned; number++) {
        make_record(record, number);
        result = shale_read(file, got, RECORD_BYTES);
        if (result != RECORD_BYTES || memcmp(record, got, RECORD_BYTES) != 0)
            return failed("a record that returned", result);
    }
    return shale_close(file) == 0 && shale_detach(volume) == 0 ? 0 : failed("detach", 0);
}
