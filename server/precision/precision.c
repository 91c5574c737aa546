/* How --precision auto chooses: a choice of an earlier start, or trials, or fp32 where nothing else
 * is worth a trial. */
#include "server/precision/precision.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/observe/log.h"
#include "server/precision/internal.h"

/* A pass that takes less than this is quick whatever its numbers are: nobody sees the gain, and
 * small models start at once. */
#define QUICK_MS 0.5
/* On a GPU one image of any model is quick; what counts there are large batches. */
#define GPU_QUICK_MS 0.1

/* A candidate may be timed for so long, and for as long as it takes to run the probes so many times
 * in fp32; comparing its answers takes two more such passes at most. */
#define SPEED_MS       2500
#define SPEED_PASSES   2
#define COMPARE_PASSES 2

/* Images of the batch that a CPU is tried with, whatever batch is served or profiled: all commands
 * share one outcome. */
#define TRIAL_BATCH 8

static void take_only(struct precision_choice *choice, const char *why)
{
    choice->precision = PRECISION_FP32;
    choice->origin = CHOICE_ONLY;
    snprintf(choice->why, sizeof choice->why, "%s", why);
}

/* ---- trials ---- */

/* Of two that pass, the later one has to be clearly faster, too: so the same one is chosen at the
 * next start. */
static void judge(struct precision_choice *choice)
{
    double fastest = 1;
    choice->precision = PRECISION_FP32;
    for (size_t i = 0; i < choice->trial_count; i++) {
        const struct precision_trial *trial = &choice->trials[i];
        if (trial->outcome != TRIAL_PASSED || trial->speed <= fastest)
            continue;
        fastest = trial->speed * PRECISION_GAIN;
        choice->precision = trial->precision;
    }
    choice->origin = CHOICE_MEASURED;
    choice_explain(choice);
}

/* A first start that takes its time says why. */
static void begin_trials(struct trial_input *input, const enum precision *candidates, size_t count,
                         double one_ms)
{
    char names[48] = "", device[DEVICE_TEXT];
    const double pass_ms = one_ms * probes_count(input->probes);
    input->speed_ms = SPEED_MS + SPEED_PASSES * pass_ms;
    const double ms = (double)count * (input->speed_ms + COMPARE_PASSES * pass_ms);
    for (size_t i = 0; i < count; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? "," : "",
                 precision_name(candidates[i]));
    }
    log_event(LOG_INFO, "precision trials", LOG_STR("model", input->model->name),
              LOG_STR("device", device_text(input->options.device, device)),
              LOG_STR("candidates", names), LOG_INT("images_at_most", probes_count(input->probes)),
              LOG_INT("seconds_at_most", (int64_t)ceil(ms / 1000)),
              LOG_STR("text", "speed and answers are compared with fp32, once per model and "
                              "machine (--cache keeps the outcome); --precision fp32 skips it"));
}

static enum status try_all(struct trial_input *input, const enum precision *candidates,
                           size_t count, struct precision_choice *ret, struct error *err)
{
    struct run_time one;
    char why[64];
    const bool is_gpu = input->options.device.kind != DEVICE_CPU;
    TRY(trial_time_one(input, &one, err));
    if (one.cost < (is_gpu ? GPU_QUICK_MS : QUICK_MS)) {
        snprintf(why, sizeof why, "the model is small: %.2f ms in fp32", one.cost);
        take_only(ret, why);
        return STATUS_OK;
    }
    begin_trials(input, candidates, count, one.ms);
    for (size_t i = 0; i < count; i++) {
        struct precision_trial *trial = &ret->trials[ret->trial_count++];
        TRY(trial_run(input, candidates[i], trial, err));
        if (is_gpu && trial->outcome == TRIAL_PASSED)
            break;
    }
    ret->from_folder = probes_from_folder(input->probes);
    judge(ret);
    return STATUS_OK;
}

static int trial_batch(const struct model *model, const struct session_options *session)
{
    if (session->device.kind != DEVICE_CPU)
        return session->max_batch;
    return model->max_batch > 0 && model->max_batch < TRIAL_BATCH ? (int)model->max_batch
                                                                  : TRIAL_BATCH;
}

