// Renames its first argument to its second, and nothing else.
#include "check.h"
#include <stdio.h>

int main(int count, char **words) {
    CHECK(count == 3);
    CHECK(rename(words[1], words[2]) == 0);
    return 0;
}
