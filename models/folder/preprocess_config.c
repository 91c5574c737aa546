/* Reads preprocessing from Hugging Face's preprocessor_config.json, the configurations of timm and
 * open_clip, and Ultralytics metadata, and adapts the settings to the size of a model's input. */
#include "models/folder/preprocess_config.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "models/folder/embedded.h"
#include "models/folder/model_internal.h"

/* ---- reading JSON ---- */

static enum status get_number(const cJSON *json, const char *key, double otherwise, double *ret,
                              struct error *err)
{
    const cJSON *item = json_get(json, key);
    if (item && (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)))
        return json_wrong(key, "a number", err);
    *ret = item ? item->valuedouble : otherwise;
    return STATUS_OK;
}

static bool as_pixels(const cJSON *item, int *ret)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 1) || item->valuedouble > 1e6)
        return false;
    *ret = (int)item->valuedouble;
    return true;
}

/* Reads one number for all channels, or one number per channel. If there is none, `ret` does not
 * change. */
static enum status get_channels(const cJSON *json, const char *key, float ret[3], struct error *err)
{
    const cJSON *item = json_get(json, key);
    int count = cJSON_IsArray(item) ? cJSON_GetArraySize(item) : 1;
    if (!item)
        return STATUS_OK;
    if (count != 1 && count != 3)
        return json_wrong(key, "a list of 3 numbers", err);
    for (int c = 0; c < 3; c++) {
        const cJSON *value =
            cJSON_IsArray(item) ? cJSON_GetArrayItem(item, count == 3 ? c : 0) : item;
        if (!cJSON_IsNumber(value))
            return json_wrong(key, "a list of 3 numbers", err);
        ret[c] = (float)value->valuedouble;
        if (!isfinite(ret[c]))
            return json_wrong(key, "a list of 3 finite numbers", err);
    }
    return STATUS_OK;
}

/* Reads a number of pixels, or a list of height and width. */
static bool as_sides(const cJSON *item, int *ret_height, int *ret_width)
{
    const bool is_list = cJSON_IsArray(item);
    const int second = cJSON_GetArraySize(item) > 1;
    return as_pixels(is_list ? cJSON_GetArrayItem(item, 0) : item, ret_height) &&
           as_pixels(is_list ? cJSON_GetArrayItem(item, second) : item, ret_width);
}

/* ---- Hugging Face ---- */

/* A size in any of Hugging Face's forms, in pixels; 0: not in the file. */
struct size_spec {
    bool given;
    int shortest, longest;
    int height, width;
    int max_height, max_width;
};

static enum status read_size(const cJSON *json, const char *key, struct size_spec *ret,
                             struct error *err)
{
    static const char expected[] =
        "a size in pixels: a number, {\"height\", \"width\"} or {\"shortest_edge\"}";
    const cJSON *item = json_get(json, key);
    const struct {
        const char *key;
        int *pixels;
    } edges[] = {{"height", &ret->height},          {"width", &ret->width},
                 {"shortest_edge", &ret->shortest}, {"longest_edge", &ret->longest},
                 {"max_height", &ret->max_height},  {"max_width", &ret->max_width}};
    *ret = (struct size_spec){.given = item != NULL};
    if (!item)
        return STATUS_OK;
    bool ok = true;
    if (cJSON_IsNumber(item) || cJSON_IsArray(item)) {
        ok = as_sides(item, &ret->height, &ret->width);
    } else {
        for (size_t i = 0; i < COUNT_OF(edges) && ok; i++)
            ok = !json_get(item, edges[i].key) ||
                 as_pixels(json_get(item, edges[i].key), edges[i].pixels);
        ok = ok && !ret->height == !ret->width && !ret->max_height == !ret->max_width &&
             (ret->height || ret->shortest || ret->longest || ret->max_height);
    }
    return ok ? STATUS_OK : json_wrong(key, expected, err);
}

/* Returns the name of the image processor's class in transformers. */
static const char *class_name(const cJSON *json)
{
    const cJSON *type = json_get(json, "image_processor_type");
    if (!cJSON_IsString(type))
        type = json_get(json, "feature_extractor_type");
    return cJSON_IsString(type) ? type->valuestring : NULL;
}

