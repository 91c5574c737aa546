/* Keeps faces in SQLite with a rollback journal, which is on the disk before the file changes.
 * journal_mode TRUNCATE empties the journal after each change. With an exclusive lock,
 * journal_mode DELETE would only mark the journal as finished, and old data would stay in it. */
#include "server/faces/faces.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/thread.h"
#include "engine/base/utf8.h"

/* SQLite's application_id ("lens") and user_version of lensd's registries. */
#define APPLICATION 1818586739
#define VERSION     1

struct faces {
    const char *path;
    pthread_mutex_t lock;
    sqlite3 *db;       /* NULL: not open */
    bool needs_vacuum; /* a person was deleted, and VACUUM has not yet rewritten the file */
    _Atomic size_t count;
};

/* ---- statements ---- */

/* Sets *err to SQLite's message, which contains no data of people. */
static enum status sqlite_error(const struct faces *faces, struct error *err)
{
    return error_set(err, STATUS_IO, "the registry of faces '%.200s' (--faces): %s", faces->path,
                     sqlite3_errmsg(faces->db));
}

static enum status run_all(struct faces *faces, const char *sql, struct error *err)
{
    return sqlite3_exec(faces->db, sql, NULL, NULL, NULL) == SQLITE_OK ? STATUS_OK
                                                                       : sqlite_error(faces, err);
}

static void finalize(sqlite3_stmt **statement)
{
    sqlite3_finalize(*statement);
}

/* A statement that ends with its block. The caller holds the registry's lock. */
#define STATEMENT(name) sqlite3_stmt *name __attribute__((cleanup(finalize))) = NULL

static enum status prepare(struct faces *faces, const char *sql, sqlite3_stmt **ret,
                           struct error *err)
{
    if (!faces->db)
        return error_set(err, STATUS_NOT_READY, "the registry of faces is not open yet");
    return sqlite3_prepare_v2(faces->db, sql, -1, ret, NULL) == SQLITE_OK
               ? STATUS_OK
               : sqlite_error(faces, err);
}

/* Runs a statement up to its next row; *ret_row is false if no row is left. */
static enum status step(struct faces *faces, sqlite3_stmt *statement, bool *ret_row,
                        struct error *err)
{
    const int code = sqlite3_step(statement);
    *ret_row = code == SQLITE_ROW;
    return *ret_row || code == SQLITE_DONE ? STATUS_OK : sqlite_error(faces, err);
}

/* Gets the number that a statement without parameters returns. */
static enum status ask_number(struct faces *faces, const char *sql, int64_t *ret, struct error *err)
{
    STATEMENT(statement);
    bool has_row;
    TRY(prepare(faces, sql, &statement, err));
    TRY(step(faces, statement, &has_row, err));
    *ret = has_row ? sqlite3_column_int64(statement, 0) : 0;
    return STATUS_OK;
}

/* ---- opening ---- */

struct faces *faces_create(const char *path)
{
    struct faces *faces = calloc(1, sizeof *faces);
    if (!faces)
        return NULL;
    faces->path = path;
    pthread_mutex_init(&faces->lock, NULL);
    return faces;
}

void faces_free(struct faces *faces)
{
    if (!faces)
        return;
    sqlite3_close(faces->db);
    pthread_mutex_destroy(&faces->lock);
    free(faces);
}

/* Makes the table in a new file. Refuses another program's file, and a damaged file. */
static enum status check_form(struct faces *faces, struct error *err)
{
    int64_t objects, application, version;
    TRY(ask_number(faces, "SELECT count(*) FROM sqlite_schema", &objects, err));
    TRY(ask_number(faces, "PRAGMA application_id", &application, err));
    TRY(ask_number(faces, "PRAGMA user_version", &version, err));
    if (objects == 0) {
        char sql[256];
        snprintf(sql, sizeof sql,
                 "BEGIN; PRAGMA application_id = %d; PRAGMA user_version = %d;"
                 "CREATE TABLE people (name TEXT PRIMARY KEY NOT NULL, model BLOB NOT NULL, "
                 "vector BLOB NOT NULL) WITHOUT ROWID; COMMIT",
                 APPLICATION, VERSION);
        return run_all(faces, sql, err);
    }
    if (application != APPLICATION || version != VERSION)
        return error_set(err, STATUS_CONFIG,
                         "'%.200s' (--faces) is the database of another program, or of another "
                         "version of lensd; name another file",
                         faces->path);
    int64_t damaged;
    TRY(ask_number(faces, "SELECT count(*) FROM pragma_quick_check WHERE quick_check <> 'ok'",
                   &damaged, err));
    return damaged ? error_set(err, STATUS_CONFIG,
                               "the registry of faces '%.200s' (--faces) is damaged; restore a "
                               "copy, or remove it and register the faces again",
                               faces->path)
                   : STATUS_OK;
}

