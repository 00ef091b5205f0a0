/* A library that writes when it goes: at `dlclose`, or when its process ends. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static FILE *buffered;

static FILE *in_dir(const char *name, const char *mode) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s-%s", getenv("LIFE_DIR"), LIBRARY, name);
    return fopen(path, mode);
}

__attribute__((constructor)) static void come(void) {
    buffered = in_dir("buffered", "we");
    if (buffered) fprintf(buffered, "%s is here\n", LIBRARY);
}

__attribute__((destructor)) static void go(void) {
    FILE *file = in_dir("gone", "ae");
    if (!file || !buffered) abort();
    for (int i = 0; i < 700; i++) fprintf(file, "%s has gone %d\n", LIBRARY, i);
    fflush(file);
    fprintf(file, "this stays in the buffer\n");
    fprintf(buffered, "%s was here\n", LIBRARY);
}
