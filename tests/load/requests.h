/* What is sent: a list of request bodies with their headers, read from a manifest.
 *
 * A line of the manifest is PATH TAB HEADER TAB HEADER …; PATH holds the body. */
#pragma once

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>

struct request_body {
    char *data;
    size_t size;
    struct curl_slist *headers; /* the line's, and "Expect:" so that no request waits for 100 */
};

struct requests {
    struct request_body *bodies;
    size_t count;
};

/* All bodies stay in memory. `common`: headers for every request, or NULL. false: said on standard
 * error, and *ret is empty. */
bool requests_load(const char *manifest, const struct curl_slist *common, struct requests *ret);
void requests_free(struct requests *requests);
