/* Readers of files that describe the preprocessing of photos for a model.
 *
 * Each reader sets every member of *ret; after a failure *ret is undefined. Errors:
 * STATUS_NOT_FOUND when the file has no preprocessing, STATUS_MODEL with key, value and expected
 * value. The caller runs preprocess_check() after adapting the sizes to the model's input. */
#pragma once

#include "models/folder/preprocess.h"

struct cJSON;

/* Readers of JSON. `remarks` is a line of text, initially "", to which the readers may append
 * sentences for the log. */
#define PREPROCESS_REMARKS 300
typedef enum status preprocess_reader(struct cJSON *json, struct preprocess *ret,
                                      char remarks[static PREPROCESS_REMARKS], struct error *err);

/* Reads Hugging Face's preprocessor_config.json of image processors and older feature extractors;
 * docs/photos.md lists the keys. processors.json has the defaults of transformers' classes, which
 * this function adds to `json`. If neither the file nor the class gives a size, width and height
 * are 0: the model's size applies. Remarks: a class that is unknown or gives other pixels, keys
 * that look like misspellings of missing keys, and sizes that lensd does not make. */
preprocess_reader preprocess_from_huggingface;

/* Reads timm's config.json: "pretrained_cfg", or its keys at the top level: input_size, crop_pct,
 * crop_mode, interpolation, mean, std. The resize is floor(size / crop_pct), as in
 * timm.data.transforms_factory. */
preprocess_reader preprocess_from_timm;

/* Reads open_clip's preprocess_cfg.json, as in Immich: size, resize_mode (shortest, squash),
 * interpolation, mean, std. The crop is torchvision's. */
preprocess_reader preprocess_from_open_clip;

/* Changes the settings from preprocess_from_open_clip() to those of Immich's service, which keeps
 * the aspect ratio and rounds the crop's position down. */
void preprocess_as_immich(struct preprocess *p);

/* Reads Ultralytics' metadata: imgsz (`size`) and `task`; NULL: missing. Classification uses short
 * side and crop (bilinear), or stretches to an input that is not square; other tasks use letterbox
 * on grey 114 with OpenCV's INTER_LINEAR. All use x/255 without mean and std. */
enum status preprocess_from_metadata(const char *size, const char *task, struct preprocess *ret,
                                     struct error *err) MUST_USE;

/* Adapts sizes to those of the model's input (pixels). Resize and crop change by the same ratio:
 * ImageNet's 256 / 224 becomes 342 / 299; a size of 0 becomes the model's. True if a size has
 * changed. */
bool preprocess_fit(struct preprocess *p, int width, int height);
