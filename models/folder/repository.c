/* Scans a model repository: its models, their versions, the versions to serve, and a signature that
 * changes with the files. */
#include "models/folder/repository.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/base/utf8.h"
#include "models/folder/model_internal.h"
#include "models/onnx/access.h"

#define MODELS_MAX   4096
#define VERSIONS_MAX 1024

void repository_done(struct repository *repository)
{
    for (size_t i = 0; repository->models && i < repository->count; i++) {
        FREE_ALL(repository->models[i].name, repository->models[i].path,
                 repository->models[i].versions, repository->models[i].stages);
    }
    free(repository->models);
    *repository = (struct repository){0};
}

struct repository_model *repository_find(const struct repository *repository, const char *name)
{
    for (size_t i = 0; i < repository->count; i++)
        if (!strcmp(repository->models[i].name, name))
            return &repository->models[i];
    return NULL;
}

/* ---- signatures: FNV-1a of stat() results ---- */

static uint64_t file_signature(const char *path, const char *name)
{
    struct stat info;
    uint64_t hash = fnv1a(FNV1A_START, name, strlen(name));
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return 0;
    const int64_t facts[] = {(int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec,
                             (int64_t)info.st_mtim.tv_nsec, (int64_t)info.st_ino};
    return fnv1a(hash, facts, sizeof facts);
}

typedef enum status entry_fn(void *context, const char *path, const char *name, struct error *err);

/* Calls `take` for each visible entry of a folder, until `take` fails. A read error must not look
 * like the end of the folder, because models would be unloaded. */
static enum status for_each_entry(const char *folder, entry_fn *take, void *context,
                                  struct error *err)
{
    DIR *dir = opendir(folder);
    if (!dir && errno == ENOMEM)
        return error_no_memory(err, "while looking through a repository");
    if (!dir)
        return error_set(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%.200s: %s%s",
                         folder, errno == ENOENT ? "there is no such folder" : strerror(errno),
                         access_advice(folder, errno));
    enum status status = STATUS_OK;
    while (status == STATUS_OK) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry && errno != 0)
            status = error_set(err, STATUS_IO, "%.200s: %s", folder, strerror(errno));
        if (!entry)
            break;
        if (entry->d_name[0] == '.')
            continue;
        char path[PATH_MAX];
        model_path(path, "%s/%s", folder, entry->d_name);
        status = take(context, path, entry->d_name, err);
    }
    closedir(dir);
    return status;
}

static enum status add_signature(void *context, const char *path, const char *name,
                                 struct error *err)
{
    uint64_t *sum = context;
    (void)err;
    *sum += file_signature(path, name);
    return STATUS_OK;
}

/* Computes the signature of the files in a folder. Their order does not change it. */
static enum status folder_signature(const char *folder, uint64_t *ret, struct error *err)
{
    *ret = 0;
    return for_each_entry(folder, add_signature, ret, err);
}

/* ---- versions ---- */

