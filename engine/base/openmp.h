/* The OpenMP runtime's one setting that matters to a server. */
#pragma once

/* To be called first in main(). oneDNN's threads are GNU OpenMP's, and its default is to spin for
 * milliseconds at the end of every loop. On cores that are shared with decode workers or with other
 * processes each spin keeps the very thread it waits for from running: measured on a busy 2-core
 * machine, ResNet-50 took 5 to 8 times longer than with waiting threads asleep. libgomp reads its
 * environment before main(), so the program sets OMP_WAIT_POLICY=passive and starts itself again,
 * once; a user's own OMP_WAIT_POLICY or GOMP_SPINCOUNT is left alone. Returns when nothing had to
 * be done, or could be. */
void openmp_wait_passively(char **argv);
