/* Implements --precision auto: it uses the choice of an earlier start, or trials, or fp32 if no
 * other precision is worth a trial. */
#include "server/precision/precision.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/text.h"
#include "server/observe/log.h"
#include "server/precision/calibrated.h"
#include "server/precision/internal.h"

/* A shorter pass needs no faster precision. Without a trial, small models start at once. */
#define QUICK_MS 0.5
/* Lower on a GPU: a single image is fast there for any model, but large batches can still gain. */
#define GPU_QUICK_MS 0.1

/* Trials may take this share of a load's time, plus a fixed time. */
#define TRIALS_SHARE 0.25
#define TRIALS_MS    1000.0

/* The question which precision a model gets in a session. */
struct question {
    const struct model *model;
    const struct precision_options *options;
    const struct session_options *session;
    struct graph_hash key; /* key of the choice */
    bool can_calibrate;
    bool runs_as_quantized; /* the file is quantized, and the device computes in int8 */
    enum precision candidates[PRECISION_TRIALS]; /* besides fp32 */
    size_t count;
};

double precision_trial_ms(double load_ms)
{
    return TRIALS_SHARE * load_ms + TRIALS_MS;
}

/* ---- in words ---- */

const char *choice_origin_name(enum choice_origin origin)
{
    static const char *const names[] = {[CHOICE_PINNED] = "pinned",
                                        [CHOICE_ONLY] = "only",
                                        [CHOICE_MEASURED] = "measured",
                                        [CHOICE_CACHED] = "cached",
                                        [CHOICE_PENDING] = "pending"};
    return names[origin];
}

const char *trial_outcome_name(enum trial_outcome outcome)
{
    static const char *const names[] = {[TRIAL_PASSED] = "passed",
                                        [TRIAL_SLOWER] = "slower",
                                        [TRIAL_DIFFERS] = "differs",
                                        [TRIAL_FAILED] = "failed",
                                        [TRIAL_COSTLY] = "costly"};
    return names[outcome];
}

const struct precision_trial *precision_chosen_trial(const struct precision_choice *choice)
{
    for (size_t i = 0; i < choice->trial_count; i++)
        if (choice->trials[i].precision == choice->precision &&
            choice->trials[i].outcome == TRIAL_PASSED)
            return &choice->trials[i];
    return NULL;
}

#define SAY(choice, ...) text_append((choice)->why, sizeof(choice)->why, "; ", __VA_ARGS__)

static void take_only(struct precision_choice *choice, enum precision precision, const char *why)
{
    *choice = (struct precision_choice){.precision = precision, .origin = CHOICE_ONLY};
    SAY(choice, "%s", why);
}

static void agreement_text(const struct agreement *a, char *text, size_t size)
{
    char classes[80] = "";
    if (a->clear > 0)
        snprintf(classes, sizeof classes, "%zu of %zu clear best classes agree, ", a->agreeing,
                 a->clear);
    if (a->is_vector)
        snprintf(text, size,
                 "%sthe best class's probability changes by %.4f on average, correlation %.5f, %d "
                 "images",
                 classes, a->mean, a->correlation, a->images);
    else
        snprintf(text, size, "%srelative error %.4f, %d images", classes, a->mean, a->images);
}

static void explain_trial(struct precision_choice *choice, const struct precision_trial *trial,
                          int calibrated)
{
    char name[80], text[AGREEMENT_TEXT];
    const bool is_made = trial->precision == PRECISION_INT8;
    snprintf(name, sizeof name, is_made ? "%s (calibrated with %d photos of calibration/)" : "%s",
             precision_name(trial->precision), calibrated);
    switch (trial->outcome) {
    case TRIAL_PASSED:
        agreement_text(&trial->agreement, text, sizeof text);
        SAY(choice, "%s is %.2f times as fast as fp32: %s", name, trial->speed, text);
        break;
    case TRIAL_SLOWER:
        SAY(choice, "%s is not used: it is %.2f times as fast as fp32; the minimum is %g", name,
            trial->speed, PRECISION_GAIN);
        break;
    case TRIAL_DIFFERS:
        agreement_explain(&trial->agreement, text, sizeof text);
        SAY(choice,
            "%s is %.2f times as fast as fp32 but answers differently: %s, %d images; --precision "
            "%s uses it anyway",
            name, trial->speed, text, trial->agreement.images, precision_name(trial->precision));
        break;
    case TRIAL_FAILED:
        SAY(choice, "%s cannot run this model", name);
        break;
    case TRIAL_COSTLY:
        SAY(choice,
            "the comparison of %s was stopped after a quarter of the load's CPU time plus a second",
            name);
        break;
    }
}

