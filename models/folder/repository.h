/* A model repository: a folder whose sub-folders are models, and pipelines of them.
 *
 *     DIR/resnet50/model.onnx             a model folder for model_load(): version 1
 *     DIR/vit/1/model.onnx  DIR/vit/2/…   Triton's layout: numbered versions; DIR/vit has
 *                                         config.pbtxt, labels and preprocessing of all
 *     DIR/mobilenet.onnx                  a single file
 *     DIR/plates/pipeline.json            a pipeline of models beside it (pipeline_config.h)
 *     DIR/clip/visual/ DIR/clip/textual/  two models, clip and clip.text (MODEL_TEXT_ENDING)
 *     DIR/sam/encoder.onnx  decoder.onnx  two models, sam and sam.decoder (MODEL_DECODER_ENDING)
 *
 * The newest numbered version is served, unless config.pbtxt has a version_policy (all, latest,
 * specific). This code only lists models; it neither loads nor watches them. */
#pragma once

#include <stdint.h>

#include "engine/base/status.h"
#include "models/folder/pipeline_config.h"

#define MODEL_NAME_MAX 127 /* bytes of a model's name */

struct repository_version {
    char version[16];
    uint64_t number;
    /* Changes when a file of the version, or a file that all versions share, gets another name,
     * size, time or inode. Contents are not compared. */
    uint64_t signature;
};

struct repository_model {
    char *name;
    char *path;                          /* for model_load(); NULL: the embedded model */
    struct repository_version *versions; /* version_count to serve, oldest first; then the others */
    size_t version_count;
    size_t spare_count;             /* number of versions that version_policy excludes */
    struct pipeline_config *stages; /* of a pipeline; NULL: a model */
    struct error problem;           /* why no version can be served; STATUS_OK: none */
};

struct repository {
    struct repository_model *models; /* sorted by name */
    size_t count;
    bool is_immich; /* Immich's cache */
};

/* Lists the folder. STATUS_NOT_FOUND, STATUS_IO for the folder itself. An entry has a problem if
 * its files are invalid, if a folder and a file have the same name, if its name is longer than
 * MODEL_NAME_MAX (`name` is truncated), or if it is a pipeline and a model of it is missing. Skips
 * hidden entries. The caller frees with repository_done(), which accepts a zeroed struct.
 *
 * With `is_immich` the folder is Immich's cache of models, which get Immich's names:
 *
 *     DIR/clip/ViT-B-32__openai/{visual,textual}/       ViT-B-32__openai, ViT-B-32__openai.text
 *     DIR/facial-recognition/buffalo_l/{detection,recognition}/
 *                                 buffalo_l, a pipeline of buffalo_l.detection and .recognition
 *     DIR/ocr/PP-OCRv5_mobile/{detection,recognition}/  likewise; LATIN__PP-OCRv5_mobile has the
 *                                                       detector of PP-OCRv5_mobile
 *
 * The cache must exist, but a task's folder may be missing. */
enum status repository_scan(const char *folder, bool is_immich, struct repository *ret,
                            struct error *err) MUST_USE;

/* Lists one model, at `path` (an .onnx file or a model folder; NULL: the embedded model). `name`
 * replaces the model's own name, unless it is NULL. For a pipeline, lists it first, then the models
 * of its stages, which must be beside it. */
enum status repository_scan_model(const char *path, const char *name, struct repository *ret,
                                  struct error *err) MUST_USE;

void repository_done(struct repository *repository);

struct repository_model *repository_find(const struct repository *repository, const char *name);
