// A file that is written by the library's calls, and then by system calls of the program's own. escapes FILE LIBRARY|inline
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#ifdef LIBRARY
long own_write(int fd, const void *from, unsigned long bytes) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(1L), "D"((long)fd), "S"(from), "d"(bytes) : "rcx", "r11", "memory");
    return result;
}
#else
int main(int, char **arguments) {
    const char first[] = "by the library", second[] = ", by itself";
    int fd = open(arguments[1], O_CREAT | O_RDWR | O_TRUNC, 0644);
    if (fd < 0 || write(fd, first, strlen(first)) != (long)strlen(first))
        return 1;
    long (*own_write)(int, const void *, unsigned long) = 0;
    if (strcmp(arguments[2], "inline")) {
        void *library = dlopen(arguments[2], RTLD_NOW);
        if (!library)
            return 2;
        own_write = (long (*)(int, const void *, unsigned long))dlsym(library, "own_write");
    }
    long wrote;
    if (own_write)
        wrote = own_write(fd, second, strlen(second));
    else
        __asm__ volatile("syscall" : "=a"(wrote) : "0"(1L), "D"((long)fd), "S"(second), "d"(strlen(second)) : "rcx", "r11", "memory");
    return wrote == (long)strlen(second) ? 0 : 3;
}
#endif
