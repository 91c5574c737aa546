/* Reads preprocessing from Hugging Face's preprocessor_config.json, timm's configuration and
 * Ultralytics metadata, and fits it to the size of a model's input. */
#include "models/folder/preprocess_config.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"

/* ---- reading JSON ---- */

static enum status bad_key(const char *key, const char *expected, struct error *err)
{
    return error_set(err, STATUS_MODEL, "\"%s\" is not %s", key, expected);
}

/* NULL where the key is missing or null. */
static const cJSON *get(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNull(item) ? NULL : item;
}

static enum status get_bool(const cJSON *json, const char *key, bool otherwise, bool *ret,
                            struct error *err)
{
    const cJSON *item = get(json, key);
    if (item && !cJSON_IsBool(item))
        return bad_key(key, "true or false", err);
    *ret = item ? cJSON_IsTrue(item) : otherwise;
    return STATUS_OK;
}

static enum status get_number(const cJSON *json, const char *key, double otherwise, double *ret,
                              struct error *err)
{
    const cJSON *item = get(json, key);
    if (item && (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)))
        return bad_key(key, "a number", err);
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

/* One number for all channels, or one each. */
static enum status get_channels(const cJSON *json, const char *key, const float otherwise[3],
                                float ret[3], struct error *err)
{
    const cJSON *item = get(json, key);
    int count = cJSON_IsArray(item) ? cJSON_GetArraySize(item) : 1;
    if (!item) {
        memcpy(ret, otherwise, 3 * sizeof *ret);
        return STATUS_OK;
    }
    if (count != 1 && count != 3)
        return bad_key(key, "a list of 3 numbers", err);
    for (int c = 0; c < 3; c++) {
        const cJSON *value =
            cJSON_IsArray(item) ? cJSON_GetArrayItem(item, count == 3 ? c : 0) : item;
        if (!cJSON_IsNumber(value))
            return bad_key(key, "a list of 3 numbers", err);
        ret[c] = (float)value->valuedouble;
        if (!isfinite(ret[c]))
            return bad_key(key, "a list of 3 finite numbers", err);
    }
    return STATUS_OK;
}

/* ---- Hugging Face ---- */

/* A size in any of its spellings. */
struct size_spec {
    bool given;
    int shortest;      /* 0: height and width are given */
    int height, width; /* pixels */
    bool has_longest;
};

static enum status read_size(const cJSON *json, const char *key, struct size_spec *ret,
                             struct error *err)
{
    static const char expected[] =
        "a size in pixels: a number, {\"height\", \"width\"} or {\"shortest_edge\"}";
    const cJSON *item = get(json, key);
    *ret = (struct size_spec){.given = item != NULL};
    if (!item)
        return STATUS_OK;
    bool ok = false;
    if (cJSON_IsNumber(item)) {
        ok = as_pixels(item, &ret->height);
        ret->width = ret->height;
    } else if (cJSON_IsArray(item)) {
        ok = as_pixels(cJSON_GetArrayItem(item, 0), &ret->height) &&
             as_pixels(cJSON_GetArrayItem(item, cJSON_GetArraySize(item) > 1), &ret->width);
    } else if (get(item, "height") || get(item, "width")) {
        ok = as_pixels(get(item, "height"), &ret->height) &&
             as_pixels(get(item, "width"), &ret->width);
    } else if (get(item, "shortest_edge")) {
        ok = as_pixels(get(item, "shortest_edge"), &ret->shortest);
        ret->has_longest = get(item, "longest_edge") != NULL;
    } else if (get(item, "longest_edge")) {
        ok = as_pixels(get(item, "longest_edge"), &ret->height);
        ret->width = ret->height;
        ret->has_longest = true;
    }
    return ok ? STATUS_OK : bad_key(key, expected, err);
}

static const float imagenet_mean[3] = {0.485f, 0.456f, 0.406f};
static const float imagenet_std[3] = {0.229f, 0.224f, 0.225f};
static const float half[3] = {0.5f, 0.5f, 0.5f};
static const float clip_mean[3] = {0.48145466f, 0.4578275f, 0.40821073f};
static const float clip_std[3] = {0.26862954f, 0.26130258f, 0.27577711f};

/* What a class of processors does where its file is silent. The name is looked for in
 * image_processor_type and feature_extractor_type; the first row that fits counts. */