/* Returns a class's row in the table, or NULL. CLIPFeatureExtractor, CLIPImageProcessorFast and
 * CLIPImageProcessorPil have the row of CLIPImageProcessor. */
static const cJSON *class_defaults(const cJSON *table, const char *name)
{
    static const char *const ends[] = {"ImageProcessor", "FeatureExtractor"};
    const cJSON *row;
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        const char *end = strstr(name, ends[i]);
        cJSON_ArrayForEach(row, table)
        {
            const size_t length = strlen(row->string);
            if (end && (size_t)(end - name) == length && !strncmp(row->string, name, length))
                return row;
        }
    }
    return NULL;
}

/* Adds the keys that the file omits and transformers' class sets by default (processors.json, made
 * by tests/conformance/processor_table.py). Appends a remark if lensd does not support the class,
 * or only in part. */
static enum status add_class_defaults(cJSON *json, char *remarks, size_t capacity,
                                      struct error *err)
{
    const char *name = class_name(json);
    cJSON *table;
    const cJSON *item;
    enum status status = STATUS_OK;
    if (!name)
        return STATUS_OK;
    TRY(json_parse((const char *)processor_table, processor_table_size, &table, err));
    const cJSON *row = class_defaults(table, name), *inexact = json_get(row, "inexact");
    if (!row)
        text_append(remarks, capacity, "; ",
                    "lensd does not know the image processor %.60s: it uses the settings in the "
                    "file, without defaults of that class",
                    name);
    else if (inexact)
        text_append(remarks, capacity, "; ", "%.60s %s", name, inexact->valuestring);
    cJSON_ArrayForEach(item, row)
    {
        if (json_get(json, item->string))
            continue;
        cJSON *copy = cJSON_Duplicate(item, true);
        cJSON_DeleteItemFromObjectCaseSensitive(json, item->string); /* replaces a null */
        if (!copy || !cJSON_AddItemToObject(json, item->string, copy)) {
            cJSON_Delete(copy);
            status = error_no_memory(err, NULL);
            break;
        }
    }
    cJSON_Delete(table);
    return status;
}

static void resize_exact(struct preprocess *p, int width, int height)
{
    p->resize = RESIZE_EXACT;
    p->resize_width = p->width = width;
    p->resize_height = p->height = height;
}

static void resize_short(struct preprocess *p, int resize, int crop)
{
    p->resize = RESIZE_SHORT_SIDE;
    p->resize_short = resize;
    p->width = p->height = crop;
}

/* Reads how the crop's offset is rounded if the margin is odd. Default: down if the file names a
 * class of Hugging Face, else to the even pixel, as in torchvision. */
static enum status read_crop_rounding(const cJSON *json, struct preprocess *p, struct error *err)
{
    const cJSON *item = json_get(json, "crop_rounding");
    p->crop_floors = class_name(json) != NULL;
    if (!item)
        return STATUS_OK;
    const char *word = cJSON_IsString(item) ? item->valuestring : "";
    p->crop_floors = !strcmp(word, "down");
    return p->crop_floors || !strcmp(word, "even")
               ? STATUS_OK
               : json_wrong("crop_rounding", "\"even\" or \"down\"", err);
}

/* crop_pct: the short side is resized to side / crop_pct, then a square of `side` is cropped. If
 * `side` is at least "squash_from", the photo is resized to this square instead (ConvNeXT). */
static enum status read_crop_pct(const cJSON *json, int side, struct preprocess *p, bool *ret_given,
                                 struct error *err)
{
    double crop_pct = 0, squash_from = 0;
    TRY(get_number(json, "crop_pct", 0, &crop_pct, err));
    TRY(get_number(json, "squash_from", 0, &squash_from, err));
    *ret_given = json_get(json, "crop_pct") != NULL;
    if (!*ret_given)
        return STATUS_OK;
    if (!(crop_pct > 0.01 && crop_pct <= 1))
        return json_wrong("crop_pct", "a number above 0.01 and at most 1", err);
    if (squash_from > 0 && side >= squash_from)
        resize_exact(p, side, side);
    else
        resize_short(p, (int)(side / crop_pct), side);
    return STATUS_OK;
}

