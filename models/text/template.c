/* Reads post-processors, which put special tokens around the text. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/text/pipeline.h"

static enum status piece_add(struct tokenizer *tokenizer, int32_t id, size_t type,
                             struct error *err)
{
    if (tokenizer->piece_count == COUNT_OF(tokenizer->pieces))
        return error_set(err, STATUS_UNSUPPORTED, "a template has more than %zu pieces",
                         COUNT_OF(tokenizer->pieces));
    tokenizer->pieces[tokenizer->piece_count++] = (struct template_piece){id, (int32_t)type};
    tokenizer->facts.added_count += id != TOKEN_NONE;
    return STATUS_OK;
}

enum status template_set(struct tokenizer *ret, int32_t bos, int32_t eos, struct error *err)
{
    if (bos >= 0)
        TRY(piece_add(ret, bos, 0, err));
    TRY(piece_add(ret, TOKEN_NONE, 0, err));
    return eos >= 0 ? piece_add(ret, eos, 0, err) : STATUS_OK;
}

static enum status check_id(const cJSON *id, int32_t *ret, struct error *err)
{
    if (!cJSON_IsNumber(id) || !(id->valuedouble >= 0 && id->valuedouble < TOKEN_IDS_MAX))
        return json_wrong("post_processor", "made of tokens and their ids", err);
    *ret = (int32_t)id->valuedouble;
    return STATUS_OK;
}

/* Reads {"id": name, "type_id": 0} of "SpecialToken"; the ids are in "special_tokens". */
static enum status read_special(const cJSON *json, const cJSON *special, size_t type,
                                struct tokenizer *ret, struct error *err)
{
    const char *name;
    int32_t id = TOKEN_NONE;
    TRY(json_text(json, "id", "", &name, err));
    const cJSON *ids = json_get(json_get(special, name), "ids");
    if (!cJSON_IsArray(ids))
        return error_set(err, STATUS_MODEL, "\"special_tokens\" does not have the ids of \"%.60s\"",
                         name);
    for (const cJSON *item = ids->child; item; item = item->next) {
        TRY(check_id(item, &id, err));
        TRY(piece_add(ret, id, type, err));
    }
    return STATUS_OK;
}

static enum status read_template(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    const cJSON *single = json_get(json, "single"), *special = json_get(json, "special_tokens");
    size_t texts = 0;
    for (const cJSON *item = cJSON_IsArray(single) ? single->child : NULL; item;
         item = item->next) {
        const cJSON *sequence = json_get(item, "Sequence"), *token = json_get(item, "SpecialToken");
        const char *name;
        size_t type;
        TRY(json_size(sequence ? sequence : token, "type_id", 0, 1, &type, err));
        if (token) {
            TRY(read_special(token, special, type, ret, err));
            continue;
        }
        TRY(json_text(sequence, "id", "", &name, err));
        if (strcmp(name, "A") != 0 || texts++)
            return json_wrong("single", "a template with the sequence A once", err);
        TRY(piece_add(ret, TOKEN_NONE, type, err));
    }
    return texts ? STATUS_OK : json_wrong("single", "a template with the sequence A once", err);
}

/* Reads BertProcessing and RobertaProcessing: "cls": [name, id], "sep": [name, id]. */
static enum status read_pair(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    int32_t ids[2];
    for (size_t i = 0; i < 2; i++) {
        const cJSON *pair = json_get(json, i ? "sep" : "cls");
        TRY(check_id(cJSON_IsArray(pair) ? cJSON_GetArrayItem(pair, 1) : NULL, &ids[i], err));
    }
    return template_set(ret, ids[0], ids[1], err);
}

static enum status read_processor(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    static const struct {
        const char *type;
        enum status (*read)(const cJSON *json, struct tokenizer *ret, struct error *err);
    } kinds[] = {{"ByteLevel", NULL}, /* changes offsets only */
                 {"TemplateProcessing", read_template},
                 {"BertProcessing", read_pair},
                 {"RobertaProcessing", read_pair}};
    const char *type;
    TRY(json_text(json, "type", "", &type, err));
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (strcmp(type, kinds[i].type) != 0)
            continue;
        if (kinds[i].read && ret->piece_count)
            return error_set(err, STATUS_UNSUPPORTED,
                             "lensd does not support two templates, one after the other");
        return kinds[i].read ? kinds[i].read(json, ret, err) : STATUS_OK;
    }
    return error_set(err, STATUS_UNSUPPORTED, "lensd does not support the post-processor \"%.60s\"",
                     type);
}

enum status template_read(const cJSON *json, struct tokenizer *ret, struct error *err)
{
    const char *type = "";
    if (json)
        TRY(json_text(json, "type", "", &type, err));
    const cJSON *list = strcmp(type, "Sequence") != 0 ? NULL : json_get(json, "processors");
    if (!list && json)
        TRY(read_processor(json, ret, err));
    for (const cJSON *item = cJSON_IsArray(list) ? list->child : NULL; item; item = item->next)
        TRY(read_processor(item, ret, err));
    return ret->piece_count ? STATUS_OK : template_set(ret, TOKEN_NONE, TOKEN_NONE, err);
}