static int compare_versions(const void *a, const void *b)
{
    const struct repository_version *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

static enum status add_version(struct repository_model *model, uint64_t number, uint64_t signature,
                               struct error *err)
{
    if (model->version_count == VERSIONS_MAX)
        return error_set(err, STATUS_MODEL, "model '%.80s' has more than %d versions", model->name,
                         VERSIONS_MAX);
    struct repository_version *grown =
        reallocarray(model->versions, model->version_count + 1, sizeof *grown);
    TRY(check_memory(grown, "while looking through a repository", err));
    model->versions = grown;
    struct repository_version *version = &grown[model->version_count++];
    *version = (struct repository_version){.number = number, .signature = signature};
    snprintf(version->version, sizeof version->version, "%llu", (unsigned long long)number);
    return STATUS_OK;
}

/* Adds version N, if FOLDER/N/model.onnx exists. */
static enum status find_version(void *context, const char *path, const char *name,
                                struct error *err)
{
    uint64_t number, own = 0;
    if (!model_version_number(name, &number) || !folder_has_file(path, "model.onnx"))
        return STATUS_OK;
    TRY(folder_signature(path, &own, err));
    return add_version(context, number, own, err);
}

static enum status find_versions(struct repository_model *model, struct error *err)
{
    uint64_t shared; /* signature of the files beside the versions */
    TRY(folder_signature(model->path, &shared, err));
    const enum status status = for_each_entry(model->path, find_version, model, err);
    for (size_t i = 0; i < model->version_count; i++)
        model->versions[i].signature += shared * 31;
    if (model->version_count > 1)
        qsort(model->versions, model->version_count, sizeof *model->versions, compare_versions);
    return status;
}

static bool is_listed(const struct version_policy *policy, uint64_t number)
{
    for (size_t i = 0; i < policy->count; i++)
        if (policy->versions[i] == number)
            return true;
    return false;
}

/* Moves the versions that the policy selects to the front, and keeps their order. */
static void apply_policy(struct repository_model *model, const struct version_policy *policy)
{
    size_t kept = 0, count = model->version_count;
    size_t latest = policy->latest < count ? policy->latest : count;
    for (size_t i = 0; i < count; i++) {
        bool wanted = policy->kind == VERSIONS_ALL ? true
                      : policy->kind == VERSIONS_LATEST
                          ? i >= count - latest
                          : is_listed(policy, model->versions[i].number);
        if (!wanted)
            continue;
        const struct repository_version unwanted = model->versions[kept];
        model->versions[kept++] = model->versions[i];
        model->versions[i] = unwanted;
    }
    model->version_count = kept;
    model->spare_count = count - kept;
}

static enum status describe_versions(struct repository_model *model, struct error *err)
{
    struct version_policy policy;
    TRY(find_versions(model, err));
    TRY(version_policy_read(model->path, &policy, err));
    apply_policy(model, &policy);
    if (model->version_count == 0)
        return error_set(err, STATUS_MODEL,
                         "%.200s: config.pbtxt's version_policy names versions that do not exist",
                         model->path);
    return STATUS_OK;
}

static enum status describe_pipeline(struct repository_model *model, struct error *err)
{
    uint64_t signature = 0;
    struct pipeline_config *stages = malloc(sizeof *stages);
    enum status status = stages ? pipeline_config_read(model->path, stages, err)
                                : error_no_memory(err, "while looking through a repository");
    IF_OK(status, folder_signature(model->path, &signature, err));
    IF_OK(status, add_version(model, 1, signature, err));
    if (status == STATUS_OK)
        model->stages = stages;
    else
        free(stages);
    return status;
}

/* Finds the versions of model->path to serve. */
static enum status describe(struct repository_model *model, struct error *err)
{
    struct model_place place;
    if (!model->path)
        return add_version(model, 1, 0, err);
    TRY(model_place_find(model->path, NULL, &place, err));
    if (place.is_pipeline)
        return describe_pipeline(model, err);
    /* The folder of a single file may hold unrelated files, so it is not in the signature. */
    bool numbered = place.is_numbered, alone = path_is_file(model->path) && !place.is_half;
    uint64_t signature = file_signature(place.file, ""), own;
    enum status status = STATUS_OK;
    for (size_t i = 0; !numbered && !alone && i < COUNT_OF(place.folders); i++)
        if (status == STATUS_OK && place.folders[i][0]) {
            status = folder_signature(place.folders[i], &own, err);
            signature = signature * 31 + own;
        }
    TRY(status);
    return numbered ? describe_versions(model, err) : add_version(model, 1, signature, err);
}

/* ---- models ---- */

/* Adds the pipeline `stages`, or the model at `path` if `stages` is NULL. Copies `path` and `name`,
 * and owns `stages` on success. If the model's files are invalid, its `problem` has the reason. */
static enum status add_model(struct repository *repository, const char *path, const char *name,
                             struct pipeline_config *stages, struct error *err)
{
    struct repository_model *grown =
        reallocarray(repository->models, repository->count + 1, sizeof *grown);
    TRY(check_memory(grown, "while looking through a repository", err));
    repository->models = grown;
    struct repository_model *model = &grown[repository->count++];
    char shown[MODEL_NAME_MAX + 1];
    const bool is_long = strlen(name) > MODEL_NAME_MAX;
    snprintf(shown, sizeof shown, is_long ? "%.120s…" : "%s", name);
    if (is_long)
        utf8_repair(shown);
    *model = (struct repository_model){.name = strdup(shown), .path = path ? strdup(path) : NULL};
    TRY(check_memory(model->name && (model->path || !path), "while looking through a repository",
                     err));
    enum status status =
        is_long
            ? error_set(
                  &model->problem, STATUS_MODEL,
                  "the name has %zu bytes, and at most %d are allowed; rename the folder or file",
                  strlen(name), MODEL_NAME_MAX)
        : stages ? add_version(model, 1, 0, &model->problem)
                 : describe(model, &model->problem);
    if (status == STATUS_NO_MEMORY)
        return error_no_memory(err, "while looking through a repository");
    model->stages = stages ? stages : model->stages;
    if (status == STATUS_OK)
        model->problem = (struct error){0};
    return STATUS_OK;
}

/* Adds the model in a folder, and its second half if it has two. */
static enum status add_halves(struct repository *repository, const char *path, const char *name,
                              struct error *err)
{
    char second[PATH_MAX], second_name[MODEL_PLACE_NAME];
    const char *ending;
    TRY(add_model(repository, path, name, NULL, err));
    if (!model_find_half(path, second, &ending))
        return STATUS_OK;
    snprintf(second_name, sizeof second_name, "%.250s%s", name, ending);
    return add_model(repository, second, second_name, NULL, err);
}

/* Refuses DIR/NAME beside DIR/NAME.onnx, because the order of files must not decide. */
static void refuse_twins(struct repository_model *model)
{
    model->version_count = 0;
    (void)!error_set(&model->problem, STATUS_MODEL,
                     "there are two models '%.100s', the folder %.100s/ and the file %.100s.onnx; "
                     "rename or remove one of them",
                     model->name, model->name, model->name);
}

static enum status refuse_more(const char *path, const char *entry, struct error *err)
{
    const size_t folder = strlen(path) - strlen(entry) - 1;
    return error_set(err, STATUS_MODEL, "%.*s has more than %d models",
                     folder < 200 ? (int)folder : 200, path, MODELS_MAX);
}

/* Adds the model of the folder NAME or of the file NAME.onnx. */
static enum status add_entry(void *context, const char *path, const char *entry, struct error *err)
{
    struct repository *repository = context;
    struct repository_model *twin;
    const size_t length = strlen(entry);
    size_t stem = length;
    if (!path_is_folder(path)) {
        if (!text_ends(entry, ".onnx") || !path_is_file(path))
            return STATUS_OK;
        stem = length - 5;
    }
    char *name = strndup(entry, stem);
    enum status status = STATUS_OK;
    if (!name)
        status = error_no_memory(err, "while looking through a repository");
    else if (repository->count == MODELS_MAX)
        status = refuse_more(path, entry, err);
    else if ((twin = repository_find(repository, name)))
        refuse_twins(twin);
    else
        status = add_halves(repository, path, name, err);
    free(name);
    return status;
}

static int compare_models(const void *a, const void *b)
{
    return strcmp(((const struct repository_model *)a)->name,
                  ((const struct repository_model *)b)->name);
}

/* Checks that the stages of a pipeline are models of the repository. */
static enum status check_stages(const struct repository *repository,
                                const struct repository_model *pipeline, struct error *err)
{
    for (size_t i = 0; i < pipeline->stages->stage_count; i++) {
        const char *name = pipeline->stages->stages[i].model;
        const struct repository_model *model = repository_find(repository, name);
        if (model == pipeline)
            return error_set(err, STATUS_MODEL,
                             "stage %zu is the pipeline '%.100s' itself; name a model", i + 1,
                             name);
        const char *half = strrchr(name, '.'); /* NAME.detection */
        if (!model && repository->is_immich && half)
            return error_set(err, STATUS_MODEL,
                             "%.*s/%s/model.onnx is missing; add it, because detection and "
                             "recognition go together",
                             (int)(half - name), name, half + 1);
        if (!model)
            return error_set(err, STATUS_MODEL,
                             "stage %zu names the model '%.100s', which does not exist; put it "
                             "into a folder %.100s beside the pipeline's, or correct the name",
                             i + 1, name, name);
        if (model->stages)
            return error_set(err, STATUS_MODEL,
                             "stage %zu names '%.100s', which is a pipeline, too; name the models "
                             "of its stages",
                             i + 1, name);
    }
    return STATUS_OK;
}

static void check_pipelines(struct repository *repository)
{
    for (size_t i = 0; i < repository->count; i++) {
        struct repository_model *model = &repository->models[i];
        if (!model->stages || model->problem.status != STATUS_OK ||
            check_stages(repository, model, &model->problem) == STATUS_OK)
            continue;
        (void)error_prefix(&model->problem, "%.200s%s", model->path,
                           repository->is_immich ? "" : "/" PIPELINE_FILE);
        model->version_count = 0;
    }
}

/* ---- Immich's cache ---- */

/* Adds the model in FOLDER/PART as NAME.PART, if it exists. */
static enum status add_part(struct repository *repository, const char *folder, const char *name,
                            const char *part, struct error *err)
{
    struct stat info;
    char own[256 + sizeof ".recognition"]; /* the longest folder name fits */
    char path[PATH_MAX];
    model_path(path, "%s/%s", folder, part);
    snprintf(own, sizeof own, "%s.%s", name, part);
    return stat(path, &info) == 0 ? add_model(repository, path, own, NULL, err) : STATUS_OK;
}

/* Fills the stages of a pipeline of Immich's, except the names of their models. */
static void immich_stages(bool is_text, struct pipeline_config *ret)
{
    /* For photos of 4:3 and 16:9 with a short side of 736, Immich's default maxResolution. More
     * sizes would take more memory and more time to load. */
    static const struct stage_size pages[] = {{992, 736}, {736, 992}, {1312, 736}, {736, 1312}};
    static const struct stage_size lines[] = {{320, 48}, {640, 48}, {1280, 48}};
    struct pipeline_stage *first = &ret->stages[0], *second = &ret->stages[1];
    *ret = (struct pipeline_config){.stage_count = 2};
    first->max = STAGE_CROPS_DEFAULT;
    second->max = STAGE_CROPS_MAX;
    if (!is_text) {
        second->align = align_arcface;
        return;
    }
    memcpy(first->sizes, pages, sizeof pages);
    memcpy(second->sizes, lines, sizeof lines);
    first->size_count = COUNT_OF(pages);
    second->size_count = COUNT_OF(lines);
}

/* Adds a folder of `facial-recognition` or `ocr`: its two models and their pipeline. */
static enum status add_stages_of(struct repository *repository, const char *folder,
                                 const char *name, bool is_text, struct error *err)
{
    const char *dashes = is_text ? strstr(name, "__") : NULL;
    TRY(add_part(repository, folder, name, "detection", err));
    const size_t before = repository->count;
    TRY(add_part(repository, folder, name, "recognition", err));
    if (is_text && repository->count == before) /* a detector for pipelines of other folders */
        return STATUS_OK;
    struct pipeline_config *config = malloc(sizeof *config);
    if (!config)
        return error_no_memory(err, "while looking through a repository");
    immich_stages(is_text, config);
    snprintf(config->stages[0].model, sizeof config->stages[0].model, "%.100s.detection",
             dashes ? dashes + 2 : name);
    snprintf(config->stages[1].model, sizeof config->stages[1].model, "%.100s.recognition", name);
    const enum status status = add_model(repository, folder, name, config, err);
    if (status != STATUS_OK)
        free(config);
    return status;
}

struct immich_folder {
    struct repository *repository;
    const char *name;
};

static enum status add_immich(void *context, const char *path, const char *entry, struct error *err)
{
    const struct immich_folder *task = context;
    struct repository *repository = task->repository;
    struct repository_model *twin = repository_find(repository, entry);
    if (!path_is_folder(path))
        return STATUS_OK;
    if (repository->count + 3 > MODELS_MAX)
        return refuse_more(path, entry, err);
    if (twin) {
        (void)!error_set(&twin->problem, STATUS_MODEL,
                         "two tasks have a model '%.100s'; rename or remove one of them", entry);
        return STATUS_OK;
    }
    if (!strcmp(task->name, "clip"))
        return add_halves(repository, path, entry, err);
    return add_stages_of(repository, path, entry, !strcmp(task->name, "ocr"), err);
}

static enum status scan_immich(struct repository *repository, const char *folder, struct error *err)
{
    static const char *const tasks[] = {"clip", "facial-recognition", "ocr"};
    uint64_t ignored;
    TRY(folder_signature(folder, &ignored, err)); /* the cache itself must exist */
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < COUNT_OF(tasks); i++) {
        char path[PATH_MAX];
        model_path(path, "%s/%s", folder, tasks[i]);
        if (path_is_folder(path))
            status = for_each_entry(path, add_immich, &(struct immich_folder){repository, tasks[i]},
                                    err);
    }
    return status;
}

