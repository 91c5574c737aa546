/* The registry of faces (--faces FILE): people's names and the vectors that identify them, in an
 * SQLite file that only its owner may read.
 *
 * All vectors of a registry are normalised and come from one model, because vectors of different
 * models are not comparable. When a function returns, its change is on the disk. A crash leaves a
 * change complete or undone. Deleted and replaced data is overwritten with zeros in the file.
 *
 * Functions take the registry's lock and wait for the disk: never call them from a thread that
 * serves connections. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* The maximum of people, of bytes of a name, and of numbers of a vector. */
#define FACES_MAX         10000
#define FACES_NAME_MAX    128
#define FACES_NUMBERS_MAX 4096

struct faces;

struct face_vector {
    const float *values;   /* borrowed; their Euclidean norm is 1 */
    size_t count;          /* 1 … FACES_NUMBERS_MAX */
    const uint64_t *model; /* the two numbers of the model's fingerprint (struct model) */
};

/* Creates a registry; borrows `path`. NULL when out of memory. Until faces_open() succeeds, the
 * functions that return a status return STATUS_NOT_READY. */
struct faces *faces_create(const char *path);
void faces_free(struct faces *faces); /* accepts NULL */

/* Opens or creates the file, with mode 0600, and locks it for this process. STATUS_CONFIG: the file
 * cannot be opened or made private, another process uses it, it is damaged, or it belongs to
 * another program. */
enum status faces_open(struct faces *faces, struct error *err) MUST_USE;

/* Returns the number of people stored. Takes no lock; any thread. */
size_t faces_count(const struct faces *faces);

/* Stores or replaces a person's vector. STATUS_INVALID: the name is empty, too long or not UTF-8;
 * STATUS_TOO_LARGE: too many people; STATUS_CONFIG: the registry has vectors of another model;
 * STATUS_IO. */
enum status faces_register(struct faces *faces, const char *name, const struct face_vector *vector,
                           bool *ret_was_there, struct error *err) MUST_USE;

/* Deletes a person, if present, and rewrites the file without the deleted data. */
enum status faces_delete(struct faces *faces, const char *name, struct error *err) MUST_USE;

/* Calls `visit` for each name, sorted by bytes. */
enum status faces_list(struct faces *faces, void (*visit)(void *context, const char *name),
                       void *context, struct error *err) MUST_USE;

/* Finds the person whose vector has the highest cosine similarity. If the registry is empty,
 * *ret_cosine is -1 and ret_name "". STATUS_CONFIG: the registry has vectors of another model. */
enum status faces_find(struct faces *faces, const struct face_vector *vector,
                       char ret_name[static FACES_NAME_MAX + 1], float *ret_cosine,
                       struct error *err) MUST_USE;
