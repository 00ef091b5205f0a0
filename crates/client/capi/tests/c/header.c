/* The header by itself, and nothing before it: compiled as C99 and as C++. */
#include <shale.h>

int main(void)
{
    struct shale_dirent entry;
    return shale_version() && shale_strerror(0) && sizeof entry == 272 ? 0 : 1;
}
