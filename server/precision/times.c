/* Timing profiles of sessions in the tuning store, one for each model and set of options:
 *
 *     rows_checked 1
 *     8 293.4012
 *
 * Each line after the first is a batch size and its milliseconds. A session ignores and replaces
 * times that are far below its own (SESSION_BELIEVED). So whoever can write the folder can only
 * influence into which passes a batch is split, make latencies look up to that factor shorter at
 * first, and skip the longer of two checks (rows_checked). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/backend/tuning_store.h"
#include "server/precision/internal.h"

#define MOST_MS 1e7
#define NEWS    0.98 /* a time below this share of the kept one is kept in its place */

static struct graph_hash key_of(const struct model *model, const struct session_options *session)
{
    struct graph_hash hash = choice_key_of(model, session);
    const int32_t numbers[] = {(int32_t)session->precision, (int32_t)session->image_layout};
    graph_hash_bytes(&hash, numbers, sizeof numbers);
    return hash;
}

static bool parse(char *text, struct timing_profile *ret)
{
    struct timing_profile timing = {.count = 0};
    char *rest = text;
    const char *line = strsep(&rest, "\n");
    int checked, end = 0;
    /* NOLINTNEXTLINE(cert-err34-c): the range is checked */
    if (sscanf(line, "rows_checked %d%n", &checked, &end) != 1 || line[end] || checked < 0 ||
        checked > 1)
        return false;
    timing.rows_checked = checked;
    while ((line = strsep(&rest, "\n")) && rest) {
        struct session_time *time = &timing.times[timing.count];
        if (timing.count == SESSION_MAX_BATCHES ||
            /* NOLINTNEXTLINE(cert-err34-c): the range is checked */
            sscanf(line, "%d %lf%n", &time->size, &time->milliseconds, &end) != 2 || line[end] ||
            time->size < 1 || !(time->milliseconds > 0 && time->milliseconds < MOST_MS))
            return false;
        timing.count++;
    }
    if (!line || line[0] || timing.count == 0)
        return false;
    *ret = timing;
    return true;
}

static bool find(const struct graph_hash *key, struct timing_profile *ret)
{
    char text[TUNING_TEXT];
    return tuning_find(TUNING_BATCHES, key, text) && parse(text, ret);
}

bool precision_recall_times(const struct model *model, const struct session_options *session,
                            struct graph_hash *ret_key, struct timing_profile *ret)
{
    *ret_key = key_of(model, session);
    return find(ret_key, ret);
}

/* True when `timing` has something that `kept` has not. */
static bool is_news(const struct timing_profile *timing, const struct timing_profile *kept)
{
    bool news = timing->count != kept->count || timing->rows_checked != kept->rows_checked;
    for (size_t i = 0; !news && i < timing->count; i++)
        news = timing->times[i].size != kept->times[i].size ||
               timing->times[i].milliseconds < NEWS * kept->times[i].milliseconds ||
               kept->times[i].milliseconds < SESSION_BELIEVED * timing->times[i].milliseconds;
    return news;
}

void precision_keep_times(const struct graph_hash *key, const struct timing_profile *timing)
{
    struct timing_profile kept;
    char text[TUNING_TEXT];
    int at = snprintf(text, sizeof text, "rows_checked %d\n", timing->rows_checked);
    for (size_t i = 0; i < timing->count; i++) {
        const struct session_time *time = &timing->times[i];
        if (!(time->milliseconds > 0))
            return;
        at += snprintf(text + at, sizeof text - (size_t)at, "%d %.4f\n", time->size,
                       time->milliseconds);
    }
    if (timing->count > 0 && (!find(key, &kept) || is_news(timing, &kept)))
        tuning_keep(TUNING_BATCHES, key, text);
}
