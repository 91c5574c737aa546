/* Limits similar log lines: the first few of each second are written, and one line reports the
 * number of the others. Pure: no lock, no clock; times are clock_now()'s. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LOG_SAMPLE_LINES 20 /* per second */

/* Initially zero. */
struct log_sample {
    int64_t since; /* when this second began */
    unsigned written;
    int64_t left_out;
};

/* Returns whether to write a line now; counts it otherwise. */
bool log_sample_take(struct log_sample *sample, int64_t now);

/* Returns the number of omitted lines once, when their second is over; otherwise 0. Call it before
 * log_sample_take(). */
int64_t log_sample_left_out(struct log_sample *sample, int64_t now);
