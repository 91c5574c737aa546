/* A model repository: a folder whose sub-folders are models, and pipelines of them.
 *
 *     DIR/resnet50/model.onnx             a model folder as model_load() takes it: version 1
 *     DIR/vit/1/model.onnx  DIR/vit/2/…   Triton's layout: numbered versions; config.pbtxt,
 *                                         labels and preprocessing of all of them in DIR/vit
 *     DIR/mobilenet.onnx                  a file alone
 *     DIR/plates/pipeline.json            a pipeline of models beside it (pipeline_config.h)
 *     DIR/clip/visual/ DIR/clip/textual/  two models, clip and clip.text (MODEL_TEXT_ENDING)
 *     DIR/sam/encoder.onnx  decoder.onnx  two models, sam and sam.decoder (MODEL_DECODER_ENDING)
 *
 * Of numbered versions the newest is served, unless config.pbtxt has a version_policy (all, latest,
 * specific). This library only looks; it loads nothing and watches nothing. */
#pragma once

#include <stdint.h>

#include "engine/base/status.h"
#include "models/folder/pipeline_config.h"

#define MODEL_NAME_MAX 127 /* bytes of a model's name */

struct repository_version {
    char version[16];
    uint64_t number;
    /* Changes when a file of the version, or one that all versions share, changes: names, sizes,
     * times and inodes, not contents. */
    uint64_t signature;
};

struct repository_model {
    char *name;
    char *path;                          /* for model_load_version() */
    struct repository_version *versions; /* those to serve, oldest first; then the others */
    size_t version_count;
    size_t spare_count;             /* the others: there, but not wanted by version_policy */
    struct pipeline_config *stages; /* of a pipeline, whose models are all there; NULL: a model */
    struct error problem;           /* status != OK: why there is nothing to serve */
};

struct repository {
    struct repository_model *models; /* by name */
    size_t count;
};

/* Looks through the folder. STATUS_NOT_FOUND, STATUS_IO for the folder itself; an entry has a
 * problem if it is a sub-folder without a model, if a folder and a file have its name, if its name
 * is longer than MODEL_NAME_MAX (`name` is then its beginning), or if it is a pipeline that lacks
 * one of its models. Hidden entries are passed over. The caller frees with repository_done(), which
 * is fine on zeroes. */
enum status repository_scan(const char *folder, struct repository *ret, struct error *err) MUST_USE;

/* Looks through Immich's cache of models. Its models get Immich's names:
 *
 *     DIR/clip/ViT-B-32__openai/{visual,textual}/       ViT-B-32__openai, ViT-B-32__openai.text
 *     DIR/facial-recognition/buffalo_l/{detection,recognition}/
 *                                 buffalo_l, a pipeline of buffalo_l.detection and .recognition
 *     DIR/ocr/PP-OCRv5_mobile/{detection,recognition}/  likewise; LATIN__PP-OCRv5_mobile has the
 *                                                       detector of PP-OCRv5_mobile
 *
 * DIR must exist; a task's folder may be missing. Otherwise as repository_scan(). */
enum status repository_scan_immich(const char *folder, struct repository *ret,
                                   struct error *err) MUST_USE;

/* The same of one model, at `path` (an .onnx file or a model folder); `name`: NULL for its own. Of
 * a pipeline: itself first, then the models of its stages, which are looked for beside it. */
enum status repository_scan_model(const char *path, const char *name, struct repository *ret,
                                  struct error *err) MUST_USE;

void repository_done(struct repository *repository);

const struct repository_model *repository_find(const struct repository *repository,
                                               const char *name);
