/* What must not happen on machines with several GPUs, with little memory, or with a device that
 * fails for a while: contexts on devices that are not used, bytes left behind, results of one run
 * taken for another's, errors that are reported twice. And what trials of layers leave behind. */
#include <criterion/criterion.h>
#include <glob.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/backend/cuda_module.h"
#include "engine/backend/tuning_store.h"
#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "tests/fake_cuda/module_cases.h"

enum { SIDE = 8, CHANNELS = 3, CLASSES = 12, MOST = 4, ROW = SIDE * SIDE * CHANNELS };

static const struct device_id gpu = {DEVICE_CUDA, 0}, second = {DEVICE_CUDA, 1};

TestSuite(faults, .init = find_fake_module, .timeout = 120);

static enum status open_with(const struct session_options *options, struct session **ret,
                             struct error *err)
{
    struct graph *graph = small_classifier(CHANNELS, SIDE, SIDE, 16, CLASSES);
    const enum status status = session_create(graph, options, ret, err);
    graph_free(graph);
    return status;
}

static enum status open_on(struct device_id device, enum precision precision, struct session **ret,
                           struct error *err)
{
    const struct session_options options = {.device = device,
                                            .precision = precision,
                                            .max_batch = MOST,
                                            .image_layout = IMAGE_NHWC_F32,
                                            .trial = true};
    return open_with(&options, ret, err);
}

static void fill(float *images, int batch, float start)
{
    for (int i = 0; i < batch * ROW; i++)
        images[i] = start + (float)(i % 37) * 0.03f;
}

/* Runs a batch whose numbers follow from `start`; scores go to ret[batch * CLASSES]. */
static enum status run(struct session *session, int batch, float start, float *ret,
                       struct error *err)
{
    float images[MOST * ROW];
    const void *inputs[] = {images};
    const struct tensor *outputs[1];
    fill(images, batch, start);
    const enum status status = session_run(session, batch, inputs, outputs, err);
    if (status == STATUS_OK && ret)
        memcpy(ret, outputs[0]->data, (size_t)batch * CLASSES * sizeof *ret);
    return status;
}

/* ---- several GPUs ---- */

static void *free_pages(void *data)
{
    cuda_module(NULL)->backend->host_free(data);
    return NULL;
}

Test(faults, asking_for_devices_takes_none_of_their_memory)
{
    struct device_info devices[DEVICE_MAX];
    cr_assert_eq(device_list(devices, DEVICE_MAX), 3);
    cr_assert(devices[1].usable && devices[2].usable);
    cr_assert_eq(devices[1].total_bytes, (uint64_t)1 << 30);
    cr_assert_eq(fake.count(FAKE_CUDA_CONTEXTS, 0) + fake.count(FAKE_CUDA_CONTEXTS, 1), 0);
}

