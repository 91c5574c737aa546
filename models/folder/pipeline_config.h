/* pipeline.json: a chain of models; each detector's boxes are cropped for the next model.
 *
 *     {"stages": [{"model": "cars"},
 *                 {"model": "plates", "labels": ["car", "truck"], "min_score": 0.5},
 *                 {"model": "reader", "margin": 0.05, "max": 20, "sizes": ["160x48", "320x48"]}]}
 *
 *     {"stages": [{"model": "faces"}, {"model": "recogniser", "align": "arcface"}]}
 *
 *     {"stages": [{"model": "lines"}, {"model": "angle", "turn": 0.9}, {"model": "reader"}]}
 *
 * Like the steps of Triton's ensembles, stages name models of the same repository
 * (models/folder/repository.h). A model is loaded once even if several pipelines use it. Clients
 * can also use this model directly. It is reloaded, and has metrics, like any other model. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"
#include "models/tasks/crops.h"

#define PIPELINE_FILE       "pipeline.json"
#define PIPELINE_STAGES_MAX 3
#define STAGE_LABELS_MAX    32
/* A model keeps its own size and at most DEPLOYMENT_SIZES = 4 other sizes. */
#define STAGE_SIZES_MAX     5
#define STAGE_CROPS_MAX     1000
#define STAGE_CROPS_DEFAULT 100
#define STAGE_CROPS_ALL     4000 /* crops of a request, over all its photos */

struct cJSON;

struct pipeline_stage {
    char model[128];
    /* Which boxes of the previous stage become crops, and how. Stage 0 gets whole photos. */
    char labels[STAGE_LABELS_MAX][64]; /* names or numbers of classes */
    size_t label_count;                /* 0: all classes */
    double min_score;                  /* 0 … 1 */
    double margin; /* 0 … 1; added on each side, as a share of the box's width or height */
    struct align_template align; /* positions of a box's points in its crop; may be empty */
    size_t max; /* crops of one photo, those with the best scores; 1 … STAGE_CROPS_MAX */
    /* Above 0: this stage's model classifies crops as upright or upside down, and the next stage
     * gets the same crops. A crop is turned by 180 degrees if the label of its best class contains
     * "180" and the class has a probability above `turn`, 0 … 1. */
    double turn;
    /* Sizes of the model's input; none: the model's own size. */
    struct stage_size {
        int width, height;
    } sizes[STAGE_SIZES_MAX];
    size_t size_count;
};

struct pipeline_config {
    struct pipeline_stage stages[PIPELINE_STAGES_MAX];
    size_t stage_count; /* 2 … PIPELINE_STAGES_MAX */
};

/* InsightFace's template "arcface": positions of eyes, nose and mouth corners in pixels. */
extern const struct align_template align_arcface;

/* Reads the file's JSON. STATUS_MODEL names stage, key and expected value. Pure. */
enum status pipeline_config_parse(const struct cJSON *json, struct pipeline_config *ret,
                                  struct error *err) MUST_USE;

/* Reads `folder`/pipeline.json. STATUS_NOT_FOUND when there is none; other errors name the file. */
enum status pipeline_config_read(const char *folder, struct pipeline_config *ret,
                                 struct error *err) MUST_USE;

/* Returns the path of a stage's model when a pipeline is served without a repository: the model is
 * beside the pipeline's folder. malloc'ed; NULL when out of memory. */
char *pipeline_stage_path(const char *folder, const struct pipeline_stage *stage);

/* Returns the size of a stage for a photo of `width` x `height` pixels. If the model's resize keeps
 * the aspect ratio, this is the size in which the photo is largest; otherwise the size with the
 * nearest aspect ratio; on a tie the smallest. NULL: the model's own size. */
const struct stage_size *pipeline_stage_size(const struct pipeline_stage *stage, bool keeps_aspect,
                                             unsigned width, unsigned height);