/* Sets mode 0600 if the file is lensd's or empty, and the group or other users have rights to it.
 * Leaves another program's file unchanged. Returns 0, or -1 and sets errno. */
static int make_private(int fd)
{
    enum { APPLICATION_AT = 68 }; /* of the application_id in SQLite's header */
    static const unsigned char own[] = {'l', 'e', 'n', 's'};
    unsigned char found[sizeof own];
    struct stat info;
    if (fstat(fd, &info) != 0)
        return -1;
    const bool is_own = pread(fd, found, sizeof found, APPLICATION_AT) == sizeof found &&
                        memcmp(found, own, sizeof own) == 0;
    const bool is_open = (info.st_mode & (S_IRWXG | S_IRWXO)) != 0;
    return is_open && (is_own || info.st_size == 0) ? fchmod(fd, S_IRUSR | S_IWUSR) : 0;
}

/* Prepares the open database. */
static enum status set_up(struct faces *faces, struct error *err)
{
    int64_t count;
    sqlite3_limit(faces->db, SQLITE_LIMIT_LENGTH, 1 << 20);
    TRY(run_all(faces,
                "PRAGMA journal_mode = TRUNCATE; PRAGMA locking_mode = EXCLUSIVE;"
                "PRAGMA synchronous = FULL; PRAGMA secure_delete = ON;"
                "PRAGMA temp_store = MEMORY; PRAGMA trusted_schema = OFF;"
                "PRAGMA cell_size_check = ON; BEGIN EXCLUSIVE; COMMIT",
                err));
    TRY(check_form(faces, err));
    TRY(ask_number(faces, "SELECT count(*) FROM people", &count, err));
    atomic_store(&faces->count, (size_t)count);
    return STATUS_OK;
}

