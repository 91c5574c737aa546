/* The OpenMP runtime's one setting that matters to a server. */
#pragma once

/* To be called first in main(). oneDNN's threads are GNU OpenMP's, and its default is to spin for
 * milliseconds at the end of every loop. On cores that are shared with decode workers or with other
 * processes each spin keeps the very thread it waits for from running: measured on a busy 2-core
 * machine, ResNet-50 took 5 to 8 times longer than with waiting threads asleep. Never to spin costs
 * as much where layers are small: waking a thread takes as long as the layer (MobileNetV3 at batch
 * 1: 6.2 ms against 3.0). A spin of some 20 microseconds, longer than the gap between two steps of
 * a program, has both. libgomp reads its environment before main(), so the program sets
 * GOMP_SPINCOUNT and starts itself again, once; a user's own OMP_WAIT_POLICY or GOMP_SPINCOUNT is
 * left alone. Returns when nothing had to be done, or could be. */
void openmp_wait_briefly(char **argv);
