/* Which of many alike log lines are written: the first few of each second. The others are counted,
 * and one line says how many there were. Pure: no lock or clock; times are clock_now()'s. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LOG_SAMPLE_LINES 20 /* a second */

/* Zero at first. */
struct log_sample {
    int64_t since; /* when this second began */
    unsigned written;
    int64_t left_out;
};

/* Whether a line is to be written now; if not, it is counted. */
bool log_sample_take(struct log_sample *sample, int64_t now);

/* How many lines were left out, once their second is over: each is told once. To be asked before
 * log_sample_take(). */
int64_t log_sample_left_out(struct log_sample *sample, int64_t now);
