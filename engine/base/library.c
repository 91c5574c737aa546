/* Loads shared libraries. */
#include "engine/base/library.h"

#include <dlfcn.h>
#include <string.h>

bool library_load(const char *soname, const struct library_function *functions, size_t count)
{
    void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (!symbol) {
            dlclose(library);
            return false;
        }
        memcpy(functions[i].ret, &symbol, sizeof symbol);
    }
    return true;
}

void library_text(const char *text, char *ret, size_t size)
{
    size_t i = 0;
    for (; text && text[i] && i + 1 < size; i++)
        ret[i] = text[i] >= 0x20 && text[i] < 0x7F ? text[i] : '?';
    ret[i] = '\0';
}
