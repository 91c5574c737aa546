/* What sessions measured at earlier starts, in the tuning store, for each model and set of options:
 *
 *     rows_checked 1
 *     8 293.4012
 *
 * A line for each batch size: its milliseconds. Times that a start finds to be far from its own
 * (SESSION_BELIEVED) are measured and kept anew; so whoever can write the folder decides in which
 * passes a batch is run, and up to that factor by how much latencies are underrated at first,
 * nothing more: rows_checked spares the longer of two checks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/tuning/tuning_store.h"
#include "server/precision/internal.h"

#define MOST_MS 1e7
#define NEWS    0.98 /* a time is kept again when it got that much shorter, or was not believed */

static struct graph_hash key_of(const struct model *model, const struct session_options *session)
{
    struct graph_hash hash = choice_key_of(model, session);
    const int32_t numbers[] = {(int32_t)session->precision, (int32_t)session->image_layout};
    graph_hash_bytes(&hash, numbers, sizeof numbers);
    return hash;
}

static bool parse(char *text, struct session_facts *ret)
{
    struct session_facts facts = {.count = 0};
    char *rest = text;
    const char *line = strsep(&rest, "\n");
    int checked, end = 0;
    /* NOLINTNEXTLINE(cert-err34-c): the range is checked */
    if (sscanf(line, "rows_checked %d%n", &checked, &end) != 1 || line[end] || checked < 0 ||
        checked > 1)
        return false;
    facts.rows_checked = checked;
    while ((line = strsep(&rest, "\n")) && rest) {
        struct session_time *time = &facts.times[facts.count];
        if (facts.count == SESSION_MAX_BATCHES ||
            /* NOLINTNEXTLINE(cert-err34-c): the range is checked */
            sscanf(line, "%d %lf%n", &time->size, &time->milliseconds, &end) != 2 || line[end] ||
            time->size < 1 || !(time->milliseconds > 0 && time->milliseconds < MOST_MS))
            return false;
        facts.count++;
    }
    if (!line || line[0] || facts.count == 0)
        return false;
    *ret = facts;
    return true;
}

static bool find(const struct graph_hash *key, struct session_facts *ret)
{
    char text[TUNING_TEXT];
    return tuning_find(TUNING_BATCHES, key, text) && parse(text, ret);
}

bool precision_recall_facts(const struct model *model, const struct session_options *session,
                            struct graph_hash *ret_key, struct session_facts *ret)
{
    *ret_key = key_of(model, session);
    return find(ret_key, ret);
}

/* Is there anything in `facts` that `kept` does not say? */
static bool is_news(const struct session_facts *facts, const struct session_facts *kept)
{
    bool news = facts->count != kept->count || facts->rows_checked != kept->rows_checked;
    for (size_t i = 0; !news && i < facts->count; i++)
        news = facts->times[i].size != kept->times[i].size ||
               facts->times[i].milliseconds < NEWS * kept->times[i].milliseconds ||
               kept->times[i].milliseconds < SESSION_BELIEVED * facts->times[i].milliseconds;
    return news;
}

void precision_keep_facts(const struct graph_hash *key, const struct session_facts *facts)
{
    struct session_facts kept;
    char text[TUNING_TEXT];
    int at = snprintf(text, sizeof text, "rows_checked %d\n", facts->rows_checked);
    for (size_t i = 0; i < facts->count; i++) {
        const struct session_time *time = &facts->times[i];
        if (!(time->milliseconds > 0))
            return;
        at += snprintf(text + at, sizeof text - (size_t)at, "%d %.4f\n", time->size,
                       time->milliseconds);
    }
    if (facts->count > 0 && (!find(key, &kept) || is_news(facts, &kept)))
        tuning_keep(TUNING_BATCHES, key, text);
}
