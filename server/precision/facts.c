/* What sessions measured at earlier starts, one small text file for each model, set of options, CPU
 * and build:
 *
 *     lensd times 3
 *     rows_checked 1
 *     8 293.4012
 *     end
 *
 * A file that does not read exactly like this is as good as none. Times that a start finds to be
 * far from its own (SESSION_BELIEVED) are measured and written anew; so whoever can write the
 * folder decides in which pieces a batch is run, and up to that factor by how much latencies are
 * underrated at first, nothing more: rows_checked spares the longer of two checks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/observe/log.h"
#include "server/precision/internal.h"

#define HEAD     "lensd times 3"
#define FILE_MAX 2048
#define MOST_MS  1e7
#define NEWS     0.98 /* a time is written again when it got that much shorter, or was not believed */

static void make_key(const struct model *model, const struct session_options *session,
                     struct facts_key *ret)
{
    struct choice_key key = choice_key_of(model, session);
    struct graph_hash hash = {{0, 0}};
    const int32_t numbers[] = {(int32_t)session->precision, (int32_t)session->image_layout};
    graph_hash_bytes(&hash, key.text, strlen(key.text));
    graph_hash_bytes(&hash, numbers, sizeof numbers);
    key = choice_key_of_hash(&hash);
    snprintf(ret->text, sizeof ret->text, "%s", key.text);
}

static char *path_in(const char *folder, const struct facts_key *key)
{
    char *path;
    return asprintf(&path, "%s/times-%s", folder, key->text) < 0 ? NULL : path;
}

static bool parse(char *text, struct session_facts *ret)
{
    struct session_facts facts = {.count = 0};
    char *rest = text;
    const char *line = strsep(&rest, "\n");
    int checked, end = 0;
    if (strcmp(line, HEAD) != 0 || !(line = strsep(&rest, "\n")) ||
        /* NOLINTNEXTLINE(cert-err34-c): the range is checked */
        sscanf(line, "rows_checked %d%n", &checked, &end) != 1 || line[end] || checked < 0 ||
        checked > 1)
        return false;
    facts.rows_checked = checked;
    while ((line = strsep(&rest, "\n")) && strcmp(line, "end") != 0) {
        struct session_time *time = &facts.times[facts.count];
        if (facts.count == SESSION_MAX_BATCHES ||
            /* NOLINTNEXTLINE(cert-err34-c): the range is checked */
            sscanf(line, "%d %lf%n", &time->size, &time->milliseconds, &end) != 2 || line[end] ||
            time->size < 1 || !(time->milliseconds > 0 && time->milliseconds < MOST_MS))
            return false;
        facts.count++;
    }
    if (!line || facts.count == 0)
        return false;
    *ret = facts;
    return true;
}

bool facts_load(const char *folder, const struct facts_key *key, struct session_facts *ret)
{
    char *path = path_in(folder, key), *text = choice_read(path, FILE_MAX);
    const bool good = text && parse(text, ret);
    free(text);
    free(path);
    return good;
}

bool precision_recall_facts(const struct model *model, const struct session_options *session,
                            const char *cache, struct facts_key *ret_key, struct session_facts *ret)
{
    char *folder = tuning_folder(cache);
    *ret_key = (struct facts_key){""};
    if (!folder)
        return false;
    make_key(model, session, ret_key);
    const bool found = facts_load(folder, ret_key, ret);
    free(folder);
    return found;
}

static bool print(FILE *file, const void *context)
{
    const struct session_facts *facts = context;
    bool good = fprintf(file, HEAD "\nrows_checked %d\n", facts->rows_checked) > 0;
    for (size_t i = 0; i < facts->count; i++)
        good = good &&
               fprintf(file, "%d %.4f\n", facts->times[i].size, facts->times[i].milliseconds) > 0;
    return good && fputs("end\n", file) >= 0;
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

void precision_keep_facts(const struct facts_key *key, const char *cache,
                          const struct session_facts *facts)
{
    struct session_facts kept;
    struct error err;
    bool measured = facts->count > 0 && key->text[0];
    for (size_t i = 0; i < facts->count; i++)
        measured = measured && facts->times[i].milliseconds > 0;
    char *folder = measured ? tuning_folder(cache) : NULL;
    char *path = folder ? path_in(folder, key) : NULL;
    if (path && (!facts_load(folder, key, &kept) || is_news(facts, &kept)) &&
        choice_write(folder, path, print, facts, &err) != STATUS_OK)
        log_event(LOG_DEBUG, "the times of batches are not kept", LOG_STR("reason", err.message));
    free(path);
    free(folder);
}
