/* Stands in for the registry of faces in a build without SQLite. */
#include <stdlib.h>

#include "server/faces/faces.h"

struct faces *faces_create(const char *path)
{
    (void)path;
    return malloc(1);
}

void faces_free(struct faces *faces)
{
    free(faces);
}

enum status faces_open(struct faces *faces, struct error *err)
{
    (void)faces;
    return error_set(err, STATUS_CONFIG,
                     "--faces: this build of lensd has no registry of faces; leave the option out, "
                     "or build lensd with SQLite (Debian: libsqlite3-dev)");
}

size_t faces_count(const struct faces *faces)
{
    (void)faces;
    return 0;
}

enum status faces_register(struct faces *faces, const char *name, const struct face_vector *vector,
                           bool *ret_was_there, struct error *err)
{
    (void)name, (void)vector, (void)ret_was_there;
    return faces_open(faces, err);
}

enum status faces_delete(struct faces *faces, const char *name, struct error *err)
{
    (void)name;
    return faces_open(faces, err);
}

enum status faces_list(struct faces *faces, void (*visit)(void *context, const char *name),
                       void *context, struct error *err)
{
    (void)visit, (void)context;
    return faces_open(faces, err);
}

enum status faces_find(struct faces *faces, const struct face_vector *vector,
                       char ret_name[static FACES_NAME_MAX + 1], float *ret_cosine,
                       struct error *err)
{
    (void)vector, (void)ret_name, (void)ret_cosine;
    return faces_open(faces, err);
}
