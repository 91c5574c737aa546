/* What --precision auto does with sessions, which are made up here: how much a pass costs, what it
 * answers, what there is memory for. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/backend/tuning_store.h"
#include "engine/base/size.h"
#include "server/precision/internal.h"

enum { CLASSES = 10, MAX_BATCH = 8, MOST_MADE = 4 };

/* What a session of a precision is like. */
struct plan {
    double ms;         /* of an image */
    float error;       /* of its scores */
    enum status fails; /* STATUS_OK: it can be made */
    double create_ms;  /* CPU time to compile half of it, of two */
    bool is_cancelled; /* the first run is */
};

static struct plan plans[PRECISION_COUNT];
static int other_width, alive, made, released, runs[PRECISION_COUNT];
static size_t limits[MOST_MADE];
static double cpu_ms; /* of passes and compiling */
static _Atomic int cancel;
static bool is_quantized, can_calibrate;
static enum precision_trials trials;

struct session {
    struct session_info info;
    struct session_tensor input, output;
    struct tensor result;
    float scores[MAX_BATCH * CLASSES];
};

const char *precision_name(enum precision precision)
{
    static const char *const names[] = {"fp32", "tf32", "bf16", "fp16", "int8", "auto"};
    return names[precision];
}

/* Replaces libc's function: the thread's CPU time is the simulated one. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret);
int __real_clock_gettime(clockid_t clock, struct timespec *ret);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret)
{
    if (clock != CLOCK_THREAD_CPUTIME_ID)
        return __real_clock_gettime(clock, ret);
    *ret = (struct timespec){(time_t)(cpu_ms / 1000), (long)(fmod(cpu_ms, 1000) * 1e6)};
    return 0;
}

bool __wrap_optimize_is_quantized(const struct graph *graph);
bool __wrap_optimize_is_quantized(const struct graph *graph)
{
    (void)graph;
    return is_quantized;
}

/* The linker's --wrap: bf16 is a candidate on every machine. */
bool __wrap_device_cpu_has_bf16(void);
bool __wrap_device_cpu_has_bf16(void)
{
    return true;
}

bool __wrap_calibrated_is_possible(const struct model *model, const struct session_options *session,
                                   const char *cache);
bool __wrap_calibrated_is_possible(const struct model *model, const struct session_options *session,
                                   const char *cache)
{
    (void)model, (void)session, (void)cache;
    return can_calibrate;
}

/* Its graph is not looked at: session_create() above knows the precision. */
enum status __wrap_calibrated_make(const struct model *model,
                                   const struct precision_options *options,
                                   const struct session_options *session,
                                   const struct graph_hash *key, struct graph **ret,
                                   int *ret_photos, struct error *err);
enum status __wrap_calibrated_make(const struct model *model,
                                   const struct precision_options *options,
                                   const struct session_options *session,
                                   const struct graph_hash *key, struct graph **ret,
                                   int *ret_photos, struct error *err)
{
    (void)options, (void)session, (void)key;
    *ret_photos = 8;
    return graph_clone(model->graph, ret, err);
}

size_t device_list(struct device_info *ret, size_t max)
{
    (void)ret, (void)max;
    return 0;
}

enum status session_create(const struct graph *graph, const struct session_options *options,
                           struct session **ret, struct error *err)
{
    const struct plan *plan = &plans[options->precision];
    (void)graph;
    cr_assert_lt(made, (int)MOST_MADE);
    limits[made++] = options->memory_limit;
    if (plan->fails != STATUS_OK)
        return error_set(err, plan->fails, "made up");
    for (int half = 0; half < 2; half++) {
        cpu_ms += plan->create_ms;
        if (options->on_progress)
            options->on_progress(options->progress_context, "compiling", 0.5 * half);
        if (options->cancel && *options->cancel)
            return error_set(err, STATUS_CANCELLED, "made up");
    }
    struct session *session = calloc(1, sizeof *session);
    cr_assert_not_null(session);
    session->info = (struct session_info){.device = options->device,
                                          .precision = options->precision,
                                          .threads = 2,
                                          .parameter_bytes = 1000,
                                          .activation_bytes = 200,
                                          .inputs = &session->input,
                                          .outputs = &session->output,
                                          .input_count = 1,
                                          .output_count = 1,
                                          .batched = true};
    for (int size = 1; size <= options->max_batch; size *= options->trial ? options->max_batch : 2)
        session->info.batches[session->info.batch_count++] = (struct session_batch){
            .size = size, .milliseconds = options->trial ? 0 : size * plan->ms};
    session->input = (struct session_tensor){
        "image", DTYPE_F32, SHAPE(1, options->image_height, options->image_width + other_width, 3)};
    session->output = (struct session_tensor){"scores", DTYPE_F32, SHAPE(1, CLASSES)};
    alive++;
    *ret = session;
    return STATUS_OK;
}

