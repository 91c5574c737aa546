/* Reads lists of steps from tokenizer.json, and runs them. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/text/pipeline.h"

/* Limit of the nesting of sequences. */
enum { SEQUENCE_DEPTH_MAX = 8 };

/* Largest number of steps that one entry of tokenizer.json makes. */
enum { STEPS_OF_ONE = 4 };

struct text_step *step_add(struct step_list *list, struct text_step step)
{
    list->steps[list->count] = step;
    return &list->steps[list->count++];
}

static enum status read_pattern(const cJSON *pattern, struct text_step *step, struct error *err)
{
    const char *text, *literal;
    TRY(json_text(pattern, "Regex", NULL, &text, err));
    TRY(json_text(pattern, "String", NULL, &literal, err));
    if (!text == !literal)
        return json_wrong("pattern", "{\"Regex\": …} or {\"String\": …}", err);
    return text_regex_create(text ? text : literal, !text, &step->regex, err);
}

static enum status read_content(const cJSON *json, const char *key, struct text_step *step,
                                struct error *err)
{
    const char *content;
    TRY(json_text(json, key, NULL, &content, err));
    if (!content)
        return json_wrong(key, "a text", err);
    step->content_size = strlen(content);
    step->content = strdup(content);
    return check_memory(step->content, "for a tokenizer", err);
}

static enum status read_behavior(const cJSON *json, struct text_step *step, struct error *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name;
    TRY(json_text(json, "behavior", "Isolated", &name, err));
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(name, names[i])) {
            step->behavior = (enum split_behavior)i;
            return STATUS_OK;
        }
    return error_set(err, STATUS_UNSUPPORTED, "lensd does not support the behavior \"%.60s\"",
                     name);
}

static enum status read_kind(const cJSON *json, const struct step_kind *kind,
                             struct step_list *list, struct error *err)
{
    struct text_step *step = step_add(list, kind->step);
    for (size_t i = 0; i < COUNT_OF(step->flags); i++)
        if (kind->flag_keys[i])
            TRY(json_flag(json, kind->flag_keys[i], step->flags[i], &step->flags[i], err));
    if (kind->has_pattern)
        TRY(read_pattern(json_get(json, "pattern"), step, err));
    if (kind->has_behavior)
        TRY(read_behavior(json, step, err));
    if (kind->content_key)
        TRY(read_content(json, kind->content_key, step, err));
    if (kind->then.run)
        step = step_add(list, kind->then);
    return kind->read ? kind->read(json, list, step, err) : STATUS_OK;
}

static enum status read_one(const cJSON *json, const char *what, const char *type,
                            const struct step_kind *kinds, size_t kind_count,
                            struct step_list *list, struct error *err)
{
    size_t k = 0;
    while (k < kind_count && strcmp(kinds[k].type, type) != 0)
        k++;
    if (k == kind_count || list->count + STEPS_OF_ONE > STEPS_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "lensd does not support the %s \"%.60s\"%s", what,
                         type, k < kind_count ? " after that many other steps" : "");
    const enum status status = read_kind(json, &kinds[k], list, err);
    return status == STATUS_OK ? status : error_prefix(err, "%s \"%s\"", what, type);
}

enum status steps_read(const cJSON *json, const char *what, const char *list_key,
                       const struct step_kind *kinds, size_t kind_count, size_t depth,
                       struct step_list *list, struct error *err)
{
    const char *type;
    if (!json || cJSON_IsNull(json))
        return STATUS_OK;
    TRY(json_text(json, "type", "", &type, err));
    if (strcmp(type, "Sequence") != 0)
        return read_one(json, what, type, kinds, kind_count, list, err);
    const cJSON *entries = json_get(json, list_key), *entry;
    if (!cJSON_IsArray(entries))
        return json_wrong(list_key, "a list", err);
    if (depth == SEQUENCE_DEPTH_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "sequences are nested more than %d deep",
                         SEQUENCE_DEPTH_MAX);
    cJSON_ArrayForEach(entry, entries)
        TRY(steps_read(entry, what, list_key, kinds, kind_count, depth + 1, list, err));
    return STATUS_OK;
}

void steps_done(struct step_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        text_regex_free(list->steps[i].regex);
        free(list->steps[i].content);
    }
    list->count = 0;
}

void step_run(const struct text_step *step, struct text_parts *parts, struct text_parts *spare)
{
    if (parts->failed)
        return;
    spare->size = spare->count = 0;
    for (size_t i = 0; i < parts->count; i++) {
        const struct text_part *part = &parts->list[i];
        if (part->token >= 0)
            text_parts_add_part(spare, parts->text + part->start, part->size, part->token,
                                part->at_start);
        else
            step->run(step, parts->text + part->start, part->size, part->at_start, spare);
    }
    const struct text_parts swap = *parts;
    *parts = *spare;
    *spare = swap;
}

void steps_run(const struct step_list *list, struct text_parts *parts, struct text_parts *spare)
{
    for (size_t s = 0; s < list->count; s++)
        step_run(&list->steps[s], parts, spare);
}
