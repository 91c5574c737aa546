/* proto/openapi.yaml against the table of routes, both ways: every path and method that is served
 * is described, and every one that is described is served. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/http/api/route_table.h"

#define PATHS_MAX 256

struct described {
    char path[160];
    unsigned methods;
};

static struct described described[PATHS_MAX];
static size_t count;

/* Paths are the keys of two blanks below "paths:", methods those of four. An anchor may follow. */
static void read_document(void)
{
    FILE *file = fopen(LENSD_SOURCE_ROOT "/proto/openapi.yaml", "r");
    char line[4096];
    bool in_paths = false;
    cr_assert(file);
    count = 0;
    while (fgets(line, sizeof line, file)) {
        size_t blanks = strspn(line, " "), length = strcspn(line, "&\r\n");
        while (length && line[length - 1] == ' ')
            length--;
        line[length] = '\0';
        if (blanks == 0)
            in_paths = !strcmp(line, "paths:");
        if (!in_paths || length < 2 || line[length - 1] != ':')
            continue;
        line[length - 1] = '\0';
        if (blanks == 2) {
            cr_assert_lt(count, PATHS_MAX);
            cr_assert_lt(strlen(line + 2), sizeof described->path);
            memcpy(described[count++].path, line + 2, strlen(line + 2) + 1);
        } else if (blanks == 4 && strcmp(line + 4, "parameters") != 0) {
            char name[16];
            cr_assert_lt(strlen(line + 4), sizeof name);
            for (size_t i = 0; i <= strlen(line + 4); i++)
                name[i] = (char)(line[4 + i] >= 'a' && line[4 + i] <= 'z' ? line[4 + i] - 32
                                                                          : line[4 + i]);
            cr_expect(route_method(name), "%s", line);
            described[count - 1].methods |= route_method(name);
        }
    }
    fclose(file);
    cr_assert_gt(count, 10);
}

static const struct described *find(const char *path)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(described[i].path, path))
            return &described[i];
    return NULL;
}

Test(openapi, every_route_is_described, .init = read_document)
{
    for (size_t i = 0; i < http_route_table.count; i++) {
        const struct route *route = &http_route_table.routes[i];
        const struct described *entry = find(route->path);
        cr_expect(entry, "%s is served and not described", route->path);
        /* HEAD goes with GET, and is said once for all. */
        unsigned methods = route->methods & ~(unsigned)METHOD_HEAD;
        cr_expect(!entry || entry->methods == methods, "%s takes %x, described is %x", route->path,
                  methods, entry ? entry->methods : 0);
    }
}

Test(openapi, everything_described_is_served, .init = read_document)
{
    for (size_t i = 0; i < count; i++) {
        size_t served = 0;
        for (size_t k = 0; k < http_route_table.count; k++)
            served += !strcmp(http_route_table.routes[k].path, described[i].path);
        cr_expect_eq(served, 1, "%s is described and served %zu times", described[i].path, served);
        cr_expect(described[i].methods, "%s has no method", described[i].path);
    }
}

Test(openapi, a_path_finds_its_own_route, .init = read_document)
{
    for (size_t i = 0; i < http_route_table.count; i++) {
        char path[256] = "";
        struct route_match match;
        /* {model}, {version} and {number} with something in their place. */
        for (const char *at = http_route_table.routes[i].path; *at;) {
            size_t plain = strcspn(at, "{"), used = strlen(path);
            snprintf(path + used, sizeof path - used, "%.*s%s", (int)plain, at,
                     !at[plain]                                ? ""
                     : strncmp(at + plain, "{model}", 7) == 0  ? "m"
                     : strncmp(at + plain, "{region}", 8) == 0 ? "m"
                                                               : "12");
            at += plain + (at[plain] ? strcspn(at + plain, "}") + 1 : 0);
        }
        const struct route *found = route_find(&http_route_table, path, &match);
        cr_expect(found == &http_route_table.routes[i], "%s leads to %s", path,
                  found ? found->path : "nothing");
        if (strstr(http_route_table.routes[i].path, "{version}"))
            cr_expect_str_eq(match.version, "12");
        if (strstr(http_route_table.routes[i].path, "{model}"))
            cr_expect_str_eq(match.model, "m");
    }
    struct route_match match;
    cr_expect_null(route_find(&http_route_table, "/m/v1", &match));
    cr_expect_null(route_find(&http_route_table, "/v2/models//infer", &match));
    cr_expect_null(route_find(&http_route_table, "/v2/models/m/infer/", &match));
    cr_expect_null(route_find(&http_route_table, "/v2/models/m/versions/1/2/infer", &match));
}
