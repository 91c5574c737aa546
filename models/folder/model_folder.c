/* Where a model's files lie. Layouts, in the order they are tried:
 *
 *     FOLDER/pipeline.json         a pipeline of models in folders beside FOLDER
 *     FOLDER/visual/model.onnx     with textual/model.onnx: a model for photos and texts in two
 *                                  files (open_clip, Immich)
 *     FOLDER/vision_model.onnx     with text_model.onnx: likewise, also in onnx/ (transformers.js)
 *     FOLDER/encoder.onnx          with decoder.onnx: SAM's two halves; others: see halves[]
 *     FOLDER/model.onnx
 *     FOLDER/onnx/model.onnx       Hugging Face repositories with exported weights
 *     FOLDER/N/model.onnx          Triton: the highest N that has one
 *     FOLDER/anything.onnx         when there is exactly one
 *     anything.onnx                configurations are looked for beside it
 *     anything.onnx.text           the half for texts of a file with both halves, if a tokenizer
 *                                  lies beside it */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "models/folder/model_internal.h"
#include "models/folder/pipeline_config.h"
#include "models/onnx/access.h"

#define SIDE_FILE_MAX ((size_t)64 << 20)

void model_place_done(struct model_place *place)
{
    FREE_ALL(place->file, place->folders[0], place->folders[1], place->name, place->version);
    *place = (struct model_place){0};
}

/* Returns the last part of a path, malloc'ed, without trailing slashes and an ".onnx" ending. If
 * the path is "." or contains "..", it is the last part of the real path. */
static char *name_of_path(const char *path)
{
    char *real = realpath(path, NULL);
    const char *text = real && (!strcmp(path, ".") || strstr(path, "..")) ? real : path;
    size_t end = strlen(text);
    while (end > 1 && text[end - 1] == '/')
        end--;
    size_t start = end;
    while (start && text[start - 1] != '/')
        start--;
    if (end - start > 5 && !strncmp(text + end - 5, ".onnx", 5))
        end -= 5;
    char *name = end > start ? strndup(text + start, end - start) : strdup("model");
    free(real);
    return name;
}

static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* The result of listing a folder once. */
struct survey {
    char *only;       /* a *.onnx file, the last one found; NULL if there is none */
    size_t files;     /* *.onnx files */
    char *checkpoint; /* a file that is not ONNX: weights, or else config.json; or NULL */
    uint64_t version; /* highest N with N/model.onnx, or the wanted one */
    bool has_version;
};

bool model_version_number(const char *text, uint64_t *ret)
{
    uint64_t value = 0;
    if (!*text || strlen(text) > 15 || (text[0] == '0' && text[1]))
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    *ret = value;
    return true;
}

static bool ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), tail = strlen(ending);
    return length > tail && !strcmp(name + length - tail, ending);
}

/* True for weights of a framework that models/export/ supports, or a model in ORT format. */
static bool is_weights(const char *name)
{
    return ends_with(name, ".safetensors") || ends_with(name, ".pt") || ends_with(name, ".pth") ||
           ends_with(name, ".ckpt") || ends_with(name, ".ort") ||
           (!strncmp(name, "pytorch_model", 13) && ends_with(name, ".bin"));
}

/* Notes a checkpoint. Prefers weights to config.json, and among weights the first by name. */
static enum status note_checkpoint(const char *name, struct survey *survey, struct error *err)
{
    bool weights = is_weights(name), known = survey->checkpoint && is_weights(survey->checkpoint);
    if (!weights && (survey->checkpoint || strcmp(name, "config.json") != 0))
        return STATUS_OK;
    if (known && strcmp(survey->checkpoint, name) < 0)
        return STATUS_OK;
    free(survey->checkpoint);
    survey->checkpoint = strdup(name);
    return check_memory(survey->checkpoint, "while looking for a model", err);
}

static enum status survey_entry(const char *folder, const char *name, const char *wanted,
                                struct survey *survey, struct error *err)
{
    uint64_t version;
    char *path = path_join(folder, name);
    TRY(check_memory(path, "while looking for a model", err));
    const bool is_file = path_is_file(path);
    if (is_file && name[0] != '.' && ends_with(name, ".onnx")) {
        survey->files++;
        free(survey->only);
        survey->only = path;
        return STATUS_OK;
    }
    if (model_version_number(name, &version) && (!wanted || !strcmp(name, wanted)) &&
        folder_has_file(path, "model.onnx") &&
        (!survey->has_version || version > survey->version)) {
        survey->has_version = true;
        survey->version = version;
    }
    free(path);
    return is_file ? note_checkpoint(name, survey, err) : STATUS_OK;
}

