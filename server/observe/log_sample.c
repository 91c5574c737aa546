/* Writes the first few similar log lines of each second and counts the others. */
#include "server/observe/log_sample.h"

#define SECOND INT64_C(1000000000)

static void begin_second(struct log_sample *sample, int64_t now)
{
    if (now - sample->since < SECOND)
        return;
    sample->since = now;
    sample->written = 0;
}

bool log_sample_take(struct log_sample *sample, int64_t now)
{
    begin_second(sample, now);
    if (sample->written < LOG_SAMPLE_LINES) {
        sample->written++;
        return true;
    }
    sample->left_out++;
    return false;
}

int64_t log_sample_left_out(struct log_sample *sample, int64_t now)
{
    if (now - sample->since < SECOND)
        return 0;
    int64_t left_out = sample->left_out;
    sample->left_out = 0;
    return left_out;
}
