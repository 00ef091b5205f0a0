// Says what inotify(7) sees in a directory until its input ends: watch DIRECTORY.
#include <fcntl.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <unistd.h>

static const struct {
    unsigned bit;
    const char *name;
} EVENTS[] = {
    {IN_CREATE, "create"},          {IN_MODIFY, "modify"},    {IN_CLOSE_WRITE, "close"},
    {IN_MOVED_FROM, "from"},        {IN_MOVED_TO, "to"},      {IN_DELETE, "delete"},
};

int main(int count, char **arguments) {
    int watch = inotify_init1(IN_NONBLOCK);
    if (count != 2 || watch < 0 || inotify_add_watch(watch, arguments[1], IN_ALL_EVENTS) < 0) return 2;
    puts("watching");
    fflush(stdout);
    char bytes[65536];
    while (read(0, bytes, sizeof bytes) > 0) continue;
    for (ssize_t got; (got = read(watch, bytes, sizeof bytes)) > 0;) {
        for (char *at = bytes; at < bytes + got;) {
            struct inotify_event *event = (void *)at;
            for (unsigned n = 0; n < sizeof EVENTS / sizeof *EVENTS; n++)
                if (event->mask & EVENTS[n].bit) printf("%s ", EVENTS[n].name);
            at += sizeof *event + event->len;
        }
    }
    return 0;
}