static const struct processor_family {
    const char *name;
    bool short_side; /* "size" as a plain number means the short side */
    bool crop;
    enum resample resample;
    const float *mean, *std;
} families[] = {
    {"CLIP", true, true, RESAMPLE_BICUBIC, clip_mean, clip_std},
    {"Siglip", false, false, RESAMPLE_BICUBIC, half, half},
    {"ConvNext", true, false, RESAMPLE_BILINEAR, imagenet_mean, imagenet_std},
    {"PoolFormer", true, true, RESAMPLE_BICUBIC, imagenet_mean, imagenet_std},
    {"Levit", true, true, RESAMPLE_BICUBIC, imagenet_mean, imagenet_std},
    {"Bit", true, true, RESAMPLE_BICUBIC, clip_mean, clip_std},
    {"DeiT", false, true, RESAMPLE_BICUBIC, half, half},
    {"Beit", false, true, RESAMPLE_BICUBIC, half, half},
    {"MobileNet", true, true, RESAMPLE_BILINEAR, half, half},
    {"MobileViT", true, true, RESAMPLE_BILINEAR, imagenet_mean, imagenet_std},
    {"EfficientNet", false, false, RESAMPLE_NEAREST, half, half},
    {"Segformer", false, false, RESAMPLE_BILINEAR, imagenet_mean, imagenet_std},
    {"Detr", true, false, RESAMPLE_BILINEAR, imagenet_mean, imagenet_std},
    {"Yolos", true, false, RESAMPLE_BILINEAR, imagenet_mean, imagenet_std},
    {"DPT", false, false, RESAMPLE_BICUBIC, half, half},
    {"ViT", false, false, RESAMPLE_BILINEAR, half, half},
    {"", false, false, RESAMPLE_BILINEAR, imagenet_mean, imagenet_std},
};

static const struct processor_family *family_of(const cJSON *json)
{
    const cJSON *type = get(json, "image_processor_type");
    if (!cJSON_IsString(type))
        type = get(json, "feature_extractor_type");
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    size_t i = 0;
    while (*families[i].name && !strstr(name, families[i].name))
        i++;
    return &families[i];
}

static bool is_family(const struct processor_family *family, const char *name)
{
    return !strcmp(family->name, name);
}

