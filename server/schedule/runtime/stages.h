/* The plan of a pipeline.json (models/folder/pipeline_config.h): the first stage's model gets the
 * photos, each further one crops of the boxes that the one before found. */
#pragma once

#include "models/folder/pipeline_config.h"
#include "server/schedule/runtime/parts.h"

struct stage_crop;

struct staged_request {
    struct request_parts parts; /* first */
    struct model_host *host;
    char name[128];
    struct pipeline_config *config; /* owned */
    size_t max_images;              /* of a part, which may have fewer */
    /* Books the memory of rectified crops, which live as long as the request; NULL: no limit. */
    enum status (*take)(void *context, size_t bytes, struct error *err);
    void *context;

    /* private */
    size_t stage;                /* the stage whose crops wait or are being predicted */
    struct task_options options; /* those of the later stages */
    struct stage_crop *crops[PIPELINE_STAGES_MAX]; /* what each stage's model is given */
    size_t counts[PIPELINE_STAGES_MAX];            /* lengths of `crops` */
    bool keep_aspect[PIPELINE_STAGES_MAX]; /* the resize of the stage's model keeps the aspect */
    struct preprocess
        body_preprocess[PIPELINE_STAGES_MAX]; /* of a stage's model; width 0 unless RESIZE_BODY */
    size_t rooms[PIPELINE_STAGES_MAX];        /* images of a part that leave room in its queue */
};

/* *ret: the staged request if the model that `whole` names is a pipeline, else NULL. Then the
 * caller sets `max_images` and `take`, and submits `whole` and after it the parts. *ret must live
 * as long as the answers; the caller frees it with stages_free(). All options of the request are
 * for the first stage, those of masks and vectors and top_k for the others, too. STATUS_NOT_READY
 * with *ret_retry_after_s names a stage that cannot answer now, STATUS_OVERLOADED one whose queue
 * is full (parts are admitted with the whole), STATUS_CONFIG one without boxes for the next. */
enum status stages_begin(struct model_host *host, struct predict_request *whole,
                         struct staged_request **ret, int *ret_retry_after_s,
                         struct error *err) MUST_USE;

/* Whether a pipeline can answer with the models that are served now. STATUS_CONFIG with the
 * sentence that its requests would get; stages whose model is not ready are passed over, and so is
 * a model that is no pipeline. STATUS_NO_MEMORY. */
enum status stages_check(struct model_host *host, const char *name, const char *version,
                         struct error *err) MUST_USE;

void stages_free(struct staged_request *staged); /* NULL is fine */