/* Keeps the aspect ratio and pads to `canvas` on the right and below, with the byte "pad_value" or
 * else with 0 after normalisation. */
static enum status read_padded(const cJSON *json, const struct size_spec *size,
                               const struct size_spec *canvas, struct preprocess *p,
                               struct error *err)
{
    double value = 0;
    TRY(get_number(json, "pad_value", 0, &value, err));
    resize_exact(p, canvas->width, canvas->height);
    p->resize = RESIZE_LETTERBOX;
    p->pads_corner = true;
    p->sides_floor = size->max_height > 0;
    p->pads_normalised = !json_get(json, "pad_value");
    p->pad_value = value >= 0 && value <= 255 ? (int)value : -1;
    return p->pad_value < 0 ? json_wrong("pad_value", "a byte, 0 to 255", err) : STATUS_OK;
}

/* Rounds both sides to multiples of DPT's "ensure_multiple_of", in pixels. */
static enum status round_sides(const cJSON *json, struct preprocess *p, struct error *err)
{
    double multiple = 1;
    TRY(get_number(json, "ensure_multiple_of", 1, &multiple, err));
    if (!(multiple >= 1 && multiple <= 1024) || multiple != floor(multiple))
        return json_wrong("ensure_multiple_of", "a number of pixels, 1 to 1024", err);
    const double width = fmax(1, rint(p->width / multiple)) * multiple;
    const double height = fmax(1, rint(p->height / multiple)) * multiple;
    resize_exact(p, (int)width, (int)height);
    return STATUS_OK;
}

static enum status read_resize(const cJSON *json, bool do_crop, const struct size_spec *size,
                               struct preprocess *p, struct error *err)
{
    const int short_side = size->shortest ? size->shortest : size->height;
    const int box_height = size->max_height ? size->max_height : size->longest;
    const int box_width = size->max_width ? size->max_width : size->longest;
    struct size_spec canvas;
    bool do_pad = false, special = false;
    TRY(json_flag(json, "do_pad", false, &do_pad, err));
    TRY(read_size(json, "pad_size", &canvas, err));
    if (short_side)
        TRY(read_crop_pct(json, short_side, p, &special, err));
    if (special)
        return STATUS_OK;
    if (!short_side && do_pad && canvas.given)
        return read_padded(json, size, &canvas, p, err);
    /* If the limits of the shortest and the longest edge are equal, each photo fits in a square. */
    if (do_pad && !do_crop && size->shortest && size->shortest == size->longest) {
        if (!canvas.given)
            canvas.width = canvas.height = size->longest;
        return read_padded(json, size, &canvas, p, err);
    }
    /* With upper limits the processor keeps the aspect ratio and makes images of any size. A batch
     * needs one size, so the whole photo is scaled to a fixed size. */
    if (size->shortest && (!size->longest || do_crop))
        resize_short(p, size->shortest, size->shortest);
    else if (short_side)
        resize_exact(p, size->shortest ? size->shortest : size->width, short_side);
    else
        resize_exact(p, box_width, box_height);
    return p->resize == RESIZE_EXACT ? round_sides(json, p, err) : STATUS_OK;
}

