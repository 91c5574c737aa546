/* The plan of a pipeline.json (models/folder/pipeline_config.h): the first stage's model gets the
 * photos, each later model gets crops of the boxes that the stage before has found. */
#pragma once

#include "models/folder/pipeline_config.h"
#include "server/schedule/runtime/parts.h"

struct stage_crop;

struct staged_request {
    struct request_parts parts; /* first */
    struct model_host *host;
    char name[128];
    struct pipeline_config *config; /* owned */
    size_t max_images;              /* the most crops of a part */
    /* Books the memory of rectified and turned crops, which live as long as the request; NULL: no
     * limit. */
    enum status (*take)(void *context, size_t bytes, struct error *err);
    void *context;

    /* private */
    size_t stage;                                  /* index of the stage whose crops wait or run */
    struct task_options options;                   /* for the stages after the first */
    struct stage_crop *crops[PIPELINE_STAGES_MAX]; /* inputs of each stage's model */
    size_t counts[PIPELINE_STAGES_MAX];            /* lengths of `crops` */
    bool keep_aspect[PIPELINE_STAGES_MAX];         /* the model's resize keeps the aspect ratio */
    struct preprocess body_preprocess[PIPELINE_STAGES_MAX]; /* of a model with RESIZE_BODY; other
                                                               models: width is 0 */
    size_t
        rooms[PIPELINE_STAGES_MAX]; /* most crops of a part, to leave room in the model's queue */
};

/* Sets *ret to a staged request if the model of `whole` is a pipeline, else to NULL. The caller
 * sets `max_images` and `take`, submits `whole` and after it the parts. It frees *ret with
 * stages_free() after the answers, or after an error, because *ret may be set then, too. All
 * options of the request apply to the first stage; top_k and the options of masks and vectors also
 * apply to the others. The sentence of an error names the stage. STATUS_NOT_READY: the stage's
 * model cannot answer now; STATUS_OVERLOADED: the model's queue is full; STATUS_CONFIG: the model
 * does not fit the stage. */
enum status stages_begin(struct model_host *host, struct predict_request *whole,
                         struct staged_request **ret, struct error *err) MUST_USE;

/* Checks whether a pipeline can answer with the models that are served now. STATUS_CONFIG: it
 * cannot; requests get the same sentence. Skips stages whose model is not ready, and models that
 * are not pipelines. STATUS_NO_MEMORY. */
enum status stages_check(struct model_host *host, const char *name, const char *version,
                         struct error *err) MUST_USE;

void stages_free(struct staged_request *staged); /* NULL is fine */