static int scaled(int pixels, double factor)
{
    return (int)(pixels * factor);
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

/* Classes whose resize is not what "size" alone says. True when *p was set. */
static enum status read_special_resize(const cJSON *json, const struct processor_family *family,
                                       const struct size_spec *size, struct preprocess *p,
                                       bool *ret_done, struct error *err)
{
    double crop_pct = 0;
    int side = size->shortest ? size->shortest : size->height;
    *ret_done = true;
    TRY(get_number(json, "crop_pct", is_family(family, "ConvNext") ? 224.0 / 256.0 : 0, &crop_pct,
                   err));
    if (get(json, "crop_pct") && !(crop_pct > 0 && crop_pct <= 1))
        return bad_key("crop_pct", "a number above 0 and at most 1", err);
    if (is_family(family, "ConvNext") && side >= 384)
        resize_exact(p, side, side);
    else if (is_family(family, "ConvNext"))
        resize_short(p, scaled(side, 1.0 / crop_pct), side);
    else if (is_family(family, "PoolFormer") && crop_pct > 0)
        resize_short(p, scaled(side, 1.0 / crop_pct), side);
    else if (is_family(family, "Levit") && size->shortest)
        resize_short(p, scaled(side, 256.0 / 224.0), side);
    else
        *ret_done = false;
    return STATUS_OK;
}

/* Where an odd margin puts the crop: Hugging Face's classes, which their files name, take the pixel
 * before the middle; without a class the file speaks for torchvision, which takes the even one. */
static enum status read_crop_rounding(const cJSON *json, struct preprocess *p, struct error *err)
{
    const cJSON *item = get(json, "crop_rounding");
    p->crop_floors = get(json, "image_processor_type") || get(json, "feature_extractor_type");
    if (!item)
        return STATUS_OK;
    const char *word = cJSON_IsString(item) ? item->valuestring : "";
    p->crop_floors = !strcmp(word, "down");
    return p->crop_floors || !strcmp(word, "even")
               ? STATUS_OK
               : bad_key("crop_rounding", "\"even\" or \"down\"", err);
}

/* Neither size nor crop: whatever the model takes (preprocess_fit), unless the class makes another
 * size of it first. */
static enum status take_models_size(const struct processor_family *family, bool do_resize,
                                    struct preprocess *p, struct error *err)
{
    if (do_resize && (is_family(family, "ConvNext") || is_family(family, "PoolFormer") ||
                      is_family(family, "Levit")))
        return error_set(err, STATUS_MODEL, "neither \"size\" nor \"crop_size\" is given");
    p->resize = !do_resize ? RESIZE_NONE : family->short_side ? RESIZE_SHORT_SIDE : RESIZE_EXACT;
    p->width = p->height = 0;
    return STATUS_OK;
}

static enum status read_geometry(const cJSON *json, const struct processor_family *family,
                                 struct preprocess *p, struct error *err)
{
    bool do_resize = false, do_crop = false, special = false;
    struct size_spec size, crop;
    TRY(get_bool(json, "do_resize", true, &do_resize, err));
    TRY(get_bool(json, "do_center_crop", family->crop, &do_crop, err));
    TRY(read_size(json, "size", &size, err));
    TRY(read_size(json, "crop_size", &crop, err));
    if (!size.given && !crop.given)
        return take_models_size(family, do_resize, p, err);
    if (crop.shortest)
        crop.height = crop.width = crop.shortest;
    const cJSON *plain = get(json, "size");
    if (size.given && !size.shortest && family->short_side && cJSON_IsNumber(plain))
        size.shortest = size.height;

    if (do_resize && size.given)
        TRY(read_special_resize(json, family, &size, p, &special, err));
    if (!special && (!do_resize || !size.given)) {
        p->resize = RESIZE_NONE;
        p->width = crop.given ? crop.width : size.shortest ? size.shortest : size.width;
        p->height = crop.given ? crop.height : size.shortest ? size.shortest : size.height;
    } else if (!special && size.shortest && size.has_longest && !do_crop) {
        /* Detectors keep the aspect and take any size; a batch needs one, so the whole photo is
         * brought to a square. */
        resize_exact(p, size.shortest, size.shortest);
    } else if (!special && size.shortest) {
        resize_short(p, size.shortest, size.shortest);
    } else if (!special) {
        resize_exact(p, size.width, size.height);
    }
    if (do_crop && crop.given) {
        p->width = crop.width;
        p->height = crop.height;
    }
    return STATUS_OK;
}

static enum status read_resample(const cJSON *json, const struct processor_family *family,
                                 struct preprocess *p, struct error *err)
{
    double resample = 0;
    TRY(get_number(json, "resample", family->resample, &resample, err));
    if (resample < RESAMPLE_NEAREST || resample > RESAMPLE_HAMMING || resample != floor(resample))
        return bad_key("resample", "one of Pillow's filters, 0 to 5", err);
    p->resample = (enum resample)(int)resample;
    bool antialias = true;
    TRY(get_bool(json, "antialias", true, &antialias, err));
    if (antialias || p->resample == RESAMPLE_NEAREST)
        return STATUS_OK;
    if (p->resample != RESAMPLE_BILINEAR)
        return bad_key("antialias", "true, as it must be unless \"resample\" is 2, bilinear", err);
    p->resample = RESAMPLE_LINEAR;
    return STATUS_OK;
}

/* y = (x * scale [- 1] - mean) / std, which EfficientNet with include_top divides by std again. */
static enum status read_values(const cJSON *json, const struct processor_family *family,
                               struct preprocess *p, struct error *err)
{
    static const float zero[3] = {0, 0, 0}, one[3] = {1, 1, 1};
    bool do_rescale = false, do_normalize = false, offset = false, again = false;
    double factor = 0;
    TRY(get_bool(json, "do_rescale", true, &do_rescale, err));
    TRY(get_bool(json, "do_normalize", true, &do_normalize, err));
    TRY(get_bool(json, "rescale_offset", false, &offset, err));
    TRY(get_bool(json, "include_top", is_family(family, "EfficientNet"), &again, err));
    TRY(get_number(json, "rescale_factor", 1.0 / 255.0, &factor, err));
    if (do_rescale && !(factor > 0))
        return bad_key("rescale_factor", "above 0", err);
    p->scale = do_rescale ? (float)factor : 1.0f;
    memcpy(p->mean, zero, sizeof p->mean);
    memcpy(p->std, one, sizeof p->std);
    if (do_normalize) {
        TRY(get_channels(json, "image_mean", family->mean, p->mean, err));
        TRY(get_channels(json, "image_std", family->std, p->std, err));
    }
    for (int c = 0; c < 3; c++) {
        if (p->std[c] == 0)
            return bad_key("image_std", "different from 0", err);
        if (do_rescale && offset)
            p->mean[c] += 1.0f;
        if (is_family(family, "EfficientNet") && again)
            p->std[c] *= p->std[c];
    }
    return STATUS_OK;
}

static enum status read_channels(const cJSON *json, struct preprocess *p, struct error *err)
{
    bool flip = false, gray = false;
    TRY(get_bool(json, "do_flip_channel_order", false, &flip, err));
    TRY(get_bool(json, "do_convert_grayscale", false, &gray, err));
    TRY(get_bool(json, "do_invert", false, &p->invert, err));
    p->channels = gray ? CHANNELS_GRAY : flip ? CHANNELS_BGR : CHANNELS_RGB;
    return STATUS_OK;
}

static enum status read_huggingface(const cJSON *json, struct preprocess *p, struct error *err)
{
    if (!cJSON_IsObject(json))
        return error_set(err, STATUS_MODEL, "the file is not a JSON object");
    const struct processor_family *family = family_of(json);
    preprocess_default(p);
    TRY(read_geometry(json, family, p, err));
    TRY(read_crop_rounding(json, p, err));
    TRY(read_resample(json, family, p, err));
    TRY(read_values(json, family, p, err));
    return read_channels(json, p, err);
}

/* ---- keys that are written wrong ---- */

/* One letter more, less, other, or two neighbours swapped. */
static bool is_one_slip(const char *a, const char *b)
{
    size_t same = 0;
    while (a[same] && a[same] == b[same])
        same++;
    a += same;
    b += same;
    if (!*a && !*b)
        return false;
    if ((*a && !strcmp(a + 1, b)) || (*b && !strcmp(a, b + 1)))
        return true;
    if (!*a || !*b)
        return false;
    return !strcmp(a + 1, b + 1) || (a[0] == b[1] && a[1] && a[1] == b[0] && !strcmp(a + 2, b + 2));
}

void preprocess_slips(const char *text, size_t size, char *ret, size_t capacity)
{
    static const char *const keys[] = {"size",           "crop_size",
                                       "do_resize",      "do_center_crop",
                                       "do_rescale",     "rescale_factor",
                                       "do_normalize",   "image_mean",
                                       "image_std",      "resample",
                                       "rescale_offset", "include_top",
                                       "crop_pct",       "do_flip_channel_order",
                                       "do_invert",      "do_convert_grayscale",
                                       "crop_rounding",  "antialias"};
    cJSON *json = cJSON_ParseWithLength(text, size);
    const cJSON *item;
    size_t used = 0;
    if (capacity)
        ret[0] = '\0';
    cJSON_ArrayForEach(item, json)
    {
        for (size_t k = 0; item->string && k < COUNT_OF(keys) && used < capacity; k++)
            if (is_one_slip(item->string, keys[k]) && !get(json, keys[k]))
                used += (size_t)snprintf(ret + used, capacity - used,
                                         "%sunknown key \"%.40s\": did you mean \"%s\"?",
                                         used ? "; " : "", item->string, keys[k]);
    }
    cJSON_Delete(json);
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
    const cJSON *item = get(cfg, "interpolation");
    const char *word = cJSON_IsString(item) ? item->valuestring : "bilinear";
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (!strcmp(words[i].word, word)) {
            p->resample = words[i].resample;
            return STATUS_OK;
        }
    }
    return bad_key("interpolation", "a filter lensd knows (bilinear, bicubic, nearest, …)", err);
}

