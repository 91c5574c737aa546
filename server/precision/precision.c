/* Implements --precision auto: it uses the choice of an earlier start, or trials, or fp32 if no
 * other precision is worth a trial. */
#include "server/precision/precision.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/text.h"
#include "engine/passes/optimize.h"
#include "server/observe/log.h"
#include "server/precision/internal.h"

/* If a pass is shorter, there is no trial: the model is small. */
#define QUICK_MS 0.5
/* The same for a GPU: one image is fast there for any model, but large batches can still gain. */
#define GPU_QUICK_MS 0.1

/* Trials may take this share of a load's CPU time, plus a fixed time. */
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

/* SAY begins another sentence of choice->why; GO_ON continues the last one. */
#define SAY(choice, ...)   text_append((choice)->why, sizeof(choice)->why, "; ", __VA_ARGS__)
#define GO_ON(choice, ...) text_append((choice)->why, sizeof(choice)->why, "", __VA_ARGS__)

static void take_only(struct precision_choice *choice, enum precision precision, const char *why)
{
    *choice = (struct precision_choice){.precision = precision, .origin = CHOICE_ONLY};
    SAY(choice, "%s", why);
}

static void explain_passed(struct precision_choice *choice, const struct agreement *a)
{
    if (a->clear > 0)
        GO_ON(choice, "%zu of %zu clear best classes agree, ", a->agreeing, a->clear);
    if (a->is_vector)
        GO_ON(choice, "the best class's probability changes by %.4f on average, correlation %.5f, ",
              a->mean, a->correlation);
    else
        GO_ON(choice, "relative error %.4f, ", a->mean);
    GO_ON(choice, "%d images", a->images);
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
        SAY(choice, "%s is %.2f times as fast as fp32: ", name, trial->speed);
        explain_passed(choice, &trial->agreement);
        break;
    case TRIAL_SLOWER:
        SAY(choice, "%s is not used: it is %.2f times as fast as fp32; the minimum is %g", name,
            trial->speed, PRECISION_GAIN);
        break;
    case TRIAL_DIFFERS:
        (void)agreement_holds(&trial->agreement, text);
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

/* ---- candidates ---- */

/* True if the graph has products of matrices: only they are faster in bfloat16 and float16. */
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

/* Lists the precisions that this device may compute faster than fp32. On a GPU float16 is
 * first, and the first that passes ends the trials: float16 has three bits more than bfloat16 at
 * the same speed, so bfloat16 is only for models whose numbers exceed float16's range. */
static void find_candidates(struct question *question)
{
    struct device_info device;
    const bool is_cpu = question->session->device.kind == DEVICE_CPU,
               has = has_products(question->model->graph),
               is_quantized = optimize_is_quantized(question->model->graph);
    question->count = 0;
    question->runs_as_quantized = is_quantized && is_cpu;
    if (is_cpu) {
        add_candidate(question, has && device_cpu_has_bf16(), PRECISION_BF16);
        add_candidate(question, question->can_calibrate, PRECISION_INT8);
    } else if (device_find(question->session->device, &device)) {
        question->runs_as_quantized = is_quantized && device.int8;
        add_candidate(question, device.fp16 && has, PRECISION_FP16);
        add_candidate(question, device.bf16 && has, PRECISION_BF16);
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

/* Finds a choice of an earlier start. It must still be possible: its 8-bit form may be gone. */
static bool find_kept(const struct question *question, struct precision_choice *ret)
{
    if (!choice_find(&question->key, ret))
        return false;
    bool is_offered = ret->precision == PRECISION_FP32;
    for (size_t i = 0; i < question->count; i++)
        is_offered = is_offered || question->candidates[i] == ret->precision;
    return is_offered && (ret->precision != PRECISION_INT8 ||
                          calibrated_exists(&question->key, question->options->cache));
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

/* Tries each candidate. If two pass, the later one is chosen only if it is faster by
 * PRECISION_GAIN, so that noise does not change the choice between starts. */
static enum status try_candidates(const struct question *question, const struct trial_input *input,
                                  struct precision_choice *ret, struct error *err)
{
    double fastest = 1;
    *ret = (struct precision_choice){.precision = PRECISION_FP32,
                                     .origin = CHOICE_MEASURED,
                                     .from_folder = (int)input->probes->files.count};
    for (size_t i = 0; i < question->count; i++) {
        struct precision_trial *trial = &ret->trials[ret->trial_count++];
        const enum status status = trial_run(input, question->candidates[i], trial, err);
        if (status_lacks_memory(status) && ret->precision != PRECISION_FP32) {
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
    question->count--; /* int8, the last candidate */
    return STATUS_OK;
}

enum status precision_try(const struct model *model, const struct precision_options *options,
                          const struct session_options *session, struct session *fp32,
                          const struct precision_gate *gate, double load_ms,
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
                                .cpu_deadline_ms =
                                    clock_ms(clock_thread()) + TRIALS_SHARE * load_ms + TRIALS_MS};
    enum status status = session_enter(fp32, err);
    IF_OK(status, probes_open(model, options->limits, &input.probes, err));
    if (status == STATUS_OK && question.count)
        log_trials(&question, input.probes);
    IF_OK(status, try_candidates(&question, &input, ret, err));
    probes_free(input.probes);
    graph_free(int8);
    if (gate->begin)
        gate->begin(gate->context);
    session_release_pages(fp32); /* pages of the trial may never be needed again */
    if (gate->end)
        gate->end(gate->context);
    if (status_lacks_memory(status)) { /* temporary, so the result of the trial is not kept */
        take_only(ret, PRECISION_FP32, "there is not enough memory to compare two sessions");
        return STATUS_OK;
    }
    TRY(status);
    for (size_t i = 0; i < ret->trial_count; i++)
        explain_trial(ret, &ret->trials[i], photos);
    if (failure.message[0]) { /* not kept, so that the next start calibrates again */
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
    const bool is_later = question->options->trials != TRIALS_NONE;
    const char *why = question->runs_as_quantized
                          ? "the file is quantized; --precision fp32 computes it in float32"
                      : question->count == 0
                          ? "no other precision is faster on this device for this model"
                      : question->session->image_input == SIZE_MAX
                          ? "the model takes no photo, so there are no answers to compare"
                          : NULL;
    if (why) {
        take_only(ret, question->runs_as_quantized ? PRECISION_INT8 : PRECISION_FP32, why);
    } else if (!find_kept(question, ret)) {
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
    if (info->input_count != 1 || shape_count(&info->inputs[0].shape) != numbers) {
        take_only(ret, PRECISION_FP32, "a prepared photo does not match the model's inputs");
    } else if (ms < (info->device.kind == DEVICE_CPU ? QUICK_MS : GPU_QUICK_MS)) {
        take_only(ret, PRECISION_FP32, "the model is small");
        GO_ON(ret, ": %.2f ms in fp32", ms);
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
    const enum status status = precision_try(question->model, question->options, &chosen, *session,
                                             &alone, load_ms, ret, err);
    if (status == STATUS_OK && ret->precision == PRECISION_FP32)
        return STATUS_OK;
    session_free(*session);
    *session = NULL;
    TRY(status);
    chosen.memory_limit = question->session->memory_limit;
    chosen.precision = ret->precision;
    return precision_session(question->model, question->options, &chosen, session, err);
}

enum status precision_open(const struct model *model, const struct precision_options *options,
                           const struct session_options *session,
                           struct precision_choice *ret_choice, struct session **ret,
                           struct error *err)
{
    const double start_ms = clock_ms(clock_thread());
    struct session_options chosen = *session;
    struct question question = {0};
    cache_read(options->cache);
    *ret_choice = (struct precision_choice){.precision = session->precision};
    if (session->precision == PRECISION_AUTO) {
        question = ask(model, options, session);
        choose_at_once(&question, ret_choice);
    } else {
        SAY(ret_choice, "--precision %s", precision_name(session->precision));
    }
    chosen.precision = ret_choice->precision;
    enum status status = precision_session(model, options, &chosen, ret, err);
    if (status == STATUS_UNSUPPORTED && question.runs_as_quantized) {
        chosen.precision = PRECISION_FP32;
        take_only(ret_choice, PRECISION_FP32, "");
        SAY(ret_choice, "int8 cannot run this quantized file: %.150s", err->message);
        status = precision_session(model, options, &chosen, ret, err);
    }
    TRY(status);
    if (ret_choice->origin == CHOICE_PENDING)
        choose_by_session(model, *ret, ret_choice);
    if (ret_choice->origin == CHOICE_PENDING && options->trials == TRIALS_NOW)
        status = try_now(&question, clock_ms(clock_thread()) - start_ms, ret_choice, ret, err);
    if (status == STATUS_OK && options->trials != TRIALS_NONE)
        cache_write(options->cache);
    return status;
}
