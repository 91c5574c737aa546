/* How --precision auto chooses: a choice of an earlier start, or trials, or fp32 where nothing else
 * is worth a trial. */
#include "server/precision/precision.h"

#include <stdio.h>
#include <string.h>

#include "server/observe/log.h"
#include "server/precision/internal.h"

/* A pass shorter than this needs no faster precision. Skipping the trial lets small models start at
 * once. */
#define QUICK_MS 0.5
/* Lower on a GPU: a single image is fast there for any model, but large batches can still gain. */
#define GPU_QUICK_MS 0.1

/* Progress when the fp32 session is complete and the trials begin. */
#define FP32_SHARE 0.5

static void take_only(struct precision_choice *choice, const char *why)
{
    *choice = (struct precision_choice){.precision = PRECISION_FP32, .origin = CHOICE_ONLY};
    snprintf(choice->why, sizeof choice->why, "%s", why);
}

static void on_fp32_progress(void *context, double fraction)
{
    const struct session_options *options = context;
    options->on_progress(options->progress_context, FP32_SHARE * fraction);
}

/* Logs why the first start takes longer. */
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

/* Tries each candidate. *ret_session: the session of the chosen one, created with .trial, or NULL
 * to stay with fp32. If two pass, the later one is chosen only if it is faster by PRECISION_GAIN,
 * so that noise does not change the choice between starts. On a GPU candidates are ordered by
 * speed, and the first that passes is chosen. */
static enum status try_candidates(struct trial_input *input, const enum precision *candidates,
                                  size_t count, struct precision_choice *ret,
                                  struct session **ret_session, struct error *err)
{
    double fastest = 1;
    log_trials(input, candidates, count);
    *ret = (struct precision_choice){.precision = PRECISION_FP32,
                                     .origin = CHOICE_MEASURED,
                                     .from_folder = probes_from_folder(input->probes)};
    for (size_t i = 0; i < count; i++) {
        struct precision_trial *trial = &ret->trials[ret->trial_count++];
        struct session *session = NULL;
        input->progress = FP32_SHARE + (1 - FP32_SHARE) * (double)i / (double)count;
        input->share = (1 - FP32_SHARE) / (double)count;
        const enum status status = trial_run(input, candidates[i], trial, &session, err);
        if (is_memory(status) && *ret_session) {
            ret->origin = CHOICE_ONLY; /* not kept: the next start tries this one again */
            ret->trial_count--;
            break;
        }
        TRY(status);
        if (trial->outcome != TRIAL_PASSED || trial->speed <= fastest) {
            session_free(session);
            continue;
        }
        fastest = trial->speed * PRECISION_GAIN;
        ret->precision = trial->precision;
        session_free(*ret_session);
        *ret_session = session;
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

/* *session is the fp32 session; the session of the chosen precision replaces it. */
static enum status compare_with_fp32(const struct model *model,
                                     const struct precision_options *options,
                                     const struct session_options *asked,
                                     const enum precision *candidates, size_t count,
                                     struct precision_choice *ret, struct session **session,
                                     struct error *err)
{
    struct trial_input input = {.model = model, .options = *asked, .reference = *session};
    const struct session_info *fp32 = session_info(*session);
    const double ms = fp32->batches[0].milliseconds;
    struct session *chosen = NULL;
    if (!takes_photos(*session, &model->preprocess)) {
        take_only(ret, "a prepared photo does not match the model's inputs");
        return STATUS_OK;
    }
    if (ms < (asked->device.kind == DEVICE_CPU ? QUICK_MS : GPU_QUICK_MS)) {
        char why[64];
        snprintf(why, sizeof why, "the model is small: %.2f ms in fp32", ms);
        take_only(ret, why);
        return STATUS_OK;
    }
    TRY(probes_open(model, options->limits, &input.probes, err));
    enum status status = try_candidates(&input, candidates, count, ret, &chosen, err);
    probes_free(input.probes);
    if (is_memory(status)) { /* temporary, so not kept as the result of a trial */
        take_only(ret, "there is not enough memory to compare two sessions");
        session_free(chosen);
        return STATUS_OK;
    }
    if (status == STATUS_OK && chosen) {
        const bool is_whole = session_info(chosen)->batch_count == fp32->batch_count;
        struct session_options alone = *asked;
        alone.precision = ret->precision;
        alone.no_kernel_trials |= asked->device.kind == DEVICE_CPU;
        session_free(*session);
        *session = chosen;
        chosen = NULL;
        if (is_whole)
            return session_finish(*session, err);
        /* There was no memory for its larger batches while the fp32 session existed. */
        session_free(*session);
        *session = NULL;
        return session_create(model->graph, &alone, session, err);
    }
    session_free(chosen);
    session_release_pages(*session);
    return status;
}

static bool is_offered(enum precision precision, const enum precision *candidates, size_t count)
{
    bool offered = precision == PRECISION_FP32;
    for (size_t i = 0; i < count; i++)
        offered = offered || candidates[i] == precision;
    return offered;
}

/* Makes the choice without a trial, if possible; else returns false. */
static bool choose_at_once(const struct precision_options *options,
                           const struct session_options *session, const struct graph_hash *key,
                           const enum precision *candidates, size_t count,
                           struct precision_choice *ret)
{
    if (count == 0)
        take_only(ret, "no other precision is faster on this device for this model");
    else if (session->image_input == SIZE_MAX)
        take_only(ret, "the model takes no photo, so there are no answers to compare");
    else if (choice_find(key, ret) && is_offered(ret->precision, candidates, count))
        choice_explain(ret);
    else if (options->only_cached)
        take_only(ret, "no trial has been made; lensd serve makes one");
    else
        return false;
    return true;
}

static enum status choose(const struct model *model, const struct precision_options *options,
                          const struct session_options *session, struct precision_choice *ret,
                          struct session **ret_session, struct error *err)
{
    enum precision candidates[PRECISION_COUNT];
    const size_t count = candidates_find(session->device, model->graph, candidates);
    const struct graph_hash key = choice_key_of(model, session);
    struct session_options fp32 = *session;
    fp32.precision = PRECISION_FP32;
    if (choose_at_once(options, session, &key, candidates, count, ret)) {
        fp32.precision = ret->precision;
        return session_create(model->graph, &fp32, ret_session, err);
    }
    if (session->on_progress) {
        fp32.on_progress = on_fp32_progress;
        fp32.progress_context = (void *)(uintptr_t)session;
    }
    TRY(session_create(model->graph, &fp32, ret_session, err));
    TRY(compare_with_fp32(model, options, session, candidates, count, ret, ret_session, err));
    if (session->on_progress)
        session->on_progress(session->progress_context, 1);
    if (ret->origin == CHOICE_MEASURED)
        choice_keep(&key, ret);
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
        status = session_create(model->graph, session, &made, err);
    }
    if (status != STATUS_OK) {
        session_free(made);
        return status;
    }
    if (!options->only_cached)
        cache_write(options->cache);
    *ret = made;
    return STATUS_OK;
}