static enum status read_timm_geometry(const cJSON *cfg, struct preprocess *p, struct error *err)
{
    const cJSON *input = get(cfg, "input_size"), *mode = get(cfg, "crop_mode");
    double crop_pct = 0;
    int width, height;
    if (!cJSON_IsArray(input) || cJSON_GetArraySize(input) != 3 ||
        !as_pixels(cJSON_GetArrayItem(input, 1), &height) ||
        !as_pixels(cJSON_GetArrayItem(input, 2), &width))
        return bad_key("input_size", "a list of channels, height and width", err);
    TRY(get_number(cfg, "crop_pct", 0.875, &crop_pct, err));
    if (!(crop_pct > 0.01 && crop_pct <= 1))
        return bad_key("crop_pct", "a number above 0.01 and at most 1", err);
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
        return bad_key("crop_mode", "center, squash or border", err);
    }
    p->resize_width = resize_width;
    p->resize_height = resize_height;
    p->width = width;
    p->height = height;
    return STATUS_OK;
}

static enum status read_timm(const cJSON *json, struct preprocess *p, struct error *err)
{
    const cJSON *cfg = get(json, "pretrained_cfg");
    if (!cfg)
        cfg = get(json, "input_size") ? json : NULL;
    if (!cJSON_IsObject(cfg))
        return error_set(err, STATUS_NOT_FOUND, "the file has no \"pretrained_cfg\"");
    preprocess_default(p);
    TRY(get_channels(cfg, "mean", imagenet_mean, p->mean, err));
    TRY(get_channels(cfg, "std", imagenet_std, p->std, err));
    TRY(read_timm_geometry(cfg, p, err));
    const cJSON *input = get(cfg, "input_size");
    if (cJSON_GetArrayItem(input, 0)->valuedouble == 1)
        p->channels = CHANNELS_GRAY;
    return read_interpolation(cfg, p, err);
}

