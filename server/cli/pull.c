/* lensd pull: downloads a model from Hugging Face's hub into a new folder. No other command of
 * lensd downloads anything.
 *
 * The download goes to a hidden folder beside the new folder, so that the next pull can continue an
 * interrupted one. All files come from one commit. Each must have the hash in the hub's headers:
 * SHA-256, or for small files git's SHA-1. This file follows redirects itself, because libcurl
 * might send the token to hosts other than the hub. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "lensd_version.h"
#include "models/folder/model.h"
#include "proto/json.h"
#include "server/app/process.h"
#include "server/cli/commands.h"
#include "server/observe/curl.h"

#define LIST_MAX  ((size_t)16 << 20) /* bytes of JSON */
#define SIDE_MAX  ((size_t)1 << 30)  /* bytes of a .json or .txt file */
#define MODEL_MAX ((size_t)16 << 30) /* bytes of other files; lensd loads no larger one */
#define TRIES     5
#define HOPS      8
#define URL_MAX   2048
#define HASH_MAX  64 /* hexadecimal digits */

struct pull {
    const struct config *config;
    void *handle; /* CURL */
    struct curl_list *authorization;
    char endpoint[256]; /* without a trailing slash */
    size_t origin;      /* length of the endpoint's scheme, host and port */
    const char *wanted; /* the .onnx file that the user has named; "": none */
    char repo[200], revision[100];
    struct hub_list files;
    char *out, *partial; /* the new folder, and the hidden folder for the download */
    int folder;          /* descriptor of the folder `partial`, which is locked */
};

/* One answer of the hub: where it is written, and values of its headers. */
struct hub_answer {
    void *handle;
    FILE *file;
    size_t have, most; /* bytes in `file`, and their maximum */
    size_t began;      /* bytes in `file` before this answer */
    const char *shown; /* the name in the progress bar; NULL: no progress bar */
    bool is_hub;       /* false: the hub has redirected to another host */
    bool is_too_long;
    char hash[HASH_MAX + 1], why[256]; /* X-Linked-ETag or ETag; X-Error-Message */
};

static long http_status(void *handle)
{
    long status = 0;
    curl.getinfo(handle, INFO_RESPONSE_CODE, &status);
    return status;
}

static size_t on_pulled(const char *bytes, size_t one, size_t size, void *context)
{
    struct hub_answer *to = context;
    const long status = http_status(to->handle);
    int64_t left = -1;
    (void)one;
    if (status != 200 && status != 206)
        return size;                  /* drops the body of a redirect or an error */
    if (to->began && status == 200) { /* the server ignores Range */
        if (ftruncate(fileno(to->file), 0) != 0)
            return 0;
        to->have = to->began = 0;
    }
    to->is_too_long = size > to->most - to->have;
    if (to->is_too_long || fwrite(bytes, 1, size, to->file) != size)
        return 0;
    to->have += size;
    curl.getinfo(to->handle, INFO_CONTENT_LENGTH, &left);
    if (to->shown && left > 0)
        progress_show(to->shown, (double)to->have / (double)((size_t)left + to->began), true);
    return size;
}

/* Copies the value of header `name`, without quotes and W/ (RFC 9110, section 8.8.3). */
static bool take_header(const char *line, size_t size, const char *name, char *ret, size_t room)
{
    const size_t length = strlen(name);
    if (size < length || strncasecmp(line, name, length) != 0)
        return false;
    size_t count = 0;
    for (size_t i = length; i < size && count + 1 < room; i++)
        if (!strchr("\"\r\n", line[i]) && (i > length || line[i] != ' '))
            ret[count++] = line[i];
    ret[count] = '\0';
    if (!strncmp(ret, "W/", 2))
        memmove(ret, ret + 2, count - 1);
    return true;
}

static size_t on_hub_header(const char *line, size_t one, size_t size, void *context)
{
    struct hub_answer *to = context;
    char plain[sizeof to->hash];
    (void)one;
    if (!to->is_hub || take_header(line, size, "x-linked-etag:", to->hash, sizeof to->hash) ||
        take_header(line, size, "x-error-message:", to->why, sizeof to->why))
        return size;
    if (take_header(line, size, "etag:", plain, sizeof plain) && !to->hash[0])
        memcpy(to->hash, plain, sizeof plain);
    return size;
}