/* Of a choice the fp32 session that the others are compared with is this much. */
#define REFERENCE_SHARE 0.3

static void on_reference(void *context, double fraction)
{
    const struct session_options *options = context;
    if (options->on_progress)
        options->on_progress(options->progress_context, REFERENCE_SHARE * fraction);
}

static enum status measure(const struct model *model, const struct image_limits *limits,
                           const struct session_options *session, const enum precision *candidates,
                           size_t count, struct precision_choice *ret, struct error *err)
{
    struct trial_input input = {.model = model, .options = *session};
    input.options.trial = true;
    if (input.options.image_layout == IMAGE_NHWC_ANY) /* probes are the same for all */
        input.options.image_layout = IMAGE_NHWC_F32;
    input.options.precision = PRECISION_FP32;
    TRY(probes_open(model, limits, &input.probes, err));
    input.options.memory_limit /= 2; /* two sessions are there at a time */
    input.options.max_batch_is_pinned = false;
    input.options.max_batch = trial_batch(model, session);
    struct session_options reference = input.options;
    reference.on_progress = on_reference;
    reference.progress_context = &input.options;
    struct trial_work work = {.from = REFERENCE_SHARE,
                              .expected = (double)count * probes_count(input.probes)};
    input.work = &work;
    enum status status = session_create(model->graph, &reference, &input.reference, err);
    if (status == STATUS_OK && session_input_count(input.reference) != 1)
        take_only(ret, "the model has several inputs, which photos do not fill");
    else if (status == STATUS_OK)
        status = try_all(&input, candidates, count, ret, err);
    if (status == STATUS_NO_MEMORY || status == STATUS_DEVICE_MEMORY) {
        *ret = (struct precision_choice){0};
        take_only(ret, "there is no memory for two sessions to be compared");
        status = STATUS_OK;
    }
    session_free(input.reference);
    probes_free(input.probes);
    return status;
}

/* ---- the choice ---- */

static bool is_offered(enum precision precision, const enum precision *candidates, size_t count)
{
    bool offered = precision == PRECISION_FP32;
    for (size_t i = 0; i < count; i++)
        offered = offered || candidates[i] == precision;
    return offered;
}

static enum status choose(const struct model *model, const struct precision_options *options,
                          const struct session_options *session, struct precision_choice *ret,
                          struct error *err)
{
    enum precision candidates[PRECISION_COUNT];
    const size_t count = candidates_find(session->device, model->graph, candidates);
    if (count == 0) {
        take_only(ret, "this device computes nothing faster than fp32 for this model");
        return STATUS_OK;
    }
    if (session->image_input == SIZE_MAX) {
        take_only(ret, "the model takes no photo, so that there is nothing to compare on");
        return STATUS_OK;
    }
    struct session_options tried = *session;
    tried.max_batch = trial_batch(model, session);
    const struct graph_hash key = choice_key_of(model, &tried);
    if (choice_find(&key, ret) && is_offered(ret->precision, candidates, count)) {
        choice_explain(ret);
        return STATUS_OK;
    }
    *ret = (struct precision_choice){0};
    if (options->only_cached) {
        take_only(ret, "no trial has been made; lensd serve makes one");
        return STATUS_OK;
    }
    TRY(measure(model, options->limits, session, candidates, count, ret, err));
    if (ret->origin == CHOICE_MEASURED) {
        choice_keep(&key, ret);
        precision_write_cache(options->cache);
    }
    return STATUS_OK;
}

enum status precision_choose(const struct model *model, const struct precision_options *options,
                             struct session_options *session, struct precision_choice *ret,
                             struct error *err)
{
    cache_read(options->cache);
    *ret = (struct precision_choice){.precision = session->precision, .origin = CHOICE_PINNED};
    if (session->precision == PRECISION_AUTO)
        TRY(choose(model, options, session, ret, err));
    else
        snprintf(ret->why, sizeof ret->why, "--precision %s", precision_name(session->precision));
    session->precision = ret->precision;
    /* The fp32 session of the trials has spent this start's time for measuring kernels. */
    session->no_kernel_trials |=
        ret->origin == CHOICE_MEASURED && session->device.kind == DEVICE_CPU;
    return STATUS_OK;
}