enum status faces_open(struct faces *faces, struct error *err)
{
    /* SQLite gives the journal the permissions of the file. Closing any descriptor of the file
     * releases SQLite's lock, so `fd` is closed before SQLite opens the file. */
    const int fd = open(faces->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    enum status status = STATUS_OK;
    if (fd < 0 || make_private(fd) != 0)
        status = error_set(err, STATUS_CONFIG,
                           "cannot open the registry of faces '%.200s' (--faces) for its owner "
                           "only: %m; %s",
                           faces->path,
                           errno == ENOENT ? "make its folder first (mkdir -p)"
                                           : "lensd must own the file and be able to create others "
                                             "in its folder");
    if (fd >= 0)
        close(fd);
    TRY(status);
    LOCK(&faces->lock);
    if (sqlite3_open_v2(faces->path, &faces->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        status = error_set(err, STATUS_CONFIG, "cannot open '%.200s' (--faces): %s", faces->path,
                           faces->db ? sqlite3_errmsg(faces->db) : "out of memory");
    IF_OK(status, set_up(faces, err));
    if (status == STATUS_OK)
        return STATUS_OK;
    sqlite3_close(faces->db);
    faces->db = NULL;
    if (err)
        err->status = STATUS_CONFIG;
    return STATUS_CONFIG;
}

/* ---- people ---- */

/* Refuses `vector` if the registry has vectors of another model. The caller holds the lock. */
static enum status check_vector(struct faces *faces, const struct face_vector *vector,
                                struct error *err)
{
    char sql[200];
    int64_t others;
    if (vector->count == 0 || vector->count > FACES_NUMBERS_MAX)
        return error_set(err, STATUS_CONFIG,
                         "the model's vectors have %zu numbers; a registry of faces takes 1 to %d",
                         vector->count, FACES_NUMBERS_MAX);
    snprintf(
        sql, sizeof sql,
        "SELECT count(*) FROM people WHERE model <> x'%016llx%016llx' OR length(vector) <> %zu",
        (unsigned long long)vector->model[0], (unsigned long long)vector->model[1],
        vector->count * sizeof *vector->values);
    TRY(ask_number(faces, sql, &others, err));
    return others ? error_set(err, STATUS_CONFIG,
                              "%lld faces in '%.200s' (--faces) were registered with another "
                              "model, whose vectors cannot be compared; delete them and register "
                              "them again, name another file, or serve that model",
                              (long long)others, faces->path)
                  : STATUS_OK;
}

static enum status check_name(const char *name, struct error *err)
{
    const size_t size = strlen(name);
    return size > 0 && size <= FACES_NAME_MAX && utf8_valid(name, size)
               ? STATUS_OK
               : error_set(err, STATUS_INVALID, "userid must be a name of 1 to %d bytes of UTF-8",
                           FACES_NAME_MAX);
}

size_t faces_count(const struct faces *faces)
{
    return atomic_load(&faces->count);
}

static enum status check_room(const struct faces *faces, struct error *err)
{
    return faces_count(faces) < FACES_MAX
               ? STATUS_OK
               : error_set(err, STATUS_TOO_LARGE,
                           "the registry is full: it has %d people; delete some first", FACES_MAX);
}

enum status faces_register(struct faces *faces, const char *name, const struct face_vector *vector,
                           bool *ret_was_there, struct error *err)
{
    char sql[160];
    bool ignored;
    TRY(check_name(name, err));
    LOCK(&faces->lock);
    STATEMENT(find);
    STATEMENT(write);
    TRY(prepare(faces, "SELECT 1 FROM people WHERE name = ?", &find, err));
    TRY(check_vector(faces, vector, err));
    sqlite3_bind_text(find, 1, name, -1, SQLITE_STATIC);
    TRY(step(faces, find, ret_was_there, err));
    if (!*ret_was_there)
        TRY(check_room(faces, err));
    sqlite3_reset(find);
    snprintf(sql, sizeof sql, "INSERT OR REPLACE INTO people VALUES (?, x'%016llx%016llx', ?)",
             (unsigned long long)vector->model[0], (unsigned long long)vector->model[1]);
    TRY(prepare(faces, sql, &write, err));
    sqlite3_bind_text(write, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_blob(write, 2, vector->values, (int)(vector->count * sizeof *vector->values),
                      SQLITE_STATIC);
    TRY(step(faces, write, &ignored, err));
    if (!*ret_was_there)
        atomic_fetch_add(&faces->count, 1);
    return STATUS_OK;
}

enum status faces_delete(struct faces *faces, const char *name, struct error *err)
{
    bool ignored;
    TRY(check_name(name, err));
    LOCK(&faces->lock);
    STATEMENT(statement);
    TRY(prepare(faces, "DELETE FROM people WHERE name = ?", &statement, err));
    sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
    TRY(step(faces, statement, &ignored, err));
    sqlite3_reset(statement);
    if (sqlite3_changes(faces->db) > 0) {
        faces->needs_vacuum = true;
        atomic_fetch_sub(&faces->count, 1);
    }
    if (faces->needs_vacuum)
        TRY(run_all(faces, "VACUUM", err));
    faces->needs_vacuum = false;
    return STATUS_OK;
}

enum status faces_list(struct faces *faces, void (*visit)(void *context, const char *name),
                       void *context, struct error *err)
{
    LOCK(&faces->lock);
    STATEMENT(statement);
    TRY(prepare(faces, "SELECT name FROM people ORDER BY name", &statement, err));
    for (bool has_row = true; has_row;) {
        TRY(step(faces, statement, &has_row, err));
        if (has_row)
            visit(context, (const char *)sqlite3_column_text(statement, 0));
    }
    return STATUS_OK;
}

static float cosine(const float *a, const float *b, size_t count)
{
    float sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

enum status faces_find(struct faces *faces, const struct face_vector *vector,
                       char ret_name[static FACES_NAME_MAX + 1], float *ret_cosine,
                       struct error *err)
{
    ret_name[0] = '\0';
    *ret_cosine = -1;
    LOCK(&faces->lock);
    STATEMENT(statement);
    TRY(prepare(faces, "SELECT name, vector FROM people", &statement, err));
    TRY(check_vector(faces, vector, err));
    for (bool has_row = true; has_row;) {
        TRY(step(faces, statement, &has_row, err));
        if (!has_row || (size_t)sqlite3_column_bytes(statement, 1) != vector->count * sizeof(float))
            continue;
        float own[FACES_NUMBERS_MAX];
        memcpy(own, sqlite3_column_blob(statement, 1), vector->count * sizeof *own);
        const float near = cosine(own, vector->values, vector->count);
        if (!(near > *ret_cosine))
            continue;
        *ret_cosine = near;
        snprintf(ret_name, FACES_NAME_MAX + 1, "%s",
                 (const char *)sqlite3_column_text(statement, 0));
    }
    return STATUS_OK;
}