/* Writes choice->why from the trials, the chosen precision first. */
static void explain_trials(struct precision_choice *choice, int calibrated)
{
    const struct precision_trial *taken = precision_chosen_trial(choice);
    if (taken)
        explain_trial(choice, taken, calibrated);
    for (size_t i = 0; i < choice->trial_count; i++)
        if (&choice->trials[i] != taken)
            explain_trial(choice, &choice->trials[i], calibrated);
}

/* ---- candidates ---- */

/* Only products are faster in bfloat16 and float16. */
static bool has_products(const struct graph *graph)
{
    for (size_t n = 0; n < graph->node_count; n++)
        if (graph->nodes[n]->op == OP_CONV || graph->nodes[n]->op == OP_GEMM ||
            graph->nodes[n]->op == OP_MATMUL)
            return true;
    return false;
}

static void add_candidate(struct question *question, bool is_one, enum precision precision)
{
    if (is_one)
        question->candidates[question->count++] = precision;
}

/* Lists the precisions besides fp32 whose instructions on this device beat it. On a GPU float16 is
 * first, and the first that passes ends the trials: float16 has three bits more than bfloat16 at
 * the same speed, so bfloat16 is only for models whose numbers exceed float16's range. */
static void find_candidates(struct question *question)
{
    struct device_info devices[DEVICE_MAX];
    const struct device_id device = question->session->device;
    const bool has = has_products(question->model->graph),
               is_quantized = session_is_quantized(question->model->graph);
    question->count = 0;
    question->runs_as_quantized = is_quantized && device.kind == DEVICE_CPU;
    if (device.kind == DEVICE_CPU) {
        add_candidate(question, has && device_cpu_has_bf16(), PRECISION_BF16);
        add_candidate(question, question->can_calibrate, PRECISION_INT8);
        return;
    }
    for (size_t i = 0, count = device_list(devices, DEVICE_MAX); i < count; i++) {
        if (devices[i].id.kind != device.kind || devices[i].id.index != device.index)
            continue;
        question->runs_as_quantized = is_quantized && devices[i].int8;
        add_candidate(question, devices[i].fp16 && has, PRECISION_FP16);
        add_candidate(question, devices[i].bf16 && has, PRECISION_BF16);
    }
}

static struct question ask(const struct model *model, const struct precision_options *options,
                           const struct session_options *session)
{
    struct question question = {.model = model,
                                .options = options,
                                .session = session,
                                .key = choice_key_of(model, session),
                                .can_calibrate =
                                    calibrated_is_possible(model, session, options->cache)};
    find_candidates(&question);
    return question;
}

/* Finds a choice of an earlier start, if still possible: its 8-bit form may be gone. */
static bool find_kept(const struct question *question, struct precision_choice *ret)
{
    struct precision_choice kept;
    if (!choice_find(&question->key, &kept))
        return false;
    bool is_offered = kept.precision == PRECISION_FP32;
    for (size_t i = 0; i < question->count; i++)
        is_offered = is_offered || question->candidates[i] == kept.precision;
    if (!is_offered || (kept.precision == PRECISION_INT8 &&
                        !calibrated_exists(&question->key, question->options->cache)))
        return false;
    *ret = kept;
    return true;
}

/* ---- trials ---- */

static void log_trials(const struct question *question, const struct probes *probes)
{
    char names[48] = "";
    for (size_t i = 0; i < question->count; i++)
        text_append(names, sizeof names, ",", "%s", precision_name(question->candidates[i]));
    log_event(LOG_INFO, "precision trials", LOG_STR("model", question->model->name),
              LOG_STR("device", DEVICE_STRING(question->session->device)),
              LOG_STR("candidates", names), LOG_INT("images_at_most", probes_count(probes)),
              LOG_STR("text", "speed and answers are compared with fp32, once per model and "
                              "machine (--cache keeps the outcome); --precision fp32 skips it"));
}

static bool is_memory(enum status status)
{
    return status == STATUS_NO_MEMORY || status == STATUS_DEVICE_MEMORY;
}