static enum status read_geometry(const cJSON *json, struct preprocess *p, struct error *err)
{
    bool do_resize = false, do_crop = false, to_square = false, crop_first = false, warps = false;
    struct size_spec size, crop;
    TRY(json_flag(json, "do_resize", true, &do_resize, err));
    TRY(json_flag(json, "do_center_crop", false, &do_crop, err));
    TRY(json_flag(json, "crop_first", false, &crop_first, err));
    TRY(json_flag(json, "do_affine_transform", false, &warps, err));
    TRY(json_flag(json, "default_to_square", true, &to_square, err));
    TRY(read_size(json, "size", &size, err));
    TRY(read_size(json, "crop_size", &crop, err));
    if (crop.shortest)
        crop.height = crop.width = crop.shortest;
    if (!to_square && cJSON_IsNumber(json_get(json, "size")))
        size.shortest = size.height;
    if (do_resize && size.given) {
        TRY(read_resize(json, do_crop, &size, p, err));
    } else {
        const struct size_spec *kept = crop.given ? &crop : &size;
        p->resize = do_resize && !crop.given ? RESIZE_EXACT : RESIZE_NONE;
        p->width = kept->shortest ? kept->shortest : kept->width;
        p->height = kept->shortest ? kept->shortest : kept->height;
    }
    if (warps && size.given) {
        resize_exact(p, size.width, size.height);
        p->resize = RESIZE_BODY;
    } else if (do_crop && crop_first && crop.given && size.height) {
        p->first_width = fmin(1, (double)size.width / crop.width);
        p->first_height = fmin(1, (double)size.height / crop.height);
    } else if (do_crop && crop.given) {
        p->width = crop.width;
        p->height = crop.height;
    }
    return STATUS_OK;
}

static enum status read_resample(const cJSON *json, struct preprocess *p, struct error *err)
{
    double resample = 0;
    TRY(get_number(json, "resample", RESAMPLE_BILINEAR, &resample, err));
    if (resample < RESAMPLE_NEAREST || resample > RESAMPLE_HAMMING || resample != floor(resample))
        return json_wrong("resample", "one of Pillow's filters, 0 to 5", err);
    p->resample = (enum resample)(int)resample;
    bool antialias = true;
    const char *word = cJSON_GetStringValue(json_get(json, "antialias"));
    const bool blurs = word && !strcmp(word, "gaussian");
    if (!blurs)
        TRY(json_flag(json, "antialias", true, &antialias, err));
    if (!blurs && (antialias || p->resample == RESAMPLE_NEAREST))
        return STATUS_OK;
    if (p->resample != RESAMPLE_BILINEAR)
        return json_wrong("antialias", "true, as it must be unless \"resample\" is 2, bilinear",
                          err);
    p->resample = blurs ? RESAMPLE_BLURRED : RESAMPLE_LINEAR;
    p->pads_square = blurs && cJSON_IsTrue(json_get(json, "do_pad")) && p->resize == RESIZE_EXACT &&
                     p->width == p->resize_width && p->height == p->resize_height;
    return STATUS_OK;
}

/* Reads y = (x * scale [- 1] - mean) / std; EfficientNet with include_top divides by std twice. */
static enum status read_values(const cJSON *json, struct preprocess *p, struct error *err)
{
    bool do_rescale = false, do_normalize = false, offset = false, again = false;
    double factor = 0;
    TRY(json_flag(json, "do_rescale", true, &do_rescale, err));
    TRY(json_flag(json, "do_normalize", true, &do_normalize, err));
    TRY(json_flag(json, "rescale_offset", false, &offset, err));
    TRY(json_flag(json, "include_top", false, &again, err));
    TRY(get_number(json, "rescale_factor", 1.0 / 255.0, &factor, err));
    if (do_rescale && !(factor > 0))
        return json_wrong("rescale_factor", "above 0", err);
    p->scale = do_rescale ? (float)factor : 1.0f;
    if (do_normalize) {
        TRY(get_channels(json, "image_mean", p->mean, err));
        TRY(get_channels(json, "image_std", p->std, err));
    }
    for (int c = 0; c < 3; c++) {
        p->mean[c] = do_normalize ? p->mean[c] : 0;
        p->std[c] = do_normalize ? p->std[c] : 1;
        if (p->std[c] == 0)
            return json_wrong("image_std", "different from 0", err);
        if (do_rescale && offset)
            p->mean[c] += 1.0f;
        if (again)
            p->std[c] *= p->std[c];
    }
    return STATUS_OK;
}

