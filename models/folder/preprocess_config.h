/* Readers of the files in which people write down how photos are prepared for a model.
 *
 * All fill the whole of *ret and leave it alone on failure. Errors: STATUS_NOT_FOUND when the file
 * says nothing about preprocessing, STATUS_MODEL with key, value and what was expected. The caller
 * runs preprocess_check() once it has fitted the sizes to the model's input. */
#pragma once

#include "models/folder/preprocess.h"
#include "models/onnx/onnx.h"

/* Hugging Face preprocessor_config.json, of image processors and of the older feature extractors;
 * docs/photos.md lists the keys. What transformers' class does where its file is silent comes from
 * processors.json. Where neither the file nor the class gives a size, width and height are 0: the
 * model's. */
enum status preprocess_from_huggingface(const char *json, size_t size, struct preprocess *ret,
                                        struct error *err) MUST_USE;

/* Remarks on a text that preprocess_from_huggingface() has read: a class that is unknown or differs
 * in its pixels, and keys that look like a misspelling of a key that is missing. Writes one line of
 * at most `capacity` bytes; "" if there are no remarks. */
void preprocess_remarks(const char *text, size_t size, char *ret, size_t capacity);

/* timm's config.json: "pretrained_cfg", or its keys at the top: input_size, crop_pct, crop_mode,
 * interpolation, mean, std. Resize is floor(size / crop_pct), as timm.data.transforms_factory has
 * it. */
enum status preprocess_from_timm(const char *json, size_t size, struct preprocess *ret,
                                 struct error *err) MUST_USE;

/* Reads open_clip's preprocess_cfg.json, as Immich has it: size, resize_mode (shortest, squash),
 * interpolation, mean, std. The crop is torchvision's. */
enum status preprocess_from_open_clip(const char *json, size_t size, struct preprocess *ret,
                                      struct error *err) MUST_USE;

/* Changes what preprocess_from_open_clip() has read to what Immich's service does with the same
 * file: it keeps the aspect, and rounds down where the crop begins. */
void preprocess_as_immich(struct preprocess *p);

/* Ultralytics metadata of an ONNX file: imgsz and task. Letterbox on grey 114 with OpenCV's
 * INTER_LINEAR for detection, segmentation, pose; short side and crop for classification; x/255
 * without mean and std. */
enum status preprocess_from_metadata(const struct onnx_metadata *metadata, size_t count,
                                     struct preprocess *ret, struct error *err) MUST_USE;

/* Fits sizes to what the model's file fixes (pixels): resize and crop change by the same ratio, so
 * that ImageNet's 256 / 224 becomes 342 / 299; a size of 0 becomes the model's. True when anything
 * changed. */
bool preprocess_fit(struct preprocess *p, int width, int height);