/* Tries each candidate. If two pass, the later one is chosen only if it is faster by
 * PRECISION_GAIN, so that noise does not change the choice between starts. */
static enum status try_candidates(const struct question *question, const struct trial_input *input,
                                  struct precision_choice *ret, struct error *err)
{
    double fastest = 1;
    *ret = (struct precision_choice){.precision = PRECISION_FP32,
                                     .origin = CHOICE_MEASURED,
                                     .from_folder = probes_from_folder(input->probes)};
    for (size_t i = 0; i < question->count; i++) {
        struct precision_trial *trial = &ret->trials[ret->trial_count++];
        const enum status status = trial_run(input, question->candidates[i], trial, err);
        if (is_memory(status) && ret->precision != PRECISION_FP32) {
            ret->origin = CHOICE_ONLY; /* not kept, so the next start tries this precision again */
            ret->trial_count--;
            break;
        }
        TRY(status);
        if (trial->outcome != TRIAL_PASSED || trial->speed <= fastest)
            continue;
        fastest = trial->speed * PRECISION_GAIN;
        ret->precision = trial->precision;
        if (question->session->device.kind != DEVICE_CPU)
            break;
    }
    return STATUS_OK;
}

/* Makes the 8-bit form. On failure *ret stays NULL, and *ret_failure has the reason. */
static enum status make_int8(struct question *question, struct graph **ret, int *ret_photos,
                             struct error *ret_failure, struct error *err)
{
    if (!question->can_calibrate)
        return STATUS_OK;
    const enum status status =
        calibrated_make(question->model, question->options, question->session, &question->key, ret,
                        ret_photos, ret_failure);
    if (status == STATUS_OK)
        return status;
    if (status == STATUS_CANCELLED)
        return error_set(err, status, "%s", ret_failure->message);
    log_event(LOG_WARN, "calibration failed", LOG_STR("model", question->model->name),
              LOG_STR("error", ret_failure->message));
    question->can_calibrate = false;
    find_candidates(question);
    return STATUS_OK;
}

enum status precision_try(const struct model *model, const struct precision_options *options,
                          const struct session_options *session, struct session *fp32,
                          const struct precision_gate *gate, double budget_ms,
                          struct precision_choice *ret, struct error *err)
{
    struct question question = ask(model, options, session);
    struct graph *int8 = NULL;
    struct error failure = {0};
    int photos = 0;
    if (find_kept(&question, ret))
        return STATUS_OK;
    TRY(make_int8(&question, &int8, &photos, &failure, err));
    struct trial_input input = {.model = model,
                                .options = *session,
                                .reference = fp32,
                                .int8 = int8,
                                .gate = gate,
                                .cpu_deadline_ms = clock_ms(clock_thread()) + budget_ms};
    enum status status = session_enter(fp32, err);
    IF_OK(status, probes_open(model, options->limits, &input.probes, err));
    if (status == STATUS_OK && question.count)
        log_trials(&question, input.probes);
    IF_OK(status, try_candidates(&question, &input, ret, err));
    probes_free(input.probes);
    graph_free(int8);
    if (gate->begin)
        gate->begin(gate->context);
    session_release_pages(fp32); /* pages of the trial, perhaps never needed again */
    if (gate->end)
        gate->end(gate->context);
    if (is_memory(status)) { /* temporary, so the result of the trial is not kept */
        take_only(ret, PRECISION_FP32, "there is not enough memory to compare two sessions");
        return STATUS_OK;
    }
    TRY(status);
    explain_trials(ret, photos);
    if (failure.message[0]) { /* not kept, so the next start calibrates again with better photos */
        SAY(ret, "int8 was not compared, because its calibration failed: %.300s", failure.message);
        ret->origin = CHOICE_ONLY;
    }
    if (ret->origin == CHOICE_MEASURED)
        choice_keep(&question.key, ret);
    cache_write(options->cache);
    return STATUS_OK;
}

/* ---- sessions ---- */

enum status precision_session(const struct model *model, const struct precision_options *options,
                              const struct session_options *session, struct session **ret,
                              struct error *err)
{
    struct graph *graph = NULL;
    if (session->precision == PRECISION_INT8 &&
        calibrated_is_possible(model, session, options->cache)) {
        const struct graph_hash key = choice_key_of(model, session);
        if (calibrated_exists(&key, options->cache))
            TRY(calibrated_read(&key, options->cache, &graph, err));
    }
    const enum status status = session_create(graph ? graph : model->graph, session, ret, err);
    graph_free(graph);
    return model_advise(model, status, err);
}

