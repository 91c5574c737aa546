/* Test doubles for the model host's neighbours: sessions, image decoding and models.
 *
 * An "image" is a line of text that says what shall happen to it:
 *
 *     "ok 17"        decodes, is transformed, and its forward pass says class 17
 *     "ok 17 large"  the same, but its header says that it is large
 *     "broken"       does not decode (STATUS_BAD_IMAGE)
 *     "untransformed" decodes, but the transform fails (STATUS_TOO_LARGE)
 *     "poison"       makes every forward pass fail that it is part of (STATUS_DEVICE)
 *     "nan"          its scores are not finite
 *     "vast"         makes every forward pass run out of memory (STATUS_DEVICE_MEMORY)
 *
 * The transform writes the class into every value of the slot; the session checks that all values
 * of an image agree (a torn or misplaced copy aborts the test), that it is run by one thread at a
 * time, and that a GPU runs one forward pass at a time. Gates stop forward passes and decodes until
 * the test opens them. */
#pragma once

#include <stdbool.h>

#include "engine/tensor/device.h"
#include "models/folder/model.h"

#define FAKE_CLASSES 100
#define FAKE_WIDTH   5

/* Sessions and models are told apart by the height of their images, 1 … FAKE_MODELS - 1. */
#define FAKE_MODELS 4

/* A model that the model host may own. */
struct model *fake_model(const char *name, int height);
int fake_models_freed(void);

/* How the next sessions are made. */
struct fake_session_plan {
    int max_batch;          /* largest compiled; 0: as asked for */
    int smallest_batch;     /* 0: 1; else what smaller batches are padded to */
    bool unlike_classifier; /* its output is no vector of scores */
    bool fails;             /* session_create fails with STATUS_UNSUPPORTED */
    int most_alive;         /* with so many sessions, it fails with STATUS_NO_MEMORY; 0: never */
    bool refuses;           /* session_enter fails with STATUS_NO_MEMORY */
    int run_us;             /* time of a forward pass */
    double batch_ms;        /* what a pass of any size is said to take; 0: its size + 1 */
    int depth;  /* passes that may be under way; each takes place when it is collected */
    bool pends; /* its precision is pending; a trial runs it, and bf16 wins if `wins` */
    bool wins;
};

/* From now on forward passes of more images (padding included) run out of memory; 0: none does. */
void fake_memory_fits(int images);

/* While a device is broken, every forward pass on it fails with STATUS_DEVICE. */
void fake_break(struct device_id device, bool broken);

/* The sizes of the forward passes of that height since the last call, as "8 4 2 2"; at most 31 of
 * them. The text is valid until the next call. */
const char *fake_run_sizes(int height);

void fake_plan(struct fake_session_plan plan);

/* Writes at most `max` models of the host; returns their number. */
struct model_host;
struct model_status;
size_t list_models(struct model_host *host, struct model_status *ret, size_t max);

/* While a gate is shut, forward passes of that height / decodes of any image wait in it. */
void fake_shut_runs(int height);
void fake_open_runs(int height);
void fake_shut_decodes(void);
void fake_open_decodes(void);

/* How many have begun so far, those waiting in a gate included; and sessions alive. */
int fake_runs(int height);
int fake_images_run(int height);
int fake_greatest_run(int height); /* largest batch */
int fake_running(int height);      /* at this moment */
int fake_decodes(void);
int fake_large_decodes(void);
/* From now on sessions let that many passes be under way; each takes place when it is collected. */
void fake_depth(int depth);
int fake_greatest_under_way(void);         /* of any session so far */
int fake_runs_on(struct device_id device); /* all heights; ended well */
int fake_sessions_alive(void);

/* Waits until *counter(argument) is at least `least`; false after PATIENCE_MS. */
bool fake_wait(int (*counter)(int), int height, int least);
bool fake_wait_decodes(int least);
