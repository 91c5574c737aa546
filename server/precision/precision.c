/* How --precision auto chooses: a choice of an earlier start, or trials, or fp32 where nothing else
 * is worth a trial. */
#include "server/precision/precision.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "server/observe/log.h"
#include "server/precision/internal.h"

/* A pass shorter than this needs no faster precision. Skipping the trial lets small models start at
 * once. */
#define QUICK_MS 0.5
/* Lower on a GPU: a single image is fast there for any model, but large batches can still gain. */
#define GPU_QUICK_MS 0.1

/* Share of a load's time that trials may take, and what they may take besides. */
#define TRIALS_SHARE 0.25
#define TRIALS_MS    1000.0

static void take_only(struct precision_choice *choice, const char *why)
{
    *choice = (struct precision_choice){.precision = PRECISION_FP32, .origin = CHOICE_ONLY};
    snprintf(choice->why, sizeof choice->why, "%s", why);
}

double precision_trial_ms(double load_ms)
{
    return TRIALS_SHARE * load_ms + TRIALS_MS;
}

static void log_trials(const struct trial_input *input, const enum precision *candidates,
                       size_t count)
{
    char names[48] = "", device[DEVICE_TEXT];
    for (size_t i = 0; i < count; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? "," : "",
                 precision_name(candidates[i]));
    }
    log_event(LOG_INFO, "precision trials", LOG_STR("model", input->model->name),
              LOG_STR("device", device_text(input->options.device, device)),
              LOG_STR("candidates", names), LOG_INT("images_at_most", probes_count(input->probes)),
              LOG_STR("text", "speed and answers are compared with fp32, once per model and "
                              "machine (--cache keeps the outcome); --precision fp32 skips it"));
}

static bool is_memory(enum status status)
{
    return status == STATUS_NO_MEMORY || status == STATUS_DEVICE_MEMORY;
}

/* Tries each candidate. If two pass, the later one is chosen only if it is faster by
 * PRECISION_GAIN, so that noise does not change the choice between starts. On a GPU candidates are
 * ordered by speed, and the first that passes is chosen. */
static enum status try_candidates(const struct trial_input *input, const enum precision *candidates,
                                  size_t count, int calibrated, struct precision_choice *ret,
                                  struct error *err)
{
    double fastest = 1;
    if (count)
        log_trials(input, candidates, count);
    *ret = (struct precision_choice){.precision = PRECISION_FP32,
                                     .origin = CHOICE_MEASURED,
                                     .from_folder = probes_from_folder(input->probes),
                                     .calibrated = calibrated};
    for (size_t i = 0; i < count; i++) {
        struct precision_trial *trial = &ret->trials[ret->trial_count++];
        const enum status status = trial_run(input, candidates[i], trial, err);
        if (is_memory(status) && ret->precision != PRECISION_FP32) {
            ret->origin = CHOICE_ONLY; /* not kept: the next start tries this one again */
            ret->trial_count--;
            break;
        }
        TRY(status);
        if (trial->outcome != TRIAL_PASSED || trial->speed <= fastest)
            continue;
        fastest = trial->speed * PRECISION_GAIN;
        ret->precision = trial->precision;
        if (input->options.device.kind != DEVICE_CPU)
            break;
    }
    choice_explain(ret);
    return STATUS_OK;
}

static bool takes_photos(const struct session *session, const struct preprocess *p)
{
    const size_t numbers = (size_t)p->width * (size_t)p->height * (size_t)preprocess_channels(p);
    return session_input_count(session) == 1 &&
           shape_count(&session_input(session, 0)->shape) == numbers;
}

static bool is_offered(enum precision precision, const enum precision *candidates, size_t count)
{
    bool offered = precision == PRECISION_FP32;
    for (size_t i = 0; i < count; i++)
        offered = offered || candidates[i] == precision;
    return offered;
}

/* Whether a choice can still be carried out: the 8-bit form may have gone from the cache. */
static bool is_usable(const struct model *model, const struct precision_options *options,
                      const struct graph_hash *key, const struct precision_choice *choice)
{
    return choice->precision != PRECISION_INT8 || session_is_quantized(model->graph) ||
           calibrated_exists(key, options->cache);
}

