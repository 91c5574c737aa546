/* Chooses the precision in which a model runs on a device.
 *
 *     --precision auto:   cache ── hit ──────────────────────────────────────▶ choice
 *                           │ miss: fp32 serves
 *                           ▼
 *         candidates ─▶ trial: fp32 and the candidate run the probe images in turns (A B A B …)
 *         (hardware,      │  clearly faster?  same answers?  (autotune.h, agreement.h)
 *          model)         ▼
 *                       the fastest that passes, else fp32 ─▶ cache ─▶ choice
 *
 * The probes (probes.h) are the images in the model folder's calibration/, or synthetic images that
 * lensd generates. Both get the model's preprocessing. Candidates are compared with an fp32 session
 * that may serve requests meanwhile (struct precision_gate). */
#pragma once

#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "models/quantize/agreement.h"
#include "server/image/image.h"

/* Number of synthetic images. If calibration/ has fewer than PRECISION_OWN_PROBES images, synthetic
 * ones are added up to this number of probes. */
#define PRECISION_PROBES     32
#define PRECISION_OWN_PROBES 16

/* When the trials' time ends, this many probes are enough for a verdict if the result is clear
 * (agreement.h). With fewer, the margin of Student's t doubles. */
#define PRECISION_LEAST_PROBES 8

/* Batch size of a trial on a CPU, if the session supports it. On a GPU a trial uses the largest
 * batch, because a faster precision gains most there. Choices are stored under this number. */
#define PRECISION_TRIAL_BATCH 4

/* int8, fp16, bf16. */
#define PRECISION_TRIALS 3

/* The result of a candidate's comparison with fp32. */
struct precision_trial {
    enum precision precision;
    enum trial_outcome {
        TRIAL_PASSED,  /* faster, and answers agree within the bounds */
        TRIAL_SLOWER,  /* not faster: the comparison of answers stopped */
        TRIAL_DIFFERS, /* faster, but answers differ */
        TRIAL_FAILED,  /* could not be compiled or run */
        TRIAL_COSTLY,  /* given up: the trials' time ended before a verdict */
    } outcome;
    double one_ms, image_ms;           /* a batch of one; per image of the larger trial batch */
    double fp32_one_ms, fp32_image_ms; /* the same in fp32, in turns with the candidate */
    double speed;                      /* relative to fp32; below 1: slower */
    struct agreement agreement;
};

struct precision_choice {
    enum precision precision; /* never PRECISION_AUTO */
    enum choice_origin {
        CHOICE_PINNED,   /* the user chose it */
        CHOICE_ONLY,     /* no other precision was worth a trial; `why` has the reason */
        CHOICE_MEASURED, /* trials, just now */
        CHOICE_CACHED,   /* by trials of an earlier process, or earlier ones of this process */
        CHOICE_PENDING,  /* fp32 for now: precision_try() has not compared other precisions yet */
    } origin;
    char why[800]; /* a sentence without its full stop */
    struct precision_trial trials[PRECISION_TRIALS];
    size_t trial_count;
    int from_folder; /* number of probe images from the model's folder */
};

/* The trial of the chosen precision; NULL if there was none. */
const struct precision_trial *precision_chosen_trial(const struct precision_choice *choice);

const char *choice_origin_name(enum choice_origin origin);  /* "measured" */
const char *trial_outcome_name(enum trial_outcome outcome); /* "slower" */

struct precision_options {
    const struct image_limits *limits; /* for calibration images */
    const char *cache; /* folder of earlier choices (tuning_folder); NULL: memory only */
    enum precision_trials {
        TRIALS_NOW,   /* without an earlier choice precision_open() runs the trials itself */
        TRIALS_LATER, /* it opens fp32: CHOICE_PENDING; the caller runs precision_try() */
        TRIALS_NONE,  /* it opens fp32 and writes no file */
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
 * float32 model it uses the 8-bit form that trials have stored in the cache. Errors as above; if
 * that form is missing, those of session_create() for a model that is not quantized. */
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

/* The trials' time limit in milliseconds for a model whose load took `load_ms`: a quarter of
 * `load_ms` plus a second. Both are CPU time of the calling thread. */
double precision_trial_ms(double load_ms);

/* Runs the trials that precision_open() left pending. `session` has the options it was opened with;
 * its memory_limit is for a candidate beside `fp32`, and its `cancel` ends the call with
 * STATUS_CANCELLED. *ret_choice is the choice, which is stored in the cache. The caller opens the
 * session of that precision. The calling thread must be the one that created `fp32`; it uses at
 * most about `budget_ms` of CPU time. Errors: STATUS_CANCELLED, STATUS_NO_MEMORY of the host,
 * STATUS_IO (calibration images). */
enum status precision_try(const struct model *model, const struct precision_options *options,
                          const struct session_options *session, struct session *fp32,
                          const struct precision_gate *gate, double budget_ms,
                          struct precision_choice *ret_choice, struct error *err) MUST_USE;

/* Checks that choices can be written to that folder; leaves nothing there. If not, `warning` is a
 * sentence, otherwise "". */
void precision_check_cache(const char *cache, char *warning, size_t size);
