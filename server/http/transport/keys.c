/* Reads the files of API keys, compares keys in constant time, and limits their rates. */
#include "server/http/transport/keys.h"

#include <ctype.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/thread.h"

#define HASH_BYTES   32
#define KEY_BYTES    32
#define RATE_MAX     1e6
#define KEY_FILE_MAX ((size_t)1 << 20)

struct key {
    char name[KEY_NAME_MAX + 1];
    uint8_t hash[HASH_BYTES];
    double rate, burst; /* requests per second (0: no limit), and requests at once */
    double tokens;      /* requests allowed now, as of `filled` */
    int64_t filled;     /* clock_now() of the last request; 0: none yet */
    bool is_admin;
    struct metric *granted, *limited;
};

struct lines {
    struct key *keys;
    size_t count, admins; /* number of keys, and how many of them are admins' */
};

struct keyring {
    struct keyring_options options;
    pthread_mutex_t lock;
    struct lines lines; /* guarded by lock: the keys of both files */
};

/* ---- a line ---- */

static bool key_is_name(const char *text)
{
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("-_.@", text[i]))
            return false;
    return length > 0 && length <= KEY_NAME_MAX;
}

static bool read_hash(const char *text, uint8_t hash[static HASH_BYTES])
{
    static const char prefix[] = "sha256:";
    size_t size = HASH_BYTES;
    if (strncasecmp(text, prefix, sizeof prefix - 1) != 0)
        return false;
    const gnutls_datum_t hex = {(unsigned char *)(uintptr_t)text + sizeof prefix - 1,
                                (unsigned)(strlen(text) - (sizeof prefix - 1))};
    return hex.size == 2 * HASH_BYTES && gnutls_hex_decode(&hex, hash, &size) == 0;
}

static bool read_amount(const char *text, double *ret)
{
    char *end;
    if (!isdigit((unsigned char)text[0]) && text[0] != '.')
        return false;
    double value = strtod(text, &end);
    if (*end || !(value > 0 && value <= RATE_MAX))
        return false;
    *ret = value;
    return true;
}

/* Parses a line in place. *ret_used is false for a blank line or a comment. */
static enum status read_key_line(char *line, struct key *key, bool *ret_used, struct error *err)
{
    static const char blanks[] = " \t\r\n";
    char *rest, *word;
    line[strcspn(line, "#")] = '\0';
    *key = (struct key){.burst = 0};
    *ret_used = (word = strtok_r(line, blanks, &rest)) != NULL;
    if (!word)
        return STATUS_OK;
    if (!key_is_name(word))
        return error_set(err, STATUS_CONFIG,
                         "a key's name has 1 to %d letters, digits or -_.@; a line is NAME "
                         "sha256:HEX, and lensd key NAME makes it",
                         KEY_NAME_MAX);
    snprintf(key->name, sizeof key->name, "%s", word);
    word = strtok_r(NULL, blanks, &rest);
    if (!word || !read_hash(word, key->hash))
        return error_set(err, STATUS_CONFIG,
                         "write sha256: and 64 hexadecimal digits after '%s': the hash of the key, "
                         "never the key itself; lensd key %s makes such a line",
                         key->name, key->name);
    while ((word = strtok_r(NULL, blanks, &rest))) {
        bool good = false;
        if (!strncmp(word, "rate=", 5))
            good = read_amount(word + 5, &key->rate);
        else if (!strncmp(word, "burst=", 6))
            good = read_amount(word + 6, &key->burst) && key->burst >= 1;
        if (!good)
            return error_set(err, STATUS_CONFIG,
                             "'%.40s' of key '%s' is not valid; write rate=N (requests per second) "
                             "and burst=N (at once, 1 or more)",
                             word, key->name);
    }
    if (key->rate == 0 && key->burst > 0)
        return error_set(err, STATUS_CONFIG, "key '%s' has a burst but no rate; write rate=N",
                         key->name);
    if (key->burst == 0)
        key->burst = key->rate > 1 ? ceil(key->rate) : 1;
    key->tokens = key->burst;
    return STATUS_OK;
}

/* ---- a file ---- */

static void lines_done(struct lines *lines)
{
    free(lines->keys);
    *lines = (struct lines){.count = 0};
}

static enum status add_line(struct lines *lines, const struct key *key, struct error *err)
{
    for (size_t i = 0; i < lines->count; i++) {
        if (!strcmp(lines->keys[i].name, key->name))
            return error_set(err, STATUS_CONFIG, "the name '%s' is used twice", key->name);
        if (!memcmp(lines->keys[i].hash, key->hash, HASH_BYTES))
            return error_set(err, STATUS_CONFIG, "'%s' and '%s' have the same key",
                             lines->keys[i].name, key->name);
    }
    if (lines->count == KEYS_MAX)
        return error_set(err, STATUS_CONFIG, "more than %d keys", KEYS_MAX);
    struct key *keys = reallocarray(lines->keys, lines->count + 1, sizeof *keys);
    TRY(check_memory(keys, "for API keys", err));
    lines->keys = keys;
    keys[lines->count++] = *key;
    lines->admins += key->is_admin;
    return STATUS_OK;
}