enum status precision_session(const struct model *model, const struct precision_options *options,
                              const struct session_options *session, struct session **ret,
                              struct error *err)
{
    struct graph *graph;
    if (session->precision != PRECISION_INT8 ||
        !calibrated_is_possible(model, session, options->cache))
        return session_create(model->graph, session, ret, err);
    const struct graph_hash key = choice_key_of(model, session);
    if (!calibrated_exists(&key, options->cache))
        return session_create(model->graph, session, ret, err);
    TRY(calibrated_read(&key, options->cache, &graph, err));
    const enum status status = session_create(graph, session, ret, err);
    graph_free(graph);
    return status;
}

/* Makes the choice before there is a session. CHOICE_PENDING: only trials can tell. */
static void choose_at_once(const struct model *model, const struct precision_options *options,
                           const struct session_options *session, const struct graph_hash *key,
                           const enum precision *candidates, size_t count,
                           struct precision_choice *ret)
{
    if (count == 0)
        take_only(ret, "no other precision is faster on this device for this model");
    else if (session->image_input == SIZE_MAX)
        take_only(ret, "the model takes no photo, so there are no answers to compare");
    else if (choice_find(key, ret) && is_offered(ret->precision, candidates, count) &&
             is_usable(model, options, key, ret))
        choice_explain(ret);
    else if (options->trials == TRIALS_NONE)
        take_only(ret, "no trial has been made; lensd serve makes one");
    else {
        take_only(ret, "fp32 serves until the other precisions are compared with it");
        ret->origin = CHOICE_PENDING;
    }
}

/* Ends what is pending where the session in fp32 shows that a trial is not worth it. */
static void choose_by_session(const struct model *model, const struct session *fp32,
                              struct precision_choice *ret)
{
    const struct session_info *info = session_info(fp32);
    const double ms = info->batches[0].milliseconds;
    char why[64];
    if (!takes_photos(fp32, &model->preprocess)) {
        take_only(ret, "a prepared photo does not match the model's inputs");
    } else if (ms < (info->device.kind == DEVICE_CPU ? QUICK_MS : GPU_QUICK_MS)) {
        snprintf(why, sizeof why, "the model is small: %.2f ms in fp32", ms);
        take_only(ret, why);
    }
}

/* The 8-bit form; where it cannot be made *ret stays NULL, and *ret_failure says why. */
static enum status make_int8(const struct model *model, const struct precision_options *options,
                             const struct session_options *session, const struct graph_hash *key,
                             struct graph **ret, int *ret_photos, struct error *ret_failure,
                             struct error *err)
{
    const enum status status =
        calibrated_make(model, options, session, key, ret, ret_photos, ret_failure);
    if (status == STATUS_CANCELLED)
        return error_set(err, status, "%s", ret_failure->message);
    if (status != STATUS_OK)
        log_event(LOG_WARN, "calibration failed", LOG_STR("model", model->name),
                  LOG_STR("error", ret_failure->message));
    return STATUS_OK;
}

/* The choice is not kept: the next start calibrates again, with better photos. */
static void say_not_calibrated(struct precision_choice *choice, const struct error *failure)
{
    const size_t used = strlen(choice->why);
    snprintf(choice->why + used, sizeof choice->why - used,
             "%sint8 was not compared, because its calibration failed: %.300s", used ? "; " : "",
             failure->message);
    choice->origin = CHOICE_ONLY;
}

