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
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "models/folder/embedded.h"
#include "models/folder/model_internal.h"
#include "models/folder/pipeline_config.h"
#include "models/onnx/access.h"

#define SIDE_FILE_MAX ((size_t)64 << 20)

void model_path(char to[static PATH_MAX], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (vsnprintf(to, PATH_MAX, format, args) >= PATH_MAX)
        to[0] = '\0';
    va_end(args);
}

/* Writes the last part of a path, without trailing slashes and an ".onnx" ending. If the path is
 * "." or contains "..", writes the last part of the real path. */
static void name_of_path(const char *path, char ret[static MODEL_PLACE_NAME])
{
    char real[PATH_MAX];
    if ((!strcmp(path, ".") || strstr(path, "..")) && realpath(path, real))
        path = real;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start && path[start - 1] != '/')
        start--;
    if (end - start > 5 && !strncmp(path + end - 5, ".onnx", 5))
        end -= 5;
    snprintf(ret, MODEL_PLACE_NAME, "%.*s", end > start ? (int)(end - start) : 5,
             end > start ? path + start : "model");
}

/* The result of listing a folder once. */
struct survey {
    char only[PATH_MAX]; /* the *.onnx file that was found last */
    size_t files;        /* *.onnx files */
    char
        checkpoint[NAME_MAX + 1]; /* a file that is not ONNX: weights, or else config.json; or "" */
    uint64_t version;             /* the highest N with N/model.onnx, or the wanted N */
    bool has_version;
};

bool model_version_number(const char *text, uint64_t *ret)
{
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 15 || text[digits] || (text[0] == '0' && digits > 1))
        return false;
    *ret = strtoull(text, NULL, 10);
    return true;
}

/* True for weights of a framework that models/export/ supports, or a model in ORT format. */
static bool is_weights(const char *name)
{
    return text_ends(name, ".safetensors") || text_ends(name, ".pt") || text_ends(name, ".pth") ||
           text_ends(name, ".ckpt") || text_ends(name, ".ort") ||
           (!strncmp(name, "pytorch_model", 13) && text_ends(name, ".bin"));
}

/* Notes a checkpoint. Prefers weights to config.json, and among weights the first by name. */
static void note_checkpoint(const char *name, struct survey *survey)
{
    const bool weights = is_weights(name), is_first = !survey->checkpoint[0];
    if (weights
            ? is_first || !is_weights(survey->checkpoint) || strcmp(name, survey->checkpoint) < 0
            : is_first && !strcmp(name, "config.json"))
        snprintf(survey->checkpoint, sizeof survey->checkpoint, "%s", name);
}

static void survey_entry(const char *folder, const char *name, const char *wanted,
                         struct survey *survey)
{
    uint64_t version;
    char path[PATH_MAX];
    model_path(path, "%s/%s", folder, name);
    const bool is_file = path_is_file(path);
    if (is_file && name[0] != '.' && text_ends(name, ".onnx")) {
        survey->files++;
        memcpy(survey->only, path, sizeof path);
    } else if (is_file) {
        note_checkpoint(name, survey);
    } else if (model_version_number(name, &version) && (!wanted || !strcmp(name, wanted)) &&
               folder_has_file(path, "model.onnx") &&
               (!survey->has_version || version > survey->version)) {
        survey->has_version = true;
        survey->version = version;
    }
}

static enum status survey_folder(const char *folder, const char *version, struct survey *survey,
                                 struct error *err)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return error_set(err, STATUS_IO, "cannot read the folder: %s%s", strerror(errno),
                         access_advice(folder, errno));
    for (struct dirent *entry; (entry = readdir(dir));)
        survey_entry(folder, entry->d_name, version, survey);
    closedir(dir);
    return STATUS_OK;
}

static enum status nothing_found(const struct survey *survey, struct error *err)
{
    if (!survey->files && survey->checkpoint[0])
        return error_set(
            err, STATUS_NOT_FOUND, "no .onnx file, but %.80s: %s", survey->checkpoint,
            text_ends(survey->checkpoint, ".ort")
                ? "this is ONNX Runtime's own format; add the .onnx file that it was made from"
                : "export it to ONNX first (models/export/README.md)");
    return error_set(err, STATUS_NOT_FOUND,
                     "no model: looked for model.onnx, onnx/model.onnx, N/model.onnx (Triton; no "
                     "leading zeros) and a single *.onnx file, found %zu of those; %s",
                     survey->files,
                     survey->files ? "name the .onnx file instead"
                                   : "export a model to model.onnx in it, or serve a folder of "
                                     "model folders with --models");
}