static enum status survey_folder(const char *folder, const char *version, struct survey *survey,
                                 struct error *err)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return error_set(err, STATUS_IO, "cannot read the folder: %s%s", strerror(errno),
                         access_advice(folder, errno));
    enum status status = STATUS_OK;
    for (struct dirent *entry; status == STATUS_OK && (entry = readdir(dir));)
        status = survey_entry(folder, entry->d_name, version, survey, err);
    closedir(dir);
    return status;
}

static enum status nothing_found(const struct survey *survey, struct error *err)
{
    if (survey->files)
        return error_set(
            err, STATUS_NOT_FOUND,
            "no model: looked for model.onnx, onnx/model.onnx, N/model.onnx (Triton; no leading "
            "zeros) and a single *.onnx file, found %zu of those; name the .onnx file instead",
            survey->files);
    if (survey->checkpoint)
        return error_set(
            err, STATUS_NOT_FOUND, "no .onnx file, but %.80s: %s", survey->checkpoint,
            ends_with(survey->checkpoint, ".ort")
                ? "this is ONNX Runtime's own format; add the .onnx file that it was made from"
                : "export it to ONNX first (models/export/README.md)");
    return error_set(err, STATUS_NOT_FOUND,
                     "no model: looked for model.onnx, onnx/model.onnx, N/model.onnx (Triton; no "
                     "leading zeros) and a single *.onnx file, found none of those; export a model "
                     "to model.onnx in it, or serve a folder of model folders with --models");
}

/* Refuses a folder with pipeline.json and a model, because the folder's name can mean only one. */
static enum status refuse_second_model(const char *folder, struct error *err)
{
    if (folder_has_file(folder, "model.onnx"))
        return error_set(err, STATUS_MODEL,
                         "%.200s: there are both " PIPELINE_FILE
                         " and model.onnx; a pipeline names models of other folders, so move "
                         "model.onnx to a folder of its own beside this one",
                         folder);
    return STATUS_OK;
}

/* ---- two halves ---- */

/* The files of a model's halves in its folder. `photos` is the half for photos, `second` the half
 * for texts or SAM's mask decoder. */
static const struct {
    const char *photos, *second, *ending; /* `ending` is that of the second half's name */
} halves[] = {
    {"visual/model.onnx", "textual/model.onnx", MODEL_TEXT_ENDING},
    {"onnx/vision_model.onnx", "onnx/text_model.onnx", MODEL_TEXT_ENDING},
    {"vision_model.onnx", "text_model.onnx", MODEL_TEXT_ENDING},
    {"encoder.onnx", "decoder.onnx", MODEL_DECODER_ENDING},
    {"vision_encoder.onnx", "prompt_encoder_mask_decoder.onnx", MODEL_DECODER_ENDING},
    {"onnx/vision_encoder.onnx", "onnx/prompt_encoder_mask_decoder.onnx", MODEL_DECODER_ENDING}};

struct halves_found {
    bool tokens, photos, vectors;
};

static void note_name(void *context, bool is_output, const char *name)
{
    struct halves_found *found = context;
    enum text_input_kind kind;
    if (is_output)
        found->vectors = found->vectors || model_is_text_vector(name);
    else if (text_input_is_name(name, &kind))
        found->tokens = true;
    else
        found->photos = true;
}

bool model_has_tokenizer(const struct model_place *place)
{
    for (size_t f = 0; f < COUNT_OF(place->folders) && place->folders[f]; f++)
        for (size_t i = 0; tokenizer_file(i); i++)
            if (folder_has_file(place->folders[f], tokenizer_file(i)))
                return true;
    return false;
}

/* Finds the half for texts of a file that has both halves of a model. */
static enum status find_text_within(const char *path, char **ret, struct error *err)
{
    struct model_place place;
    struct error ignored;
    struct halves_found found = {false, false, false};
    if (model_place_find(path, NULL, &place, &ignored) != STATUS_OK)
        return STATUS_OK;
    if (!place.is_pipeline && !place.is_numbered && !place.is_half && model_has_tokenizer(&place))
        onnx_visit_names(place.file, note_name, &found);
    const bool is_there = found.tokens && found.photos && found.vectors;
    if (is_there && asprintf(ret, "%s" MODEL_TEXT_ENDING, place.file) < 0)
        *ret = NULL;
    model_place_done(&place);
    return is_there && !*ret ? error_no_memory(err, "while looking for a model") : STATUS_OK;
}

