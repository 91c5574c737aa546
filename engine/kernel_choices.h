/* Which kernel runs a layer, where several can: what was measured in this process, or in an earlier
 * one on the same machine.
 *
 * While a session is made, layers that more than one kernel of the CPU fits are run by each of them
 * in turns, for no more than KERNEL_TRIALS_MS in all; the rule that was found on other machines
 * decides until then, where time has run out, and where no kernel is clearly quicker than the
 * rule's. A layer is known by its geometry, so that batch sizes, sessions and models share what was
 * found. All functions are thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define KERNEL_TRIALS_MS 600

/* What is known so far, as lines of text ("" for nothing), malloc'ed; NULL when out of memory. It
 * holds for this CPU and this build of lensd; whoever keeps it sees to that. */
char *kernel_choices_text(void);

/* Adds what such a text says; layers that are known already stay. false, and nothing is added, when
 * it is not such a text. */
bool kernel_choices_add(const char *text);

/* Grows with every choice that a trial has made; not with those added. */
size_t kernel_choices_made(void);

/* For tests: forgets everything. */
void kernel_choices_forget(void);