/* ---- two halves ---- */

/* The files of a model's halves in its folder. `photos` is the half for photos, `second` the half
 * for texts or SAM's mask decoder. */
static const struct half_files {
    const char *photos, *second, *ending; /* `ending` is added to the second half's name */
} halves[] = {
    {"visual/model.onnx", "textual/model.onnx", MODEL_TEXT_ENDING},
    {"onnx/vision_model.onnx", "onnx/text_model.onnx", MODEL_TEXT_ENDING},
    {"vision_model.onnx", "text_model.onnx", MODEL_TEXT_ENDING},
    {"encoder.onnx", "decoder.onnx", MODEL_DECODER_ENDING},
    {"vision_encoder.onnx", "prompt_encoder_mask_decoder.onnx", MODEL_DECODER_ENDING},
    {"onnx/vision_encoder.onnx", "onnx/prompt_encoder_mask_decoder.onnx", MODEL_DECODER_ENDING}};

/* What the names of a file's inputs and outputs show. */
struct halves_found {
    bool tokens, photos, vectors, points;
};

static void note_name(void *context, bool is_output, const char *name)
{
    struct halves_found *found = context;
    if (is_output)
        found->vectors = found->vectors || model_is_text_vector(name);
    else if (text_input_named(name))
        found->tokens = true;
    else
        found->photos = true;
    found->points |= !is_output && mask_prompt_input(name) == PROMPT_POINTS;
}

bool model_has_tokenizer(const struct model_place *place)
{
    for (size_t f = 0; f < COUNT_OF(place->folders) && place->folders[f][0]; f++)
        for (size_t i = 0; tokenizer_file(i); i++)
            if (folder_has_file(place->folders[f], tokenizer_file(i)))
                return true;
    return false;
}

/* Finds the half for texts of a file that has both halves of a model. */
static bool find_text_within(const char *path, char ret[static PATH_MAX])
{
    struct model_place place;
    struct error ignored;
    struct halves_found found = {0};
    if (model_place_find(path, NULL, &place, &ignored) != STATUS_OK || place.is_pipeline ||
        place.is_numbered || place.is_half || !model_has_tokenizer(&place))
        return false;
    onnx_visit_names(place.file, note_name, &found);
    if (!found.tokens || !found.photos || !found.vectors)
        return false;
    model_path(ret, "%s" MODEL_TEXT_ENDING, place.file);
    return true;
}

/* Returns the names of the files of a model's halves in a folder; NULL if there are none. */
static const struct half_files *find_pair(const char *folder)
{
    for (size_t i = 0; i < COUNT_OF(halves); i++) {
        char second[PATH_MAX];
        model_path(second, "%s/%s", folder, halves[i].second);
        struct halves_found found = {0};
        if (!folder_has_file(folder, halves[i].photos) || !path_is_file(second))
            continue;
        const bool is_decoder = !strcmp(halves[i].ending, MODEL_DECODER_ENDING);
        if (is_decoder) /* other models have encoders and decoders, too */
            onnx_visit_names(second, note_name, &found);
        if (!is_decoder || found.points)
            return &halves[i];
    }
    return NULL;
}

bool model_find_half(const char *folder, char ret[static PATH_MAX], const char **ret_ending)
{
    const struct half_files *pair = find_pair(folder);
    *ret_ending = pair ? pair->ending : MODEL_TEXT_ENDING;
    if (!pair)
        return find_text_within(folder, ret);
    model_path(ret, "%s/%s", folder, pair->second);
    return true;
}

/* Sets place->file to NAME in folders[0], one half of a model. The file's own folder becomes
 * folders[0], and the former folders[0] becomes folders[1]. */
