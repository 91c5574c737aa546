/* Shared libraries that are loaded at run time. lensd starts without them, and its build does not
 * need their headers. Code that uses a library declares its prototypes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct library_function {
    const char *name;
    void *ret; /* pointer to a function pointer */
};

/* Loads the library with this soname and looks up the functions. Returns false if the library or
 * one of the functions is missing. After success the library stays loaded. */
bool library_load(const char *soname, const struct library_function *functions, size_t count);

/* Copies a library's message about a file, truncated to `size` bytes; NULL counts as "". Bytes that
 * are not printable ASCII become '?', because the message may quote the file. */
void library_text(const char *text, char *ret, size_t size);