/* for the quantizer, which these tests do not run */
enum status session_specialise(const struct graph *graph, const struct session_options *options,
                               int batch, struct graph **ret, struct error *err)
{
    (void)graph, (void)options, (void)batch, (void)ret;
    return error_set(err, STATUS_INTERNAL, "made up");
}

enum status session_enter(struct session *session, struct error *err)
{
    (void)session, (void)err;
    return STATUS_OK;
}

void session_release_pages(struct session *session)
{
    (void)session;
    released++;
}

void session_free(struct session *session)
{
    alive -= session != NULL;
    free(session);
}

const struct session_info *session_info(const struct session *session)
{
    return &session->info;
}

int session_batch_for(const struct session *session, int n)
{
    for (size_t i = 0; i < session->info.batch_count; i++)
        if (session->info.batches[i].size >= n)
            return session->info.batches[i].size;
    cr_assert_fail("a batch of %d", n);
    return 0;
}

double session_cpu_ms(const struct session *session)
{
    (void)session;
    return cpu_ms;
}

/* The best class is told by the picture's corner, by far. */
enum status session_run(struct session *session, int batch, const void *const *inputs,
                        const struct tensor **outputs, struct error *err)
{
    const struct plan *plan = &plans[session->info.precision];
    cr_assert_leq(batch, session->info.batches[session->info.batch_count - 1].size);
    runs[session->info.precision]++;
    cpu_ms += batch * plan->ms;
    cancel = plan->is_cancelled;
    for (int i = 0; i < batch; i++) {
        const float *image =
            (const float *)inputs[0] + (size_t)i * shape_count(&session->input.shape);
        float *scores = session->scores + i * CLASSES;
        memset(scores, 0, CLASSES * sizeof *scores);
        scores[(int)fabsf(image[0] * 1000) % CLASSES] = 5 + plan->error;
    }
    const struct shape shape = SHAPE(batch, CLASSES);
    session->result = (struct tensor){.dtype = DTYPE_F32,
                                      .shape = shape,
                                      .data = session->scores,
                                      .bytes = (size_t)batch * CLASSES * sizeof(float)};
    outputs[0] = &session->result;
    (void)err;
    return STATUS_OK;
}

/* Opens the digits; the caller frees the session. */
static enum status open_digits(struct precision_choice *choice, struct session **session,
                               struct error *err)
{
    const struct image_limits limits_of_images = IMAGE_LIMITS_DEFAULT;
    const struct precision_options how = {.limits = &limits_of_images, .trials = trials};
    struct model *model;
    cr_assert_eq(model_load(NULL, NULL, NULL, &model, err), STATUS_OK, "%s", err->message);
    const struct session_options options = {.precision = PRECISION_AUTO,
                                            .max_batch = MAX_BATCH,
                                            .image_height = model->preprocess.height,
                                            .image_width = model->preprocess.width,
                                            .memory_limit = 10000,
                                            .cancel = &cancel};
    alive = made = released = 0;
    memset(runs, 0, sizeof runs);
    cancel = 0;
    *session = NULL;
    const enum status status = precision_open(model, &how, &options, choice, session, err);
    model_free(model);
    return status;
}

struct expectation {
    enum precision precision;
    enum choice_origin origin;
    int made;
};