static enum status scan_done(struct repository *found, bool sorts, enum status status,
                             struct repository *ret)
{
    if (status != STATUS_OK) {
        repository_done(found);
        return status;
    }
    if (sorts && found->count > 1)
        qsort(found->models, found->count, sizeof *found->models, compare_models);
    check_pipelines(found);
    *ret = *found;
    return STATUS_OK;
}

enum status repository_scan(const char *folder, bool is_immich, struct repository *ret,
                            struct error *err)
{
    struct repository repository = {.is_immich = is_immich};
    const enum status status = is_immich ? scan_immich(&repository, folder, err)
                                         : for_each_entry(folder, add_entry, &repository, err);
    return scan_done(&repository, true, status, ret);
}

/* Adds the models of a pipeline's stages. Omits models that do not exist. */
static enum status add_stages(struct repository *repository, struct error *err)
{
    const struct pipeline_config stages = *repository->models[0].stages;
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < stages.stage_count; i++) {
        struct stat info;
        const char *name = stages.stages[i].model;
        char *path = pipeline_stage_path(repository->models[0].path, &stages.stages[i]);
        TRY(check_memory(path, "while looking through a repository", err));
        if (!repository_find(repository, name) && stat(path, &info) == 0)
            status = add_model(repository, path, name, NULL, err);
        free(path);
    }
    return status;
}

enum status repository_scan_model(const char *path, const char *name, struct repository *ret,
                                  struct error *err)
{
    struct repository repository = {0};
    struct model_place place = {.name = "digits"};
    if (path)
        TRY(model_place_find(path, NULL, &place, err));
    enum status status = path ? add_halves(&repository, path, name ? name : place.name, err)
                              : add_model(&repository, NULL, name ? name : place.name, NULL, err);
    if (status == STATUS_OK && repository.models[0].stages)
        status = add_stages(&repository, err);
    return scan_done(&repository, false, status, ret);
}
