/* Finds libcurl and its functions. */
#include "server/observe/curl.h"

#include "engine/base/library.h"
#include "engine/base/size.h"

struct curl_functions curl;

enum status curl_load(const char *user, struct error *err)
{
    static const struct library_function functions[] = {
        {"curl_easy_init", &curl.init},       {"curl_easy_setopt", &curl.setopt},
        {"curl_easy_perform", &curl.perform}, {"curl_easy_getinfo", &curl.getinfo},
        {"curl_easy_cleanup", &curl.cleanup}, {"curl_easy_strerror", &curl.text},
        {"curl_slist_append", &curl.append},  {"curl_slist_free_all", &curl.free_list}};
    if (library_load("libcurl-gnutls.so.4", functions, COUNT_OF(functions)) ||
        library_load("libcurl.so.4", functions, COUNT_OF(functions)))
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG,
                     "%s needs libcurl: install libcurl3-gnutls (Debian 12), libcurl3t64-gnutls "
                     "(Debian 13) or another package with libcurl.so.4",
                     user);
}