static enum status read_channels(const cJSON *json, struct preprocess *p, struct error *err)
{
    bool flip = false, flip_last = false, gray = false;
    TRY(json_flag(json, "do_flip_channel_order", false, &flip, err));
    TRY(json_flag(json, "flip_last", false, &flip_last, err));
    TRY(json_flag(json, "do_convert_grayscale", false, &gray, err));
    TRY(json_flag(json, "do_invert", false, &p->invert, err));
    p->channels = gray ? CHANNELS_GRAY : flip ? CHANNELS_BGR : CHANNELS_RGB;
    if (p->channels == CHANNELS_BGR && flip_last) { /* mean and std are in the order of RGB */
        const float mean = p->mean[0], std = p->std[0];
        p->mean[0] = p->mean[2];
        p->mean[2] = mean;
        p->std[0] = p->std[2];
        p->std[2] = std;
    }
    return STATUS_OK;
}

/* ---- remarks ---- */

/* A file may have millions of keys; transformers' files have fewer than 50. */
#define KEYS_COMPARED 1000

/* Adds remarks on settings that make images of several sizes; lensd makes only one. */
static void remark_sizes(const cJSON *json, char *ret, size_t capacity)
{
    const cJSON *size = json_get(json, "size");
    const cJSON *shortest = json_get(size, "shortest_edge"),
                *longest = json_get(size, "longest_edge");
    const bool pads = cJSON_IsTrue(json_get(json, "do_pad"));
    const bool has_both = pads && !cJSON_IsTrue(json_get(json, "do_center_crop")) &&
                          cJSON_IsNumber(shortest) && cJSON_IsNumber(longest);
    const bool varies = has_both && shortest->valueint != longest->valueint;
    const cJSON *canvas =
        has_both && !varies ? json_get(json_get(json, "pad_size"), "height") : NULL;
    const struct {
        bool is_set;
        const char *words;
    } remarks[] = {
        {varies, "\"do_pad\" with \"shortest_edge\" and \"longest_edge\" pads photos to the "
                 "largest of a batch; lensd resizes each to the model's size"},
        {cJSON_IsNumber(canvas) && canvas->valueint != longest->valueint,
         "lensd makes photos as large as \"pad_size\", not \"longest_edge\""},
        {cJSON_IsTrue(json_get(json, "keep_aspect_ratio")),
         "\"keep_aspect_ratio\" makes photos of any size; lensd resizes each to the model's size"},
        {pads && cJSON_IsNumber(json_get(json, "size_divisor")) &&
             json_get(json, "size_divisor")->valueint > 1,
         "lensd does not pad to multiples of \"size_divisor\""},
    };
    for (size_t i = 0; i < COUNT_OF(remarks); i++)
        if (remarks[i].is_set)
            text_append(ret, capacity, "; ", "%s", remarks[i].words);
}

/* Adds remarks on keys that look like misspellings of missing keys. */
static void remark_keys(const cJSON *json, char *ret, size_t capacity)
{
    static const char *const keys[] = {
        "size",        "crop_size", "do_resize",      "do_center_crop",
        "do_rescale",  "do_pad",    "rescale_factor", "do_normalize",
        "image_mean",  "image_std", "resample",       "rescale_offset",
        "include_top", "crop_pct",  "pad_size",       "do_flip_channel_order",
        "do_invert",   "pad_value", "crop_rounding",  "do_convert_grayscale",
        "antialias",
    };
    const cJSON *item = json->child;
    bool has[COUNT_OF(keys)];
    for (size_t k = 0; k < COUNT_OF(keys); k++)
        has[k] = json_get(json, keys[k]);
    for (size_t left = KEYS_COMPARED; item && left > 0; item = item->next, left--)
        for (size_t k = 0; item->string && k < COUNT_OF(keys); k++)
            if (!has[k] && text_distance(item->string, keys[k]) == 1)
                text_append(ret, capacity, "; ", "unknown key \"%.40s\": did you mean \"%s\"?",
                            item->string, keys[k]);
}

/* ---- timm ---- */

static enum status read_interpolation(const cJSON *cfg, struct preprocess *p, struct error *err)
{
    static const struct {
        const char *word;
        enum resample resample;
    } words[] = {
        {"nearest", RESAMPLE_NEAREST},   {"lanczos", RESAMPLE_LANCZOS},
        {"bilinear", RESAMPLE_BILINEAR}, {"bicubic", RESAMPLE_BICUBIC},
        {"box", RESAMPLE_BOX},           {"hamming", RESAMPLE_HAMMING},
        {"random", RESAMPLE_BILINEAR},
    };
    const cJSON *item = json_get(cfg, "interpolation");
    const char *word = cJSON_IsString(item) ? item->valuestring : "bilinear";
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (!strcmp(words[i].word, word)) {
            p->resample = words[i].resample;
            return STATUS_OK;
        }
    }
    return json_wrong("interpolation", "a filter lensd knows (bilinear, bicubic, nearest, …)", err);
}