static void note_points(void *context, bool is_output, const char *name)
{
    bool *takes_points = context;
    if (!is_output && mask_prompt_input(name) == PROMPT_POINTS)
        *takes_points = true;
}

/* Finds the files of a model's halves in a folder, malloc'ed; NULL if there are none. */
static enum status find_pair(const char *folder, char **ret_photos, char **ret_second,
                             const char **ret_ending, struct error *err)
{
    *ret_photos = *ret_second = NULL;
    for (size_t i = 0; i < COUNT_OF(halves) && !*ret_second; i++) {
        char *photos = path_join(folder, halves[i].photos);
        char *second = path_join(folder, halves[i].second);
        const bool has_memory = photos && second;
        bool is_pair = has_memory && path_is_file(photos) && path_is_file(second);
        if (is_pair && !strcmp(halves[i].ending, MODEL_DECODER_ENDING)) {
            is_pair = false; /* other models have encoders and decoders, too */
            onnx_visit_names(second, note_points, &is_pair);
        }
        *ret_ending = halves[i].ending;
        *ret_photos = is_pair ? photos : NULL;
        *ret_second = is_pair ? second : NULL;
        if (!is_pair) {
            FREE_ALL(photos, second);
        }
        TRY(check_memory(has_memory, "while looking for a model", err));
    }
    return STATUS_OK;
}

enum status model_find_half(const char *folder, char **ret, const char **ret_ending,
                            struct error *err)
{
    char *photos;
    TRY(find_pair(folder, &photos, ret, ret_ending, err));
    free(photos);
    if (*ret)
        return STATUS_OK;
    *ret_ending = MODEL_TEXT_ENDING;
    return find_text_within(folder, ret, err);
}

/* Makes `file`, a half of the model in `folder`, the model of `place`. Configurations are beside
 * the file, or in `folder`. */
static enum status set_half(struct model_place *place, const char *file, const char *folder,
                            struct error *err)
{
    char *beside = parent_of(file), *whole = strdup(folder), *path = strdup(file);
    FREE_ALL(place->folders[0], place->file);
    place->file = path;
    place->is_half = true;
    place->folders[0] = beside;
    place->folders[1] = whole;
    TRY(check_memory(path && beside && whole, "while looking for a model", err));
    if (!strcmp(beside, whole)) {
        free(whole);
        place->folders[1] = NULL;
    }
    return STATUS_OK;
}

/* Chooses the half for photos, if the folder has both halves of a model. */
static enum status find_half(struct model_place *place, struct error *err)
{
    char *folder = strdup(place->folders[0]), *photos = NULL, *second = NULL;
    const char *ending;
    enum status status = folder ? find_pair(folder, &photos, &second, &ending, err)
                                : error_no_memory(err, "while looking for a model");
    if (photos) {
        status = set_half(place, photos, folder, err);
        place->is_encoder = !strcmp(ending, MODEL_DECODER_ENDING);
    }
    FREE_ALL(folder, photos, second);
    return status;
}

/* Refuses a folder that has only one half of a model. */
static enum status refuse_lone_half(const char *folder, struct error *err)
{
    for (size_t i = 0; i < COUNT_OF(halves); i++) {
        const char *const names[] = {halves[i].photos, halves[i].second};
        const bool has_photos = folder_has_file(folder, names[0]);
        const bool has_second = folder_has_file(folder, names[1]);
        if (has_photos != has_second)
            return error_set(err, STATUS_NOT_FOUND,
                             "there is %s, but no %s; add it, because this model has two halves",
                             names[has_second], names[has_photos]);
    }
    return STATUS_OK;
}

/* True if `path` is FOLDER/`ending`; then *ret_folder is malloc'ed (NULL: out of memory). */
static bool is_half_at(const char *path, const char *ending, char **ret_folder)
{
    const size_t size = strlen(path), tail = strlen(ending);
    const bool is_it = size >= tail && !strcmp(path + size - tail, ending) &&
                       (size == tail || path[size - tail - 1] == '/');
    if (is_it)
        *ret_folder = size == tail ? strdup(".") : strndup(path, size - tail - 1);
    return is_it;
}

/* If `path` is a model's second half, sets `place`, with the half's ending in place->name. */
static enum status name_second_half(struct model_place *place, const char *path, struct error *err)
{
    for (size_t i = 0; i < COUNT_OF(halves); i++) {
        char *folder, *found = NULL;
        const char *ending;
        if (!is_half_at(path, halves[i].second, &folder))
            continue;
        enum status status = folder ? model_find_half(folder, &found, &ending, err)
                                    : error_no_memory(err, "while looking for a model");
        if (found && !strcmp(found, path)) {
            char *name = name_of_path(folder);
            free(place->name);
            if (!name || asprintf(&place->name, "%s%s", name, ending) < 0)
                place->name = NULL;
            free(name);
            status = set_half(place, path, folder, err);
            place->makes_masks = !strcmp(ending, MODEL_DECODER_ENDING);
        }
        FREE_ALL(found, folder);
        return status;
    }
    return STATUS_OK;
}

