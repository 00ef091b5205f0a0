/* A child that is made by an instruction of the program, not by libc. */
#include <signal.h>
#include <sys/syscall.h>

static long inline_fork(void)
{
    register long fourth __asm__("r10") = 0, fifth __asm__("r8") = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_clone), "D"(SIGCHLD), "S"(0), "d"(0), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}
