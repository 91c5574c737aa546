/* Private to server/precision/. */
#pragma once

#include <stdio.h>

#include "engine/graph.h"
#include "server/precision/precision.h"
#include "server/precision/probes.h"

/* ---- candidates.c ---- */

/* Precisions beside fp32 that the device is good at and the graph has a use for. On a GPU the first
 * that passes is the fastest: the others need no trial then. */
size_t candidates_find(struct device_id device, const struct graph *graph,
                       enum precision ret[PRECISION_COUNT]);

/* ---- trial.c ---- */

struct trial_input {
    const struct model *model;
    struct session_options options; /* .precision is the trial's own business */
    struct probes *probes;
    struct session *reference; /* fp32, made with .trial */
    int64_t begin, end;        /* clock_now(): what of the trials may be left out is, past end; 0:
                                  no bound */
    struct trial_work *work;   /* NULL: nobody wants to know how far it is */
};

/* What the trials have done so far, in images that were run; how many it will be is not known. */
struct trial_work {
    double from;           /* of the whole, behind us when the trials begin */
    double done, expected; /* images */
    double session;        /* of the session that is being made, 0 … 1 */
};

/* So many images of a forward pass have been run: passes on how far the trials are. That comes ever
 * closer to 0.99 with what was done, faster the less is expected. */
void trial_note(const struct trial_input *input, double images);

/* Milliseconds until input->end; INFINITY without one. */
double trial_ms_left(const struct trial_input *input);

/* session_options.on_progress of sessions that a trial makes: notes their making as so many images.
 * `context`: struct trial_input. */
void trial_progress(void *context, double fraction);

/* Options of a session to be run beside input->reference. */
struct session_options trial_options(const struct trial_input *input, enum precision precision,
                                     const struct layer_set *fp32_layers);

/* What a trial of bfloat16 learns for a choice of layers. */
struct survey {
    double excess[PROBES_FROM_FOLDER]; /* by probe, agreement_excess(); 0: it was not compared */
    int layer_count;
    double saved_ms[LAYERS_MAX + 1]; /* by layer: by how much bfloat16 is quicker, an image */
    double fp32_ms;                  /* all layers in fp32, an image */
};

/* Runs the candidate beside input->reference; layers of `fp32_layers` (NULL: none) stay in fp32. A
 * candidate that does not compile or run is an outcome, not an error. *ret_survey (NULL: not
 * wanted) is zeroed by the caller; for it probes are compared beyond the first that differs.
 * STATUS_CANCELLED, STATUS_NO_MEMORY. */
enum status trial_run(const struct trial_input *input, enum precision precision,
                      const struct layer_set *fp32_layers, struct survey *ret_survey,
                      struct precision_trial *ret, struct error *err) MUST_USE;

/* "Conv_0, Conv_7": the names of `layers` among the steps, to `size` bytes (at least 64); where
 * they are too many, "Conv_0, Conv_7 … and 31 more". */
void trial_name_layers(const struct session_step *steps, size_t count,
                       const struct layer_set *layers, char *ret, size_t size);

/* Median milliseconds of fp32 for one image: what small models are told by. */
enum status trial_time_one(const struct trial_input *input, double *ret_ms,
                           struct error *err) MUST_USE;

/* ---- search.c ---- */

/* After bfloat16 as a whole differed: looks for layers that, kept in fp32, let it pass. *ret_tried:
 * *ret is the trial of the last selection, whatever came of it. STATUS_CANCELLED. */
enum status search_layers(const struct trial_input *input, const struct survey *survey,
                          struct precision_trial *ret, bool *ret_tried, struct error *err) MUST_USE;

/* ---- outputs.c ---- */

/* The outputs of a session that are compared: [first, end). */
struct outputs {
    bool is_classifier; /* one output: class scores */
    size_t first, end, count;
    const struct tensor **tensors; /* of the last run */
};

enum status outputs_init(struct outputs *outputs, const struct model *model,
                         const struct session *session, struct error *err) MUST_USE;
void outputs_done(struct outputs *outputs);

/* How long a run took: by the clock, and, where it is known (0), the CPU time of a thread. */
struct run_time {
    double ms, cpu_ms;
};

/* A run of `images` images that lie in `values`. */
enum status outputs_run(struct outputs *outputs, struct session *session, const float *values,
                        int images, struct run_time *ret, struct error *err) MUST_USE;
/* Of the last run, which was of `images` images: how many floats of each are compared, and these,
 * image after image. */
size_t outputs_each(const struct outputs *outputs, int images);
void outputs_read(const struct outputs *outputs, int images, float *dst);

/* ---- cache.c ---- */

struct choice_key {
    char text[33]; /* 32 hexadecimal digits */
};

/* Everything a choice rests on: graph, preparation, calibration images, CPU, lensd, threads, and
 * options->max_batch, which is the batch that trials are made with. */
struct choice_key choice_key_of(const struct model *model, const struct session_options *options);

struct choice_key choice_key_of_hash(const struct graph_hash *hash);

/* Only the CPU and this build of lensd. */
struct choice_key choice_key_of_machine(void);

/* The folder that `option` (precision_options.cache) means, malloc'ed; NULL when choices are not
 * kept. */
char *choice_folder(const char *option);

/* Whether the folder holds a whole, believable choice under that key; *ret is set only then. */
bool choice_load(const char *folder, const struct choice_key *key, struct precision_choice *ret);

/* Written aside and renamed: readers see the old choice or the new one. STATUS_IO. */
enum status choice_save(const char *folder, const struct choice_key *key,
                        const struct precision_choice *choice, struct error *err) MUST_USE;

/* Warns, once in a process, that the outcome of trials is not kept; `why` is a sentence. */
void choice_say_lost(const char *why);

/* A whole file of up to `most` bytes without zeros among them, malloc'ed with a terminator; NULL:
 * there is none, or something else is there (a FIFO is not waited for). path NULL: out of memory.
 */
char *choice_read(const char *path, size_t most);

/* Writes a file of that folder aside and renames it; path NULL: out of memory. STATUS_IO. */
enum status choice_write(const char *folder, const char *path,
                         bool (*write)(FILE *file, const void *context), const void *context,
                         struct error *err) MUST_USE;

/* ---- facts.c ---- */

/* Whether the folder holds whole, believable times under that key; *ret is set only then. */
bool facts_load(const char *folder, const struct facts_key *key, struct session_facts *ret);

/* ---- kernels.c ---- */

/* Makes the engine know what earlier processes found. `option` as in choice_folder(). */
void kernels_recall(const char *option);