static enum status read_key_lines(char *text, bool is_admin, struct lines *lines, struct error *err)
{
    size_t before = lines->count;
    char *rest = text;
    for (int number = 1; rest; number++) {
        struct key key;
        bool used;
        char *line = strsep(&rest, "\n");
        enum status status = read_key_line(line, &key, &used, err);
        if (status == STATUS_OK && used) {
            key.is_admin = is_admin;
            status = add_line(lines, &key, err);
        }
        if (status != STATUS_OK)
            return error_prefix(err, "line %d", number);
    }
    if (lines->count == before)
        return error_set(
            err, STATUS_CONFIG,
            "has no key, so every client would be refused; lensd key NAME makes a line for it");
    return STATUS_OK;
}

static enum status read_file(const char *path, bool is_admin, struct lines *lines,
                             struct error *err)
{
    if (!path)
        return STATUS_OK;
    uint8_t *text;
    size_t size;
    struct error cause;
    if (file_read(path, KEY_FILE_MAX, &text, &size, &cause) != STATUS_OK)
        return error_set(err, STATUS_CONFIG, "cannot read %s '%.200s': %s",
                         is_admin ? "--admin-key-file" : "--api-keys", path, cause.message);
    enum status status = strlen((char *)text) == size
                             ? read_key_lines((char *)text, is_admin, lines, err)
                             : error_set(err, STATUS_CONFIG, "contains a NUL byte");
    free(text);
    return status == STATUS_OK ? status : error_prefix(err, "%.200s", path);
}

/* ---- the ring ---- */

static struct metric *key_metric(struct metrics *metrics, const char *name, const char *result)
{
    char labels[KEY_NAME_MAX + 64];
    snprintf(labels, sizeof labels, "key=\"%s\"", name);
    return metrics_get_with(
        metrics, METRIC_COUNTER, "lensd_key_requests_total",
        "Requests with an API key, by the key's name and whether its rate allowed them.", labels,
        "result", result);
}

/* Creates two counters for each name; the operator's files bound the number of names. */
static void add_metrics(struct metrics *metrics, struct lines *lines)
{
    for (size_t i = 0; metrics && i < lines->count; i++) {
        struct key *key = &lines->keys[i];
        key->granted = key_metric(metrics, key->name, "granted");
        key->limited = key_metric(metrics, key->name, "limited");
    }
}

enum status keyring_create(const struct keyring_options *options, struct keyring **ret,
                           struct error *err)
{
    struct keyring *keyring = *ret = calloc(1, sizeof *keyring);
    TRY(check_memory(keyring, "for API keys", err));
    keyring->options = *options;
    pthread_mutex_init(&keyring->lock, NULL);
    return keyring_reload(keyring, err);
}

void keyring_free(struct keyring *keyring)
{
    if (!keyring)
        return;
    lines_done(&keyring->lines);
    pthread_mutex_destroy(&keyring->lock);
    free(keyring);
}

/* Copies the remaining tokens of each name, because a reload must not reset a rate limit. */
static void keep_tokens(const struct lines *from, struct lines *to)
{
    for (size_t i = 0; i < to->count; i++)
        for (size_t k = 0; k < from->count; k++)
            if (!strcmp(to->keys[i].name, from->keys[k].name)) {
                to->keys[i].tokens = fmin(from->keys[k].tokens, to->keys[i].burst);
                to->keys[i].filled = from->keys[k].filled;
            }
}

enum status keyring_reload(struct keyring *keyring, struct error *err)
{
    struct lines fresh = {.count = 0};
    enum status status = read_file(keyring->options.keys_file, false, &fresh, err);
    IF_OK(status, read_file(keyring->options.admin_file, true, &fresh, err));
    if (status == STATUS_OK) {
        add_metrics(keyring->options.metrics, &fresh);
        pthread_mutex_lock(&keyring->lock);
        keep_tokens(&keyring->lines, &fresh);
        struct lines old = keyring->lines;
        keyring->lines = fresh;
        fresh = old;
        pthread_mutex_unlock(&keyring->lock);
    }
    lines_done(&fresh);
    return status;
}

void keyring_count(struct keyring *keyring, size_t *ret_keys, size_t *ret_admins)
{
    LOCK(&keyring->lock);
    *ret_admins = keyring->lines.admins;
    *ret_keys = keyring->lines.count - keyring->lines.admins;
}

/* Compares with every line in full, so that the time does not reveal which one matches. */
static struct key *find_locked(struct keyring *keyring, const uint8_t hash[static HASH_BYTES])
{
    struct key *found = NULL;
    for (size_t i = 0; i < keyring->lines.count; i++)
        if (gnutls_memcmp(keyring->lines.keys[i].hash, hash, HASH_BYTES) == 0)
            found = &keyring->lines.keys[i];
    return found;
}