static enum status set_file(struct model_place *place, const char *name, struct error *err)
{
    place->file = path_join(place->folders[0], name);
    return check_memory(place->file, "while looking for a model", err);
}

/* Tries the layouts; place->folders[0] is the folder itself. */
static enum status find_in_folder(struct model_place *place, const char *version, struct error *err)
{
    const char *folder = place->folders[0];
    struct survey survey = {0};
    place->is_pipeline = folder_has_file(folder, PIPELINE_FILE);
    if (place->is_pipeline) {
        TRY(refuse_second_model(folder, err));
        return set_file(place, PIPELINE_FILE, err);
    }
    TRY(find_half(place, err));
    if (place->is_half)
        return STATUS_OK;
    if (folder_has_file(folder, "model.onnx"))
        return set_file(place, "model.onnx", err);
    if (folder_has_file(folder, "onnx/model.onnx")) {
        place->folders[1] = path_join(folder, "onnx");
        TRY(check_memory(place->folders[1], "while looking for a model", err));
        return set_file(place, "onnx/model.onnx", err);
    }
    enum status status = survey_folder(folder, version, &survey, err);
    if (status == STATUS_OK && survey.has_version) {
        place->is_numbered = true;
        /* Files of a version override those of the model. */
        place->folders[1] = place->folders[0];
        if (asprintf(&place->folders[0], "%s/%llu", folder, (unsigned long long)survey.version) < 0)
            place->folders[0] = NULL;
        free(place->version); /* NOLINT(clang-analyzer-unix.Malloc): folders[1] keeps `folder` */
        if (asprintf(&place->version, "%llu", (unsigned long long)survey.version) < 0)
            place->version = NULL;
        status = place->folders[0] && place->version
                     ? set_file(place, "model.onnx", err)
                     : error_no_memory(err, "while looking for a model");
    } else if (status == STATUS_OK && survey.files == 1) {
        place->file = survey.only;
        survey.only = NULL;
    } else if (status == STATUS_OK) {
        status = refuse_lone_half(folder, err);
        IF_OK(status, nothing_found(&survey, err));
    }
    FREE_ALL(survey.only, survey.checkpoint);
    return status;
}

static enum status folder_find(const char *path, const char *version, struct model_place *place,
                               struct error *err)
{
    struct stat info;
    const bool is_there = stat(path, &info) == 0;
    const char *scheme = strstr(path, "://");
    if (!is_there && scheme && !memchr(path, '/', (size_t)(scheme - path)))
        return error_set(err, STATUS_CONFIG,
                         "models are read from files, not from the network; download it first, and "
                         "name the file");
    if (!is_there && !strncmp(path, "hf:", 3))
        return error_set(err, STATUS_CONFIG,
                         "models are read from files; download it first with lensd pull %.200s, "
                         "which prints its folder",
                         path);
    if (!is_there)
        return error_set(err, errno == ENOENT || errno == ENOTDIR ? STATUS_NOT_FOUND : STATUS_IO,
                         "%s%s",
                         errno == ENOENT ? "there is no such file or folder" : strerror(errno),
                         access_advice(path, errno));
    place->version = strdup("1");
    place->name = name_of_path(path);
    if (S_ISDIR(info.st_mode)) {
        size_t length = strlen(path);
        while (length > 1 && path[length - 1] == '/')
            length--;
        place->folders[0] = strndup(path, length);
        TRY(check_memory(place->folders[0] && place->version && place->name,
                         "while looking for a model", err));
        return find_in_folder(place, version, err);
    }
    place->file = strdup(path);
    place->folders[0] = parent_of(path);
    TRY(check_memory(place->file && place->folders[0] && place->version && place->name,
                     "while looking for a model", err));
    if (!strcmp(place->name, "model")) { /* the folder's name is more specific */
        free(place->name);
        place->name = name_of_path(place->folders[0]);
    }
    TRY(name_second_half(place, path, err));
    return check_memory(place->name, "while looking for a model", err);
}

