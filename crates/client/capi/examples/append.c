/* Appends durable records of 128 bytes to a file of a mounted Shale volume, and reads all of them back.
 *
 *   cc -o append append.c $(pkg-config --cflags --libs shale)
 *   ./append MOUNTPOINT FILE RECORDS
 *
 * FILE is a path inside the volume. A record is durable when shale_write() returns; none is a system call.
 */
#include <fcntl.h>
#include <shale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define RECORD_BYTES 128

static long long checked(long long result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "append: %s: %s\n", what, shale_strerror((int)result));
        exit(1);
    }
    return result;
}

/* A line of exactly RECORD_BYTES bytes. */
static void make_record(char record[RECORD_BYTES], long long number)
{
    char text[RECORD_BYTES + 1];
    memset(record, '.', RECORD_BYTES);
    memcpy(record, text, (size_t)snprintf(text, sizeof text, "record %lld ", number));
    record[RECORD_BYTES - 1] = '\n';
}

int main(int argc, char **argv)
{
    shale_t *volume;
    shale_file_t *file;
    struct stat status;
    char record[RECORD_BYTES], expected[RECORD_BYTES];
    long long number, first, end;

    if (argc != 4) {
        fprintf(stderr, "usage: append MOUNTPOINT FILE RECORDS\n");
        return 2;
    }
    checked(shale_attach(argv[1], &volume), argv[1]);
    checked(shale_open(volume, argv[2], O_RDWR | O_CREAT | O_APPEND, 0666, &file), argv[2]);

    /* Optional: the lease now instead of at the first write. */
    checked(shale_lease_file(file, SHALE_LEASE_EXCLUSIVE), "lease");
    checked(shale_fstat(file, &status), "fstat");
    first = status.st_size / RECORD_BYTES;
    end = first + atoll(argv[3]);
    for (number = first; number < end; number++) {
        make_record(record, number);
        if (checked(shale_write(file, record, RECORD_BYTES), "write") != RECORD_BYTES) {
            fprintf(stderr, "append: record %lld: no space for all of it\n", number);
            return 1;
        }
    }

    checked(shale_lseek(file, 0, SEEK_SET), "lseek");
    for (number = 0; number < end; number++) {
        make_record(expected, number);
        if (checked(shale_read(file, record, RECORD_BYTES), "read") != RECORD_BYTES
            || memcmp(record, expected, RECORD_BYTES) != 0) {
            fprintf(stderr, "append: record %lld is not what was written\n", number);
            return 1;
        }
    }

    /* Optional: the next user of the file finds it in the volume already. */
    checked(shale_give_back_file(file), "give back");
    checked(shale_close(file), "close");
    checked(shale_detach(volume), "detach");
    printf("%lld records, %lld of them new (libshale %s)\n", end, end - first, shale_version());
    return 0;
}
