/* Finds conformance cases in a folder, and reads their tolerances and tensors. */
#include "tests/conformance/cases.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "models/onnx/onnx.h"
#include "tests/conformance/tensor_pb.h"

#define MAX_LEVELS 8

/* ONNX's own tolerances (onnx/backend/test/loader). */
#define DEFAULT_RTOL 1e-3
#define DEFAULT_ATOL 1e-7

static enum status no_memory(struct error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory while listing cases");
}

enum status read_whole(const char *path, char **ret, size_t *ret_size, struct error *err)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return error_set(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s: %s", path,
                         strerror(errno));
    struct stat info;
    char *data = NULL;
    size_t size = 0;
    if (!fstat(fileno(file), &info) && S_ISREG(info.st_mode)) {
        size = (size_t)info.st_size;
        data = malloc(size + 1);
    }
    bool ok = data && fread(data, 1, size, file) == size;
    fclose(file);
    if (!ok) {
        free(data);
        return error_set(err, STATUS_IO, "%s: cannot be read", path);
    }
    data[size] = '\0';
    *ret = data;
    *ret_size = size;
    return STATUS_OK;
}

static bool exists(const char *folder, const char *name)
{
    char *path;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        return false;
    struct stat info;
    bool found = !stat(path, &info);
    free(path);
    return found;
}

/* rtol, atol, gain where a JSON file has them. */
static enum status read_tolerances(struct conformance_case *c, const char *file, struct error *err)
{
    char *path, *text;
    size_t size;
    if (asprintf(&path, "%s/%s", c->folder, file) < 0)
        return no_memory(err);
    enum status status = read_whole(path, &text, &size, err);
    free(path);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(status);
    cJSON *json = cJSON_ParseWithLength(text, size);
    free(text);
    if (!json)
        return error_set(err, STATUS_INVALID, "%s/%s is not JSON", c->folder, file);
    const struct {
        const char *key;
        double *value;
    } keys[] = {{"rtol", &c->rtol}, {"atol", &c->atol}, {"gain", &c->gain}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, keys[i].key);
        if (cJSON_IsNumber(item))
            *keys[i].value = item->valuedouble;
    }
    cJSON_Delete(json);
    return STATUS_OK;
}

/* The last two parts of a path; three for a randfill folder. */
static char *case_name(const char *folder, bool randfill)
{
    size_t end = strlen(folder);
    while (end && folder[end - 1] == '/')
        end--;
    size_t start = end;
    for (int parts = randfill ? 3 : 2; start; start--)
        if (folder[start - 1] == '/' && --parts == 0)
            break;
    return strndup(folder + start, end - start);
}

static enum status add_case(struct case_list *list, const char *folder, bool randfill,
                            struct error *err)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 256;
        struct conformance_case *bigger = realloc(list->cases, capacity * sizeof *bigger);
        if (!bigger)
            return no_memory(err);
        list->cases = bigger;
        list->capacity = capacity;
    }
    struct conformance_case *c = &list->cases[list->count];
    *c = (struct conformance_case){.name = case_name(folder, randfill),
                                   .folder = strdup(folder),
                                   .randfill = randfill,
                                   .rtol = DEFAULT_RTOL,
                                   .atol = DEFAULT_ATOL};
    if (asprintf(&c->model, "%s%s/model.onnx", folder, randfill ? "/.." : "") < 0)
        c->model = NULL;
    list->count++;
    if (!c->name || !c->folder || !c->model)
        return no_memory(err);
    return read_tolerances(c, randfill ? "params.json" : "data.json", err);
}

/* Recursion is bounded by MAX_LEVELS. */
static enum status walk(struct case_list *list, const char *folder, int level, struct error *err)
{
    bool is_case = exists(folder, "model.onnx");
    if (is_case && exists(folder, "test_data_set_0"))
        TRY(add_case(list, folder, false, err));
    if (exists(folder, "params.json") && exists(folder, "../model.onnx"))
        TRY(add_case(list, folder, true, err));
    DIR *dir = level < MAX_LEVELS ? opendir(folder) : NULL;
    if (!dir)
        return level ? STATUS_OK : error_set(err, STATUS_IO, "%s: %s", folder, strerror(errno));
    enum status status = STATUS_OK;
    for (struct dirent *entry; status == STATUS_OK && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || !strncmp(entry->d_name, "test_data_set_", 14))
            continue;
        char *path;
        struct stat info;
        if (asprintf(&path, "%s/%s", folder, entry->d_name) < 0) {
            status = no_memory(err);
            break;
        }
        if (!lstat(path, &info) && S_ISDIR(info.st_mode))
            status = walk(list, path, level + 1, err);
        free(path);
    }
    closedir(dir);
    return status;
}

static int by_name(const void *a, const void *b)
{
    const struct conformance_case *left = a, *right = b;
    return strcmp(left->name, right->name);
}

enum status cases_find(struct case_list *list, const char *folder, struct error *err)
{
    TRY(walk(list, folder, 0, err));
    if (list->count)
        qsort(list->cases, list->count, sizeof *list->cases, by_name);
    return STATUS_OK;
}

void cases_done(struct case_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->cases[i].name);
        free(list->cases[i].folder);
        free(list->cases[i].model);
    }
    free(list->cases);
    *list = (struct case_list){0};
}

size_t case_sets(const struct conformance_case *c)
{
    size_t count = 0;
    char name[40];
    if (c->randfill)
        return 1;
    for (;; count++) {
        snprintf(name, sizeof name, "test_data_set_%zu", count);
        if (!exists(c->folder, name))
            return count;
    }
}

enum status case_tensor(const struct conformance_case *c, size_t set, const char *kind, size_t i,
                        struct tensor **ret, struct error *err)
{
    char *path, *data = NULL;
    size_t size;
    int n;
    if (!c->randfill)
        n = asprintf(&path, "%s/test_data_set_%zu/%s_%zu.pb", c->folder, set, kind, i);
    else if (!strcmp(kind, "input"))
        n = asprintf(&path, "%s/../test_data_set_0/input_%zu.pb", c->folder, i);
    else
        n = asprintf(&path, "%s/%s_%zu.pb", c->folder, kind, i);
    if (n < 0)
        return no_memory(err);
    enum status status = read_whole(path, &data, &size, err);
    if (status == STATUS_OK) {
        status = load_tensor_pb(data, size, ret, err);
        if (status != STATUS_OK)
            status = error_prefix(err, "%s", path);
    }
    free(data);
    free(path);
    return status;
}