static enum status read_timm_geometry(const cJSON *cfg, struct preprocess *p, struct error *err)
{
    const cJSON *input = json_get(cfg, "input_size"), *mode = json_get(cfg, "crop_mode");
    double crop_pct = 0;
    int width, height;
    if (!cJSON_IsArray(input) || cJSON_GetArraySize(input) != 3 ||
        !as_pixels(cJSON_GetArrayItem(input, 1), &height) ||
        !as_pixels(cJSON_GetArrayItem(input, 2), &width))
        return json_wrong("input_size", "a list of channels, height and width", err);
    TRY(get_number(cfg, "crop_pct", 0.875, &crop_pct, err));
    if (!(crop_pct > 0.01 && crop_pct <= 1))
        return json_wrong("crop_pct", "a number above 0.01 and at most 1", err);
    int resize_width = (int)floor(width / crop_pct), resize_height = (int)floor(height / crop_pct);
    const char *word = cJSON_IsString(mode) ? mode->valuestring : "center";
    if (!strcmp(word, "border")) {
        p->resize = RESIZE_LETTERBOX;
        p->pad_value = (int)lroundf(255.0f * (p->mean[0] + p->mean[1] + p->mean[2]) / 3.0f);
        p->pad_value = p->pad_value < 0 ? 0 : p->pad_value > 255 ? 255 : p->pad_value;
    } else if (!strcmp(word, "squash") || width != height) {
        p->resize = RESIZE_EXACT;
    } else if (!strcmp(word, "center")) {
        p->resize = RESIZE_SHORT_SIDE;
        p->resize_short = resize_width;
    } else {
        return json_wrong("crop_mode", "center, squash or border", err);
    }
    p->resize_width = resize_width;
    p->resize_height = resize_height;
    p->width = width;
    p->height = height;
    return STATUS_OK;
}

enum status preprocess_from_timm(cJSON *json, struct preprocess *p,
                                 char remarks[static PREPROCESS_REMARKS], struct error *err)
{
    (void)remarks;
    const cJSON *cfg = json_get(json, "pretrained_cfg");
    if (!cfg)
        cfg = json_get(json, "input_size") ? json : NULL;
    if (!cJSON_IsObject(cfg))
        return error_set(err, STATUS_NOT_FOUND, "the file has no \"pretrained_cfg\"");
    preprocess_default(p);
    TRY(get_channels(cfg, "mean", p->mean, err));
    TRY(get_channels(cfg, "std", p->std, err));
    TRY(read_timm_geometry(cfg, p, err));
    const cJSON *input = json_get(cfg, "input_size");
    if (cJSON_GetArrayItem(input, 0)->valuedouble == 1)
        p->channels = CHANNELS_GRAY;
    return read_interpolation(cfg, p, err);
}

enum status preprocess_from_huggingface(cJSON *json, struct preprocess *p,
                                        char remarks[static PREPROCESS_REMARKS], struct error *err)
{
    struct error ignored;
    remark_keys(json, remarks, PREPROCESS_REMARKS);
    /* timm's wrapper in transformers writes its own keys into the same file. */
    if (preprocess_from_timm(json, p, remarks, &ignored) == STATUS_OK)
        return STATUS_OK;
    if (!cJSON_IsObject(json))
        return error_set(err, STATUS_MODEL, "the file is not a JSON object");
    TRY(add_class_defaults(json, remarks, PREPROCESS_REMARKS, err));
    if (!remarks[0])
        remark_sizes(json, remarks, PREPROCESS_REMARKS);
    preprocess_default(p);
    TRY(read_geometry(json, p, err));
    TRY(read_crop_rounding(json, p, err));
    TRY(read_resample(json, p, err));
    TRY(read_values(json, p, err));
    return read_channels(json, p, err);
}

