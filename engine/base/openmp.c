#include "engine/base/openmp.h"

#include <stdlib.h>
#include <unistd.h>

void openmp_wait_briefly(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    if (setenv("GOMP_SPINCOUNT", "1000", 1) != 0)
        return;
    execv("/proc/self/exe", argv); /* returns only when it failed: then go on as we are */
}
