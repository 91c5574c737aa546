/* Converts the text of an option to the value of its field. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "server/app/config_options.h"

/* Reads an integer at the start of `text`; *ret_rest is the text after it. Returns false if there
 * is no integer, or if it does not fit. */
static bool config_read_number(const char *text, int64_t *ret, const char **ret_rest)
{
    char *end;
    if (!isdigit((unsigned char)text[0]) && !(text[0] == '-' && isdigit((unsigned char)text[1])))
        return false;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno)
        return false;
    *ret = value;
    *ret_rest = end;
    return true;
}

bool config_read_bytes(const char *text, int64_t *ret)
{
    static const char suffixes[] = "KMG";
    const char *rest;
    int64_t value;
    if (!config_read_number(text, &value, &rest))
        return false;
    const char *suffix = *rest ? strchr(suffixes, toupper((unsigned char)*rest)) : NULL;
    const int64_t unit = suffix ? INT64_C(1024) << 10 * (suffix - suffixes) : 1;
    if (suffix) {
        rest += rest[1] == 'i' ? 2 : 1;
        rest += *rest == 'B';
    }
    return !*rest && !__builtin_mul_overflow(value, unit, ret);
}

/* Reads a number, bytes or a time. */
static enum status set_quantity(const struct option *option, const char *origin, const char *text,
                                int64_t *ret, struct error *err)
{
    static const struct {
        const char *what, *after;
    } forms[] = {[OPTION_NUMBER] = {"a number", ""},
                 [OPTION_BYTES] = {"bytes", ", such as 65536, 64K, 16M or 1G"},
                 [OPTION_SECONDS] = {"a time", " seconds, such as 10, 0.5, 250ms or 2m"}};
    const bool is_time = option->kind == OPTION_SECONDS, is_bytes = option->kind == OPTION_BYTES;
    const double unit = is_time ? 1000 : 1;
    const char *rest = "";
    int64_t whole = 0;
    double value = 0;
    const bool is_read = is_time    ? text_read_ms(text, &value)
                         : is_bytes ? config_read_bytes(text, &whole)
                                    : config_read_number(text, &whole, &rest) && !*rest;
    value = is_time ? value : (double)whole; /* a double holds all allowed values exactly */
    if (is_read && value >= (double)option->min * unit && value <= (double)option->max * unit) {
        *ret = (int64_t)(value + 0.5);
        return STATUS_OK;
    }
    return error_set(err, STATUS_CONFIG, "%s is '%.60s'; it must be %s from %lld to %lld%s", origin,
                     text, forms[option->kind].what, (long long)option->min, (long long)option->max,
                     forms[option->kind].after);
}

/* Returns the position of `text` in a list such as "on|off"; -1 if it is not there. */
static int64_t find_choice(const char *list, const char *text)
{
    const size_t length = strlen(text);
    for (int64_t position = 0; list; position++) {
        const size_t size = strcspn(list, "|");
        if (size == length && !memcmp(list, text, size))
            return position;
        list = list[size] ? list + size + 1 : NULL;
    }
    return -1;
}

enum status config_set(struct config *config, const struct option *option, const char *origin,
                       const char *text, struct error *err)
{
    void *field = (char *)config + option->offset;
    int64_t value = 0;
    char *copy;
    switch (option->kind) {
    case OPTION_TEXT:
        if (!*text)
            return error_set(err, STATUS_CONFIG, "%s is empty; leave it out, or give a value%s%s%s",
                             origin, option->fallback ? " (" : "",
                             option->fallback ? option->fallback : "", option->fallback ? ")" : "");
        copy = strdup(text);
        TRY(check_memory(copy, NULL, err));
        free(*(char **)field);
        *(char **)field = copy;
        return STATUS_OK;
    case OPTION_NUMBER:
    case OPTION_BYTES:
    case OPTION_SECONDS:
        TRY(set_quantity(option, origin, text, &value, err));
        break;
    case OPTION_CHOICE:
        value = find_choice(option->value, text);
        if (value < 0)
            return error_set(err, STATUS_CONFIG, "%s is '%.60s'; it must be one of %s", origin,
                             text, option->value);
        break;
    case OPTION_SWITCH:
        value = find_choice("false|true|0|1|no|yes|off|on", text);
        if (value < 0)
            return error_set(err, STATUS_CONFIG, "%s is '%.60s'; it must be true or false", origin,
                             text);
        value %= 2;
        break;
    }
    /* No value is negative, so these types also serve for unsigned fields. */
    if (option->size == sizeof(int64_t))
        *(int64_t *)field = value;
    else if (option->size == sizeof(int32_t))
        *(int32_t *)field = (int32_t)value;
    else
        *(bool *)field = value;
    return STATUS_OK;
}
