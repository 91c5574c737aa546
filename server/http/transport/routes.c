/* Finds the route of a path and the methods that it allows. */
#include "server/http/transport/routes.h"

#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"

/* Matches a path's segment against a pattern's; {name} matches the text before its literal tail. */
static bool match_segment(const char *pattern, size_t pattern_length, const char *text,
                          size_t length, struct route_match *match)
{
    if (pattern[0] != '{')
        return pattern_length == length && !memcmp(pattern, text, length);
    const char *brace = memchr(pattern, '}', pattern_length);
    size_t tail = (size_t)(pattern + pattern_length - brace) - 1;
    if (length <= tail || memcmp(brace + 1, text + length - tail, tail) != 0)
        return false;
    const bool is_number = !strncmp(pattern, "{number}", 8);
    const bool is_version = is_number || !strncmp(pattern, "{version}", 9);
    if (is_number && strspn(text, "0123456789") < length)
        return false;
    char *value = is_version ? match->version : match->model;
    size_t capacity = is_version ? sizeof match->version : sizeof match->model;
    if (length - tail >= capacity)
        return false;
    memcpy(value, text, length - tail);
    value[length - tail] = '\0';
    return true;
}

static bool match_path(const char *pattern, const char *path, struct route_match *match)
{
    for (;;) {
        size_t pattern_length = strcspn(pattern, "/"), length = strcspn(path, "/");
        if (!match_segment(pattern, pattern_length, path, length, match))
            return false;
        pattern += pattern_length;
        path += length;
        if (*pattern != *path)
            return false;
        if (!*path)
            return true;
        pattern++;
        path++;
    }
}

const struct route *route_find(const struct route_table *table, const char *path,
                               struct route_match *ret_match)
{
    for (size_t i = 0; i < table->count; i++) {
        struct route_match match = {"", ""};
        bool plain = !strchr(table->routes[i].path, '{');
        if (plain ? strcmp(table->routes[i].path, path) != 0
                  : !match_path(table->routes[i].path, path, &match))
            continue;
        *ret_match = match;
        return &table->routes[i];
    }
    return NULL;
}

static const struct {
    unsigned bit;
    const char *name;
} methods[] = {{METHOD_GET, "GET"},
               {METHOD_HEAD, "HEAD"},
               {METHOD_POST, "POST"},
               {METHOD_PUT, "PUT"},
               {METHOD_OPTIONS, "OPTIONS"}};

unsigned route_methods(const struct route *route)
{
    return route->methods | METHOD_OPTIONS | (route->methods & METHOD_GET ? METHOD_HEAD : 0);
}

unsigned route_method(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        if (!strcmp(methods[i].name, name))
            return methods[i].bit;
    return 0;
}

const char *route_allow(unsigned allowed, char *text, size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        if (allowed & methods[i].bit)
            text_append(text, size, ", ", "%s", methods[i].name);
    return text;
}
