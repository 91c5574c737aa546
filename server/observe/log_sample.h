/* Limits the number of similar log lines: the first LOG_SAMPLE_LINES of each second are written,
 * and one line says how many were left out. No lock, no clock; callers pass clock_now(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/clock.h"

#define LOG_SAMPLE_LINES 20 /* per second */

/* Initially zero. */
struct log_sample {
    int64_t since; /* when the current second began */
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

/* The first call after the current second is over returns the number of lines that were left out in
 * it; other calls return 0. Call it before log_sample_take(). */
static inline int64_t log_sample_left_out(struct log_sample *sample, int64_t now)
{
    if (now - sample->since < 1000 * NS_PER_MS)
        return 0;
    const int64_t left_out = sample->left_out;
    sample->left_out = 0;
    return left_out;
}
