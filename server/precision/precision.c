#include "server/precision/precision.h"

#include <math.h>
#include <stdarg.h>
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

/* How long trials may take: so long for each precision, and as long as it takes to run the probes
 * so many times in fp32. A session that is being made and the check of a candidate are not broken
 * off. */
#define TRIALS_MS     2500
#define TRIALS_PASSES 4

/* Images of the batch that a CPU is tried with, whatever batch is served or profiled: all commands
 * share one outcome. */
#define TRIAL_BATCH 8

/* The share of a pass that has to be gained by fp32 layers before they are tried for speed. */
#define WORTH_A_TRIAL 0.03

const char *choice_origin_name(enum choice_origin origin)
{
    static const char *const names[] = {[CHOICE_PINNED] = "pinned",
                                        [CHOICE_ONLY] = "only",
                                        [CHOICE_MEASURED] = "measured",
                                        [CHOICE_CACHED] = "cached"};
    return names[origin];
}

const char *trial_outcome_name(enum trial_outcome outcome)
{
    static const char *const names[] = {[TRIAL_PASSED] = "passed",
                                        [TRIAL_SLOWER] = "slower",
                                        [TRIAL_DIFFERS] = "differs",
                                        [TRIAL_FAILED] = "failed"};
    return names[outcome];
}

const struct precision_trial *precision_chosen_trial(const struct precision_choice *choice)
{
    const struct precision_trial *best = NULL;
    for (size_t i = 0; i < choice->trial_count; i++) {
        const struct precision_trial *trial = &choice->trials[i];
        if (trial->precision == choice->precision && trial->outcome == TRIAL_PASSED &&
            (!best || trial->speed > best->speed))
            best = trial;
    }
    return best;
}

void precision_apply(const struct precision_choice *choice, struct session_options *session)
{
    const struct precision_trial *trial = precision_chosen_trial(choice);
    session->precision = choice->precision;
    session->fp32_layers = trial ? trial->fp32_layers : (struct layer_set){{0}};
}

/* ---- the reason, for people ---- */