static void set_half(struct model_place *place, const char *name)
{
    memcpy(place->folders[1], place->folders[0], PATH_MAX);
    model_path(place->file, "%s/%s", place->folders[1], name);
    path_folder(place->file, place->folders[0]);
    place->is_half = true;
    if (!strcmp(place->folders[0], place->folders[1]))
        place->folders[1][0] = '\0';
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

/* True if `path` is FOLDER/`ending`; then `ret` is the folder. */
static bool is_half_at(const char *path, const char *ending, char ret[static PATH_MAX])
{
    const size_t size = strlen(path), tail = strlen(ending);
    if (size < tail || strcmp(path + size - tail, ending) != 0 ||
        (size > tail && path[size - tail - 1] != '/'))
        return false;
    model_path(ret, "%.*s", size == tail ? 1 : (int)(size - tail - 1), size == tail ? "." : path);
    return true;
}

/* If `path` is a model's second half, sets `place`, with the half's ending in place->name. */
static void name_second_half(struct model_place *place, const char *path)
{
    char folder[PATH_MAX], name[MODEL_PLACE_NAME];
    size_t i = 0;
    while (i < COUNT_OF(halves) && !is_half_at(path, halves[i].second, folder))
        i++;
    if (i == COUNT_OF(halves) || find_pair(folder) != &halves[i])
        return;
    name_of_path(folder, name);
    snprintf(place->name, sizeof place->name, "%.250s%s", name, halves[i].ending);
    memcpy(place->folders[0], folder, sizeof folder);
    set_half(place, halves[i].second);
    place->makes_masks = !strcmp(halves[i].ending, MODEL_DECODER_ENDING);
}

/* Tries the layouts; place->folders[0] is the folder itself. */
static enum status find_in_folder(struct model_place *place, const char *version, struct error *err)
{
    const char *folder = place->folders[0];
    struct survey survey = {.files = 0};
    place->is_pipeline = folder_has_file(folder, PIPELINE_FILE);
    if (place->is_pipeline && folder_has_file(folder, "model.onnx"))
        return error_set(err, STATUS_MODEL,
                         "there are both " PIPELINE_FILE
                         " and model.onnx; a pipeline names models of other folders, so move "
                         "model.onnx to a folder of its own beside this one");
    if (place->is_pipeline) {
        model_path(place->file, "%s/" PIPELINE_FILE, folder);
        return STATUS_OK;
    }
    const struct half_files *pair = find_pair(folder);
    if (pair) {
        place->is_encoder = !strcmp(pair->ending, MODEL_DECODER_ENDING);
        set_half(place, pair->photos);
        return STATUS_OK;
    }
    if (folder_has_file(folder, "model.onnx")) {
        model_path(place->file, "%s/model.onnx", folder);
        return STATUS_OK;
    }
    if (folder_has_file(folder, "onnx/model.onnx")) {
        model_path(place->folders[1], "%s/onnx", folder);
        model_path(place->file, "%s/onnx/model.onnx", folder);
        return STATUS_OK;
    }
    TRY(survey_folder(folder, version, &survey, err));
    if (survey.has_version) {
        place->is_numbered = true;
        snprintf(place->version, sizeof place->version, "%" PRIu64, survey.version);
        /* Files of a version override those of the model. */
        memcpy(place->folders[1], folder, PATH_MAX);
        model_path(place->folders[0], "%s/%s", place->folders[1], place->version);
        model_path(place->file, "%s/model.onnx", place->folders[0]);
        return STATUS_OK;
    }
    if (survey.files == 1) {
        memcpy(place->file, survey.only, sizeof survey.only);
        return STATUS_OK;
    }
    TRY(refuse_lone_half(folder, err));
    return nothing_found(&survey, err);
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
    name_of_path(path, place->name);
    if (S_ISDIR(info.st_mode)) {
        size_t length = strlen(path);
        while (length > 1 && path[length - 1] == '/')
            length--;
        model_path(place->folders[0], "%.*s", (int)length, path);
        return find_in_folder(place, version, err);
    }
    model_path(place->file, "%s", path);
    path_folder(path, place->folders[0]);
    if (!strcmp(place->name, "model")) /* the folder's name is more specific */
        name_of_path(place->folders[0], place->name);
    name_second_half(place, path);
    return STATUS_OK;
}

enum status model_place_find(const char *path, const char *version, struct model_place *ret,
                             struct error *err)
{
    char file[PATH_MAX] = "";
    *ret = (struct model_place){.version = "1"};
    if (text_ends(path, MODEL_TEXT_ENDING) && !path_is_file(path))
        model_path(file, "%.*s", (int)(strlen(path) - strlen(MODEL_TEXT_ENDING)), path);
    /* The path may name the half for texts of a file that has both halves. */
    ret->wants_texts = path_is_file(file);
    if (folder_find(ret->wants_texts ? file : path, version, ret, err) != STATUS_OK)
        return error_prefix(err, "%.200s", path);
    if (ret->wants_texts)
        text_append(ret->name, sizeof ret->name, "", MODEL_TEXT_ENDING);
    return STATUS_OK;
}

enum status model_find(const char *path, char ret_file[static PATH_MAX],
                       char ret_name[static MODEL_PLACE_NAME], struct error *err)
{
    struct model_place place;
    TRY(model_place_find(path, NULL, &place, err));
    memcpy(ret_file, place.file, sizeof place.file);
    memcpy(ret_name, place.name, sizeof place.name);
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

/* True if a path ends in TASK/NAME/PART/model.onnx. */
static bool is_part(const char *path, const char *task, const char *part)
{
    const char *ends[4] = {NULL}; /* where the last four names begin; ends[0]: the last name */
    size_t count = 0;
    for (const char *at = path + strlen(path); at > path && count < COUNT_OF(ends); at--)
        if (at[-1] == '/' || at == path + 1)
            ends[count++] = at[-1] == '/' ? at : path;
    return count == COUNT_OF(ends) && !strncmp(ends[3], task, strlen(task)) &&
           ends[3][strlen(task)] == '/' && !strncmp(ends[1], part, strlen(part)) &&
           ends[1][strlen(part)] == '/';
}

/* Returns the static text of a configuration file that models in Immich's cache lack, by the
 * model's path, such as "/cache/ocr/PP-OCRv5_mobile/detection/model.onnx". Immich's service has
 * these files in its code. NULL: there is none. */
static const char *immich_file(const char *path, const char *name)
{
    static const struct {
        const char *task, *part, *name, *text;
    } files[] = {
        {"facial-recognition", "recognition", "lensd.json", "{\"task\": \"embedding\"}"},
        {"facial-recognition", "recognition", "preprocessor_config.json",
         "{\"size\": {\"height\": 112, \"width\": 112}, \"image_mean\": [0.5, 0.5, 0.5], "
         "\"image_std\": [0.5, 0.5, 0.5]}"},
        /* Immich's settings of rapidocr */
        {"ocr", "detection", "lensd.json",
         "{\"task\": \"text-detection\", \"confidence\": 0.5, \"unclip_ratio\": 1.6, "
         "\"use_dilation\": true}"},
        /* saves memory: pages are large, and Immich sends one at a time */
        {"ocr", "detection", "config.pbtxt", "max_batch_size: 1"},
        {"ocr", "recognition", "config.pbtxt", "max_batch_size: 4"},
        {"ocr", "detection", "preprocessor_config.json",
         "{\"size\": {\"height\": 736, \"width\": 992}, \"do_flip_channel_order\": true, "
         "\"resample\": 1, \"image_mean\": [0.5, 0.5, 0.5], \"image_std\": [0.5, 0.5, 0.5]}"},
    };
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if (!strcmp(files[i].name, name) && is_part(path, files[i].task, files[i].part))
            return files[i].text;
    return NULL;
}

static const char *embedded_file(const char *name)
{
    return !strcmp(name, "labels.txt")                 ? (const char *)digits_labels
           : !strcmp(name, "preprocessor_config.json") ? (const char *)digits_preprocessor
                                                       : NULL;
}

enum status side_file_open(const struct model_place *place, const char *name, struct side_file *ret,
                           struct error *err)
{
    for (size_t i = 0; i < COUNT_OF(place->folders) && place->folders[i][0]; i++) {
        *ret = (struct side_file){.text = NULL};
        model_path(ret->path, "%s/%s", place->folders[i], name);
        enum status status = read_side(place->folders[i], name, &ret->text, &ret->size, err);
        if (status == STATUS_OK)
            return STATUS_OK;
        if (status != STATUS_NOT_FOUND)
            return side_file_close(ret, status, err);
    }
    const char *known = place->is_immich     ? immich_file(place->file, name)
                        : place->is_embedded ? embedded_file(name)
                                             : NULL;
    if (!known)
        return error_set(err, STATUS_NOT_FOUND, "no %s beside the model", name);
    *ret = (struct side_file){.text = strdup(known), .size = strlen(known)};
    model_path(ret->path, "%s", name);
    return check_memory(ret->text, "while looking for a model", err);
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
    free(file->text);
    return status;
}
