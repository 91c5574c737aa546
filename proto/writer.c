/* Builds a cJSON tree member by member, remembers a failed allocation, and prints the tree. */
#include "proto/writer.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "proto/strbuf.h"

static cJSON *attach(struct writer *w, cJSON *parent, const char *key, cJSON *item)
{
    bool attached = false;
    if (item && parent)
        attached =
            key ? cJSON_AddItemToObject(parent, key, item) : cJSON_AddItemToArray(parent, item);
    if (attached)
        return item;
    cJSON_Delete(item);
    w->failed = true;
    return NULL;
}

json_node *write_root(void)
{
    return cJSON_CreateObject();
}

json_node *write_object(struct writer *w, json_node *parent, const char *key)
{
    return attach(w, parent, key, cJSON_CreateObject());
}

json_node *write_array(struct writer *w, json_node *parent, const char *key)
{
    return attach(w, parent, key, cJSON_CreateArray());
}

void write_text(struct writer *w, json_node *parent, const char *key, const char *text)
{
    cJSON *item = attach(w, parent, key, cJSON_CreateString(text));
    if (item && !utf8_valid(text, strlen(text)))
        utf8_repair(item->valuestring);
}

void write_bool(struct writer *w, json_node *parent, const char *key, bool value)
{
    attach(w, parent, key, cJSON_CreateBool(value));
}

void write_count(struct writer *w, json_node *parent, const char *key, unsigned long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", value);
    attach(w, parent, key, cJSON_CreateRaw(text));
}

void write_integer(struct writer *w, json_node *parent, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    attach(w, parent, key, cJSON_CreateRaw(text));
}

void write_float(struct writer *w, json_node *parent, const char *key, float value)
{
    if (!isfinite(value)) {
        attach(w, parent, key, cJSON_CreateNull());
        return;
    }
    char text[FLOAT_TEXT + 1];
    text[write_shortest(value, text)] = '\0';
    attach(w, parent, key, cJSON_CreateRaw(text));
}

void write_decimal(struct writer *w, json_node *parent, const char *key, double value)
{
    if (!isfinite(value)) {
        attach(w, parent, key, cJSON_CreateNull());
        return;
    }
    char text[352]; /* the largest double has 309 digits before its point */
    snprintf(text, sizeof text, "%.3f", value);
    attach(w, parent, key, cJSON_CreateRaw(text));
}

char *write_finish(struct writer *w, json_node *root, size_t *ret_size)
{
    char *text = w->failed || !root ? NULL
                 : w->indents       ? cJSON_Print(root)
                                    : cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    if (!text)
        return NULL;
    size_t size = strlen(text);
    char *with_newline = realloc(text, size + 2);
    if (!with_newline) {
        free(text);
        return NULL;
    }
    with_newline[size++] = '\n';
    with_newline[size] = '\0';
    if (ret_size)
        *ret_size = size;
    return with_newline;
}