/* ---- open_clip, Immich ---- */

enum status preprocess_from_open_clip(cJSON *json, struct preprocess *p,
                                      char remarks[static PREPROCESS_REMARKS], struct error *err)
{
    (void)remarks;
    const cJSON *size = json_get(json, "size"), *mode = json_get(json, "resize_mode");
    const char *word = cJSON_IsString(mode) ? mode->valuestring : "shortest";
    preprocess_default(p);
    if (!as_sides(size, &p->height, &p->width))
        return json_wrong("size", "a number of pixels, or a list of height and width", err);
    TRY(get_channels(json, "mean", p->mean, err));
    TRY(get_channels(json, "std", p->std, err));
    if (strcmp(word, "shortest") != 0 && strcmp(word, "squash") != 0)
        return json_wrong("resize_mode", "shortest or squash", err);
    p->resize = !strcmp(word, "squash") ? RESIZE_EXACT : RESIZE_SHORT_SIDE;
    p->resize_width = p->width;
    p->resize_height = p->height;
    p->resize_short = p->width < p->height ? p->width : p->height;
    return read_interpolation(json, p, err);
}

void preprocess_as_immich(struct preprocess *p)
{
    p->resize = RESIZE_SHORT_SIDE;
    p->crop_floors = true;
}

/* ---- Ultralytics ---- */

enum status preprocess_from_metadata(const char *size, const char *task, struct preprocess *ret,
                                     struct error *err)
{
    if (!size)
        return error_set(err, STATUS_NOT_FOUND, "the file's metadata has no imgsz");
    /* "[640, 640]", height first, is also valid JSON. */
    cJSON *json = cJSON_Parse(size);
    int height = 0, width = 0;
    const bool ok = as_sides(json, &height, &width);
    cJSON_Delete(json);
    if (!ok)
        return error_set(err, STATUS_MODEL, "metadata: imgsz '%.60s' is not [height, width]", size);
    struct preprocess p;
    preprocess_default(&p);
    for (int c = 0; c < 3; c++) {
        p.mean[c] = 0;
        p.std[c] = 1;
    }
    if (task && !strcmp(task, "classify") && width == height) {
        resize_short(&p, width, width);
    } else {
        resize_exact(&p, width, height);
        p.resize = task && !strcmp(task, "classify") ? RESIZE_EXACT : RESIZE_LETTERBOX;
        p.resample = p.resize == RESIZE_LETTERBOX ? RESAMPLE_LINEAR : RESAMPLE_BILINEAR;
    }
    *ret = p;
    return STATUS_OK;
}

/* ---- fitting ---- */

static int by_ratio(int pixels, int from, int to)
{
    double value = (double)pixels * to / from;
    return value < 1 ? 1 : value > 1e6 ? 1000000 : (int)lround(value);
}

bool preprocess_fit(struct preprocess *p, int width, int height)
{
    if (p->width == width && p->height == height)
        return false;
    if (p->width == 0) { /* neither the folder nor a default sets a size */
        p->width = p->resize_width = p->resize_short = width;
        p->height = p->resize_height = height;
        if (p->resize == RESIZE_SHORT_SIDE && width != height)
            p->resize = RESIZE_EXACT;
        return true;
    }
    const int from_width = p->width, from_height = p->height;
    switch (p->resize) {
    case RESIZE_NONE:
        break;
    case RESIZE_SHORT_SIDE:
        if (width == height && from_width == from_height) {
            p->resize_short = by_ratio(p->resize_short, from_width, width);
            break;
        }
        /* A short side has no meaning for another aspect ratio, so it is not kept. */
        p->resize = RESIZE_EXACT;
        p->resize_width = width;
        p->resize_height = height;
        break;
    case RESIZE_EXACT:
    case RESIZE_LETTERBOX:
    case RESIZE_BODY:
        p->resize_width = by_ratio(p->resize_width, from_width, width);
        p->resize_height = by_ratio(p->resize_height, from_height, height);
        break;
    }
    p->width = width;
    p->height = height;
    return true;
}