static struct precision_choice expect(struct expectation wanted)
{
    struct error err = {0};
    struct precision_choice choice;
    struct session *session;
    tuning_forget();
    cr_assert_eq(open_digits(&choice, &session, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(choice.precision, wanted.precision, "%s", choice.why);
    cr_expect_eq(choice.origin, wanted.origin, "%s", choice.why);
    cr_expect_eq(session_info(session)->precision, wanted.precision);
    cr_expect_eq(session_info(session)->batch_count, 4, "all sizes");
    cr_expect_eq(made, wanted.made);
    session_free(session);
    cr_expect_eq(alive, 0);
    return choice;
}

static void plan_bf16(struct plan plan)
{
    plans[PRECISION_FP32] = (struct plan){.ms = 10};
    plans[PRECISION_BF16] = plan;
}

Test(trials, one_that_passes_is_the_precision_that_serves)
{
    struct error err = {0};
    struct precision_choice choice;
    struct session *session;
    plan_bf16((struct plan){.ms = 4});
    choice = expect((struct expectation){PRECISION_BF16, CHOICE_MEASURED, 3});
    cr_expect_float_eq(choice.trials[0].speed, 2.5, 1e-6);
    cr_expect_eq(choice.trials[0].agreement.images, PRECISION_PROBES);
    cr_expect_eq(limits[1], 10000 - 1200, "what fp32 takes is not there for the candidate");
    cr_expect_eq(limits[2], 10000, "fp32 has gone");
    /* The next start makes it alone. */
    cr_assert_eq(open_digits(&choice, &session, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(choice.origin, CHOICE_CACHED);
    cr_expect(strstr(choice.why, "2.50 times as fast"), "%s", choice.why);
    cr_expect_eq(session_info(session)->precision, PRECISION_BF16);
    cr_expect_eq(made, 1);
    session_free(session);
}

Test(trials, one_that_is_slower_is_dropped_after_two_turns)
{
    plan_bf16((struct plan){.ms = 21});
    const struct precision_choice choice =
        expect((struct expectation){PRECISION_FP32, CHOICE_MEASURED, 2});
    cr_expect_eq(choice.trials[0].outcome, TRIAL_SLOWER);
    cr_expect_eq(runs[PRECISION_BF16], 4, "an image and a batch, twice");
    cr_expect_eq(released, 1);
}

Test(trials, one_that_differs_is_compared_to_the_end)
{
    plan_bf16((struct plan){.ms = 4, .error = -4});
    const struct precision_choice choice =
        expect((struct expectation){PRECISION_FP32, CHOICE_MEASURED, 2});
    cr_expect_eq(choice.trials[0].outcome, TRIAL_DIFFERS);
    cr_expect_eq(choice.trials[0].agreement.images, PRECISION_PROBES);
    cr_expect(strstr(choice.why, "mean change of probability"), "%s", choice.why);
}

/* What others hold now says nothing of the model: the next start tries again. */
Test(trials, without_memory_leave_fp32_and_no_choice)
{
    plan_bf16((struct plan){.fails = STATUS_NO_MEMORY});
    for (int start = 0; start < 2; start++) {
        const struct precision_choice choice =
            expect((struct expectation){PRECISION_FP32, CHOICE_ONLY, 2});
        cr_expect(strstr(choice.why, "memory"), "%s", choice.why);
        cr_expect_eq(choice.trial_count, 0);
    }
}

Test(trials, without_memory_for_the_next_keep_the_one_that_passed)
{
    plan_bf16((struct plan){.ms = 4});
    plans[PRECISION_INT8] = (struct plan){.fails = STATUS_NO_MEMORY};
    can_calibrate = true;
    for (int start = 0; start < 2; start++) {
        const struct precision_choice choice =
            expect((struct expectation){PRECISION_BF16, CHOICE_ONLY, 4});
        cr_expect_eq(choice.trial_count, 1);
        cr_expect(strstr(choice.why, "bf16"), "%s", choice.why);
    }
}

/* Whoever serves a quantized file has chosen int8. */
Test(trials, are_not_made_for_a_quantized_file)
{
    plan_bf16((struct plan){.ms = 4});
    plans[PRECISION_INT8] = (struct plan){.ms = 20, .error = 3};
    is_quantized = true;
    const struct precision_choice choice =
        expect((struct expectation){PRECISION_INT8, CHOICE_ONLY, 1});
    cr_expect(strstr(choice.why, "the file is quantized"), "%s", choice.why);
}

Test(trials, are_not_made_where_int8_cannot_run_a_quantized_file)
{
    plan_bf16((struct plan){.ms = 4});
    plans[PRECISION_INT8] = (struct plan){.fails = STATUS_UNSUPPORTED};
    is_quantized = true;
    const struct precision_choice choice =
        expect((struct expectation){PRECISION_FP32, CHOICE_ONLY, 2});
    cr_expect(strstr(choice.why, "cannot run this quantized file: made up"), "%s", choice.why);
}

Test(trials, one_that_does_not_compile_is_an_outcome)
{
    plan_bf16((struct plan){.fails = STATUS_UNSUPPORTED});
    const struct precision_choice choice =
        expect((struct expectation){PRECISION_FP32, CHOICE_MEASURED, 2});
    cr_expect_eq(choice.trials[0].outcome, TRIAL_FAILED);
}

/* A quarter of the load and a second: 2 x 1000 / 4 + 1000 here. */
Test(trials, that_take_too_long_are_given_up)
{
    plan_bf16((struct plan){.ms = 4, .create_ms = 2000});
    plans[PRECISION_FP32].create_ms = 1000;
    const struct precision_choice compiled =
        expect((struct expectation){PRECISION_FP32, CHOICE_MEASURED, 2});
    cr_expect_eq(compiled.trials[0].outcome, TRIAL_COSTLY, "%s", compiled.why);
    cr_expect_eq(runs[PRECISION_BF16], 0);
    cr_expect(strstr(compiled.why, "a quarter of the load's CPU time"), "%s", compiled.why);
    cr_expect_null(strstr(compiled.why, "--precision bf16"), "%s", compiled.why);
}

/* The rounds that tell the speed compare a few answers, too. */
Test(trials, that_end_with_their_time_judge_by_what_was_compared)
{
    plan_bf16((struct plan){.ms = 32});
    plans[PRECISION_FP32] = (struct plan){.ms = 80};
    const struct precision_choice few =
        expect((struct expectation){PRECISION_BF16, CHOICE_MEASURED, 3});
    cr_expect_eq(few.trials[0].agreement.images, PRECISION_LEAST_PROBES, "%s", few.why);
    plan_bf16((struct plan){.ms = 32, .error = -4});
    plans[PRECISION_FP32] = (struct plan){.ms = 80};
    const struct precision_choice differs =
        expect((struct expectation){PRECISION_FP32, CHOICE_MEASURED, 2});
    cr_expect_eq(differs.trials[0].outcome, TRIAL_DIFFERS, "%s", differs.why);
}

/* As in a server: fp32 serves first, and whoever opened it makes the trial. */
Test(trials, that_come_later_leave_fp32_pending)
{
    plan_bf16((struct plan){.ms = 4});
    trials = TRIALS_LATER;
    (void)expect((struct expectation){PRECISION_FP32, CHOICE_PENDING, 1});
}

/* Whoever serves the model says what is wrong. A probe must not be written beyond its place. */
Test(trials, need_photos_as_large_as_the_input)
{
    plan_bf16((struct plan){.ms = 4});
    other_width = -8;
    (void)expect((struct expectation){PRECISION_FP32, CHOICE_ONLY, 1});
}

Test(trials, that_are_cancelled_leave_nothing)
{
    struct error err = {0};
    struct precision_choice choice;
    struct session *session;
    plan_bf16((struct plan){.ms = 4, .is_cancelled = true});
    tuning_forget();
    cr_expect_eq(open_digits(&choice, &session, &err), STATUS_CANCELLED);
    cr_expect_null(session);
    cr_expect_eq(alive, 0);
}
