/* Reads the manifest of request bodies and headers that the load generator sends. */
#include "tests/load/requests.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX     ((long)1 << 30)
#define REQUESTS_MAX 100000

static bool read_body(const char *path, struct request_body *body)
{
    FILE *file = fopen(path, "rb");
    long size = -1;
    if (file && fseek(file, 0, SEEK_END) == 0)
        size = ftell(file);
    bool ok = size >= 0 && size <= BODY_MAX && fseek(file, 0, SEEK_SET) == 0;
    if (ok) {
        body->data = malloc((size_t)size + 1);
        body->size = (size_t)size;
        ok = body->data && fread(body->data, 1, body->size, file) == body->size;
    }
    if (!ok)
        fprintf(stderr, "loadgen: cannot read '%s': %s\n", path,
                size > BODY_MAX ? "larger than 1 GiB" : strerror(errno));
    if (file)
        fclose(file);
    return ok;
}

static bool add_header(struct request_body *body, const char *line)
{
    struct curl_slist *longer = curl_slist_append(body->headers, line);
    if (longer)
        body->headers = longer;
    return longer != NULL;
}

static bool read_line(char *line, const struct curl_slist *common, struct request_body *body)
{
    char *rest = line;
    const char *path = strsep(&rest, "\t"), *header;
    if (!read_body(path, body) || !add_header(body, "Expect:"))
        return false;
    while ((header = strsep(&rest, "\t")))
        if (!add_header(body, header))
            return false;
    for (; common; common = common->next)
        if (!add_header(body, common->data))
            return false;
    return true;
}

bool requests_load(const char *manifest, const struct curl_slist *common, struct requests *ret)
{
    struct requests all = {calloc(REQUESTS_MAX, sizeof *all.bodies), 0};
    char *line = NULL;
    size_t room = 0;
    bool ok = all.bodies != NULL;
    FILE *file = fopen(manifest, "r");
    if (!file)
        fprintf(stderr, "loadgen: cannot read '%s': %s\n", manifest, strerror(errno));
    while (ok && file && all.count < REQUESTS_MAX && getline(&line, &room, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0])
            ok = read_line(line, common, &all.bodies[all.count++]);
    }
    free(line);
    if (file)
        fclose(file);
    if (file && ok && all.count == 0)
        fprintf(stderr, "loadgen: '%s' names no request\n", manifest);
    if (!ok || !file || all.count == 0) {
        requests_free(&all);
        *ret = all;
        return false;
    }
    *ret = all;
    return true;
}

void requests_free(struct requests *requests)
{
    for (size_t i = 0; i < requests->count; i++) {
        free(requests->bodies[i].data);
        curl_slist_free_all(requests->bodies[i].headers);
    }
    free(requests->bodies);
    requests->bodies = NULL;
    requests->count = 0;
}