static enum status no_success(long status, const struct pull *p, const struct hub_answer *answer,
                              struct error *err)
{
    const bool may_pass = status == 429 || status > 499;
    return error_set(err, may_pass ? STATUS_NOT_READY : STATUS_CONFIG,
                     "the hub answers %ld for %s%s%s; %s", status, p->repo,
                     answer->why[0] ? ": " : "", answer->why,
                     may_pass ? "try again later"
                              : "check the names of repository, revision and file; a private or "
                                "gated one needs a token that may read it in HF_TOKEN");
}

/* Appends the document at the address `first` to to->file; only the missing rest if to->have is not
 * 0. STATUS_NOT_READY: another attempt may succeed. */
static enum status hub_get(struct pull *p, const char *first, struct hub_answer *to,
                           struct error *err)
{
    char url[URL_MAX], range[32];
    const char *next = first;
    to->handle = p->handle;
    to->began = to->have;
    snprintf(range, sizeof range, "%zu-", to->have);
    curl.setopt(p->handle, OPT_WRITEDATA, to);
    curl.setopt(p->handle, OPT_HEADERDATA, to);
    curl.setopt(p->handle, OPT_RANGE, to->have ? range : NULL);
    for (int hop = 0; hop < HOPS && next; hop++) {
        if (strlen(next) >= sizeof url || /* http:// only if HF_ENDPOINT has it */
            (strncmp(next, "https://", 8) != 0 &&
             (strncmp(next, "http://", 7) != 0 || strncmp(p->endpoint, "http://", 7) != 0)))
            return error_set(err, STATUS_CONFIG, "the hub redirects to '%.200s', not https://",
                             next);
        snprintf(url, sizeof url, "%s", next);
        to->is_hub = !strncmp(url, p->endpoint, p->origin) && url[p->origin] == '/';
        curl.setopt(p->handle, OPT_URL, url);
        curl.setopt(p->handle, OPT_HTTPHEADER, to->is_hub ? p->authorization : NULL);
        errno = 0;
        const int code = curl.perform(p->handle);
        if (to->is_too_long)
            return error_set(err, STATUS_CONFIG, "'%.200s' has over %zu bytes", url, to->most);
        if (code == 23) /* CURLE_WRITE_ERROR */
            return error_set(err, STATUS_IO, "cannot write: %s", strerror(errno));
        if (code)
            return error_set(err, STATUS_NOT_READY, "%.200s: %s", url, curl.text(code));
        next = NULL;
        if (http_status(p->handle) / 100 == 3)
            curl.getinfo(p->handle, INFO_REDIRECT_URL, &next);
    }
    if (next)
        return error_set(err, STATUS_CONFIG, "too many redirects from '%.200s'", first);
    const long status = http_status(p->handle);
    return status == 200 || status == 206 || (status == 416 && to->began)
               ? STATUS_OK
               : no_success(status, p, to, err);
}

/* Appends `text` to a URL. Percent-encodes all but letters, digits and the characters in `kept`. */
static void add_escaped(char url[static URL_MAX], const char *text, const char *kept)
{
    size_t at = strlen(url);
    for (; *text && at + 4 < URL_MAX; text++)
        at += (size_t)snprintf(
            url + at, 4, isalnum((unsigned char)*text) || strchr(kept, *text) ? "%c" : "%%%02X",
            (unsigned char)*text);
}

static enum status list_files(struct pull *p, struct error *err)
{
    char url[URL_MAX], *text = NULL;
    size_t size;
    struct hub_answer to = {.most = LIST_MAX, .file = open_memstream(&text, &size)};
    TRY(check_memory(to.file, NULL, err));
    snprintf(url, sizeof url, "%s/api/models/%s/revision/", p->endpoint, p->repo);
    add_escaped(url, p->revision, "-_.~");
    enum status status = hub_get(p, url, &to, err);
    if (!text_close(to.file, &text) && status == STATUS_OK)
        status = error_no_memory(err, NULL);
    IF_OK(status, hub_list_read(text, size, &p->files, err));
    free(text);
    return status;
}

/* ---- which files ---- */

/* Chooses the .onnx file: the one that the user has named, model.onnx, onnx/model.onnx, or the only
 * one. */