static void say(struct precision_choice *choice, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(struct precision_choice *choice, const char *format, ...)
{
    va_list args;
    const size_t used = strlen(choice->why);
    va_start(args, format);
    vsnprintf(choice->why + used, sizeof choice->why - used, format, args);
    va_end(args);
}

static void say_agreement(struct precision_choice *choice, const struct precision_trial *trial)
{
    say(choice, "%d of %d probe images agree", trial->agreeing, trial->images);
    if (trial->undecided > 0)
        say(choice, " (%d undecided)", trial->undecided);
    say(choice, ", greatest difference%s %.4f",
        trial->is_classifier ? " of a probability" : " (relative)", trial->greatest);
}

static void say_trial(struct precision_choice *choice, const struct precision_trial *trial)
{
    char name[64];
    const int kept = layer_set_count(&trial->fp32_layers);
    snprintf(name, sizeof name, "%s", precision_name(trial->precision));
    if (kept > 0)
        snprintf(name, sizeof name, "%s with %d of %d layers in fp32",
                 precision_name(trial->precision), kept, trial->layer_count);
    if (choice->why[0])
        say(choice, "; ");
    switch (trial->outcome) {
    case TRIAL_PASSED:
        say(choice, "%s is %.2f times as fast as fp32: ", name, trial->speed);
        say_agreement(choice, trial);
        break;
    case TRIAL_SLOWER:
        say(choice, "%s does not pay, it is %.2f times as fast as fp32", name, trial->speed);
        break;
    case TRIAL_DIFFERS:
        say(choice, "%s is %.2f times as fast as fp32 but %s: ", name, trial->speed,
            trial->agreeing + trial->undecided == trial->images ? "its numbers are too far away"
                                                                : "answers differently");
        say_agreement(choice, trial);
        say(choice, " (at most %.2f is taken)",
            trial->is_classifier ? PRECISION_PROBABILITY : PRECISION_RELATIVE);
        if (kept == 0)
            say(choice, ", --precision %s takes it all the same", name);
        break;
    case TRIAL_FAILED:
        say(choice, "%s cannot run this model", name);
        break;
    }
}

static void explain(struct precision_choice *choice)
{
    const struct precision_trial *taken = precision_chosen_trial(choice);
    choice->why[0] = '\0';
    if (taken)
        say_trial(choice, taken);
    for (size_t i = 0; i < choice->trial_count; i++)
        if (&choice->trials[i] != taken)
            say_trial(choice, &choice->trials[i]);
}

static void take_only(struct precision_choice *choice, const char *why)
{
    choice->precision = PRECISION_FP32;
    choice->origin = CHOICE_ONLY;
    snprintf(choice->why, sizeof choice->why, "%s", why);
}

/* ---- trials ---- */

static void judge(struct precision_choice *choice)
{
    double fastest = 1;
    choice->precision = PRECISION_FP32;
    for (size_t i = 0; i < choice->trial_count; i++) {
        const struct precision_trial *trial = &choice->trials[i];
        if (trial->outcome != TRIAL_PASSED || trial->speed <= fastest)
            continue;
        fastest = trial->speed;
        choice->precision = trial->precision;
    }
    choice->origin = CHOICE_MEASURED;
    explain(choice);
}

/* Layers that fp32 computes quicker, by more than what a measurement is off by. */
static struct layer_set quicker_in_fp32(const struct survey *survey)
{
    struct layer_set layers = {{0}};
    double gain = 0;
    for (int layer = 1; layer <= survey->layer_count; layer++)
        if (survey->saved_ms[layer] < 0) {
            layer_set_add(&layers, layer);
            gain -= survey->saved_ms[layer];
        }
    return gain > WORTH_A_TRIAL * survey->fp32_ms ? layers : (struct layer_set){{0}};
}

/* bfloat16 as a whole; then with those layers in fp32 that it takes to be right, or is quicker
 * with. */
static enum status try_bf16(const struct trial_input *input, struct precision_trial *trial,
                            struct precision_choice *ret, struct error *err)
{
    struct survey *survey = calloc(1, sizeof *survey);
    if (!survey)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    struct precision_trial mixed;
    bool tried = false;
    enum status status = trial_run(input, PRECISION_BF16, NULL, survey, trial, err);
    if (status == STATUS_OK && trial->outcome == TRIAL_DIFFERS) {
        status = search_layers(input, survey, &mixed, &tried, err);
    } else if (status == STATUS_OK && trial->outcome != TRIAL_FAILED) {
        const struct layer_set layers = quicker_in_fp32(survey);
        tried = layer_set_count(&layers) > 0;
        tried = tried && trial_ms_left(input) > survey->fp32_ms * probes_count(input->probes);
        if (tried)
            status = trial_run(input, PRECISION_BF16, &layers, NULL, &mixed, err);
    }
    if (status == STATUS_OK && tried)
        ret->trials[ret->trial_count++] = mixed;
    free(survey);
    return status;
}

/* A first start that takes its time says why. */
static void begin_trials(struct trial_input *input, const enum precision *candidates, size_t count,
                         double one_ms)
{
    char names[48] = "", device[DEVICE_TEXT];
    const double ms =
        (double)count * (TRIALS_MS + TRIALS_PASSES * one_ms * probes_count(input->probes));
    for (size_t i = 0; i < count; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? "," : "",
                 precision_name(candidates[i]));
    }
    input->begin = clock_now();
    input->end = input->begin + (int64_t)(ms * 1e6);
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
    double one_ms;
    const bool is_gpu = input->options.device.kind != DEVICE_CPU;
    TRY(trial_time_one(input, &one_ms, err));
    if (one_ms < (is_gpu ? GPU_QUICK_MS : QUICK_MS)) {
        take_only(ret, "");
        say(ret, "the model is small: %.2f ms in fp32", one_ms);
        return STATUS_OK;
    }
    begin_trials(input, candidates, count, one_ms);
    for (size_t i = 0; i < count; i++) {
        struct precision_trial *trial = &ret->trials[ret->trial_count++];
        if (candidates[i] == PRECISION_BF16)
            TRY(try_bf16(input, trial, ret, err));
        else
            TRY(trial_run(input, candidates[i], NULL, NULL, trial, err));
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
    if (status == STATUS_NO_MEMORY || status == STATUS_DEVICE_MEMORY) {
        take_only(ret, "there is no memory for two sessions to be compared");
        status = STATUS_OK;
    } else if (status == STATUS_OK && session_input_count(input.reference) != 1)
        take_only(ret, "the model has several inputs, which photos do not fill");
    else if (status == STATUS_OK)
        status = try_all(&input, candidates, count, ret, err);
    session_free(input.reference);
    probes_free(input.probes);
    return status;
}

/* ---- the choice ---- */

static void keep(const char *folder, const struct choice_key *key,
                 const struct precision_choice *choice)
{
    struct error err;
    if (folder && choice_save(folder, key, choice, &err) != STATUS_OK)
        choice_say_lost(err.message);
}

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
    char *folder = choice_folder(options->cache);
    struct choice_key key = {""};
    enum status status = STATUS_OK;
    struct session_options tried = *session;
    tried.max_batch = trial_batch(model, session);
    if (folder)
        key = choice_key_of(model, &tried);
    if (folder && choice_load(folder, &key, ret) && is_offered(ret->precision, candidates, count)) {
        explain(ret);
    } else if (options->only_cached) {
        *ret = (struct precision_choice){0};
        take_only(ret, "no trial has been made; lensd serve makes one");
    } else {
        *ret = (struct precision_choice){0};
        status = measure(model, options->limits, session, candidates, count, ret, err);
        if (status == STATUS_OK && ret->origin == CHOICE_MEASURED)
            keep(folder, &key, ret);
    }
    free(folder);
    return status;
}

enum status precision_choose(const struct model *model, const struct precision_options *options,
                             struct session_options *session, struct precision_choice *ret,
                             struct error *err)
{
    kernels_recall(options->cache);
    *ret = (struct precision_choice){.precision = session->precision, .origin = CHOICE_PINNED};
    if (session->precision == PRECISION_AUTO)
        TRY(choose(model, options, session, ret, err));
    else
        say(ret, "--precision %s", precision_name(session->precision));
    precision_apply(ret, session);
    return STATUS_OK;
}
