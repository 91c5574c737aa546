/* Reads class labels from labels.txt, from JSON in its several forms, and from the Python
 * dictionary in Ultralytics metadata. */
#include "models/folder/labels.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/arena.h"
#include "engine/base/array.h"
#include "engine/base/hex.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"

void labels_done(struct labels *labels)
{
    arena_free(labels->texts);
    free(labels->names);
    *labels = (struct labels){0};
}

const char *labels_name(const struct labels *labels, size_t index)
{
    return index < labels->count && *labels->names[index] ? labels->names[index] : NULL;
}

static bool make_room(struct labels *to, size_t count)
{
    to->texts = to->texts ? to->texts : arena_create(0);
    if (!to->texts || !array_reserve(&to->names, &to->capacity, count, sizeof *to->names))
        return false;
    while (to->count < count)
        to->names[to->count++] = "";
    return true;
}

/* JSON escapes control characters as \u001B, and quotes and backslashes with a backslash. */
size_t labels_json_bytes(const char *name)
{
    size_t bytes = 2;
    for (; *name; name++)
        bytes += (unsigned char)*name < ' ' ? 6 : *name == '"' || *name == '\\' ? 2 : 1;
    return bytes;
}

/* Sets the label of one class; missing classes below it get "". */
static enum status labels_put(struct labels *to, size_t index, const char *name, size_t size,
                              struct error *err)
{
    if (index >= LABELS_MAX)
        return error_set(err, STATUS_MODEL, "class %zu exceeds the limit of %d classes", index,
                         LABELS_MAX);
    if (memchr(name, 0, size))
        return error_set(err, STATUS_MODEL, "the label of class %zu holds a NUL byte", index);
    if (!utf8_valid(name, size))
        return error_set(err, STATUS_MODEL,
                         "the label of class %zu is not UTF-8; convert the file to UTF-8", index);
    TRY(check_memory(make_room(to, index + 1), "while reading labels", err));
    if (*to->names[index])
        return error_set(err, STATUS_MODEL, "class %zu is named twice", index);
    const char *copy = arena_copy_text(to->texts, name, size);
    TRY(check_memory(copy, "while reading labels", err));
    to->names[index] = copy;
    const size_t bytes = labels_json_bytes(copy);
    to->longest = bytes > to->longest ? bytes : to->longest;
    return STATUS_OK;
}

/* ---- labels.txt ---- */

enum status labels_from_text(const char *text, size_t size, struct labels *ret, struct error *err)
{
    size_t line = 0;
    if (size >= 2 && (!memcmp(text, "\xFF\xFE", 2) || !memcmp(text, "\xFE\xFF", 2)))
        return error_set(err, STATUS_MODEL, "the file is UTF-16; save it as UTF-8");
    if (size >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) {
        text += 3;
        size -= 3;
    }
    for (size_t at = 0; at < size; line++) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) - at : size - at, next = at + length + 1;
        while (length && strchr(" \t\r", text[at + length - 1]) && text[at + length - 1])
            length--;
        if (labels_put(ret, line, text + at, length, err) != STATUS_OK)
            return error_prefix(err, "line %zu", line + 1);
        at = next;
    }
    while (ret->count && !*ret->names[ret->count - 1])
        ret->count--;
    return STATUS_OK;
}

/* ---- JSON ---- */

/* Reads a class number that is a JSON key: decimal digits only. */
static bool parse_index(const char *text, size_t *ret)
{
    const size_t digits = strspn(text, "0123456789");
    *ret = strtoull(text, NULL, 10);
    return digits > 0 && !text[digits] && *ret <= 10 * (size_t)LABELS_MAX;
}

/* Returns the text of "tench". Of ["n01440764", "tench"] it is the last, which people can read. */
static const char *name_of(const cJSON *item)
{
    if (cJSON_IsArray(item)) {
        const cJSON *last = NULL, *child;
        cJSON_ArrayForEach(child, item) last = child;
        item = last;
    }
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static enum status put_item(struct labels *to, size_t index, const cJSON *item,
                            const cJSON *descriptions, struct error *err)
{
    const char *name = name_of(item);
    if (!name)
        return error_set(err, STATUS_MODEL, "the label of class %zu is not a string", index);
    const cJSON *description =
        descriptions ? cJSON_GetObjectItemCaseSensitive(descriptions, name) : NULL;
    if (cJSON_IsString(description))
        name = description->valuestring;
    return labels_put(to, index, name, strlen(name), err);
}

static enum status read_list(struct labels *to, const cJSON *list, const cJSON *descriptions,
                             struct error *err)
{
    const cJSON *item;
    size_t index = 0;
    cJSON_ArrayForEach(item, list) TRY(put_item(to, index++, item, descriptions, err));
    return STATUS_OK;
}

/* Reads {"0": …}, in which every key is a class. */
static enum status read_indexed(struct labels *to, const cJSON *object, struct error *err)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        size_t index;
        if (!parse_index(item->string, &index))
            return error_set(err, STATUS_MODEL, "'%.60s' is not a class number", item->string);
        TRY(put_item(to, index, item, NULL, err));
    }
    return STATUS_OK;
}

/* Reads {"tench": 0}, Hugging Face's label2id, if id2label is missing. */
static enum status read_inverse(struct labels *to, const cJSON *object, struct error *err)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        size_t index;
        if (cJSON_IsString(item) && parse_index(item->valuestring, &index))
            ;
        else if (cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < LABELS_MAX)
            index = (size_t)item->valuedouble;
        else
            return error_set(err, STATUS_MODEL, "label2id: '%.60s' has no class number",
                             item->string);
        TRY(labels_put(to, index, item->string, strlen(item->string), err));
    }
    return STATUS_OK;
}

