/* Builds a cJSON tree member by member, remembers a failed allocation, and prints the tree. */
#include "proto/writer.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "proto/strbuf.h"

#define PRINT_BYTES 1024 /* first size of the text; most answers fit */

/* Adds a node. Its key and text are behind it in one allocation, which cJSON_Delete() frees as a
 * whole because the flags say that both belong to somebody else. `text` NULL: none. */
static cJSON *attach(struct writer *w, cJSON *parent, const char *key, int type, const char *text)
{
    const size_t key_size = key ? strlen(key) + 1 : 0, text_size = text ? strlen(text) + 1 : 0;
    cJSON *item = parent ? cJSON_malloc(sizeof *item + key_size + text_size) : NULL;
    if (!item) {
        w->failed = true;
        return NULL;
    }
    *item = (cJSON){.type = type | cJSON_StringIsConst | (text ? cJSON_IsReference : 0)};
    char *behind = (char *)(item + 1);
    if (text)
        item->valuestring = memcpy(behind + key_size, text, text_size);
    if (key)
        cJSON_AddItemToObjectCS(parent, memcpy(behind, key, key_size), item);
    else
        cJSON_AddItemToArray(parent, item);
    return item;
}

json_node *write_root(void)
{
    return cJSON_CreateObject();
}

json_node *write_root_list(struct writer *w)
{
    if (w->root)
        w->root->type = cJSON_Array;
    return w->root;
}

json_node *write_object(struct writer *w, json_node *parent, const char *key)
{
    return attach(w, parent, key, cJSON_Object, NULL);
}

json_node *write_array(struct writer *w, json_node *parent, const char *key)
{
    return attach(w, parent, key, cJSON_Array, NULL);
}

void write_text(struct writer *w, json_node *parent, const char *key, const char *text)
{
    cJSON *item = attach(w, text ? parent : NULL, key, cJSON_String, text);
    if (item && !utf8_valid(text, strlen(text)))
        utf8_repair(item->valuestring);
}

void write_texts(struct writer *w, json_node *parent, const char *key, const char *const *texts,
                 size_t count)
{
    json_node *list = write_array(w, parent, key);
    for (size_t i = 0; i < count; i++)
        write_text(w, list, NULL, texts[i]);
}

void write_float(struct writer *w, json_node *parent, const char *key, float value)
{
    if (!isfinite(value)) {
        attach(w, parent, key, cJSON_NULL, NULL);
        return;
    }
    char text[FLOAT_TEXT + 1];
    text[write_shortest(value, text)] = '\0';
    attach(w, parent, key, cJSON_Raw, text);
}

void write_floats(struct writer *w, json_node *parent, const char *key, const float *values,
                  size_t count)
{
    json_node *list = write_array(w, parent, key);
    for (size_t i = 0; i < count; i++)
        write_float(w, list, NULL, values[i]);
}

#define TEMPLATE_DEPTH 6

static bool is_spec(const char *at, size_t size, const char *spec)
{
    return size == strlen(spec) && !memcmp(at, spec, size);
}

/* Adds the next argument, with the conversion spec[0 … size). */
static void write_value(struct writer *w, json_node *parent, const char *key, bool is_optional,
                        const char *spec, size_t size, va_list *args)
{
    char text[352]; /* the largest double has 309 digits before its point */
    if (is_spec(spec, size, "%s")) {
        const char *value = va_arg(*args, const char *);
        if (value && (*value || !is_optional))
            write_text(w, parent, key, value);
    } else if (is_spec(spec, size, "%hhd")) {
        attach(w, parent, key, va_arg(*args, int) ? cJSON_True : cJSON_False, NULL);
    } else if (is_spec(spec, size, "%g")) {
        const double value = va_arg(*args, double);
        if (!is_optional || value > 0)
            write_float(w, parent, key, (float)value);
    } else if (is_spec(spec, size, "%.3f")) {
        const double value = va_arg(*args, double);
        snprintf(text, sizeof text, "%.3f", value);
        if (!is_optional || value > 0)
            attach(w, parent, key, isfinite(value) ? cJSON_Raw : cJSON_NULL, text);
    } else {
        const bool is_long = size == 3, is_signed = spec[size - 1] == 'd';
        const long value = is_long     ? va_arg(*args, long)
                           : is_signed ? va_arg(*args, int)
                                       : (long)va_arg(*args, unsigned);
        assert(is_long ? spec[1] == 'l' || spec[1] == 'z' : size == 2);
        snprintf(text, sizeof text, is_signed ? "%ld" : "%lu", value);
        if (!is_optional || (is_signed ? value > 0 : value != 0))
            attach(w, parent, key, cJSON_Raw, text);
    }
}

static void write_template(struct writer *w, json_node *parent, const char *at, va_list *args)
{
    json_node *open[TEMPLATE_DEPTH + 1] = {parent};
    for (size_t depth = 0; *at;) {
        char key[40];
        if (*at == ' ' || *at == '}' || *at == ']') {
            depth -= *at++ != ' ';
            continue;
        }
        const size_t length = strcspn(at, "?=%{[");
        assert(length < sizeof key && depth < TEMPLATE_DEPTH);
        memcpy(key, at, length);
        key[length] = '\0';
        at += length;
        const char *name = length ? key : NULL;
        if (*at == '{' || *at == '[') {
            open[depth + 1] = *at++ == '{' ? write_object(w, open[depth], name)
                                           : write_array(w, open[depth], name);
            depth++;
            continue;
        }
        const bool is_optional = *at == '?';
        at += strspn(at, "?=");
        const size_t size = strcspn(at, " }]");
        write_value(w, open[depth], name, is_optional, at, size, args);
        at += size;
    }
}

void write_members(struct writer *w, json_node *parent, const char *template, ...)
{
    va_list args;
    va_start(args, template);
    write_template(w, parent, template, &args);
    va_end(args);
}

char *write_document(const char *template, ...)
{
    struct writer w = {.root = write_root()};
    va_list args;
    va_start(args, template);
    write_template(&w, w.root, template, &args);
    va_end(args);
    return write_finish(&w);
}

char *write_finish(struct writer *w)
{
    char *text =
        w->failed || !w->root ? NULL : cJSON_PrintBuffered(w->root, PRINT_BYTES, w->indents);
    cJSON_Delete(w->root);
    w->root = NULL;
    if (!text)
        return NULL;
    size_t size = strlen(text);
    char *with_newline = realloc(text, size + 2);
    if (!with_newline) {
        free(text);
        return NULL;
    }
    memcpy(with_newline + size, "\n", 2);
    return with_newline;
}
