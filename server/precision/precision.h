/* Chooses the precision that a model is computed in on a device.
 *
 *     --precision auto:   cache ── hit ──────────────────────────────────────▶ choice
 *                           │ miss: fp32 serves
 *                           ▼
 *         candidates ─▶ trial: fp32 and the candidate run the probe images in turns (A B A B …)
 *         (hardware,      │  clearly faster?  same answers?  (autotune.h, agreement.h)
 *          model)         ▼
 *                       the fastest that passes, else fp32 ─▶ cache ─▶ choice
 *
 * The probes (probes.h) are the images of the model folder's calibration/, or else pictures that
 * lensd draws, prepared as the model's photos are. Candidates are compared with a session in fp32
 * that may serve requests meanwhile (struct precision_gate). */
#pragma once

#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "models/quantize/agreement.h"
#include "server/image/image.h"

/* Number of drawn pictures. If calibration/ has fewer than PRECISION_OWN_PROBES images, drawn
 * pictures fill up the probes to that number. */
#define PRECISION_PROBES     32
#define PRECISION_OWN_PROBES 16

/* When the time for trials is over, this many probes are enough for a verdict, if they leave no
 * doubt (agreement.h): with fewer the margin of Student's t doubles. */
#define PRECISION_LEAST_PROBES 8

/* Images of a batch in a trial on a CPU, if the session runs as many. On a GPU a trial uses the
 * largest batch, because a faster precision gains most there. Choices are kept by this number. */
#define PRECISION_TRIAL_BATCH 4

/* int8, fp16, bf16. */
#define PRECISION_TRIALS 3

/* How a candidate fared against fp32. */
struct precision_trial {
    enum precision precision;
    enum trial_outcome {
        TRIAL_PASSED,  /* faster, and answers agree within the bounds */
        TRIAL_SLOWER,  /* not faster: the rest of its answers was not compared */
        TRIAL_DIFFERS, /* faster, but answers differ */
        TRIAL_FAILED,  /* could not be compiled or run */
        TRIAL_COSTLY,  /* given up: the trials' time was over before a verdict */
    } outcome;
    double one_ms, image_ms;           /* a batch of one; per image of the larger trial batch */
    double fp32_one_ms, fp32_image_ms; /* the same in fp32, measured alternately */
    double speed;                      /* divided by that of fp32; below 1: slower */
    struct agreement agreement;
};

struct precision_choice {
    enum precision precision; /* never PRECISION_AUTO */
    enum choice_origin {
        CHOICE_PINNED,   /* the user named it */
        CHOICE_ONLY,     /* nothing else was worth a trial; `why` says the reason */
        CHOICE_MEASURED, /* trials, just now */
        CHOICE_CACHED,   /* trials of an earlier start, or of this process */
        CHOICE_PENDING,  /* fp32 for now: precision_try() has not compared the others yet */
    } origin;
    char why[800]; /* a sentence without its full stop */
    struct precision_trial trials[PRECISION_TRIALS];
    size_t trial_count;
    int from_folder; /* probe images that came from the model's folder */
};

/* The trial of the chosen precision; NULL if it needed none. */
const struct precision_trial *precision_chosen_trial(const struct precision_choice *choice);

const char *choice_origin_name(enum choice_origin origin);  /* "measured" */
const char *trial_outcome_name(enum trial_outcome outcome); /* "slower" */

struct precision_options {
    const struct image_limits *limits; /* for calibration images */
    const char *cache; /* folder of earlier choices (tuning_folder); NULL: memory only */
    enum precision_trials {
        TRIALS_NOW,   /* without an earlier choice precision_open() makes the trials itself */
        TRIALS_LATER, /* it opens fp32 and says CHOICE_PENDING; the caller calls precision_try() */
        TRIALS_NONE,  /* it opens fp32, and writes no file */
    } trials;
};

/* session_create() for `model`, whose graph is loaded. If session->precision is PRECISION_AUTO,
 * this chooses the precision. *ret_choice gets the choice. New measurements (choices, kernels of
 * layers) are written to the cache. If the cache is damaged or cannot be written, this logs it and
 * measures again. Errors: those of session_create. */
enum status precision_open(const struct model *model, const struct precision_options *options,
                           const struct session_options *session,
                           struct precision_choice *ret_choice, struct session **ret,
                           struct error *err) MUST_USE;

/* Creates the session for `session`->precision, which is not PRECISION_AUTO: int8 of a float32
 * model is the 8-bit form that trials have left in the cache. Errors as above; without that form,
 * those of session_create for a model that is not quantized. */
enum status precision_session(const struct model *model, const struct precision_options *options,
                              const struct session_options *session, struct session **ret,
                              struct error *err) MUST_USE;

/* Called around each run of a trial, so that the session in fp32 can serve requests between them.
 * NULL functions: the session is the caller's alone. */
struct precision_gate {
    void (*begin)(void *context); /* waits until the session and its device are free */
    void (*end)(void *context);
    void *context;
};

/* Milliseconds that the trials of a model may take whose load took `load_ms`, both CPU time of the
 * calling thread: a quarter of it, and a second. */
double precision_trial_ms(double load_ms);

/* Makes the trials that precision_open() left pending. `session` has the options it was opened
 * with; its memory_limit is what a candidate may take beside `fp32`, its `cancel` ends the call
 * with STATUS_CANCELLED. *ret_choice: the choice, which is kept in the cache. The caller opens the
 * session of that precision. The calling thread is the one that created `fp32`, and spends at most
 * about `budget_ms` of its CPU time. Errors: STATUS_CANCELLED, STATUS_NO_MEMORY of the host,
 * STATUS_IO (calibration images). */
enum status precision_try(const struct model *model, const struct precision_options *options,
                          const struct session_options *session, struct session *fp32,
                          const struct precision_gate *gate, double budget_ms,
                          struct precision_choice *ret_choice, struct error *err) MUST_USE;

/* Checks whether choices can be written to that folder, without creating anything that stays.
 * `warning` gets a sentence if not, else "". */
void precision_check_cache(const char *cache, char *warning, size_t size);
