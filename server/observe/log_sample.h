/* Limits similar log lines: the first few of each second are written, and one line reports how many
 * were left out. Pure: no lock, no clock; times are clock_now()'s. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/clock.h"

#define LOG_SAMPLE_LINES 20 /* per second */

/* Initially zero. */
struct log_sample {
    int64_t since; /* when this second began */
    unsigned written;
    int64_t left_out;
};

/* Returns true if a line may be written now; otherwise counts the line as left out. */
static inline bool log_sample_take(struct log_sample *sample, int64_t now)
{
    if (now - sample->since >= 1000 * NS_PER_MS) {
        sample->since = now;
        sample->written = 0;
    }
    const bool writes = sample->written < LOG_SAMPLE_LINES;
    sample->written += writes;
    sample->left_out += !writes;
    return writes;
}

/* After a second is over, the first call returns the number of lines left out in it; other calls
 * return 0. Call it before log_sample_take(). */
static inline int64_t log_sample_left_out(struct log_sample *sample, int64_t now)
{
    if (now - sample->since < 1000 * NS_PER_MS)
        return 0;
    const int64_t left_out = sample->left_out;
    sample->left_out = 0;
    return left_out;
}