static bool is_indexed(const cJSON *object)
{
    size_t index;
    return cJSON_IsObject(object) && object->child && parse_index(object->child->string, &index);
}

enum status labels_from_json(const struct cJSON *json, struct labels *ret, struct error *err)
{
    if (cJSON_IsArray(json))
        return read_list(ret, json, NULL, err);
    if (is_indexed(json))
        return read_indexed(ret, json, err);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, "id2label");
    if (cJSON_IsArray(item))
        return read_list(ret, item, NULL, err);
    if (cJSON_IsObject(item))
        return read_indexed(ret, item, err);
    /* timm writes its names at the top level, older exports inside pretrained_cfg. */
    const cJSON *places[] = {json, cJSON_GetObjectItemCaseSensitive(json, "pretrained_cfg")};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        item = cJSON_GetObjectItemCaseSensitive(places[i], "label_names");
        if (cJSON_IsArray(item))
            return read_list(
                ret, item, cJSON_GetObjectItemCaseSensitive(places[i], "label_descriptions"), err);
    }
    item = cJSON_GetObjectItemCaseSensitive(json, "label2id");
    if (cJSON_IsObject(item))
        return read_inverse(ret, item, err);
    return error_set(err, STATUS_NOT_FOUND,
                     "the JSON has no labels (id2label, label_names, {\"0\": …} or a list)");
}

/* ---- Python ---- */

struct python {
    const char *at;
    char *word; /* the string read last; has room for the whole text */
    size_t length;
};

static bool labels_take(struct python *p, char c)
{
    p->at += strspn(p->at, " \t\r\n");
    return *p->at == c && p->at++;
}

static bool take_number(struct python *p, size_t *ret)
{
    p->at += strspn(p->at, " \t\r\n");
    const size_t digits = strspn(p->at, "0123456789");
    *ret = strtoull(p->at, NULL, 10);
    p->at += digits;
    return digits > 0 && *ret <= 10 * (size_t)LABELS_MAX;
}

/* Appends the character of \xNN, \uNNNN or \UNNNNNNNN as UTF-8. */
static bool take_escaped_number(struct python *p, unsigned digits)
{
    uint32_t c = 0;
    for (; digits; digits--) {
        const int digit = hex_digit(*p->at);
        if (digit < 0)
            return false;
        c = c << 4 | (uint32_t)digit;
        p->at++;
    }
    /* `word` has room, because an escape is never shorter than its UTF-8: \xNN has 4 characters for
     * 2 bytes, \uNNNN 6 for 3. */
    if (c == 0 || c > 0x10FFFF)
        return false;
    p->length += utf8_put(c, p->word + p->length);
    return true;
}

static bool take_escape(struct python *p)
{
    static const char from[] = "nrt\\'\"", to[] = "\n\r\t\\'\"";
    const char c = *p->at;
    const char *simple = c ? strchr(from, c) : NULL;
    p->at += c != '\0';
    if (simple)
        p->word[p->length++] = to[simple - from];
    return simple || (c == 'x' && take_escaped_number(p, 2)) ||
           (c == 'u' && take_escaped_number(p, 4)) || (c == 'U' && take_escaped_number(p, 8));
}

static bool take_string(struct python *p)
{
    char quote = labels_take(p, '\'') ? '\'' : labels_take(p, '"') ? '"' : '\0';
    p->length = 0;
    while (quote && *p->at) {
        char c = *p->at++;
        if (c == quote)
            return true;
        if (c != '\\')
            p->word[p->length++] = c;
        else if (!take_escape(p))
            return false;
    }
    return false;
}

/* Reads {0: 'a', 1: 'b'} or ['a', 'b']. */
static enum status read_python(struct labels *to, const char *text, struct python *p,
                               struct error *err)
{
    bool is_dict = labels_take(p, '{');
    if (!is_dict && !labels_take(p, '['))
        return error_set(err, STATUS_MODEL, "names: expected a Python dict or list");
    char close = is_dict ? '}' : ']';
    for (size_t next = 0; !labels_take(p, close); next++) {
        size_t index = next;
        if ((is_dict && (!take_number(p, &index) || !labels_take(p, ':'))) || !take_string(p))
            return error_set(err, STATUS_MODEL,
                             "names: expected a class number and a quoted name at character %td",
                             p->at - text);
        TRY(labels_put(to, index, p->word, p->length, err));
        if (!labels_take(p, ',') && *p->at != close)
            return error_set(err, STATUS_MODEL, "names: expected ',' or '%c' at character %td",
                             close, p->at - text);
    }
    return STATUS_OK;
}

enum status labels_from_python(const char *text, struct labels *ret, struct error *err)
{
    struct python p = {.at = text, .word = malloc(strlen(text) + 1)};
    enum status status =
        p.word ? read_python(ret, text, &p, err) : error_no_memory(err, "while reading labels");
    free(p.word);
    return status;
}

bool labels_find(const char *const *names, size_t count, const char *label, size_t length,
                 size_t *ret)
{
    for (size_t i = 0; i < count; i++)
        if (!strncmp(names[i], label, length) && !names[i][length]) {
            *ret = i;
            return true;
        }
    return false;
}
