/* Which numbers a model is computed in on a device, and why.
 *
 *     --precision auto:   cache ── hit ──────────────────────────────────────▶ choice
 *                           │ miss
 *                           ▼
 *         candidates ─▶ trial: fp32 and the candidate run the probe images in turns (A B A B …)
 *         (hardware,      │  clearly quicker?  same answers?  (autotune.h, agreement.h)
 *          model)         ▼
 *                       the quickest that passes, else fp32 ─▶ cache ─▶ choice
 *
 * The probes (probes.h) are the images of the model folder's calibration/, or else pictures that
 * lensd draws, prepared as the model's photos are. The session in fp32 that candidates are compared
 * with is the one that serves if none of them passes. */
#pragma once

#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "server/image/image.h"
#include "server/precision/agreement.h"

/* How many pictures are drawn; a calibration/ of fewer than PRECISION_OWN_PROBES images proves too
 * little alone, and is filled up with drawn ones to as many. */
#define PRECISION_PROBES     32
#define PRECISION_OWN_PROBES 16

/* A candidate has to be this many times as fast as fp32. A lower gain is not worth other numbers,
 * and the distance to 1.1 is more than a trial is off by: what gains 1.1 or more is always taken,
 * what gains nothing never. */
#define PRECISION_GAIN 1.05

/* int8, fp16, bf16. */
#define PRECISION_TRIALS 3

/* How a candidate fared against fp32. */
struct precision_trial {
    enum precision precision;
    enum trial_outcome {
        TRIAL_PASSED,  /* quicker and equal within the bounds */
        TRIAL_SLOWER,  /* not quicker: its answers were not looked at further */
        TRIAL_DIFFERS, /* quicker, but it answers differently */
        TRIAL_FAILED,  /* it could not be compiled or run */
    } outcome;
    double one_ms, image_ms;           /* a batch of one; an image of a batch of TRIAL_BATCH */
    double fp32_one_ms, fp32_image_ms; /* the same in fp32, in turns with it */
    double speed;                      /* how many times quicker than fp32; below 1: slower */
    struct agreement agreement;
};

struct precision_choice {
    enum precision precision; /* never PRECISION_AUTO */
    enum choice_origin {
        CHOICE_PINNED,   /* the user named it */
        CHOICE_ONLY,     /* nothing else was worth a trial; `why` says the reason */
        CHOICE_MEASURED, /* trials, just now */
        CHOICE_CACHED,   /* trials of an earlier start, or of this process */
    } origin;
    char why[800]; /* a sentence without its full stop */
    struct precision_trial trials[PRECISION_TRIALS];
    size_t trial_count;
    int from_folder; /* probe images that came from the model's folder */
};

/* The trial that what was chosen passed; NULL where there was none. */
const struct precision_trial *precision_chosen_trial(const struct precision_choice *choice);

const char *choice_origin_name(enum choice_origin origin);  /* "measured" */
const char *trial_outcome_name(enum trial_outcome outcome); /* "slower" */

struct precision_options {
    const struct image_limits *limits; /* for calibration images */
    const char *cache;                 /* folder of earlier choices; NULL: $XDG_CACHE_HOME/lensd or
                                          ~/.cache/lensd; "none": not kept
                                          beyond the process */
    bool only_cached; /* where no earlier choice is known, take fp32 without a trial; what this
                         process measures is not written */
};

/* session_create() for `model`, whose graph is loaded, in the precision that PRECISION_AUTO in
 * session->precision stands for, which *ret_choice tells. A trial takes about as long as a hundred
 * forward passes at most; session->on_progress and cancel are heeded. All that was measured and is
 * new (choices, kernels of layers) is written to the cache. A cache that is broken or cannot be
 * written costs a trial and a line of the log. Errors: those of session_create. */
enum status precision_open(const struct model *model, const struct precision_options *options,
                           const struct session_options *session,
                           struct precision_choice *ret_choice, struct session **ret,
                           struct error *err) MUST_USE;

/* Whether choices could be kept in that folder, made if need be: tried in what is there of
 * it, leaving nothing behind. `warning` gets a sentence, or "". */
void precision_check_cache(const char *cache, char *warning, size_t size);