/* ---- entry points for JSON ---- */

static enum status
read_with(enum status (*reader)(const cJSON *, struct preprocess *, struct error *),
          const char *text, size_t size, struct preprocess *ret, struct error *err)
{
    cJSON *json;
    TRY(json_parse(text, size, &json, err));
    struct preprocess p;
    enum status status = reader(json, &p, err);
    cJSON_Delete(json);
    if (status == STATUS_OK)
        *ret = p;
    return status;
}

enum status preprocess_from_huggingface(const char *json, size_t size, struct preprocess *ret,
                                        struct error *err)
{
    /* timm's wrapper in transformers writes its own keys into the same file. */
    struct error ignored;
    if (read_with(read_timm, json, size, ret, &ignored) == STATUS_OK)
        return STATUS_OK;
    return read_with(read_huggingface, json, size, ret, err);
}

enum status preprocess_from_timm(const char *json, size_t size, struct preprocess *ret,
                                 struct error *err)
{
    return read_with(read_timm, json, size, ret, err);
}

/* ---- Ultralytics ---- */

static const char *find_metadata(const struct onnx_metadata *metadata, size_t count,
                                 const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(metadata[i].key, key))
            return metadata[i].value;
    return NULL;
}

enum status preprocess_from_metadata(const struct onnx_metadata *metadata, size_t count,
                                     struct preprocess *ret, struct error *err)
{
    const char *size = find_metadata(metadata, count, "imgsz");
    const char *task = find_metadata(metadata, count, "task");
    if (!size)
        return error_set(err, STATUS_NOT_FOUND, "the file's metadata has no imgsz");
    /* "[640, 640]", height first: also valid JSON. */
    cJSON *json = cJSON_Parse(size);
    int height = 0, width = 0;
    bool ok = cJSON_IsArray(json)
                  ? as_pixels(cJSON_GetArrayItem(json, 0), &height) &&
                        as_pixels(cJSON_GetArrayItem(json, cJSON_GetArraySize(json) > 1), &width)
                  : as_pixels(json, &height) && as_pixels(json, &width);
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
    if (p->width == 0) { /* no size of its own */
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
        /* A short side cannot be said for another aspect: bring the photo to the size itself. */
        p->resize = RESIZE_EXACT;
        p->resize_width = width;
        p->resize_height = height;
        break;
    case RESIZE_EXACT:
    case RESIZE_LETTERBOX:
        p->resize_width = by_ratio(p->resize_width, from_width, width);
        p->resize_height = by_ratio(p->resize_height, from_height, height);
        break;
    }
    p->width = width;
    p->height = height;
    return true;
}