static bool take_token(struct key *key, int *ret_wait_s)
{
    if (key->rate == 0)
        return true;
    int64_t now = clock_now();
    double passed_s = key->filled ? clock_ms(now - key->filled) / 1000 : 0;
    key->tokens = fmin(key->burst, key->tokens + passed_s * key->rate);
    key->filled = now;
    if (key->tokens >= 1) {
        key->tokens -= 1;
        return true;
    }
    *ret_wait_s = (int)fmin(fmax(1, ceil((1 - key->tokens) / key->rate)), INT32_MAX);
    return false;
}

static enum key_verdict judge_locked(struct keyring *keyring, enum route_access access,
                                     struct key *key, bool given, int *ret_wait_s)
{
    bool is_admin = key && key->is_admin;
    if (access == ROUTE_ADMIN && !is_admin && (keyring->lines.admins == 0 || key))
        return KEY_NO_ADMIN;
    if (!key)
        return given ? KEY_UNKNOWN : KEY_MISSING;
    return take_token(key, ret_wait_s) ? KEY_GRANTED : KEY_LIMITED;
}

enum key_verdict keyring_check(struct keyring *keyring, enum route_access access, const char *key,
                               char name[static KEY_NAME_MAX + 1], int *ret_wait_s)
{
    const struct keyring_options *options = &keyring->options;
    bool anybody = access != ROUTE_ADMIN &&
                   (!options->keys_file || (access == ROUTE_OPEN && !options->protect_open));
    name[0] = '\0';
    /* Ignore the key on open routes: a wrong one must not fail a probe. */
    if (anybody && (!key || access == ROUTE_OPEN))
        return KEY_GRANTED;
    uint8_t hash[HASH_BYTES] = {0};
    size_t length = key ? strnlen(key, KEY_TEXT_MAX + 1) : 0;
    bool hashed = length > 0 && length <= KEY_TEXT_MAX &&
                  gnutls_hash_fast(GNUTLS_DIG_SHA256, key, length, hash) == 0;
    LOCK(&keyring->lock);
    struct key *found = hashed ? find_locked(keyring, hash) : NULL;
    enum key_verdict verdict = KEY_GRANTED;
    if (found)
        snprintf(name, KEY_NAME_MAX + 1, "%s", found->name);
    if (!anybody || found)
        verdict = judge_locked(keyring, access, found, key != NULL, ret_wait_s);
    if (found && verdict == KEY_GRANTED)
        metric_add(found->granted, 1);
    else if (found && verdict == KEY_LIMITED)
        metric_add(found->limited, 1);
    return verdict;
}

/* ---- creating a key ---- */

enum status key_make(const char *name, const char *rate, const char *burst, struct key_made *ret,
                     struct error *err)
{
    double per_second = 0, at_once = 0;
    static const char prefix[] = "lensd-";
    uint8_t secret[KEY_BYTES], hash[HASH_BYTES];
    char hex[2 * HASH_BYTES + 1], limits[64] = "";
    size_t room = sizeof ret->key - (sizeof prefix - 1), hex_room = sizeof hex;
    if (!key_is_name(name))
        return error_set(
            err, STATUS_CONFIG,
            "'%.80s' cannot be a key's name: a name has 1 to %d letters, digits or -_.@", name,
            KEY_NAME_MAX);
    if ((rate && !read_amount(rate, &per_second)) ||
        (burst && !(read_amount(burst, &at_once) && at_once >= 1)))
        return error_set(err, STATUS_CONFIG,
                         "--rate must be a number above 0, such as 5 or 0.1, and --burst a number "
                         "of at least 1, both at most %g; leave them out for no limit",
                         (double)RATE_MAX);
    if (burst && !rate)
        return error_set(err, STATUS_CONFIG, "a burst needs a rate; add --rate N");
    if (gnutls_rnd(GNUTLS_RND_KEY, secret, sizeof secret) != 0)
        return error_set(err, STATUS_IO, "the system provides no random numbers");
    memcpy(ret->key, prefix, sizeof prefix);
    (void)gnutls_hex_encode(&(gnutls_datum_t){secret, sizeof secret}, ret->key + sizeof prefix - 1,
                            &room);
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, ret->key, strlen(ret->key), hash) != 0)
        return error_set(err, STATUS_IO, "SHA-256 is not available; update GnuTLS");
    (void)gnutls_hex_encode(&(gnutls_datum_t){hash, sizeof hash}, hex, &hex_room);
    if (rate)
        snprintf(limits, sizeof limits, " rate=%g", per_second);
    if (burst)
        snprintf(limits + strlen(limits), sizeof limits - strlen(limits), " burst=%g", at_once);
    snprintf(ret->line, sizeof ret->line, "%s sha256:%s%s", name, hex, limits);
    gnutls_memset(secret, 0, sizeof secret);
    return STATUS_OK;
}