static enum status choose_model(const struct pull *p, const char **ret, struct error *err)
{
    const char *const usual[] = {p->wanted, "model.onnx", "onnx/model.onnx"};
    char found[300] = "";
    size_t count = 0;
    *ret = usual[1];
    for (size_t n = 0; n < (p->wanted[0] ? 1 : COUNT_OF(usual)); n++)
        for (size_t i = 0; i < p->files.count; i++)
            if (!strcmp(*ret = p->files.paths[i], usual[n]))
                return STATUS_OK;
    for (size_t i = 0; i < p->files.count; i++) {
        if (!text_ends(p->files.paths[i], ".onnx"))
            continue;
        *ret = p->files.paths[i];
        text_append(found, sizeof found, ", ", "%s", *ret);
        count++;
    }
    if (count == 1 && !p->wanted[0])
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG,
                     count ? "%s has no file '%s'; name one as hf:%s:FILE: %s"
                           : "%s has no .onnx file%.0s; export the model to ONNX first "
                             "(optimum-cli export onnx --model %s%s)",
                     p->repo, p->wanted[0] ? p->wanted : "model.onnx", p->repo, found);
}

/* True if the model folder needs a file: the model, its external data, and text files at the top
 * (labels, preprocessing …). If the model is in a sub-folder, a text file at the top whose name
 * begins with the model's file name belongs to another model, and is not needed. */
static bool is_needed(const char *path, const char *model)
{
    const char *name = basename(path);
    const size_t stem = strlen(model) - strlen(".onnx");
    if (name[0] == '.' || !name[0] || strlen(name) > 200)
        return false;
    if (!strncmp(path, model, stem) && !strchr(path + stem, '/') &&
        (!strncmp(path + stem, ".onnx", 5) || !strcmp(path + stem, ".data")))
        return true;
    return name == path &&
           (basename(model) == model ||
            strncmp(name, basename(model), strlen(basename(model))) != 0) &&
           (text_ends(name, ".json") || text_ends(name, ".txt") || !strcmp(name, "LICENSE"));
}

/* ---- the files ---- */

