/* Implements the part of GNU OpenMP that oneDNN uses. The program comes first in the dynamic
 * linker's order, so libgomp's symbols are found here. A function outlined from `#pragma omp
 * parallel` calls back only for its number, the team's size and barriers.
 *
 * Source: libgomp/libgomp_g.h (GCC 12), names and arguments; OpenMP API 5.2, 18.2. */

#include "engine/base/forkjoin.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT void GOMP_parallel(void (*body)(void *context), void *context, unsigned threads,
                          unsigned flags);
EXPORT void GOMP_barrier(void);
EXPORT int omp_get_max_threads(void);
EXPORT int omp_get_num_threads(void);
EXPORT int omp_get_thread_num(void);
EXPORT int omp_in_parallel(void);
EXPORT void omp_set_num_threads(int threads);

/* If `threads` is 0, uses omp_get_max_threads(). */
void GOMP_parallel(void (*body)(void *context), void *context, unsigned threads, unsigned flags)
{
    (void)flags; /* binding of threads to places */
    forkjoin_run(threads ? (int)threads : forkjoin_threads(), body, context);
}

void GOMP_barrier(void)
{
    forkjoin_barrier();
}

int omp_get_max_threads(void)
{
    return forkjoin_threads();
}

int omp_get_num_threads(void)
{
    return forkjoin_members();
}

int omp_get_thread_num(void)
{
    return forkjoin_member();
}

int omp_in_parallel(void)
{
    return forkjoin_is_inside();
}

/* oneDNN 3 links to this symbol. */
void omp_set_num_threads(int threads)
{
    if (threads > 0)
        forkjoin_set_threads(threads);
}
