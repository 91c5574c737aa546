/* Finds libcurl and its functions. */
#include "server/observe/curl.h"

#include <dlfcn.h>
#include <string.h>

#include "engine/base/size.h"

struct curl_functions curl;

static bool find(void *library, const char *name, void *ret)
{
    void *symbol = dlsym(library, name);
    memcpy(ret, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* libcurl is never unloaded: its own libraries do not support that. */
enum status curl_load(const char *user, struct error *err)
{
    static const char *const names[] = {"libcurl-gnutls.so.4", "libcurl.so.4"};
    void *library = NULL;
    for (size_t i = 0; i < COUNT_OF(names) && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library && find(library, "curl_easy_init", &curl.init) &&
        find(library, "curl_easy_setopt", &curl.setopt) &&
        find(library, "curl_easy_perform", &curl.perform) &&
        find(library, "curl_easy_getinfo", &curl.getinfo) &&
        find(library, "curl_easy_cleanup", &curl.cleanup) &&
        find(library, "curl_easy_strerror", &curl.text) &&
        find(library, "curl_slist_append", &curl.append) &&
        find(library, "curl_slist_free_all", &curl.free_list))
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG,
                     "%s needs libcurl: install libcurl3-gnutls (Debian 12), libcurl3t64-gnutls "
                     "(Debian 13) or another package with libcurl.so.4",
                     user);
}
