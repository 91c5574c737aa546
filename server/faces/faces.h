/* The registry of faces (--faces FILE): names of people and the vector by which each is recognised,
 * in an SQLite file that only the owner may read.
 *
 * A vector is normalised, and belongs to the model that computed it: vectors of another model are
 * refused, because their numbers mean something else. Every change is on the disk when the function
 * returns; after a crash, a change has happened completely or not at all. Deleted and replaced data
 * is overwritten with zeros in the file.
 *
 * Functions take the registry's lock and wait for the disk: never call them from a thread that
 * serves connections. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* The most people, bytes of a name, numbers of a vector. */
#define FACES_MAX         10000
#define FACES_NAME_MAX    128
#define FACES_NUMBERS_MAX 4096

struct faces;

struct face_vector {
    const float *values;   /* of length 1; borrowed */
    size_t count;          /* 1 … FACES_NUMBERS_MAX */
    const uint64_t *model; /* its two words: the fingerprint in struct model */
};

/* Makes a registry; borrows `path`. NULL: out of memory. Until faces_open() all functions return
 * STATUS_NOT_READY. */
struct faces *faces_create(const char *path);
void faces_free(struct faces *faces); /* NULL is fine */

/* Opens or creates the file, with mode 0600, and locks it for this process. STATUS_CONFIG: it
 * cannot be opened or closed to others, another process uses it, it is damaged, or it is another
 * program's. */
enum status faces_open(struct faces *faces, struct error *err) MUST_USE;

/* How many people are stored. Takes no lock; any thread. */
size_t faces_count(const struct faces *faces);

/* Stores a person's vector, or replaces it. STATUS_INVALID: a name that is empty, too long or not
 * UTF-8; STATUS_TOO_LARGE: too many people; STATUS_CONFIG: there are vectors of another model;
 * STATUS_IO. */
enum status faces_register(struct faces *faces, const char *name, const struct face_vector *vector,
                           bool *ret_was_there, struct error *err) MUST_USE;

/* Deletes a person, if there, and rewrites the file without the deleted data. */
enum status faces_delete(struct faces *faces, const char *name, struct error *err) MUST_USE;

/* Calls `visit` for each name, in order. */
enum status faces_list(struct faces *faces, void (*visit)(void *context, const char *name),
                       void *context, struct error *err) MUST_USE;

/* Finds the person with the greatest cosine; *ret_cosine is -1 and the name "" if nobody is stored.
 * STATUS_CONFIG: there are vectors of another model. */
enum status faces_find(struct faces *faces, const struct face_vector *vector,
                       char ret_name[static FACES_NAME_MAX + 1], float *ret_cosine,
                       struct error *err) MUST_USE;
