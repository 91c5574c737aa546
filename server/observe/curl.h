/* The functions of libcurl that lensd uses. They are loaded on demand, so neither lensd nor its
 * build depends on libcurl. The values below are part of the stable binary interface of
 * libcurl.so.4. Source: curl/curl.h. */
#pragma once

#include "engine/base/status.h"

/* Values of CURLoption and CURLINFO. */
enum {
    OPT_WRITEDATA = 10001,
    OPT_URL = 10002,
    OPT_RANGE = 10007,
    OPT_POSTFIELDS = 10015,
    OPT_USERAGENT = 10018,
    OPT_HTTPHEADER = 10023,
    OPT_HEADERDATA = 10029,
    OPT_XFERINFODATA = 10057,
    OPT_CAINFO = 10065,
    OPT_NOPROXY = 10177,
    OPT_WRITEFUNCTION = 20011,
    OPT_HEADERFUNCTION = 20079,
    OPT_XFERINFOFUNCTION = 20219,
    OPT_LOW_SPEED_LIMIT = 19,
    OPT_LOW_SPEED_TIME = 20,
    OPT_NOPROGRESS = 43,
    OPT_NOSIGNAL = 99,
    OPT_TIMEOUT_MS = 155,
    OPT_CONNECTTIMEOUT_MS = 156,
    INFO_REDIRECT_URL = 0x10001F,
    INFO_RESPONSE_CODE = 0x200002,
    INFO_CONTENT_LENGTH = 0x60000F,
    INFO_RETRY_AFTER = 0x600039,
};

struct curl_list;

/* Call these functions only after curl_load(). */
extern struct curl_functions {
    void *(*init)(void);
    int (*setopt)(void *handle, int option, ...);
    int (*perform)(void *handle);
    int (*getinfo)(void *handle, int info, ...);
    void (*cleanup)(void *handle);
    const char *(*text)(int code);
    struct curl_list *(*append)(struct curl_list *list, const char *line);
    void (*free_list)(struct curl_list *list);
} curl;

/* Loads libcurl. STATUS_CONFIG if it is not installed; the message begins with `user`, the option
 * or command that needs libcurl. */
enum status curl_load(const char *user, struct error *err) MUST_USE;