/* True if the file has the hash `wanted`. Git's hash is that of "blob SIZE\0" and the bytes. */
static bool has_hash(FILE *file, size_t size, const char *wanted)
{
    unsigned char bytes[65536], digest[32];
    char text[HASH_MAX + 1];
    gnutls_hash_hd_t hash;
    const bool is_git = strlen(wanted) == 40;
    if (gnutls_hash_init(&hash, is_git ? GNUTLS_DIG_SHA1 : GNUTLS_DIG_SHA256) != 0)
        return false;
    const int head = snprintf(text, sizeof text, "blob %zu", size);
    bool ok = !is_git || gnutls_hash(hash, text, (size_t)head + 1) == 0;
    rewind(file);
    for (size_t n; ok && (n = fread(bytes, 1, sizeof bytes, file)) > 0;)
        ok = gnutls_hash(hash, bytes, n) == 0;
    ok = ok && !ferror(file);
    gnutls_hash_deinit(hash, digest);
    for (size_t i = 0; i < (is_git ? 20 : 32); i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return ok && !strcasecmp(text, wanted);
}

/* Downloads the missing rest of `file`, and checks the hash of the whole file. */
static enum status complete_file(struct pull *p, const char *path, FILE *file, struct error *err)
{
    char url[URL_MAX];
    struct stat info;
    snprintf(url, sizeof url, "%s/%s/resolve/%s/", p->endpoint, p->repo, p->files.commit);
    add_escaped(url, path, "-_.~/");
    if (fstat(fileno(file), &info) != 0)
        return error_set(err, STATUS_IO, "%s", strerror(errno));
    struct hub_answer to = {.file = file, .have = (size_t)info.st_size, .shown = basename(path)};
    to.most = text_ends(path, ".json") || text_ends(path, ".txt") ? SIDE_MAX : MODEL_MAX;
    const enum status status = hub_get(p, url, &to, err);
    if (fflush(file) != 0 || fsync(fileno(file)) != 0)
        return error_set(err, STATUS_IO, "cannot write: %s", strerror(errno));
    TRY(status);
    const size_t digits = strlen(to.hash);
    if ((digits == 40 || digits == 64) && has_hash(file, to.have, to.hash))
        return STATUS_OK;
    (void)!ftruncate(fileno(file), 0);
    return error_set(err, to.began ? STATUS_NOT_READY : STATUS_CONFIG,
                     "the bytes do not match the hub's hash; pull again");
}

static enum status pull_file(struct pull *p, const char *path, size_t *bytes, struct error *err)
{
    const int fd = openat(p->folder, basename(path),
                          O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    FILE *file = fd >= 0 ? fdopen(fd, "a+") : NULL;
    if (!file)
        return error_set(err, STATUS_IO, "cannot write: %s", strerror(errno));
    enum status status = STATUS_NOT_READY;
    for (unsigned attempt = 0; attempt < TRIES && status == STATUS_NOT_READY; attempt++) {
        sleep(attempt ? 1u << (attempt - 1) : 0);
        status = complete_file(p, path, file, err);
    }
    if (status == STATUS_OK && fseeko(file, 0, SEEK_END) == 0)
        *bytes += (size_t)ftello(file);
    fclose(file);
    return status;
}

/* Sets p->out, and creates and locks the hidden folder p->partial. Each model and commit of a
 * repository has its own folder, so that files of two commits are never mixed. */
static enum status open_partial(struct pull *p, const char *model, struct error *err)
{
    const char *folder = p->config->loader.models ? p->config->loader.models : ".",
               *given = p->config->output;
    p->out = given ? strdup(given) : path_join(folder, basename(p->repo));
    TRY(command_folder(p->out, err));
    const int front = (int)(basename(p->out) - p->out);
    if (asprintf(&p->partial, "%.*s.%s.%s.%.12s.pull", front, p->out, p->out + front,
                 basename(model), p->files.commit) < 0)
        return error_no_memory(err, NULL);
    if (mkdir(p->partial, 0755) == 0 || errno == EEXIST)
        p->folder = open(p->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (p->folder < 0)
        return error_set(err, STATUS_CONFIG, "cannot make the folder '%.200s': %s", p->partial,
                         strerror(errno));
    return flock(p->folder, LOCK_EX | LOCK_NB) == 0
               ? STATUS_OK
               : error_set(err, STATUS_CONFIG, "another lensd pull is writing '%.200s'",
                           p->partial);
}

/* Removes the partial folders that interrupted pulls of the model's other commits left behind. */
static void remove_other_partials(const struct pull *p)
{
    const char *own = basename(p->partial);
    const size_t size = strlen(own), same = size - strlen("0123456789ab.pull");
    char *parent = strndup(p->partial, (size_t)(own - p->partial)), *path;
    DIR *dir = parent ? opendir(parent[0] ? parent : ".") : NULL;
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strlen(entry->d_name) != size || strncmp(entry->d_name, own, same) != 0 ||
            !text_ends(entry->d_name, ".pull") ||
            asprintf(&path, "%s%s", parent, entry->d_name) < 0)
            continue;
        const int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (folder >= 0 &&
            flock(folder, LOCK_EX | LOCK_NB) == 0) /* no other process writes into the folder */
            model_remove_files(path);
        if (folder >= 0)
            close(folder);
        free(path);
    }
    if (dir)
        closedir(dir);
    free(parent);
}

/* ---- the command ---- */

/* Reads hf:ORG/REPO[@REVISION][:FILE.onnx]. */
static enum status read_source(struct pull *p, const char *source, struct error *err)
{
    int end = 0;
    snprintf(p->revision, sizeof p->revision, "main");
    (void)sscanf(source, "hf:%199[A-Za-z0-9._/-]%n@%99[^:]%n", p->repo, &end, p->revision, &end);
    p->wanted = source[end] == ':' ? source + end + 1 : "";
    const char *slash = strchr(p->repo, '/');
    if (!slash || slash == p->repo || !slash[1] || strchr(slash + 1, '/') ||
        strstr(p->repo, "..") || (source[end] && !text_ends(p->wanted, ".onnx")) ||
        strlen(p->wanted) > 400)
        return error_set(err, STATUS_CONFIG,
                         "'%.200s' names no model of a hub; write hf:ORG/REPO, "
                         "hf:ORG/REPO:FILE.onnx or hf:ORG/REPO@REVISION:FILE.onnx",
                         source);
    return STATUS_OK;
}

static enum status read_hub_endpoint(struct pull *p, struct error *err)
{
    const char *offline = getenv("HF_HUB_OFFLINE"), *given = getenv("HF_ENDPOINT");
    if (offline && offline[0] && strchr("1yYtToO", offline[0]) && strcasecmp(offline, "off") != 0)
        return error_set(err, STATUS_CONFIG,
                         "HF_HUB_OFFLINE is %.20s, so lensd pull fetches nothing; unset it, or "
                         "copy the model folder from another machine",
                         offline);
    given = given && given[0] ? given : "https://huggingface.co";
    if ((strncmp(given, "https://", 8) != 0 && strncmp(given, "http://", 7) != 0) ||
        strlen(given) >= sizeof p->endpoint || strpbrk(given, " ?#@"))
        return error_set(err, STATUS_CONFIG,
                         "HF_ENDPOINT is '%.100s'; it must be an address such as "
                         "https://huggingface.co",
                         given);
    snprintf(p->endpoint, sizeof p->endpoint, "%s", given);
    for (size_t end = strlen(p->endpoint); end && p->endpoint[end - 1] == '/'; end--)
        p->endpoint[end - 1] = '\0';
    p->origin = strcspn(p->endpoint, ":") + 3;
    p->origin += strcspn(p->endpoint + p->origin, "/");
    return STATUS_OK;
}

static enum status open_hub(struct pull *p, struct error *err)
{
    const char *token = getenv("HF_TOKEN"), *trusted = getenv("SSL_CERT_FILE");
    char line[600];
    TRY(curl_load("lensd pull", err));
    p->handle = curl.init();
    if (token && token[0]) {
        if (strncmp(p->endpoint, "https://", 8) != 0 || strlen(token) > 500 ||
            strpbrk(token, "\r\n"))
            return error_set(err, STATUS_CONFIG,
                             "HF_TOKEN is not sent without TLS, and must be one line of at most "
                             "500 characters; unset it, or set HF_ENDPOINT to https://…");
        snprintf(line, sizeof line, "Authorization: Bearer %s", token);
        p->authorization = curl.append(NULL, line);
    }
    if (!p->handle || (token && token[0] && !p->authorization))
        return error_no_memory(err, NULL);
    curl.setopt(p->handle, OPT_USERAGENT, "lensd/" LENSD_VERSION);
    curl.setopt(p->handle, OPT_WRITEFUNCTION, on_pulled);
    curl.setopt(p->handle, OPT_HEADERFUNCTION, on_hub_header);
    curl.setopt(p->handle, OPT_CONNECTTIMEOUT_MS, 20000L);
    curl.setopt(p->handle, OPT_LOW_SPEED_LIMIT, 1L); /* bytes per second */
    curl.setopt(p->handle, OPT_LOW_SPEED_TIME, 30L);
    if (trusted && trusted[0])
        curl.setopt(p->handle, OPT_CAINFO, trusted);
    return STATUS_OK;
}

static enum status pull_steps(struct pull *p, struct error *err)
{
    const char *model;
    size_t bytes = 0, count = 0;
    TRY(read_source(p, p->config->arguments[0], err));
    TRY(read_hub_endpoint(p, err));
    TRY(open_hub(p, err));
    TRY(list_files(p, err));
    TRY(choose_model(p, &model, err));
    if (!is_needed(model, model))
        return error_set(err, STATUS_CONFIG,
                         "lensd cannot serve '%.200s' of %s: it is a hidden file, or its name is "
                         "longer than 200 bytes; ask its owner to rename it",
                         model, p->repo);
    TRY(open_partial(p, model, err));
    for (size_t i = 0; i < p->files.count; i++) {
        const char *path = p->files.paths[i];
        if (!is_needed(path, model))
            continue;
        if (pull_file(p, path, &bytes, err) != STATUS_OK)
            return error_prefix(err, "%.100s", path);
        count++;
    }
    if (renameat2(AT_FDCWD, p->partial, AT_FDCWD, p->out, RENAME_NOREPLACE) != 0)
        return error_set(err, STATUS_IO, "cannot make the folder '%.200s': %s", p->out,
                         strerror(errno));
    remove_other_partials(p);
    progress_clear();
    printf("%s: %zu files, %s, commit %s\n", p->out, count, SIZE_STRING(bytes), p->files.commit);
    return STATUS_OK;
}

int command_pull(const struct config *config)
{
    struct pull p = {.config = config, .folder = -1};
    struct error err;
    int result = 0;
    if (pull_steps(&p, &err) != STATUS_OK) {
        progress_clear();
        result = process_failed(&err);
    }
    if (p.handle)
        curl.cleanup(p.handle);
    if (p.authorization)
        curl.free_list(p.authorization);
    if (p.folder >= 0)
        close(p.folder);
    hub_list_done(&p.files);
    FREE_ALL(p.out, p.partial);
    return result;
}
