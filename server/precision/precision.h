/* Chooses the precision in which a model runs on a device.
 *
 *     --precision auto:   cache ── hit ──────────────────────────────────────▶ choice
 *                           │ miss: fp32 serves
 *                           ▼
 *         candidates ─▶ trial: fp32 and the candidate run the probes in turns (A B B A …)
 *         (hardware,      │  faster (PRECISION_GAIN)?  same answers?  (agreement.h)
 *          model)         ▼
 *                       the fastest that passes, else fp32 ─▶ cache ─▶ choice
 *
 * Probes are the images in the model folder's calibration/, or pictures that lensd draws. Both get
 * the model's preprocessing. The fp32 session may serve requests between the runs of a trial
 * (struct precision_gate). docs/measurements/precision.md explains the verdict. */
#pragma once

#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "models/quantize/quantize_model.h"
#include "server/image/image.h"

/* The number of probes if calibration/ has too few images. */
#define PRECISION_PROBES 32

/* Batch size of a trial on a CPU, if the session supports it. On a GPU a trial uses the largest
 * batch, because a faster precision gains most there. */
#define PRECISION_TRIAL_BATCH 4

/* The most candidates: int8, fp16, bf16. */
#define PRECISION_TRIALS 3

/* The result of a candidate's comparison with fp32. */
struct precision_trial {
    enum precision precision;
    enum trial_outcome {
        TRIAL_PASSED,  /* it is faster, and the answers agree within the bounds */
        TRIAL_SLOWER,  /* it is not faster; not all answers were compared */
        TRIAL_DIFFERS, /* it is faster, but the answers differ */
        TRIAL_FAILED,  /* it could not be compiled or run */
        TRIAL_COSTLY,  /* it was stopped: the trials' time ended before a verdict */
    } outcome;
    double one_ms, image_ms; /* ms per image: the fastest pass of one image, and of a batch */
    double fp32_one_ms, fp32_image_ms; /* the same times of fp32 */
    double speed;                      /* the candidate's speed divided by fp32's */
    struct agreement agreement;
};

struct precision_choice {
    enum precision precision; /* never PRECISION_AUTO */
    enum choice_origin {
        CHOICE_PINNED, /* the user chose it */
        CHOICE_ONLY, /* made without trials, or by trials that the next start repeats; see `why` */
        CHOICE_MEASURED, /* trials, just now */
        CHOICE_CACHED,   /* by earlier trials, of this process or another one */
        CHOICE_PENDING,  /* fp32 for now: precision_try() has not compared other precisions yet */
    } origin;
    char why[800]; /* a sentence without its full stop */
    struct precision_trial trials[PRECISION_TRIALS];
    size_t trial_count;
    int from_folder; /* number of probe images from the model's folder */
};

const char *choice_origin_name(enum choice_origin origin);  /* "measured" */
const char *trial_outcome_name(enum trial_outcome outcome); /* "slower" */

struct precision_options {
    const struct image_limits *limits; /* for calibration images */
    const char *cache; /* folder of earlier choices (tuning_folder); NULL: memory only */
    enum precision_trials {
        TRIALS_NOW,   /* for a new choice precision_open() runs the trials itself */
        TRIALS_LATER, /* a new choice is CHOICE_PENDING; the caller runs precision_try() */
        TRIALS_NONE,  /* a new choice is fp32; no file is written */
    } trials;
};

/* Calls session_create() for `model`, whose graph is loaded. If session->precision is
 * PRECISION_AUTO, it chooses the precision first. *ret_choice is the choice. New measurements
 * (choices, kernels of layers) are written to the cache. If the cache is damaged or not writable,
 * it logs this and measures again. Errors: those of session_create(). */
enum status precision_open(const struct model *model, const struct precision_options *options,
                           const struct session_options *session,
                           struct precision_choice *ret_choice, struct session **ret,
                           struct error *err) MUST_USE;

/* Creates the session for `session`->precision, which must not be PRECISION_AUTO. For int8 of a
 * float32 model it uses the 8-bit form that trials have stored in the cache. Errors: those of
 * session_create(), and of reading that form. Without that form, compiles the graph as it is. */
enum status precision_session(const struct model *model, const struct precision_options *options,
                              const struct session_options *session, struct session **ret,
                              struct error *err) MUST_USE;

/* Called around each run of a trial, so that the fp32 session can serve requests between runs. NULL
 * functions: no other thread uses the session. */
struct precision_gate {
    void (*begin)(void *context); /* waits until the session and its device are free */
    void (*end)(void *context);
    void *context;
};

/* Runs the trials that precision_open() left pending. `session` has the options it was opened with;
 * its memory_limit is for a candidate beside `fp32`, and its `cancel` ends the call with
 * STATUS_CANCELLED. *ret_choice is the choice; if it is measured, the cache keeps it. The caller
 * opens the session of that precision. Call it from the thread that created `fp32`, which took
 * `load_ms` of CPU time; the trials end after a quarter of this time plus one second. Errors:
 * STATUS_CANCELLED, STATUS_NO_MEMORY of the host. */
enum status precision_try(const struct model *model, const struct precision_options *options,
                          const struct session_options *session, struct session *fp32,
                          const struct precision_gate *gate, double load_ms,
                          struct precision_choice *ret_choice, struct error *err) MUST_USE;

/* Calls quantize_model() with the photos in model->calibration, which must be set. `options` has no
 * photos; `limits` apply to the photos. */
enum status calibrate_model(const struct model *model, const struct image_limits *limits,
                            struct quantize_options options, struct graph **ret,
                            struct quantize_report *report, struct error *err) MUST_USE;

/* Warns in the log if choices cannot be written to the folder `cache` (NULL: nothing to check).
 * Leaves nothing there. */
void precision_check_cache(const char *cache);