Test(faults, a_model_on_one_gpu_leaves_the_others_alone)
{
    struct device_info devices[DEVICE_MAX];
    struct session *session;
    struct error err = {0};
    void *pages;
    pthread_t thread;
    cr_assert_eq(open_on(second, PRECISION_FP32, &session, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(run(session, 3, 0, NULL, &err), STATUS_OK);
    cr_assert_eq(cuda_module(NULL)->backend->host_alloc(second, 4096, &pages, &err), STATUS_OK);
    /* A thread that has chosen no device is on cuda:0. */
    cr_assert_eq(pthread_create(&thread, NULL, free_pages, pages), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(device_list(devices, DEVICE_MAX), 3);
    cr_assert_lt(devices[2].free_bytes, devices[2].total_bytes);
    session_free(session);
    cr_assert_eq(fake.count(FAKE_CUDA_CONTEXTS, 0), 0);
    cr_assert_eq(fake.count(FAKE_CUDA_CONTEXTS, 1), 1);
}

Test(faults, a_prohibited_gpu_says_so)
{
    struct device_id ids[DEVICE_MAX];
    struct error err = {0};
    char fallback[256];
    size_t count = 0;
    fake.compute_mode(2);
    cr_assert_eq(device_parse("auto", ids, &count, fallback, sizeof fallback, &err), STATUS_OK);
    cr_assert(count == 1 && ids[0].kind == DEVICE_CPU, "%s", fallback);
    cr_assert(strstr(fallback, "compute mode is prohibited"), "%s", fallback);
}

/* The stand-in's module has machine code of 7.5, 8.6 and 9.0, and PTX of 10.0: code runs on its own
 * major number from its minor number on, PTX on all that come later. */
Test(faults, a_gpu_that_the_module_has_no_code_for_says_so)
{
    static const struct {
        int capability;
        bool usable;
    } cases[] = {{75, true}, {80, false}, {86, true}, {89, true},
                 {90, true}, {100, true}, {121, true}};
    struct device_info devices[DEVICE_MAX];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        fake.capability(cases[i].capability);
        cr_assert_eq(device_list(devices, DEVICE_MAX), 3);
        cr_expect_eq(devices[1].usable, cases[i].usable, "%d: %s", cases[i].capability,
                     devices[1].reason);
    }
    fake.capability(80);
    cr_assert_eq(device_list(devices, DEVICE_MAX), 3);
    cr_assert(strstr(devices[1].reason, "no code for sm_80"), "%s", devices[1].reason);
    cr_assert(strstr(devices[1].reason, "sm_75 sm_86 sm_90 compute_100"), "%s", devices[1].reason);
}

/* What looks usable and cannot be opened is found out before `auto` settles on it. */
Test(faults, auto_takes_no_gpu_that_cannot_be_opened)
{
    struct device_id ids[DEVICE_MAX];
    struct error err = {0};
    char fallback[256];
    size_t count = 0;
    fake.reset(1, (size_t)1 << 30);
    fake.fail(2, cudaErrorUnknown, 1); /* the count and the properties are told */
    cr_assert_eq(device_parse("auto", ids, &count, fallback, sizeof fallback, &err), STATUS_OK);
    cr_assert(count == 1 && ids[0].kind == DEVICE_CPU);
    cr_assert(strstr(fallback, "cannot be used"), "%s", fallback);
}

/* ---- out of memory ---- */

static void opens_and_is_right(const float *expected, int after)
{
    struct session *session = NULL;
    struct error err = {0};
    float scores[MOST * CLASSES];
    cr_assert_eq(open_on(gpu, PRECISION_FP32, &session, &err), STATUS_OK, "after call %d: %s",
                 after, err.message);
    cr_assert_eq(run(session, 3, 0.5f, scores, &err), STATUS_OK, "after call %d: %s", after,
                 err.message);
    cr_assert_eq(memcmp(scores, expected, 3 * CLASSES * sizeof *scores), 0, "after call %d", after);
    session_free(session);
}

/* Wherever memory runs out while a session is made: smaller batches, or a sentence; nothing stays
 * behind, neither bytes nor an error that the next session would find. */
Test(faults, memory_may_run_out_anywhere_at_load)
{
    float expected[MOST * CLASSES], scores[MOST * CLASSES];
    struct session *session = NULL;
    struct error err = {0};
    int refused = 0, smaller = 0;
    cr_assert_eq(open_on(gpu, PRECISION_FP32, &session, &err), STATUS_OK);
    cr_assert_eq(run(session, 3, 0.5f, expected, &err), STATUS_OK);
    session_free(session);
    for (int after = 0; after < 300; after += 1 + after / 8) {
        fake.reset(1, (size_t)1 << 30);
        fake.fail(after, cudaErrorMemoryAllocation, 0);
        enum status status = open_on(gpu, PRECISION_FP32, &session, &err);
        fake.fail(-1, cudaSuccess, 0);
        if (status == STATUS_OK) {
            const bool is_small = session_info(session)->note[0] != '\0';
            const int batch = is_small ? 1 : 3;
            smaller += is_small;
            cr_assert_eq(run(session, batch, 0.5f, scores, &err), STATUS_OK, "call %d: %s", after,
                         err.message);
            for (int i = 0; i < batch * CLASSES; i++)
                cr_assert_float_eq(scores[i], expected[i], 1e-4f, "call %d", after);
            session_free(session);
        } else {
            refused++;
            cr_assert(status == STATUS_DEVICE_MEMORY || status == STATUS_NO_MEMORY, "call %d: %s",
                      after, err.message);
        }
        cr_assert_eq(fake.used(0), 0, "call %d", after);
        if (after % 4 == 0)
            opens_and_is_right(expected, after);
    }
    cr_assert_gt(refused, 10);
    cr_assert_gt(smaller, 3);
}

/* Copies, launches, a recorded batch: whichever call of a run finds no memory, the run says so, the
 * next one is right, and two of them in flight do not take each other's results. */
Test(faults, memory_may_run_out_anywhere_at_run)
{
    struct session *session;
    struct error err = {0};
    float expected[MOST * CLASSES], scores[MOST * CLASSES];
    const size_t before = fake.used(0);
    cr_assert_eq(open_on(gpu, PRECISION_FP32, &session, &err), STATUS_OK);
    cr_assert_eq(run(session, 3, 0.5f, expected, &err), STATUS_OK);
    const size_t taken = fake.used(0);
    int failed = 0;
    for (int after = 0; after < 24; after++) {
        fake.fail(after, cudaErrorMemoryAllocation, 0);
        const enum status status = run(session, 4, 3.0f, NULL, &err);
        fake.fail(-1, cudaSuccess, 0);
        if (status != STATUS_OK) {
            failed++;
            cr_assert_eq(status, STATUS_DEVICE_MEMORY, "call %d: %s", after, err.message);
        }
        cr_assert_eq(run(session, 3, 0.5f, scores, &err), STATUS_OK, "call %d: %s", after,
                     err.message);
        cr_assert_eq(memcmp(scores, expected, 3 * CLASSES * sizeof *scores), 0, "call %d", after);
        cr_assert_eq(fake.used(0), taken, "call %d", after);
    }
    cr_assert_gt(failed, 5);
    session_free(session);
    cr_assert_eq(fake.used(0), before);
}

/* ---- devices that fail for a while ---- */

static bool is_usable(size_t index)
{
    struct device_info devices[DEVICE_MAX];
    cr_assert_gt(device_list(devices, DEVICE_MAX), index);
    return devices[index].usable;
}

/* If page-locked memory is short, the GPU must not be reported as full, or the batch reduced. */
Test(faults, page_locked_memory_that_is_short_is_no_lack_of_the_gpus)
{
    size_t limit = 0;
    int refused = 0;
    for (; limit < 1 << 20; limit += 2048) {
        struct session *session = NULL;
        struct error err = {0};
        fake.pinned_limit(limit);
        const enum status status = open_on(gpu, PRECISION_FP32, &session, &err);
        if (status == STATUS_OK) {
            cr_assert_eq(run(session, MOST, 0, NULL, &err), STATUS_OK, "%s", err.message);
            session_free(session);
            break;
        }
        refused++;
        cr_assert_eq(status, STATUS_NO_MEMORY, "%zu bytes: %s", limit, err.message);
        cr_assert(strstr(err.message, "page-locked") && strstr(err.message, "memlock"), "%s",
                  err.message);
        cr_assert_eq(fake.used(0), 0);
    }
    cr_assert(refused > 0 && limit < 1 << 20);
}

/* After an error that CUDA calls lasting, lensd gives the device up. If a later run succeeds all
 * the same, the device is used again, and the session continues. */
Test(faults, a_device_that_works_again_is_not_called_broken)
{
    struct session *session;
    struct error err = {0};
    float expected[MOST * CLASSES], scores[MOST * CLASSES];
    cr_assert_eq(open_on(gpu, PRECISION_FP32, &session, &err), STATUS_OK);
    cr_assert_eq(run(session, 3, 0.5f, expected, &err), STATUS_OK);
    fake.fail(3, cudaErrorLaunchTimeout, 1);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(run(session, 3, 0.5f, NULL, &err), STATUS_DEVICE);
        cr_assert(strstr(err.message, "restart lensd"), "%s", err.message);
    }
    fake.reset(1, (size_t)1 << 30);
    cr_assert_not(is_usable(1));
    cr_assert_eq(run(session, 3, 0.5f, scores, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(memcmp(scores, expected, 3 * CLASSES * sizeof *scores), 0);
    cr_assert(is_usable(1));
    session_free(session);
}

Test(faults, without_graphs_the_answers_are_the_same)
{
    float with[3 * CLASSES], without[3 * CLASSES];
    struct error err = {0};
    for (int i = 0; i < 2; i++) {
        struct session *session;
        if (i == 1)
            setenv("LENSD_CUDA_GRAPHS", "off", 1);
        cr_assert_eq(open_on(gpu, PRECISION_FP32, &session, &err), STATUS_OK, "%s", err.message);
        const size_t before = fake.graph_launches();
        cr_assert_eq(run(session, 3, 0.5f, i ? without : with, &err), STATUS_OK);
        cr_assert_eq(fake.graph_launches() > before, i == 0);
        session_free(session);
    }
    cr_assert_eq(memcmp(with, without, sizeof with), 0);
}

/* ---- tuning ---- */

/* Operations that a session of 16-bit numbers takes to make. */
static size_t operations_to_open(void)
{
    struct session *session;
    struct error err = {0};
    const size_t before = fake.operations();
    cr_assert_eq(open_on(gpu, PRECISION_FP16, &session, &err), STATUS_OK, "%s", err.message);
    const size_t taken = fake.operations() - before;
    session_free(session);
    return taken;
}

/* The number of these operations that have the greatest priority. */
static size_t operations_at_once_to_open(void)
{
    const size_t before = fake.count(FAKE_CUDA_OPERATIONS_AT_ONCE, 0);
    (void)operations_to_open();
    return fake.count(FAKE_CUDA_OPERATIONS_AT_ONCE, 0) - before;
}

struct known {
    struct graph_hash keys[64];
    char texts[64][16];
    size_t count;
};

static void note_known(void *context, const struct graph_hash *key, const char *text)
{
    struct known *known = context;
    cr_assert_lt(known->count, COUNT_OF(known->keys));
    snprintf(known->texts[known->count], sizeof known->texts[0], "%s", text);
    known->keys[known->count++] = *key;
}

Test(faults, what_was_measured_is_known_to_later_sessions)
{
    struct known known = {.count = 0};
    unsetenv("LENSD_CUDA_TUNING");
    const size_t first = operations_to_open();
    tuning_each(TUNING_CUDA, note_known, &known);
    cr_assert_gt(known.count, 0);
    const size_t again = operations_to_open();
    cr_assert_lt(2 * again, first, "%zu operations, then %zu", first, again);
    tuning_forget();
    for (size_t i = 0; i < known.count; i++)
        tuning_keep(TUNING_CUDA, &known.keys[i], known.texts[i]);
    cr_assert_eq(operations_to_open(), again);
    /* Of another number of candidates, of none of them, and no numbers: measured again. */
    static const char *const wrong[] = {"0 1", "-1 9", "999 9", "1", "", "words", "1 9 x"};
    for (size_t w = 0; w < COUNT_OF(wrong); w++) {
        tuning_forget();
        for (size_t i = 0; i < known.count; i++)
            tuning_keep(TUNING_CUDA, &known.keys[i], wrong[w]);
        cr_assert_gt(operations_to_open(), again, "'%s'", wrong[w]);
    }
}

static bool has_tunings(const char *folder, bool removes)
{
    char pattern[64];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/tunings-*", folder);
    const bool has = glob(pattern, 0, NULL, &found) == 0;
    if (has && removes)
        cr_assert(unlink(found.gl_pathv[0]) == 0 && rmdir(folder) == 0);
    globfree(&found);
    return has;
}

/* Ends the process in the middle of a load, once there is something to keep. */
static void end_with_tunings(void *context, const char *phase, double fraction)
{
    (void)phase;
    if (fraction < 1 && has_tunings(context, false))
        _exit(9);
}

/* The results for a batch size are saved before the next size is measured. */
Test(faults, a_killed_load_keeps_its_trials)
{
    char folder[] = "/tmp/lensd-tunings-XXXXXX";
    struct error err = {0};
    struct known known = {.count = 0};
    int status;
    cr_assert_not_null(mkdtemp(folder));
    unsetenv("LENSD_CUDA_TUNING");
    const pid_t child = fork();
    if (child == 0) {
        const struct session_options options = {.device = gpu,
                                                .precision = PRECISION_FP16,
                                                .max_batch = MOST,
                                                .image_layout = IMAGE_NHWC_F32,
                                                .trial = true,
                                                .on_progress = end_with_tunings,
                                                .progress_context = folder};
        struct session *session;
        const bool is_read = tuning_read(folder, &err) == STATUS_OK;
        _exit(is_read && open_with(&options, &session, &err) == STATUS_OK ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 9, "%d", status);
    cr_assert_eq(tuning_read(folder, &err), STATUS_OK, "%s", err.message);
    tuning_each(TUNING_CUDA, note_known, &known);
    cr_assert_gt(known.count, 0);
    cr_assert(has_tunings(folder, true));
}

static void cancel_while_tuning(void *context, const char *phase, double fraction)
{
    _Atomic int *cancel = context;
    (void)phase;
    if (fraction > 0.6) /* all sizes are compiled */
        *cancel = 1;
}

/* A server that ends does not wait for the trials of what it was loading. */
Test(faults, a_load_is_cancelled_between_trials)
{
    _Atomic int cancel = 0;
    const struct session_options options = {.device = gpu,
                                            .max_batch = MOST,
                                            .image_layout = IMAGE_NHWC_F32,
                                            .trial = true,
                                            .cancel = &cancel,
                                            .on_progress = cancel_while_tuning,
                                            .progress_context = &cancel};
    struct session *session = NULL;
    struct error err = {0};
    cr_assert_eq(open_with(&options, &session, &err), STATUS_CANCELLED);
    cr_assert_str_eq(err.message, "loading was cancelled");
    cr_assert_eq(fake.used(0), 0);
}

/* A reload measures kernels on a busy GPU: batches have priority and disturb the measurements. */
Test(faults, what_is_measured_beside_batches_is_not_kept)
{
    static float images[MOST * ROW];
    const void *inputs[] = {images};
    const struct tensor *output;
    struct session *serving;
    struct error err = {0};
    struct known known = {.count = 0};
    cr_assert_eq(open_on(gpu, PRECISION_FP32, &serving, &err), STATUS_OK, "%s", err.message);
    const size_t untuned = operations_at_once_to_open();
    unsetenv("LENSD_CUDA_TUNING");
    const struct session_request batch = {.batch = MOST, .inputs = inputs, .valid_rows = MOST};
    cr_assert_eq(session_submit(serving, &batch, &err), STATUS_OK, "%s", err.message);
    const size_t first = operations_to_open();
    cr_assert_eq(operations_at_once_to_open(), untuned, "trials go before batches");
    tuning_each(TUNING_CUDA, note_known, &known);
    cr_assert_eq(known.count, 0);
    cr_assert_eq(session_collect(serving, &output, &err), STATUS_OK, "%s", err.message);
    cr_assert_gt(2 * operations_to_open(), first);
    tuning_each(TUNING_CUDA, note_known, &known);
    cr_assert_gt(known.count, 0);
    session_free(serving);
}

/* A candidate that the device refuses is not taken; the session is made all the same. */
Test(faults, a_candidate_that_is_refused_is_passed_over)
{
    struct error err = {0};
    int made = 0;
    unsetenv("LENSD_CUDA_TUNING");
    for (int after = 40; after < 240; after += 20) {
        struct session *session = NULL;
        tuning_forget();
        fake.reset(1, (size_t)1 << 30);
        fake.fail(after, cudaErrorLaunchOutOfResources, 0);
        if (open_on(gpu, PRECISION_FP16, &session, &err) == STATUS_OK) {
            made++;
            session_free(session);
        }
        cr_assert_eq(fake.used(0), 0);
    }
    cr_assert_geq(made, 5);
}