/* Makes the choice before there is a session. CHOICE_PENDING: only trials can decide. */
static void choose_at_once(const struct question *question, struct precision_choice *ret)
{
    if (question->runs_as_quantized) {
        take_only(ret, PRECISION_INT8,
                  "the file is quantized; --precision fp32 computes it in float32");
    } else if (question->count == 0) {
        take_only(ret, PRECISION_FP32,
                  "no other precision is faster on this device for this model");
    } else if (question->session->image_input == SIZE_MAX) {
        take_only(ret, PRECISION_FP32,
                  "the model takes no photo, so there are no answers to compare");
    } else if (!find_kept(question, ret)) {
        const bool is_later = question->options->trials != TRIALS_NONE;
        take_only(ret, PRECISION_FP32,
                  is_later ? "fp32 serves until the other precisions are compared with it"
                           : "no trial has been made; lensd serve makes one");
        ret->origin = is_later ? CHOICE_PENDING : CHOICE_ONLY;
    }
}

/* Ends a pending choice if the fp32 session shows that a trial is not worthwhile. */
static void choose_by_session(const struct model *model, const struct session *fp32,
                              struct precision_choice *ret)
{
    const struct session_info *info = session_info(fp32);
    const struct preprocess *p = &model->preprocess;
    const size_t numbers = (size_t)p->width * (size_t)p->height * (size_t)preprocess_channels(p);
    const double ms = info->batches[0].milliseconds;
    char why[64];
    if (session_input_count(fp32) != 1 || shape_count(&session_input(fp32, 0)->shape) != numbers) {
        take_only(ret, PRECISION_FP32, "a prepared photo does not match the model's inputs");
    } else if (ms < (info->device.kind == DEVICE_CPU ? QUICK_MS : GPU_QUICK_MS)) {
        snprintf(why, sizeof why, "the model is small: %.2f ms in fp32", ms);
        take_only(ret, PRECISION_FP32, why);
    }
}

/* Compares *session, in fp32, with the other precisions, and replaces it by the chosen one. */
static enum status try_now(const struct question *question, double load_ms,
                           struct precision_choice *ret, struct session **session,
                           struct error *err)
{
    const struct precision_gate alone = {0};
    const struct session_info *fp32 = session_info(*session);
    const size_t taken = fp32->parameter_bytes + fp32->activation_bytes;
    struct session_options chosen = *question->session;
    if (chosen.memory_limit > 0)
        chosen.memory_limit = chosen.memory_limit > taken ? chosen.memory_limit - taken : 1;
    TRY(precision_try(question->model, question->options, &chosen, *session, &alone,
                      precision_trial_ms(load_ms), ret, err));
    if (ret->precision == PRECISION_FP32)
        return STATUS_OK;
    chosen.memory_limit = question->session->memory_limit;
    chosen.precision = ret->precision;
    session_free(*session);
    *session = NULL;
    return precision_session(question->model, question->options, &chosen, session, err);
}

static enum status choose(const struct question *question, struct precision_choice *ret,
                          struct session **ret_session, struct error *err)
{
    struct session_options chosen = *question->session;
    const double start_ms = clock_ms(clock_thread());
    choose_at_once(question, ret);
    chosen.precision = ret->precision;
    enum status status =
        precision_session(question->model, question->options, &chosen, ret_session, err);
    if (status == STATUS_UNSUPPORTED && question->runs_as_quantized) {
        char why[200];
        snprintf(why, sizeof why, "int8 cannot run this quantized file: %.150s", err->message);
        take_only(ret, PRECISION_FP32, why);
        chosen.precision = PRECISION_FP32;
        status = precision_session(question->model, question->options, &chosen, ret_session, err);
    }
    TRY(status);
    if (ret->origin == CHOICE_PENDING)
        choose_by_session(question->model, *ret_session, ret);
    if (ret->origin == CHOICE_PENDING && question->options->trials == TRIALS_NOW)
        return try_now(question, clock_ms(clock_thread()) - start_ms, ret, ret_session, err);
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
        const struct question question = ask(model, options, session);
        status = choose(&question, ret_choice, &made, err);
    } else {
        SAY(ret_choice, "--precision %s", precision_name(session->precision));
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
