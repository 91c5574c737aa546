/* Prompts: points and a box that show where an object is in a photo
 * (?points=120,80,1&box=10,10,200,150). A model has an encoder, which runs on the photo, and a mask
 * decoder, which runs on the encoder's outputs and the prompt. */
#pragma once

#include "server/http/transport/exchange.h"
#include "server/http/transport/response_cache.h"
#include "server/schedule/runtime/model_host.h"

/* A zeroed struct means that the request has no prompt. Free with request_prompt_done(). */
struct request_prompt {
    struct prompt_point {
        float x, y;  /* pixels of the photo */
        float label; /* 1: inside the object, 0: outside; 2, 3: corners of the box; -1: no point */
    } points[PROMPT_POINTS_MAX], box[2];
    size_t count;
    bool has_box;

    char model[128], decoder[128 + sizeof(MODEL_DECODER_ENDING)]; /* names of encoder and decoder */
    struct task_geometry place;                                   /* request->place points here */
    struct predict_request encoding; /* loads the decoder, then encodes the photo */
    struct predict_image image;
    char hash[2 * RESPONSE_KEY_BYTES + 1]; /* from response_photo_hash(); "" if that failed */
    float *embeddings; /* owned: the photo's width and height, the sizes of the encoder's outputs,
                          the outputs' numbers */
    size_t count_all;  /* number of floats in `embeddings` */
    float coordinates[2 * PROMPT_POINTS_MAX], labels[PROMPT_POINTS_MAX];
    const void *rows[REQUEST_WORD_INPUTS]; /* rows for the decoder's inputs */
};

/* True if `name` is a parameter of prompts: "points" or "box"; or in dialects "inside" or
 * "outside", lists of points "x,y,x,y…", or "corners", a box. */
bool request_prompt_is(const char *name);
/* Sets a parameter of prompts. "inside" and "outside" add points. An empty text of a dialect's
 * parameter sets nothing. STATUS_INVALID says what is expected. */
enum status request_prompt_set(struct request_prompt *prompt, const char *name, const char *text,
                               struct error *err) MUST_USE;

static inline bool request_prompt_is_set(const struct request_prompt *prompt)
{
    return prompt->count || prompt->has_box;
}

/* Encodes the photo of exchange->work, a struct predict_work, unless it is cached, fills the work's
 * request with the decoder's inputs, and submits it; on failure it answers with the error. Call it
 * on an offload thread while the exchange waits. Do not touch the exchange afterwards. */
void request_prompt_begin(struct exchange *x);

void request_prompt_done(struct request_prompt *prompt);
