/* Decoders that are libraries of the system, loaded while lensd runs: it starts without them, and
 * building it needs none of their headers. Prototypes are declared where they are used. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct library_function {
    const char *name;
    void *ret; /* pointer to a function pointer */
};

/* Loads the library of this soname and looks up the functions; false: there is no such library, or
 * it lacks one of them. Never unloaded. */
bool library_load(const char *soname, const struct library_function *functions, size_t count);

/* Copies what a library says of a file; what is not printable ASCII, as it quotes the file, becomes
 * '?'. `text` may be NULL. */
void library_text(const char *text, char *ret, size_t size);
