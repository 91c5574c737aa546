/* The tuning store (tuning_store.h): a table, and the file that keeps it. */
#include "engine/backend/tuning_store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/array.h"
#include "engine/base/cpu.h"
#include "engine/base/file.h"
#include "engine/base/hex.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/base/thread.h"
#include "lensd_version.h"

enum {
    ENTRIES_MOST = 8192,
    FILE_MOST = 40 << 20, /* bytes: enough for ENTRIES_MOST entries of maximal length */
    HASH_TEXT = 33,       /* 32 hexadecimal digits and a terminator */
    HEAD_MOST = 64,
};

static const char *const kind_names[] = {[TUNING_CUDA] = "cuda", [TUNING_PRECISION] = "precision"};

/* ---- the table ---- */

struct tuning {
    struct graph_hash key;
    enum tuning_kind kind;
    char *text;
    uint64_t change; /* number of the change that set `text`; 0: it was read from the file */
};

static struct {
    pthread_mutex_t lock;
    struct tuning *entries;
    size_t count, capacity;
    uint64_t changes; /* number of texts that this process has set */
    uint64_t written; /* number of the last change that is in the file */
    char *folder;     /* for tuning_save(); NULL: none */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct tuning *find_locked(enum tuning_kind kind, const struct graph_hash *key)
{
    for (size_t i = 0; i < table.count; i++) {
        struct tuning *t = &table.entries[i];
        if (t->key.words[0] == key->words[0] && t->key.words[1] == key->words[1] && t->kind == kind)
            return t;
    }
    return NULL;
}

/* Drops the oldest entry. */
static void evict_locked(void)
{
    free(table.entries[0].text);
    memmove(table.entries, table.entries + 1, --table.count * sizeof *table.entries);
}

/* Adds an entry without a text; NULL when out of memory. */
static struct tuning *add_locked(enum tuning_kind kind, const struct graph_hash *key)
{
    if (table.count == ENTRIES_MOST)
        evict_locked();
    if (!array_reserve(&table.entries, &table.capacity, table.count + 1, sizeof *table.entries))
        return NULL;
    table.entries[table.count] = (struct tuning){*key, kind, NULL, 0};
    return &table.entries[table.count++];
}

static void put_locked(enum tuning_kind kind, const struct graph_hash *key, const char *text,
                       bool is_measured)
{
    struct tuning *t = find_locked(kind, key);
    if (t && (!strcmp(t->text, text) || (!is_measured && t->change > table.written)))
        return;
    /* Do not add entries of the file to a full table: each would displace a newer one. */
    if (!t && !is_measured && table.count == ENTRIES_MOST)
        return;
    char *copy = strdup(text);
    if (copy && !t)
        t = add_locked(kind, key);
    if (!copy || !t) {
        free(copy);
        return;
    }
    free(t->text);
    t->text = copy;
    t->change = is_measured ? ++table.changes : 0;
}

bool tuning_find(enum tuning_kind kind, const struct graph_hash *key, char ret[static TUNING_TEXT])
{
    LOCK(&table.lock);
    const struct tuning *t = find_locked(kind, key);
    if (t)
        snprintf(ret, TUNING_TEXT, "%s", t->text);
    return t != NULL;
}

void tuning_keep(enum tuning_kind kind, const struct graph_hash *key, const char *text)
{
    if (strlen(text) >= TUNING_TEXT)
        return;
    LOCK(&table.lock);
    put_locked(kind, key, text, true);
}

void tuning_each(enum tuning_kind kind,
                 void (*visit)(void *context, const struct graph_hash *key, const char *text),
                 void *context)
{
    LOCK(&table.lock);
    for (size_t i = 0; i < table.count; i++)
        if (table.entries[i].kind == kind)
            visit(context, &table.entries[i].key, table.entries[i].text);
}

void tuning_forget(void)
{
    LOCK(&table.lock);
    for (size_t i = 0; i < table.count; i++)
        free(table.entries[i].text);
    FREE_ALL(table.entries, table.folder);
    table.entries = NULL;
    table.folder = NULL;
    table.count = table.capacity = 0;
    table.written = table.changes;
}

/* ---- the file's name ---- */

static void print_hash(const struct graph_hash *hash, char ret[static HASH_TEXT])
{
    snprintf(ret, HASH_TEXT, "%016" PRIx64 "%016" PRIx64, hash->words[0], hash->words[1]);
}

/* Writes the hash of this CPU and this build of lensd. */
static void print_machine(char ret[static HASH_TEXT])
{
    struct graph_hash hash = {{0, 0}};
    char name[96];
    struct stat self;
    cpu_model_name(name, sizeof name);
    graph_hash_bytes(&hash, name, strlen(name));
    graph_hash_bytes(&hash, cpu_features(), sizeof *cpu_features());
    graph_hash_bytes(&hash, LENSD_VERSION, strlen(LENSD_VERSION));
    if (stat("/proc/self/exe", &self) == 0) {
        const int64_t facts[] = {(int64_t)self.st_size, (int64_t)self.st_mtim.tv_sec};
        graph_hash_bytes(&hash, facts, sizeof facts);
    }
    print_hash(&hash, ret);
}

char *tuning_folder(const char *option)
{
    char *folder = NULL;
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (option && !strcmp(option, "none"))
        return NULL;
    if (option)
        n = asprintf(&folder, "%s", option);
    else if (base && base[0] == '/') /* the XDG specification forbids relative paths */
        n = asprintf(&folder, "%s/lensd", base);
    else if (home && home[0] == '/' && access(home, F_OK) == 0) /* $HOME may be wrong */
        n = asprintf(&folder, "%s/.cache/lensd", home);
    return n < 0 ? NULL : folder;
}

/* Returns the path of the store's file in the folder, malloc'ed; NULL when out of memory. */
static char *path_in(const char *folder)
{
    char machine[HASH_TEXT], *path;
    print_machine(machine);
    return asprintf(&path, "%s/tunings-%s", folder, machine) < 0 ? NULL : path;
}

/* ---- reading ---- */

/* Parsers: they advance *at past the parsed text. They return false if the text does not match. */

static bool read_text(const char **at, const char *text)
{
    const size_t length = strlen(text);
    if (strncmp(*at, text, length) != 0)
        return false;
    *at += length;
    return true;
}

static bool read_hash(const char **at, struct graph_hash *ret)
{
    for (size_t i = 0; i < HASH_TEXT - 1; i++, (*at)++) {
        const int digit = hex_digit(**at);
        if (digit < 0)
            return false;
        ret->words[i / 16] = ret->words[i / 16] << 4 | (uint64_t)digit;
    }
    return true;
}

/* Parses one line, and adds it to the table if `adds`. */
static bool read_entry_locked(const char **at, bool adds)
{
    char text[TUNING_TEXT];
    struct graph_hash key = {{0, 0}};
    size_t kind = 0, length = 0;
    while (kind < COUNT_OF(kind_names) && !read_text(at, kind_names[kind]))
        kind++;
    if (kind == COUNT_OF(kind_names) || !read_text(at, " ") || !read_hash(at, &key) ||
        !read_text(at, " ") || **at < '0' || **at > '9')
        return false;
    for (; **at >= '0' && **at <= '9' && length < sizeof text; (*at)++)
        length = 10 * length + (size_t)(**at - '0');
    if (!read_text(at, " ") || length >= sizeof text || strnlen(*at, length) != length)
        return false;
    memcpy(text, *at, length);
    text[length] = '\0';
    *at += length;
    if (!read_text(at, "\n"))
        return false;
    if (adds)
        put_locked((enum tuning_kind)kind, &key, text, false);
    return true;
}

/* Writes the first line, for this CPU and build. */
static void print_head(char ret[static HEAD_MOST])
{
    char machine[HASH_TEXT];
    print_machine(machine);
    snprintf(ret, HEAD_MOST, "lensd tunings 1 %s\n", machine);
}

#define LAST_LINE (sizeof "end \n" - 1 + HASH_TEXT - 1)

/* Writes the last line, "end HASH", with the hash of all bytes before it. */
static void print_end(const char *bytes, size_t size, char ret[static LAST_LINE + 1])
{
    struct graph_hash hash = {{0, 0}};
    char sum[HASH_TEXT];
    graph_hash_bytes(&hash, bytes, size);
    print_hash(&hash, sum);
    snprintf(ret, LAST_LINE + 1, "end %s\n", sum);
}

static bool add_file(const char *bytes, size_t size)
{
    char head[HEAD_MOST], end[LAST_LINE + 1];
    const char *at = bytes;
    print_head(head);
    if (size < LAST_LINE || !read_text(&at, head))
        return false;
    const char *last = bytes + size - LAST_LINE;
    print_end(bytes, size - LAST_LINE, end);
    if (strcmp(last, end) != 0)
        return false;
    const char *const first = at;
    size_t count = 0;
    bool good = true;
    LOCK(&table.lock);
    for (; good && at < last; count++) /* lensd never writes more entries */
        good = count < ENTRIES_MOST && read_entry_locked(&at, false);
    good = good && at == last;
    for (at = first; good && at < last;)
        good = read_entry_locked(&at, true);
    return good;
}

static enum status read_path(const char *path, struct error *err)
{
    size_t size;
    uint8_t *bytes;
    struct error cause;
    const enum status status = file_read(path, FILE_MOST, &bytes, &size, &cause);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    if (status != STATUS_OK)
        return error_set(err, STATUS_IO, "'%.300s' cannot be read: %s", path, cause.message);
    const bool good = add_file((const char *)bytes, size);
    free(bytes);
    return good ? STATUS_OK : error_set(err, STATUS_IO, "'%.300s' is damaged", path);
}

enum status tuning_read(const char *folder, struct error *err)
{
    pthread_mutex_lock(&table.lock);
    free(table.folder);
    table.folder = strdup(folder);
    pthread_mutex_unlock(&table.lock);
    char *path = path_in(folder);
    const enum status status =
        path ? read_path(path, err) : error_no_memory(err, "for the tuning store");
    free(path);
    return status;
}

/* ---- writing ---- */

bool tuning_make_folder(const char *folder)
{
    char *path = strdup(folder);
    bool made = path != NULL;
    for (char *p = path; made && *p; p++) {
        if (p[1] != '/' && p[1] != '\0')
            continue;
        const char kept = p[1];
        p[1] = '\0';
        made = mkdir(path, 0700) == 0 || errno == EEXIST || errno == EISDIR;
        p[1] = kept;
    }
    free(path);
    return made;
}

/* Locks the folder until the returned descriptor is closed. Returns -1 on failure, or after 5
 * seconds: a holder of the lock writes only one file, so it has stopped. */
static int lock_folder(const char *folder)
{
    enum { TRIES = 500 };
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; fd >= 0 && i < TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return fd;
        if (errno != EWOULDBLOCK && errno != EINTR)
            break;
        nanosleep(&pause, NULL);
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Returns the file's new text, malloc'ed, and the table's change count; NULL: out of memory. */
static char *print_file(uint64_t *ret_change)
{
    char *bytes = NULL, head[HEAD_MOST], end[LAST_LINE + 1], key[HASH_TEXT];
    size_t size;
    FILE *file = open_memstream(&bytes, &size);
    if (!file)
        return NULL;
    print_head(head);
    bool good = fputs(head, file) >= 0;
    pthread_mutex_lock(&table.lock);
    *ret_change = table.changes;
    for (size_t i = 0; good && i < table.count; i++) {
        const struct tuning *t = &table.entries[i];
        print_hash(&t->key, key);
        good =
            fprintf(file, "%s %s %zu %s\n", kind_names[t->kind], key, strlen(t->text), t->text) > 0;
    }
    pthread_mutex_unlock(&table.lock);
    if (good && fflush(file) == 0) {
        print_end(bytes, size, end);
        (void)fputs(end, file);
    }
    return text_close(file, &bytes);
}

/* Writes a new file beside `path` and renames it to `path`. Returns 0 or errno. */
static int replace_file(const char *path, const char *text)
{
    char *beside;
    if (asprintf(&beside, "%s.XXXXXX", path) < 0)
        return ENOMEM;
    const int fd = mkostemp(beside, O_CLOEXEC);
    int cause = fd < 0 || dprintf(fd, "%s", text) < 0 ? errno : 0;
    if (fd >= 0 && close(fd) != 0 && !cause)
        cause = errno;
    if (!cause && rename(beside, path) != 0)
        cause = errno;
    if (cause && fd >= 0)
        unlink(beside);
    free(beside);
    return cause;
}

static bool is_news(void)
{
    LOCK(&table.lock);
    return table.changes > table.written;
}

enum status tuning_write(const char *folder, struct error *err)
{
    if (!is_news())
        return STATUS_OK;
    int cause = tuning_make_folder(folder) ? 0 : errno;
    const int lock = cause ? -1 : lock_folder(folder);
    char *path = path_in(folder), *bytes = NULL;
    uint64_t change;
    if (!cause && path) {
        (void)read_path(path, NULL); /* a damaged file is replaced */
        bytes = print_file(&change);
    }
    if (bytes)
        cause = replace_file(path, bytes);
    if (lock >= 0)
        close(lock);
    const bool is_short = !cause && !bytes;
    FREE_ALL(bytes, path);
    if (is_short)
        return error_no_memory(err, "for the tuning store");
    if (cause)
        return error_set(err, STATUS_IO, "the folder '%.200s' cannot be written: %s", folder,
                         strerror(cause));
    LOCK(&table.lock);
    table.written = change > table.written ? change : table.written;
    return STATUS_OK;
}

void tuning_save(void)
{
    pthread_mutex_lock(&table.lock);
    char *folder = table.folder ? strdup(table.folder) : NULL;
    pthread_mutex_unlock(&table.lock);
    const bool is_saved = folder && tuning_write(folder, NULL) == STATUS_OK;
    (void)is_saved;
    free(folder);
}

/* Makes and removes a folder inside `folder`, because access() grants root everything, even in
 * /proc. Returns 0 or errno. */
static int try_to_make(const char *folder)
{
    char *probe = NULL;
    int cause = 0;
    if (asprintf(&probe, "%s/.lensd-XXXXXX", folder) < 0)
        return ENOMEM;
    if (!mkdtemp(probe))
        cause = errno;
    else
        (void)rmdir(probe);
    free(probe);
    return cause;
}

enum status tuning_try_folder(const char *folder, struct error *err)
{
    struct stat info;
    char at[PATH_MAX], parent[PATH_MAX]; /* at: the folder, or its nearest existing parent */
    int cause = snprintf(at, sizeof at, "%s", folder) < PATH_MAX ? 0 : ENAMETOOLONG;
    while (!cause && stat(at, &info) != 0) {
        cause = errno == ENOENT && at[0] ? 0 : errno;
        path_folder(at, parent);
        if (!cause && !strcmp(at, parent))
            cause = ENOENT;
        memcpy(at, parent, sizeof at);
    }
    if (!cause)
        cause = S_ISDIR(info.st_mode) ? try_to_make(at) : ENOTDIR;
    return cause ? error_set(err, STATUS_IO, "%s", strerror(cause)) : STATUS_OK;
}