/* Returns the path without MODEL_TEXT_ENDING, malloc'ed; NULL unless the result names a file. */
static char *file_of_text(const char *path)
{
    char *file = ends_with(path, MODEL_TEXT_ENDING) && !path_is_file(path)
                     ? strndup(path, strlen(path) - strlen(MODEL_TEXT_ENDING))
                     : NULL;
    if (file && path_is_file(file))
        return file;
    free(file);
    return NULL;
}

/* Makes `place`, whose file has both halves of a model, the place of the half for texts. */
static enum status want_texts(struct model_place *place, struct error *err)
{
    char *name = NULL;
    if (asprintf(&name, "%s" MODEL_TEXT_ENDING, place->name) < 0)
        return error_no_memory(err, "while looking for a model");
    free(place->name);
    place->name = name;
    place->wants_texts = true;
    return STATUS_OK;
}

enum status model_place_find(const char *path, const char *version, struct model_place *ret,
                             struct error *err)
{
    struct model_place place = {0};
    char *file = file_of_text(path);
    enum status status = folder_find(file ? file : path, version, &place, err);
    if (status == STATUS_OK && file)
        status = want_texts(&place, err);
    free(file);
    if (status != STATUS_OK) {
        model_place_done(&place);
        return error_prefix(err, "%.200s", path);
    }
    *ret = place;
    return STATUS_OK;
}

enum status model_find(const char *path, char **ret_file, char **ret_name, struct error *err)
{
    struct model_place place;
    struct error ignored;
    TRY(model_place_find(path, NULL, &place, err ? err : &ignored));
    *ret_file = place.file;
    *ret_name = place.name;
    place.file = place.name = NULL;
    model_place_done(&place);
    return STATUS_OK;
}

static enum status read_side(const char *folder, const char *name, char **ret, size_t *ret_size,
                             struct error *err)
{
    uint8_t *data;
    struct error cause;
    enum status status = file_read_beneath(folder, name, SIDE_FILE_MAX, &data, ret_size, &cause);
    if (status == STATUS_NOT_FOUND || status == STATUS_IO)
        return error_set(err, status, "%s%s", cause.message, access_advice(folder, errno));
    if (status == STATUS_INVALID)
        return error_set(err, STATUS_IO, "%s", cause.message);
    if (status == STATUS_TOO_LARGE)
        return error_set(err, STATUS_MODEL, "%zu bytes, more than lensd reads of such a file",
                         *ret_size);
    if (status == STATUS_NO_MEMORY)
        return error_no_memory(err, "while looking for a model");
    *ret = (char *)data;
    return STATUS_OK;
}

enum status side_file_open(const struct model_place *place, const char *name, struct side_file *ret,
                           struct error *err)
{
    for (size_t i = 0; i < COUNT_OF(place->folders) && place->folders[i]; i++) {
        *ret = (struct side_file){.path = path_join(place->folders[i], name)};
        TRY(check_memory(ret->path, "while looking for a model", err));
        enum status status = read_side(place->folders[i], name, &ret->text, &ret->size, err);
        if (status == STATUS_OK)
            return STATUS_OK;
        status = side_file_close(ret, status, err);
        if (status != STATUS_NOT_FOUND)
            return status;
    }
    const char *known = place->is_immich ? immich_file(place->file, name) : NULL;
    if (!known)
        return error_set(err, STATUS_NOT_FOUND, "no %s beside the model", name);
    char *text = strdup(known), *path = strdup(name);
    if (text && path) {
        *ret = (struct side_file){.text = text, .size = strlen(known), .path = path};
        return STATUS_OK;
    }
    FREE_ALL(text, path);
    return error_no_memory(err, "while looking for a model");
}

enum status side_json_open(const struct model_place *place, const char *name, struct side_file *ret,
                           struct error *err)
{
    TRY(side_file_open(place, name, ret, err));
    const enum status status = json_parse(ret->text, ret->size, &ret->json, err);
    return status == STATUS_OK ? status : side_file_close(ret, status, err);
}

enum status side_file_close(struct side_file *file, enum status status, struct error *err)
{
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        (void)error_prefix(err, "%.200s", file->path);
    cJSON_Delete(file->json);
    FREE_ALL(file->text, file->path);
    return status;
}

enum status model_side_folder(const struct model_place *place, const char *name, char **ret,
                              struct error *err)
{
    *ret = NULL;
    for (size_t i = 0; i < COUNT_OF(place->folders) && !*ret; i++) {
        char *path = place->folders[i] ? path_join(place->folders[i], name) : NULL;
        if (place->folders[i] && !path)
            return error_no_memory(err, "while looking for a model");
        if (path && path_is_folder(path))
            *ret = path;
        else
            free(path);
    }
    return STATUS_OK;
}