enum status precision_try(const struct model *model, const struct precision_options *options,
                          const struct session_options *session, struct session *fp32,
                          const struct precision_gate *gate, double budget_ms,
                          struct precision_choice *ret, struct error *err)
{
    enum precision candidates[PRECISION_COUNT];
    const bool can_calibrate = calibrated_is_possible(model, session, options->cache);
    size_t count = candidates_find(session->device, model->graph, can_calibrate, candidates);
    const struct graph_hash key = choice_key_of(model, session);
    struct graph *int8 = NULL;
    struct error failure;
    int photos = 0;
    if (choice_find(&key, ret) && is_offered(ret->precision, candidates, count) &&
        is_usable(model, options, &key, ret)) {
        choice_explain(ret);
        return STATUS_OK;
    }
    if (can_calibrate)
        TRY(make_int8(model, options, session, &key, &int8, &photos, &failure, err));
    const bool is_uncalibrated = can_calibrate && !int8;
    if (is_uncalibrated)
        count = candidates_find(session->device, model->graph, false, candidates);
    struct trial_input input = {.model = model,
                                .options = *session,
                                .reference = fp32,
                                .int8 = int8,
                                .gate = gate,
                                .cpu_deadline_ms = clock_ms(clock_thread()) + budget_ms};
    enum status status = session_enter(fp32, err);
    if (status == STATUS_OK)
        status = probes_open(model, options->limits, &input.probes, err);
    if (status == STATUS_OK)
        status = try_candidates(&input, candidates, count, photos, ret, err);
    probes_free(input.probes);
    graph_free(int8);
    if (gate->begin)
        gate->begin(gate->context);
    session_release_pages(fp32); /* of the trial's batches, which requests may never need */
    if (gate->end)
        gate->end(gate->context);
    if (is_memory(status)) { /* temporary, so not kept as the result of a trial */
        take_only(ret, "there is not enough memory to compare two sessions");
        return STATUS_OK;
    }
    TRY(status);
    if (is_uncalibrated)
        say_not_calibrated(ret, &failure);
    if (ret->origin == CHOICE_MEASURED)
        choice_keep(&key, ret);
    cache_write(options->cache);
    return STATUS_OK;
}

/* Returns the bytes that fp32 leaves to a candidate; 0: no limit. */
static size_t memory_left(size_t limit, const struct session_info *fp32)
{
    const size_t taken = fp32->parameter_bytes + fp32->activation_bytes;
    return limit == 0 ? 0 : limit > taken ? limit - taken : 1;
}

/* Compares *session, in fp32, with the others, and replaces it by the one that was chosen. */
static enum status try_now(const struct model *model, const struct precision_options *options,
                           const struct session_options *asked, double load_ms,
                           struct precision_choice *ret, struct session **session,
                           struct error *err)
{
    const struct precision_gate alone = {0};
    struct session_options chosen = *asked;
    chosen.memory_limit = memory_left(asked->memory_limit, session_info(*session));
    TRY(precision_try(model, options, &chosen, *session, &alone, precision_trial_ms(load_ms), ret,
                      err));
    if (ret->precision == PRECISION_FP32)
        return STATUS_OK;
    chosen.memory_limit = asked->memory_limit;
    chosen.precision = ret->precision;
    session_free(*session);
    *session = NULL;
    return precision_session(model, options, &chosen, session, err);
}

static enum status choose(const struct model *model, const struct precision_options *options,
                          const struct session_options *session, struct precision_choice *ret,
                          struct session **ret_session, struct error *err)
{
    enum precision candidates[PRECISION_COUNT];
    const size_t count =
        candidates_find(session->device, model->graph,
                        calibrated_is_possible(model, session, options->cache), candidates);
    const struct graph_hash key = choice_key_of(model, session);
    struct session_options chosen = *session;
    const double start_ms = clock_ms(clock_thread());
    choose_at_once(model, options, session, &key, candidates, count, ret);
    chosen.precision = ret->precision;
    TRY(precision_session(model, options, &chosen, ret_session, err));
    if (ret->origin == CHOICE_PENDING)
        choose_by_session(model, *ret_session, ret);
    if (ret->origin == CHOICE_PENDING && options->trials == TRIALS_NOW)
        return try_now(model, options, session, clock_ms(clock_thread()) - start_ms, ret,
                       ret_session, err);
    return STATUS_OK;
}

enum status precision_open(const struct model *model, const struct precision_options *options,
                           const struct session_options *session,
                           struct precision_choice *ret_choice, struct session **ret,
                           struct error *err)
{
    struct session *made = NULL;
    enum status status;
    cache_read(options->cache);
    *ret_choice = (struct precision_choice){.precision = session->precision};
    if (session->precision == PRECISION_AUTO) {
        status = choose(model, options, session, ret_choice, &made, err);
    } else {
        snprintf(ret_choice->why, sizeof ret_choice->why, "--precision %s",
                 precision_name(session->precision));
        status = precision_session(model, options, session, &made, err);
    }
    if (status != STATUS_OK) {
        session_free(made);
        return status;
    }
    if (options->trials != TRIALS_NONE)
        cache_write(options->cache);
    *ret = made;
    return STATUS_OK;
}
