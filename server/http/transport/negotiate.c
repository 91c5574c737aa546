/* Parses Accept, Accept-Encoding and If-None-Match. */
#include "server/http/transport/negotiate.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct list_entry {
    const char *name;
    size_t length;
    double q;
};

static const char *skip_list_blanks(const char *text)
{
    return text + strspn(text, " \t");
}

/* Returns the value of a parameter such as "q=0.5"; malformed: 0; any other parameter: -1. A blank,
 * ',' or ';' follows the parameter, or the text ends. */
static double read_q(const char *text, size_t length)
{
    if (length < 2 || tolower((unsigned char)text[0]) != 'q' || text[1] != '=')
        return -1;
    const bool is_number = length > 2 && strspn(text + 2, "0123456789.") == length - 2;
    return is_number ? fmin(strtod(text + 2, NULL), 1) : 0;
}

/* Reads the next entry of a list. Returns the text after it; NULL at the end of the list. */
static const char *next_entry(const char *list, struct list_entry *ret)
{
    list += strspn(list, " \t,");
    if (!*list)
        return NULL;
    ret->name = list;
    ret->length = strcspn(list, " \t,;");
    ret->q = 1;
    list = skip_list_blanks(list + ret->length);
    while (*list == ';') {
        list = skip_list_blanks(list + 1);
        size_t length = strcspn(list, " \t,;");
        double q = read_q(list, length);
        if (q >= 0)
            ret->q = q;
        list = skip_list_blanks(list + length);
    }
    return list + strcspn(list, ",");
}

static bool is_named(const struct list_entry *entry, const char *name)
{
    return strlen(name) == entry->length && !strncasecmp(name, entry->name, entry->length);
}

double negotiate_token(const char *list, const char *token)
{
    struct list_entry entry;
    double any = -1;
    while ((list = next_entry(list, &entry))) {
        if (is_named(&entry, token))
            return entry.q;
        if (is_named(&entry, "*"))
            any = entry.q;
    }
    if (any >= 0)
        return any;
    return strcmp(token, "identity") ? 0 : 0.001;
}

/* Returns how closely the range matches: 3: by name, 2: it has any subtype, 1: any type, 0: not. */
static int closeness(const struct list_entry *range, const char *type)
{
    size_t family = strcspn(type, "/") + 1; /* bytes of "type/" */
    if (is_named(range, type))
        return 3;
    if (range->length == family + 1 && range->name[family] == '*' &&
        !strncasecmp(range->name, type, family))
        return 2;
    return is_named(range, "*/*") || is_named(range, "*");
}

static double quality_of(const char *accept, const char *type)
{
    struct list_entry range;
    int closest = 0;
    double q = 0;
    while ((accept = next_entry(accept, &range))) {
        int close = closeness(&range, type);
        if (close > closest) {
            closest = close;
            q = range.q;
        }
    }
    return q;
}

int negotiate_type(const char *accept, const char *const *offers, size_t count)
{
    int best = -1;
    double best_q = 0;
    if (!accept || !*skip_list_blanks(accept))
        return 0;
    for (size_t i = 0; i < count; i++) {
        double q = quality_of(accept, offers[i]);
        if (q > best_q) {
            best = (int)i;
            best_q = q;
        }
    }
    return best;
}

static const char *strong_part(const char *etag)
{
    return strncmp(etag, "W/", 2) ? etag : etag + 2;
}

bool negotiate_etag(const char *if_none_match, const char *etag)
{
    const char *wanted = strong_part(etag), *list = if_none_match;
    size_t length = strlen(wanted);
    if (!list)
        return false;
    for (;;) {
        list += strspn(list, " \t,");
        if (!*list)
            return false;
        if (*list == '*')
            return true;
        list = strong_part(list);
        if (!strncmp(list, wanted, length))
            return true;
        /* A tag may have a comma inside its quotes. */
        const char *end = *list == '"' ? strchr(list + 1, '"') : NULL;
        list = end ? end + 1 : list + strcspn(list, ",");
    }
}
