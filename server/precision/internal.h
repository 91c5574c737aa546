/* Private to server/precision/. */
#pragma once

#include "engine/graph/graph.h"
#include "models/quantize/outputs.h"
#include "server/image/photo_files.h"
#include "server/precision/precision.h"

/* ---- pictures.c ---- */

#define PICTURE_SIDE 256

/* Draws picture `number` (any) as RGB [PICTURE_SIDE, PICTURE_SIDE, 3]. The same number always gives
 * the same picture. */
void picture_draw(unsigned number, uint8_t *rgb);

/* ---- probes.c ---- */

/* Probes are the images on which precisions are compared: those in the model folder's calibration/,
 * sorted by path, at most PROBES_FROM_FOLDER. If there are fewer than PRECISION_OWN_PROBES,
 * generated pictures are added, up to PRECISION_PROBES. The same files give the same probes on
 * every machine. */
#define PROBES_FROM_FOLDER   256
#define PRECISION_OWN_PROBES 16

struct probes {
    const struct model *model;         /* borrowed; `limits`, too */
    const struct image_limits *limits; /* of the files */
    struct photo_files files;          /* in calibration/ */
    struct image_decoder *decoder;
    struct transform *transform;
    uint8_t picture[PICTURE_SIDE * PICTURE_SIDE * 3];
};

/* Borrows `model` and `limits`. STATUS_NO_MEMORY. */
enum status probes_open(const struct model *model, const struct image_limits *limits,
                        struct probes **ret, struct error *err) MUST_USE;
void probes_free(struct probes *probes); /* NULL is fine */

int probes_count(const struct probes *probes);

/* Writes probe i after the model's preprocessing: [height, width, channels] float32. Logs a file
 * that cannot be read, and draws a picture instead. */
enum status probes_write(struct probes *probes, int i, float *dst, struct error *err) MUST_USE;

/* Callbacks quantize_photos.read and .name for image i of the folder. `probes`: a struct probes. */
enum status probes_read(void *probes, size_t i, float *dst, struct error *err) MUST_USE;
const char *probes_file(void *probes, size_t i);

/* ---- calibrated.c: the 8-bit form of a float32 model whose folder has calibration/ ---- */

/* True if trials can make the 8-bit form, and keep it in the folder `cache`. */
bool calibrated_is_possible(const struct model *model, const struct session_options *session,
                            const char *cache);

/* Makes the 8-bit form and stores it in the cache under `key`. The caller owns *ret; *ret_photos
 * is the number of calibration photos. Errors: those of quantize_model() and onnx_write_file(). */
enum status calibrated_make(const struct model *model, const struct precision_options *options,
                            const struct session_options *session, const struct graph_hash *key,
                            struct graph **ret, int *ret_photos, struct error *err) MUST_USE;

bool calibrated_exists(const struct graph_hash *key, const char *cache);

/* Reads the 8-bit form; the caller owns *ret. Errors: those of onnx_load_file(). */
enum status calibrated_read(const struct graph_hash *key, const char *cache, struct graph **ret,
                            struct error *err) MUST_USE;

/* ---- trial.c ---- */

enum { REFERENCE, CANDIDATE, SIDES };

/* If the time ends before all probes have run, this number of probes is enough for a verdict. */
#define PRECISION_LEAST_PROBES 8

/* The costs of fp32 and a candidate, which run in turns. Zero the struct before the first round.
 * That round is a warm-up; of the later rounds the lowest cost of each side counts. */
struct speed {
    int rounds;
    double least[SIDES];
    double spent_ms; /* time of all runs so far; the caller sets it */
};

void speed_add(struct speed *speed, double fp32_cost, double candidate_cost);
double speed_gain(const struct speed *speed); /* the candidate's speed divided by fp32's */
bool speed_is_known(const struct speed *speed,
                    bool is_cpu); /* True if no further round is needed. */

struct trial_input {
    const struct model *model;
    struct session_options options; /* those of precision_try()'s caller */
    struct probes *probes;
    struct session *reference; /* fp32 */
    const struct graph *int8;  /* the model's 8-bit form; NULL: int8 is not a candidate */
    const struct precision_gate *gate;
    double cpu_deadline_ms; /* CPU time of this thread at which the trials must end */
};

/* Runs the candidate against input->reference. The outcome is TRIAL_FAILED if the candidate does
 * not compile or run, and TRIAL_COSTLY if the time ends before the verdict; the call succeeds in
 * both cases. STATUS_CANCELLED; STATUS_NO_MEMORY, STATUS_DEVICE_MEMORY. */
enum status trial_run(const struct trial_input *input, enum precision precision,
                      struct precision_trial *ret, struct error *err) MUST_USE;

/* ---- choice_store.c ---- */

/* Read the measurements of earlier processes, and write the new ones of this process. Failures are
 * only logged. If `folder` is NULL, the functions do nothing. */
void cache_read(const char *folder);
void cache_write(const char *folder);

/* A hash of everything that a choice depends on, except the CPU and the build: graph,
 * preprocessing, calibration images, device, threads, batch size. On a CPU all batch sizes from
 * PRECISION_TRIAL_BATCH on share one choice. */
struct graph_hash choice_key_of(const struct model *model, const struct session_options *options);

/* Looks up a choice. If there is none, or its text is invalid, returns false and leaves *ret. */
bool choice_find(const struct graph_hash *key, struct precision_choice *ret);
void choice_keep(const struct graph_hash *key, const struct precision_choice *choice);
