/* The pipeline with real threads and fake neighbours (fakes.h): nothing lost, nothing answered
 * twice, every image answered for itself, under load, cancellation, failures and drains. A plain
 * program, so that it also runs under ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/observe/log.h"
#include "server/schedule/pipeline.h"
#include "tests/unit/fakes.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__, #condition);  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* --- requests --- */

#define MAX_IMAGES 8

struct job {
    struct predict_request request;
    struct predict_image images[MAX_IMAGES];
    char texts[MAX_IMAGES][24];
    pthread_mutex_t lock;
    pthread_cond_t condition;
    int done; /* calls of on_done */
};

static int passes_under_way; /* of a session, in the test at hand */

static void on_done(struct predict_request *request)
{
    struct job *job = request->context;
    pthread_mutex_lock(&job->lock);
    job->done++;
    pthread_cond_broadcast(&job->condition);
    pthread_mutex_unlock(&job->lock);
}

/* `texts`: images separated by '|'. */
static struct job *job_create(const char *model, const char *texts)
{
    struct job *job = calloc(1, sizeof *job);
    CHECK(job);
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->condition, NULL);
    job->request = (struct predict_request){.images = job->images,
                                            .model = model,
                                            .top_k = 3,
                                            .started = clock_now(),
                                            .on_done = on_done,
                                            .context = job};
    while (*texts) {
        size_t length = strcspn(texts, "|"), i = job->request.image_count++;
        CHECK(i < MAX_IMAGES);
        snprintf(job->texts[i], sizeof job->texts[i], "%.*s", (int)length, texts);
        job->images[i].data = (const uint8_t *)job->texts[i];
        job->images[i].size = strlen(job->texts[i]);
        texts += length + (texts[length] == '|');
    }
    return job;
}

static void job_free(struct job *job)
{
    predict_request_done(&job->request);
    pthread_cond_destroy(&job->condition);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

static bool job_is_done(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    bool done = job->done > 0;
    pthread_mutex_unlock(&job->lock);
    return done;
}

static void job_wait(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    while (job->done == 0)
        pthread_cond_wait(&job->condition, &job->lock);
    pthread_mutex_unlock(&job->lock);
}

static enum status expected_status(const char *text)
{
    return !strncmp(text, "ok ", 3)         ? STATUS_OK
           : !strcmp(text, "nan")           ? STATUS_NUMERIC
           : !strcmp(text, "poison")        ? STATUS_DEVICE
           : !strcmp(text, "vast")          ? STATUS_DEVICE_MEMORY
           : !strcmp(text, "untransformed") ? STATUS_TOO_LARGE
                                            : STATUS_BAD_IMAGE;
}

/* Every image has exactly the answer that its own text asks for. */
static void job_check(struct job *job)
{
    CHECK(job->done == 1);
    for (size_t i = 0; i < job->request.image_count; i++) {
        const struct predict_image *image = &job->images[i];
        if (image->status != expected_status(job->texts[i]))
            fprintf(stderr, "'%s': %s: %s\n", job->texts[i], status_word(image->status),
                    image->error.message);
        CHECK(image->status == expected_status(job->texts[i]));
        if (image->status != STATUS_OK) {
            CHECK(image->error.status == image->status && image->error.message[0]);
            CHECK(!image->predictions);
            continue;
        }
        CHECK(image->prediction_count == 3);
        CHECK(image->predictions[0].index == (size_t)strtol(job->texts[i] + 3, NULL, 10));
        CHECK(image->width == 640 && image->height == 480);
        CHECK(image->batch >= 1 && image->forward_ms >= 0 && image->queue_ms >= 0);
    }
}

static struct pipeline *start(struct pipeline_options options)
{
    struct pipeline *pipeline = NULL;
    struct error err = {0};
    if (options.device_count == 0) {
        options.device_count = 1;
        options.devices[0] = DEVICE_HOST;
    }
    if (!options.workers)
        options.workers = 3;
    if (!options.max_batch)
        options.max_batch = 4;
    CHECK(pipeline_create(&options, &pipeline, &err) == STATUS_OK);
    return pipeline;
}

static void add(struct pipeline *pipeline, const char *name, int height)
{
    struct error err = {0};
    enum status status = pipeline_add_model(pipeline, fake_model(name, height), NULL, &err);
    if (status != STATUS_OK)
        fprintf(stderr, "%s\n", err.message);
    CHECK(status == STATUS_OK);
}

static struct job *submit(struct pipeline *pipeline, const char *model, const char *texts)
{
    struct job *job = job_create(model, texts);
    struct error err = {0};
    enum status status = pipeline_submit(pipeline, &job->request, NULL, &err);
    if (status != STATUS_OK)
        fprintf(stderr, "%s\n", err.message);
    CHECK(status == STATUS_OK);
    return job;
}

static void finish(struct job *job)
{
    job_wait(job);
    job_check(job);
    job_free(job);
}

static double count(struct metrics *metrics, const char *name, const char *labels)
{
    return metric_value(metrics_get(metrics, METRIC_COUNTER, name, "", labels, NULL, 0));
}

/* --- the tests --- */

static void test_one_image(void)
{
    struct metrics *metrics = metrics_create();
    struct pipeline *pipeline = start((struct pipeline_options){.metrics = metrics});
    add(pipeline, "digits", 1);
    struct job *job = submit(pipeline, NULL, "ok 17");
    job_wait(job);
    CHECK(!strcmp(job->request.served->name, "digits"));
    CHECK(job->images[0].batch == 1);
    finish(job);
    CHECK(pipeline_drain(pipeline, 1000));
    CHECK(count(metrics, "lensd_images_total", "model=\"digits\",result=\"ok\"") == 1);
    CHECK(count(metrics, "lensd_batches_closed_total", "model=\"digits\",reason=\"idle_device\"") ==
          1);
    size_t size;
    char *text = metrics_text(metrics, &size);
    CHECK(strstr(text, "lensd_queue_images{model=\"digits\"} 0\n"));
    CHECK(strstr(text, "lensd_in_flight_images{model=\"digits\"} 0\n"));
    CHECK(strstr(text, "lensd_phase_seconds_count{model=\"digits\",phase=\"decode\"} 1\n"));
    CHECK(strstr(text, "lensd_phase_seconds_count{model=\"digits\",phase=\"preprocess\"} 1\n"));
    CHECK(strstr(text, "lensd_phase_seconds_count{model=\"digits\",phase=\"queue\"} 1\n"));
    CHECK(strstr(text, "lensd_phase_seconds_count{model=\"digits\",phase=\"read\"} 1\n"));
    static const char *const of_device[] = {"copy_in", "forward", "copy_out"};
    for (size_t i = 0; i < COUNT_OF(of_device); i++) {
        char line[128];
        snprintf(line, sizeof line,
                 "lensd_phase_seconds_count{model=\"digits\",device=\"cpu\",phase=\"%s\"} 1\n",
                 of_device[i]);
        CHECK(strstr(text, line));
    }
    CHECK(strstr(text, "lensd_latency_seconds_count{model=\"digits\"} 1\n"));
    CHECK(strstr(text, "nv_inference_request_success{model=\"digits\",version=\"1\"} 1\n"));
    CHECK(strstr(text, "nv_inference_count{model=\"digits\",version=\"1\"} 1\n"));
    CHECK(strstr(text, "nv_inference_exec_count{model=\"digits\",version=\"1\"} 1\n"));
    CHECK(strstr(text, "nv_inference_pending_request_count{model=\"digits\",version=\"1\"} 0\n"));
    CHECK(strstr(text, "lensd_batch_size_count{model=\"digits\",device=\"cpu\"} 1\n"));
    free(text);
    pipeline_free(pipeline);
    metrics_free(metrics);
}

#define SUBMITTERS       64
#define JOBS_A_SUBMITTER 25

struct submitter {
    pthread_t thread;
    struct pipeline *pipeline;
    unsigned seed;
    int by_status[64];
    int refused;
};

static const char *random_image(unsigned *seed, char *text, size_t size)
{
    switch (rand_r(seed) % 12) {
    case 0:
        return "broken";
    case 1:
        return "untransformed";
    case 2:
        return "nan";
    case 3:
        return rand_r(seed) % 2 ? "poison" : "";
    default:
        snprintf(text, size, "ok %d", rand_r(seed) % FAKE_CLASSES);
        return text;
    }
}

static void *submit_many(void *argument)
{
    struct submitter *submitter = argument;
    for (int i = 0; i < JOBS_A_SUBMITTER; i++) {
        char texts[128] = "";
        int images = 1 + rand_r(&submitter->seed) % 4;
        for (int k = 0; k < images; k++) {
            char text[24];
            size_t used = strlen(texts);
            snprintf(texts + used, sizeof texts - used, "%s%s", k ? "|" : "",
                     random_image(&submitter->seed, text, sizeof text));
        }
        if (!texts[0])
            snprintf(texts, sizeof texts, "broken");
        struct job *job = job_create(rand_r(&submitter->seed) % 2 ? "a" : "b", texts);
        int retry_after = 0;
        struct error err;
        enum status status;
        while ((status = pipeline_submit(submitter->pipeline, &job->request, &retry_after, &err)) ==
               STATUS_OVERLOADED) {
            CHECK(retry_after >= 1);
            submitter->refused++;
            usleep(200);
        }
        CHECK(status == STATUS_OK);
        job_wait(job);
        job_check(job);
        for (size_t k = 0; k < job->request.image_count; k++)
            submitter->by_status[job->images[k].status]++;
        job_free(job);
    }
    return NULL;
}

static void test_many_submitters(void)
{
    struct metrics *metrics = metrics_create();
    struct pipeline_options options = {.metrics = metrics, .max_queue = 48, .device_count = 2};
    options.devices[0] = options.devices[1] = DEVICE_HOST;
    struct pipeline *pipeline = start(options);
    fake_plan((struct fake_session_plan){.run_us = 300});
    add(pipeline, "a", 1);
    fake_plan((struct fake_session_plan){.run_us = 100, .smallest_batch = 2});
    add(pipeline, "b", 2);
    fake_plan((struct fake_session_plan){0});
    static struct submitter submitters[SUBMITTERS];
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        submitters[i] = (struct submitter){.pipeline = pipeline, .seed = i + 1};
        CHECK(!pthread_create(&submitters[i].thread, NULL, submit_many, &submitters[i]));
    }
    int by_status[64] = {0};
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        pthread_join(submitters[i].thread, NULL);
        for (int k = 0; k < 64; k++)
            by_status[k] += submitters[i].by_status[k];
    }
    CHECK(pipeline_drain(pipeline, 1000));
    static const enum status results[] = {STATUS_OK, STATUS_BAD_IMAGE, STATUS_TOO_LARGE,
                                          STATUS_NUMERIC, STATUS_DEVICE};
    for (size_t i = 0; i < COUNT_OF(results); i++) {
        double counted = 0;
        for (int model = 0; model < 2; model++) {
            char labels[64];
            snprintf(labels, sizeof labels, "model=\"%c\",result=\"%s\"", 'a' + model,
                     status_word(results[i]));
            counted += count(metrics, "lensd_images_total", labels);
        }
        CHECK(by_status[results[i]] > 0);
        CHECK(counted == by_status[results[i]]);
    }
    CHECK(fake_greatest_run(1) > 1); /* images did meet in batches */
    CHECK(count(metrics, "lensd_forward_failures_total", "model=\"a\",device=\"cpu\"") > 0);
    pipeline_free(pipeline);
    metrics_free(metrics);
}

static void test_queue_bound(void)
{
    struct pipeline *pipeline = start((struct pipeline_options){.max_queue = 10});
    add(pipeline, "a", 1);
    fake_shut_runs(1);
    struct job *jobs[5];
    for (int i = 0; i < 5; i++)
        jobs[i] = submit(pipeline, "a", "ok 1|ok 2");
    struct job *late = job_create("a", "ok 3");
    struct error err = {0};
    int retry_after = 0;
    CHECK(pipeline_submit(pipeline, &late->request, &retry_after, &err) == STATUS_OVERLOADED);
    CHECK(retry_after >= 1 && strstr(err.message, "10"));
    fake_open_runs(1);
    for (int i = 0; i < 5; i++)
        finish(jobs[i]);
    /* "Answered" is noted just after on_done. */
    while (pipeline_submit(pipeline, &late->request, NULL, &err) == STATUS_OVERLOADED)
        usleep(100);
    finish(late);

    struct pipeline *small = start((struct pipeline_options){.max_queue = 2});
    add(small, "a", 1);
    struct job *large = job_create("a", "ok 1|ok 2|ok 3");
    CHECK(pipeline_submit(small, &large->request, NULL, &err) == STATUS_TOO_LARGE);
    job_free(large);
    pipeline_free(small);
    pipeline_free(pipeline);
}

static void test_cancelled_requests_are_skipped(void)
{
    struct pipeline *pipeline = start((struct pipeline_options){.workers = 1});
    add(pipeline, "a", 1);
    int runs = fake_runs(1), images = fake_images_run(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *first = submit(pipeline, "a", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    /* In a slot, but not running: dropped before the forward pass. */
    struct job *slotted = submit(pipeline, "a", "ok 2|ok 3");
    struct job *kept = submit(pipeline, "a", "ok 4");
    CHECK(fake_wait_decodes(decodes + 4));
    /* In the queue behind an image that is being decoded: dropped before its decode. */
    fake_shut_decodes();
    struct job *slow = submit(pipeline, "a", "ok 5");
    struct job *queued = submit(pipeline, "a", "ok 6");
    CHECK(fake_wait_decodes(decodes + 5));
    atomic_store(&slotted->request.cancelled, 1);
    atomic_store(&queued->request.cancelled, 1);
    fake_open_decodes();
    job_wait(queued);
    CHECK(queued->images[0].status == STATUS_CANCELLED);
    fake_open_runs(1);
    job_wait(slotted);
    CHECK(slotted->images[0].status == STATUS_CANCELLED);
    CHECK(slotted->images[1].status == STATUS_CANCELLED);
    finish(first);
    finish(kept);
    finish(slow);
    CHECK(fake_images_run(1) == images + 3);
    CHECK(fake_decodes() == decodes + 5);
    job_free(slotted);
    job_free(queued);
    CHECK(pipeline_drain(pipeline, 1000));
    pipeline_free(pipeline);
}

static void test_decode_overlaps_the_forward_pass(void)
{
    struct pipeline *pipeline = start((struct pipeline_options){.max_batch = 4});
    add(pipeline, "a", 1);
    int runs = fake_runs(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *first = submit(pipeline, "a", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    struct job *others[4];
    for (int i = 0; i < 4; i++)
        others[i] = submit(pipeline, "a", "ok 2");
    CHECK(fake_wait_decodes(decodes + 5)); /* while the first still runs */
    CHECK(!job_is_done(first));
    fake_open_runs(1);
    finish(first);
    for (int i = 0; i < 4; i++)
        finish(others[i]);
    pipeline_free(pipeline);
}

static void test_a_stuck_model_does_not_stop_decodes(void)
{
    struct pipeline *pipeline =
        start((struct pipeline_options){.workers = 2, .max_batch = 2, .max_queue = 64});
    add(pipeline, "stuck", 1);
    add(pipeline, "other", 2);
    fake_shut_runs(1);
    int runs_of_other = fake_runs(2), runs = fake_runs(1);
    struct job *stuck[64];
    for (size_t i = 0; i < COUNT_OF(stuck); i++)
        stuck[i] = submit(pipeline, "stuck", "ok 7");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    for (int i = 0; i < 50; i++) /* with every buffer of the first full */
        finish(submit(pipeline, "other", "broken"));
    /* Decoded, too; its forward pass waits for the device. */
    int decodes = fake_decodes();
    struct job *other = submit(pipeline, "other", "ok 8");
    CHECK(fake_wait_decodes(decodes + 1));
    CHECK(!job_is_done(other) && fake_runs(2) == runs_of_other);
    for (size_t i = 0; i < COUNT_OF(stuck); i++)
        CHECK(!job_is_done(stuck[i]));
    fake_open_runs(1);
    for (size_t i = 0; i < COUNT_OF(stuck); i++)
        finish(stuck[i]);
    finish(other);
    pipeline_free(pipeline);
}

static void test_two_lanes_run_at_the_same_time(void)
{
    struct pipeline_options options = {.device_count = 2};
    options.devices[0] = options.devices[1] = DEVICE_HOST;
    struct pipeline *pipeline = start(options);
    add(pipeline, "a", 1);
    fake_shut_runs(1);
    struct job *first = submit(pipeline, "a", "ok 1");
    struct job *second = NULL;
    CHECK(fake_wait(fake_running, 1, 1));
    second = submit(pipeline, "a", "ok 2");
    CHECK(fake_wait(fake_running, 1, 2));
    fake_open_runs(1);
    finish(first);
    finish(second);
    pipeline_free(pipeline);
}

/* Has the images of `texts` run as one batch: they gather behind a forward pass. With one worker
 * the decode of the image behind them begins when the last of them is in its slot. Returns the
 * sizes of the passes, the one in front and the one behind left out. */
static const char *run_together(struct pipeline *pipeline, const char *name, const char *texts)
{
    int runs = fake_runs(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *first = submit(pipeline, name, "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    fake_run_sizes(1);
    struct job *batch = submit(pipeline, name, texts);
    struct job *behind = submit(pipeline, name, "ok 4");
    CHECK(fake_wait_decodes(decodes + (int)batch->request.image_count + 2));
    fake_open_runs(1);
    finish(first);
    finish(batch);
    finish(behind);
    static char sizes[160];
    snprintf(sizes, sizeof sizes, "%s", fake_run_sizes(1));
    char *last = strrchr(sizes, ' ');
    CHECK(last);
    *last = '\0';
    return sizes;
}

#define CHECK_SIZES(actual, expected)                                                              \
    do {                                                                                           \
        const char *given_ = (actual), *actual_ = given_ ? given_ : "(none)";                      \
        if (strcmp(actual_, (expected)) != 0)                                                      \
            fprintf(stderr, "passes of %s images\n", actual_);                                     \
        CHECK(!strcmp(actual_, (expected)));                                                       \
    } while (0)

/* After the first failure one image of zeros tells whether the device is to blame. */
static void test_only_the_failing_image_fails(void)
{
    static const struct {
        const char *images, *sizes;
        int smallest, largest;
    } cases[] = {
        {"ok 1|ok 2|ok 3|ok 4|ok 5|ok 6|ok 7|ok 8", "8", 1, 8},
        {"ok 1|nan|ok 3|nan|nan|ok 6|ok 7|ok 8", "8", 1, 8},
        {"ok 1|ok 2|ok 3|poison|ok 5|ok 6|ok 7|ok 8", "8 1 4 2 2 1 1 4", 1, 8},
        {"poison|ok 2|nan|ok 4|ok 5|ok 6|ok 7|poison", "8 1 4 2 1 1 2 4 2 2 1 1", 1, 8},
        {"poison|poison|poison|poison", "4 1 2 1 1 2 1 1", 1, 4},
        /* Not a compiled size: padded at first, then only as far as nothing lies beside it. */
        {"ok 1|ok 2|poison|ok 4|ok 5|ok 6|ok 7", "7 1 4 2 2 1 1 2 1", 1, 7},
        /* What the file fixes at 4 is padded with zeros, not with its neighbours. */
        {"ok 1|poison|ok 3|ok 4", "4 1 2 1 1 2", 4, 4},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct pipeline *pipeline =
            start((struct pipeline_options){.max_batch = cases[i].largest, .workers = 1});
        fake_plan((struct fake_session_plan){.smallest_batch = cases[i].smallest});
        add(pipeline, "m", 1);
        CHECK_SIZES(run_together(pipeline, "m", cases[i].images), cases[i].sizes);
        pipeline_free(pipeline);
    }
    fake_plan((struct fake_session_plan){0});
}

static void test_out_of_memory_makes_batches_smaller(void)
{
    static const char eight[] = "ok 1|ok 2|ok 3|ok 4|ok 5|ok 6|ok 7|ok 8";
    static const char labels[] = "model=\"m\",device=\"cpu\",cause=\"memory\"";
    struct metrics *metrics = metrics_create();
    struct pipeline *pipeline =
        start((struct pipeline_options){.max_batch = 8, .workers = 1, .metrics = metrics});
    add(pipeline, "m", 1);
    fake_memory_fits(2);
    CHECK_SIZES(run_together(pipeline, "m", eight), "8 4 2 2 2 2");
    CHECK(count(metrics, "lensd_batch_splits_total", labels) == 2);
    /* The next batch is not even tried, nor counted. */
    CHECK_SIZES(run_together(pipeline, "m", eight), "2 2 2 2");
    CHECK(count(metrics, "lensd_batch_splits_total", labels) == 2);
    CHECK(metric_value(metrics_get(metrics, METRIC_GAUGE, "lensd_batch_cap", "",
                                   "model=\"m\",device=\"cpu\"", NULL, 0)) == 2);
    fake_memory_fits(0);
    usleep(1050000);
    CHECK_SIZES(run_together(pipeline, "m", eight), "4 4"); /* it recovers step by step */
    pipeline_free(pipeline);

    /* An image that does not fit even alone is nobody else's error. */
    pipeline = start((struct pipeline_options){.max_batch = 4, .workers = 1});
    add(pipeline, "m", 1);
    CHECK_SIZES(run_together(pipeline, "m", "ok 1|vast|ok 3|ok 4"), "4 2 1 1 1 1");
    pipeline_free(pipeline);
    metrics_free(metrics);
}

#define GPU(n) ((struct device_id){DEVICE_CUDA, (n)})

static struct pipeline *start_on_gpus(size_t count, struct metrics *metrics)
{
    struct pipeline_options options = {.device_count = count, .metrics = metrics};
    for (size_t i = 0; i < count; i++)
        options.devices[i] = GPU((int)i);
    struct pipeline *pipeline = start(options);
    add(pipeline, "a", 1);
    return pipeline;
}

/* How many of the model's devices are set aside; *ret has what is told of the last one. */
static size_t count_aside(struct pipeline *pipeline, struct lane_health *ret)
{
    struct model_status *models = calloc(1, sizeof *models);
    CHECK(models && pipeline_models(pipeline, models, 1) == 1);
    size_t count = 0;
    for (size_t i = 0; i < models[0].lane_count; i++) {
        if (!models[0].health[i].is_aside)
            continue;
        *ret = models[0].health[i];
        count++;
    }
    free(models);
    return count;
}

static void wait_aside(struct pipeline *pipeline, size_t expected)
{
    struct lane_health health;
    int64_t end = clock_now() + 10000000000;
    while (count_aside(pipeline, &health) != expected && clock_now() < end)
        usleep(1000);
    CHECK(count_aside(pipeline, &health) == expected);
}

static void test_a_large_request_is_split_across_devices(void)
{
    struct pipeline *pipeline = start_on_gpus(2, NULL);
    fake_shut_runs(1);
    struct job *job = submit(pipeline, "a", "ok 1|ok 2|ok 3|ok 4|ok 5|ok 6|ok 7|ok 8");
    CHECK(fake_wait(fake_running, 1, 2));
    fake_open_runs(1);
    job_wait(job);
    bool on[2] = {false, false};
    for (int i = 0; i < 8; i++)
        on[job->images[i].device.index] = true;
    CHECK(on[0] && on[1]);
    finish(job);
    pipeline_free(pipeline);
}

static void test_a_device_that_fails_is_set_aside(void)
{
    struct metrics *metrics = metrics_create();
    struct pipeline *pipeline = start_on_gpus(2, metrics);
    struct lane_health health = {0};
    fake_break(GPU(1), true);
    /* Nobody notices: what it was given moves to the other one. */
    for (int i = 0; i < 40; i++) {
        struct job *jobs[4];
        for (int k = 0; k < 4; k++)
            jobs[k] = submit(pipeline, "a", "ok 1|ok 2|broken");
        for (int k = 0; k < 4; k++)
            finish(jobs[k]);
    }
    CHECK(count_aside(pipeline, &health) == 1);
    CHECK(strstr(health.reason, "cuda:1: the fake device is broken"));
    CHECK(!pipeline_is_lost(pipeline));
    CHECK(metric_value(metrics_get(metrics, METRIC_GAUGE, "lensd_device_quarantined", "",
                                   "model=\"a\",device=\"cuda:1\"", NULL, 0)) == 1);
    CHECK(count(metrics, "lensd_images_total", "model=\"a\",result=\"device_error\"") == 0);
    /* It is tried again, and taken back. */
    int before = fake_runs_on(GPU(1));
    fake_break(GPU(1), false);
    wait_aside(pipeline, 0);
    CHECK(metric_value(metrics_get(metrics, METRIC_GAUGE, "lensd_device_quarantined", "",
                                   "model=\"a\",device=\"cuda:1\"", NULL, 0)) == 0);
    fake_shut_runs(1);
    struct job *job = submit(pipeline, "a", "ok 1|ok 2|ok 3|ok 4|ok 5|ok 6|ok 7|ok 8");
    CHECK(fake_wait(fake_running, 1, 2));
    fake_open_runs(1);
    finish(job);
    CHECK(fake_runs_on(GPU(1)) > before + 1);
    pipeline_free(pipeline);
    metrics_free(metrics);
}

static void test_without_a_device_everything_fails_at_once(void)
{
    struct pipeline *pipeline = start_on_gpus(2, NULL);
    int runs = fake_runs(1);
    fake_shut_runs(1);
    struct job *jobs[30];
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        jobs[i] = submit(pipeline, "a", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 2));
    fake_break(GPU(0), true);
    fake_break(GPU(1), true);
    fake_open_runs(1);
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        job_wait(jobs[i]);
        CHECK(jobs[i]->done == 1 && jobs[i]->images[0].status == STATUS_DEVICE);
        CHECK(strstr(jobs[i]->images[0].error.message, "device"));
        job_free(jobs[i]);
    }
    CHECK(pipeline_is_lost(pipeline));
    struct error err;
    int retry_after = 0;
    struct job *late = job_create("a", "ok 1");
    CHECK(pipeline_submit(pipeline, &late->request, &retry_after, &err) == STATUS_DEVICE);
    CHECK(retry_after >= 1 && strstr(err.message, "no device is left"));
    CHECK(status_http(STATUS_DEVICE) == 503);
    /* One comes back. */
    fake_break(GPU(0), false);
    wait_aside(pipeline, 1);
    CHECK(!pipeline_is_lost(pipeline));
    CHECK(pipeline_submit(pipeline, &late->request, &retry_after, &err) == STATUS_OK);
    finish(late);
    CHECK(pipeline_drain(pipeline, 1000)); /* with one still aside */
    pipeline_free(pipeline);
    fake_break(GPU(1), false);
}

static void test_images_that_break_devices_do_not_travel(void)
{
    /* Every device fails on the image, as long as it is there: after the second it has its error.
     */
    struct pipeline *pipeline = start_on_gpus(4, NULL);
    struct lane_health health;
    for (int i = 0; i < 4; i++)
        fake_break(GPU(i), true);
    struct job *job = submit(pipeline, "a", "ok 1");
    job_wait(job);
    CHECK(job->images[0].status == STATUS_DEVICE);
    CHECK(count_aside(pipeline, &health) <= 2);
    job_free(job);
    for (int i = 0; i < 4; i++)
        fake_break(GPU(i), false);
    wait_aside(pipeline, 0);
    finish(submit(pipeline, "a", "ok 1"));
    pipeline_free(pipeline);
}

/* 64 submitters while devices break and come back: every image has an answer, its own or that the
 * device failed. */
static void *break_and_repair(void *argument)
{
    _Atomic int *stop = argument;
    for (int i = 0; !atomic_load(stop); i++) {
        fake_break(GPU(i % 3), true);
        usleep(3000);
        fake_break(GPU(i % 3), false);
        usleep(1000);
    }
    return NULL;
}

static void *submit_through_failures(void *argument)
{
    struct submitter *submitter = argument;
    for (int i = 0; i < JOBS_A_SUBMITTER; i++) {
        struct job *job = job_create("a", "ok 5|nan|ok 6|broken");
        struct error err;
        enum status status;
        while ((status = pipeline_submit(submitter->pipeline, &job->request, NULL, &err)) !=
               STATUS_OK) {
            CHECK(status == STATUS_OVERLOADED || status == STATUS_DEVICE);
            usleep(500);
        }
        job_wait(job);
        CHECK(job->done == 1);
        for (int k = 0; k < 4; k++) {
            enum status image = job->images[k].status;
            CHECK(image == STATUS_DEVICE || image == expected_status(job->texts[k]));
            submitter->by_status[image]++;
        }
        job_free(job);
    }
    return NULL;
}

static void test_nothing_is_lost_while_devices_come_and_go(void)
{
    struct pipeline *pipeline = start_on_gpus(3, NULL);
    static struct submitter submitters[24];
    static _Atomic int stop_breaking;
    pthread_t breaker;
    CHECK(!pthread_create(&breaker, NULL, break_and_repair, &stop_breaking));
    for (size_t i = 0; i < COUNT_OF(submitters); i++) {
        submitters[i].pipeline = pipeline;
        CHECK(
            !pthread_create(&submitters[i].thread, NULL, submit_through_failures, &submitters[i]));
    }
    int good = 0;
    for (size_t i = 0; i < COUNT_OF(submitters); i++) {
        pthread_join(submitters[i].thread, NULL);
        good += submitters[i].by_status[STATUS_OK];
    }
    atomic_store(&stop_breaking, 1);
    pthread_join(breaker, NULL);
    CHECK(good > 0);
    CHECK(pipeline_drain(pipeline, 10000));
    pipeline_free(pipeline);
}

static void test_models_share_a_device_by_time(void)
{
    enum { IMAGES = 400 };
    struct metrics *metrics = metrics_create();
    struct pipeline_options options = {.device_count = 1,
                                       .devices = {GPU(0)},
                                       .metrics = metrics,
                                       .max_queue = 2 * IMAGES,
                                       .max_batch = 1};
    struct pipeline *pipeline = start(options);
    fake_plan((struct fake_session_plan){.run_us = 4000});
    add(pipeline, "slow", 1);
    fake_plan((struct fake_session_plan){.run_us = 1000});
    add(pipeline, "fast", 2);
    fake_plan((struct fake_session_plan){0});
    fake_shut_runs(1);
    struct job *slow[IMAGES / 4], *fast[IMAGES];
    int runs = fake_runs(1);
    for (size_t i = 0; i < COUNT_OF(slow); i++)
        slow[i] = submit(pipeline, "slow", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    for (size_t i = 0; i < COUNT_OF(fast); i++)
        fast[i] = submit(pipeline, "fast", "ok 2");
    fake_open_runs(1);
    CHECK(fake_wait(fake_runs, 1, runs + (int)COUNT_OF(slow) / 2));
    static const char name[] = "lensd_device_seconds_total";
    double slow_s = count(metrics, name, "model=\"slow\",device=\"cuda:0\"");
    double fast_s = count(metrics, name, "model=\"fast\",device=\"cuda:0\"");
    for (size_t i = 0; i < COUNT_OF(slow); i++)
        finish(slow[i]);
    for (size_t i = 0; i < COUNT_OF(fast); i++)
        finish(fast[i]);
    if (!(fast_s > 0.75 * slow_s && fast_s < 1.35 * slow_s))
        fprintf(stderr, "slow had %.3f s of the device, fast %.3f s\n", slow_s, fast_s);
    CHECK(fast_s > 0.75 * slow_s && fast_s < 1.35 * slow_s);
    pipeline_free(pipeline);
    metrics_free(metrics);
}

static void test_images_known_bad_are_carried_along(void)
{
    struct metrics *metrics = metrics_create();
    struct pipeline *pipeline = start((struct pipeline_options){.metrics = metrics});
    add(pipeline, "a", 1);
    struct job *job = job_create("a", "x|ok 5|y");
    error_set(&job->images[0].preset, STATUS_INVALID, "bad base64");
    error_set(&job->images[2].preset, STATUS_INVALID, "bad base64");
    CHECK(pipeline_submit(pipeline, &job->request, NULL, NULL) == STATUS_OK);
    job_wait(job);
    CHECK(job->images[0].status == STATUS_INVALID && job->images[2].status == STATUS_INVALID);
    CHECK(!strcmp(job->images[0].error.message, "bad base64"));
    CHECK(job->images[1].status == STATUS_OK && job->images[1].predictions[0].index == 5);
    job_free(job);

    job = job_create("a", "x");
    error_set(&job->images[0].preset, STATUS_INVALID, "bad base64");
    CHECK(pipeline_submit(pipeline, &job->request, NULL, NULL) == STATUS_OK);
    CHECK(job->done == 1); /* before submit returned: there was nothing to wait for */
    CHECK(job->images[0].status == STATUS_INVALID);
    job_free(job);
    CHECK(count(metrics, "lensd_images_total", "model=\"a\",result=\"invalid_request\"") == 3);
    pipeline_free(pipeline);
    metrics_free(metrics);
}

static void *submit_until_refused(void *argument)
{
    struct submitter *submitter = argument;
    for (;;) {
        struct job *job = job_create("a", "ok 1|ok 2|broken");
        struct error err;
        enum status status = pipeline_submit(submitter->pipeline, &job->request, NULL, &err);
        if (status == STATUS_OVERLOADED) {
            job_free(job);
            usleep(100);
            continue;
        }
        if (status != STATUS_OK) {
            CHECK(status == STATUS_DRAINING);
            job_free(job);
            return NULL;
        }
        submitter->by_status[0]++;
        finish(job);
    }
}

static void test_drain_answers_everything_accepted(void)
{
    struct pipeline *pipeline = start((struct pipeline_options){.max_queue = 40});
    fake_plan((struct fake_session_plan){.run_us = 500});
    add(pipeline, "a", 1);
    fake_plan((struct fake_session_plan){0});
    struct submitter submitters[16] = {0};
    for (size_t i = 0; i < COUNT_OF(submitters); i++) {
        submitters[i].pipeline = pipeline;
        CHECK(!pthread_create(&submitters[i].thread, NULL, submit_until_refused, &submitters[i]));
    }
    usleep(50000);
    CHECK(pipeline_drain(pipeline, 5000));
    CHECK(pipeline_state(pipeline) == PIPELINE_DRAINING);
    int accepted = 0;
    for (size_t i = 0; i < COUNT_OF(submitters); i++) {
        pthread_join(submitters[i].thread, NULL);
        accepted += submitters[i].by_status[0];
    }
    CHECK(accepted > 0);
    pipeline_free(pipeline);
}

static void *open_later(void *argument)
{
    (void)argument;
    usleep(200000);
    fake_open_runs(1);
    return NULL;
}

static void test_drain_cuts_off_after_the_grace_time(void)
{
    struct pipeline *pipeline = start((struct pipeline_options){.max_queue = 64, .max_batch = 2});
    add(pipeline, "a", 1);
    int runs = fake_runs(1);
    fake_shut_runs(1);
    struct job *jobs[40];
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        jobs[i] = submit(pipeline, "a", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    pthread_t opener;
    CHECK(!pthread_create(&opener, NULL, open_later, NULL));
    int64_t start_time = clock_now();
    CHECK(!pipeline_drain(pipeline, 20));
    CHECK(clock_ms(clock_now() - start_time) >= 100); /* the pass under way was waited for */
    pthread_join(opener, NULL);
    int answered = 0, cut = 0;
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        CHECK(jobs[i]->done == 1);
        answered += jobs[i]->images[0].status == STATUS_OK;
        cut += jobs[i]->images[0].status == STATUS_DRAINING;
        job_free(jobs[i]);
    }
    CHECK(answered >= 1 && answered <= 2 * passes_under_way);
    CHECK(answered + cut == (int)COUNT_OF(jobs));
    CHECK(fake_runs(1) >= runs + 1 && fake_runs(1) <= runs + passes_under_way);
    pipeline_free(pipeline);
}

static void test_free_without_drain(void)
{
    struct pipeline *pipeline = start((struct pipeline_options){0});
    add(pipeline, "a", 1);
    struct job *jobs[20];
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        jobs[i] = submit(pipeline, "a", "ok 1");
    pipeline_free(pipeline);
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        CHECK(jobs[i]->done == 1);
        job_free(jobs[i]);
    }
    pipeline_free(NULL);
}

static enum status refused(struct pipeline *pipeline, const char *model, struct error *err)
{
    struct job *job = job_create(model, "ok 1");
    int retry_after = 0;
    enum status status = pipeline_submit(pipeline, &job->request, &retry_after, err);
    CHECK(status != STATUS_OK && job->done == 0);
    CHECK((status_http(status) == 503) == (retry_after >= 1));
    job_free(job);
    return status;
}

static void test_states_and_refusals(void)
{
    struct metrics *metrics = metrics_create();
    struct pipeline *pipeline = start((struct pipeline_options){.metrics = metrics});
    struct error err = {0};
    CHECK(pipeline_state(pipeline) == PIPELINE_LOADING);
    CHECK(refused(pipeline, NULL, &err) == STATUS_NOT_READY);
    CHECK(refused(pipeline, "a", &err) == STATUS_NOT_FOUND);
    pipeline_announce(pipeline, "a", NULL, 2);
    pipeline_announce(pipeline, "b", NULL, 2);
    pipeline_progress(pipeline, "a", NULL, 0.25, NULL);
    CHECK(refused(pipeline, "a", &err) == STATUS_NOT_READY);
    CHECK(strstr(err.message, "'a'") && strstr(err.message, "loading"));

    struct model_status *models = calloc(4, sizeof *models);
    CHECK(pipeline_models(pipeline, models, 4) == 2);
    CHECK(!strcmp(models[0].name, "a") && models[0].state == MODEL_LOADING);
    CHECK(models[0].progress == 0.25 && !models[0].is_default);

    add(pipeline, "a", 3);
    CHECK(pipeline_state(pipeline) == PIPELINE_LOADING); /* one of two */
    finish(submit(pipeline, NULL, "ok 3"));
    CHECK(refused(pipeline, "c", &err) == STATUS_NOT_FOUND);
    CHECK(strstr(err.message, "a, b"));

    fake_plan((struct fake_session_plan){.fails = true});
    CHECK(pipeline_add_model(pipeline, fake_model("b", 1), NULL, &err) == STATUS_UNSUPPORTED);
    CHECK(pipeline_state(pipeline) == PIPELINE_FAILED);
    CHECK(refused(pipeline, "b", &err) == STATUS_NOT_READY);
    CHECK(strstr(err.message, "operator Fake"));
    CHECK(pipeline_models(pipeline, models, 4) == 2);
    CHECK(models[0].state == MODEL_READY && models[0].is_default && models[0].progress == 1);
    CHECK(models[0].lane_count == 1 && models[0].class_count == FAKE_CLASSES);
    CHECK(models[0].width == FAKE_WIDTH && models[0].height == 3 && models[0].channels == 1);
    CHECK(models[1].state == MODEL_FAILED && strstr(models[1].failure, "operator Fake"));

    fake_plan((struct fake_session_plan){.unlike_classifier = true});
    pipeline_announce(pipeline, "b", NULL, 2);
    CHECK(pipeline_state(pipeline) == PIPELINE_LOADING);
    add(pipeline, "b", 1);
    CHECK(pipeline_state(pipeline) == PIPELINE_READY);
    CHECK(refused(pipeline, "b", &err) == STATUS_INVALID);
    CHECK(strstr(err.message, "[1, 84, 8400]") && strstr(err.message, "/v2/models/b/infer"));
    fake_plan((struct fake_session_plan){0});
    add(pipeline, "b", 1); /* takes the place of the other */
    finish(submit(pipeline, "b", "ok 3"));
    CHECK(pipeline_state(pipeline) == PIPELINE_READY);

    struct job *job = job_create("a", "ok 1");
    job->request.top_k = 0;
    CHECK(pipeline_submit(pipeline, &job->request, NULL, &err) == STATUS_INVALID);
    job->request.top_k = 1;
    job->request.image_count = 0;
    CHECK(pipeline_submit(pipeline, &job->request, NULL, &err) == STATUS_INVALID);
    job_free(job);

    CHECK(pipeline_drain(pipeline, 1000));
    CHECK(pipeline_drain(pipeline, 1000)); /* a second one finds nothing to do */
    CHECK(refused(pipeline, "a", &err) == STATUS_DRAINING);
    CHECK(pipeline_add_model(pipeline, fake_model("d", 1), NULL, &err) == STATUS_DRAINING);
    CHECK(count(metrics, "lensd_refused_total", "model=\"a\",cause=\"draining\"") == 1);
    CHECK(count(metrics, "lensd_refused_total", "model=\"\",cause=\"not_found\"") == 2);
    free(models);
    pipeline_free(pipeline);
    metrics_free(metrics);
}

/* A raw-tensor request: row r is of class first + r. */
struct rows {
    float values[8][FAKE_WIDTH];
    const void *inputs[1];
    struct predict_image images[8];
    struct job job;
};

static struct rows *send_rows(struct pipeline *pipeline, const char *name, size_t count, int first)
{
    struct rows *rows = calloc(1, sizeof *rows);
    struct error err = {0};
    CHECK(rows);
    for (size_t r = 0; r < count; r++)
        for (int i = 0; i < FAKE_WIDTH; i++)
            rows->values[r][i] = (float)(first + (int)r);
    rows->inputs[0] = rows->values;
    pthread_mutex_init(&rows->job.lock, NULL);
    pthread_cond_init(&rows->job.condition, NULL);
    struct predict_request *request = &rows->job.request;
    *request = (struct predict_request){.images = rows->images,
                                        .image_count = count,
                                        .tensors = rows->inputs,
                                        .raw_outputs = true,
                                        .top_k = 1,
                                        .started = clock_now(),
                                        .on_done = on_done,
                                        .context = &rows->job};
    CHECK(pipeline_acquire(pipeline, name, NULL, &request->target, NULL, &err) == STATUS_OK);
    CHECK(request->target->has_rows && request->target->inputs[0].count == FAKE_WIDTH);
    CHECK(pipeline_submit(pipeline, request, NULL, &err) == STATUS_OK);
    pipeline_release(pipeline, request->target);
    return rows;
}

static void finish_rows(struct rows *rows, int first)
{
    job_wait(&rows->job);
    for (size_t r = 0; r < rows->job.request.image_count; r++) {
        CHECK(rows->images[r].status == STATUS_OK && !rows->images[r].predictions);
        const struct tensor *scores = rows->images[r].outputs[0];
        struct shape wanted = SHAPE(1, FAKE_CLASSES);
        CHECK(shape_equal(&scores->shape, &wanted));
        for (int c = 0; c < FAKE_CLASSES; c++)
            CHECK(((const float *)scores->data)[c] == (float)(c == first + (int)r));
    }
    predict_request_done(&rows->job.request);
    pthread_cond_destroy(&rows->job.condition);
    pthread_mutex_destroy(&rows->job.lock);
    free(rows);
}

static void test_rows_run_beside_images(void)
{
    struct pipeline *pipeline =
        start((struct pipeline_options){.max_batch = 8, .workers = 1, .max_queue = 100});
    add(pipeline, "m", 1);
    int runs = fake_runs(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *first = submit(pipeline, "m", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    struct rows *rows = send_rows(pipeline, "m", 5, 20);
    struct job *images = submit(pipeline, "m", "ok 7|ok 8");
    struct job *behind = submit(pipeline, "m", "ok 9|ok 10");
    CHECK(fake_wait_decodes(decodes + 5));
    fake_open_runs(1);
    finish(first);
    finish_rows(rows, 20);
    CHECK(job_is_done(images) || fake_wait(fake_runs, 1, runs + 2));
    finish(images);
    finish(behind);
    CHECK(fake_greatest_run(1) >= 7);
    pipeline_free(pipeline);
}

struct replacer {
    struct pipeline *pipeline;
    _Atomic int stop;
    int answered;
};

static void *submit_until_stopped(void *argument)
{
    struct replacer *replacer = argument;
    while (!replacer->stop) {
        finish_rows(send_rows(replacer->pipeline, "m", 3, replacer->answered % 50),
                    replacer->answered % 50);
        finish(submit(replacer->pipeline, "m", "ok 5|ok 6"));
        replacer->answered++;
    }
    return NULL;
}

static void test_versions_are_replaced_under_load(void)
{
    enum { THREADS = 8, ROUNDS = 30 };
    struct pipeline *pipeline =
        start((struct pipeline_options){.max_queue = 1000, .device_count = 2});
    struct error err;
    fake_plan((struct fake_session_plan){.run_us = 100});
    add(pipeline, "m", 1);
    struct replacer replacers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        replacers[i] = (struct replacer){.pipeline = pipeline};
        CHECK(!pthread_create(&threads[i], NULL, submit_until_stopped, &replacers[i]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 5 == 4) { /* a broken one leaves the old one alone */
            fake_plan((struct fake_session_plan){.fails = true});
            CHECK(pipeline_add_model(pipeline, fake_model("m", 1), NULL, &err) ==
                  STATUS_UNSUPPORTED);
            struct model_status status[2];
            CHECK(pipeline_models(pipeline, status, 2) == 1);
            CHECK(status[0].state == MODEL_READY && strstr(status[0].failure, "Fake"));
            fake_plan((struct fake_session_plan){.run_us = 100});
        }
        add(pipeline, "m", 1);
        CHECK(pipeline_state(pipeline) == PIPELINE_READY);
        CHECK(fake_sessions_alive() == 2); /* the old one's are gone */
        usleep(2000);
    }
    for (int i = 0; i < THREADS; i++) {
        replacers[i].stop = 1;
        CHECK(!pthread_join(threads[i], NULL));
        CHECK(replacers[i].answered > 0);
    }
    fake_plan((struct fake_session_plan){0});
    pipeline_free(pipeline);
}

static struct model *version_of(const char *name, const char *version, int height)
{
    struct model *model = fake_model(name, height);
    free(model->version);
    model->version = strdup(version);
    return model;
}

/* The version that answers, by the height of its images. */
static int height_of(struct pipeline *pipeline, const char *version)
{
    struct served *served;
    struct error err;
    if (pipeline_acquire(pipeline, "m", version, &served, NULL, &err) != STATUS_OK)
        return -(int)err.status;
    int height = served->model->preprocess.height;
    pipeline_release(pipeline, served);
    return height;
}

static void test_versions_live_side_by_side(void)
{
    struct pipeline *pipeline = start((struct pipeline_options){0});
    struct error err;
    CHECK(pipeline_add_model(pipeline, version_of("m", "9", 1), NULL, &err) == STATUS_OK);
    CHECK(pipeline_add_model(pipeline, version_of("m", "10", 2), NULL, &err) == STATUS_OK);
    CHECK(height_of(pipeline, NULL) == 2 && height_of(pipeline, "9") == 1);
    CHECK(height_of(pipeline, "10") == 2 && height_of(pipeline, "1") == -(int)STATUS_NOT_FOUND);
    /* A newer one that does not load is passed over. */
    fake_plan((struct fake_session_plan){.fails = true});
    CHECK(pipeline_add_model(pipeline, version_of("m", "11", 3), NULL, &err) == STATUS_UNSUPPORTED);
    fake_plan((struct fake_session_plan){0});
    CHECK(pipeline_state(pipeline) == PIPELINE_READY);
    CHECK(height_of(pipeline, NULL) == 2 && height_of(pipeline, "11") == -(int)STATUS_NOT_READY);

    struct job *job = submit(pipeline, "m", "ok 4"); /* of a version that leaves meanwhile */
    CHECK(pipeline_remove_model(pipeline, "m", "10", false, &err) == STATUS_OK);
    CHECK(job_is_done(job));
    CHECK(!strcmp(job->request.served->version, "10"));
    finish(job);
    CHECK(height_of(pipeline, NULL) == 1 && height_of(pipeline, "10") == -(int)STATUS_NOT_READY);
    CHECK(fake_sessions_alive() == 1);
    CHECK(pipeline_remove_model(pipeline, "m", NULL, true, &err) == STATUS_OK);
    CHECK(height_of(pipeline, NULL) == -(int)STATUS_NOT_FOUND);
    CHECK(pipeline_remove_model(pipeline, "m", NULL, true, &err) == STATUS_NOT_FOUND);
    struct model_status status[2];
    CHECK(pipeline_models(pipeline, status, 2) == 0);
    pipeline_settle(pipeline);
    CHECK(pipeline_state(pipeline) == PIPELINE_READY);
    pipeline_free(pipeline);
}

static void test_options_out_of_range(void)
{
    struct pipeline *pipeline = NULL;
    struct error err = {0};
    static const struct pipeline_options wrong[] = {
        {.device_count = 0},
        {.device_count = DEVICE_MAX + 1},
        {.device_count = 1, .max_batch = 257},
        {.device_count = 1, .max_batch = -1},
        {.device_count = 1, .max_queue = ((size_t)1 << 20) + 1},
        {.device_count = 1, .workers = -1},
        {.device_count = 1, .threads = 100000},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        CHECK(pipeline_create(&wrong[i], &pipeline, &err) == STATUS_CONFIG);
        CHECK(!pipeline);
    }
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
        bool is_single; /* counts passes one by one: only where none overlap */
    } tests[] = {
        {"one image", test_one_image},
        {"64 submitters, good and bad images, two models, two lanes", test_many_submitters},
        {"the queue's bound", test_queue_bound},
        {"cancelled requests are skipped", test_cancelled_requests_are_skipped},
        {"decode overlaps the forward pass", test_decode_overlaps_the_forward_pass},
        {"a stuck model does not stop another's decodes", test_a_stuck_model_does_not_stop_decodes},
        {"two lanes run at the same time", test_two_lanes_run_at_the_same_time},
        {"only the failing image fails", test_only_the_failing_image_fails, true},
        {"out of memory makes batches smaller", test_out_of_memory_makes_batches_smaller, true},
        {"a large request is split across devices", test_a_large_request_is_split_across_devices},
        {"a device that fails is set aside", test_a_device_that_fails_is_set_aside},
        {"without a device everything fails at once",
         test_without_a_device_everything_fails_at_once},
        {"images that break devices do not travel", test_images_that_break_devices_do_not_travel},
        {"nothing is lost while devices come and go",
         test_nothing_is_lost_while_devices_come_and_go},
        {"models share a device by time", test_models_share_a_device_by_time},
        {"images known bad are carried along", test_images_known_bad_are_carried_along},
        {"drain answers everything accepted", test_drain_answers_everything_accepted},
        {"drain cuts off after the grace time", test_drain_cuts_off_after_the_grace_time},
        {"free without drain", test_free_without_drain},
        {"states and refusals", test_states_and_refusals},
        {"rows run beside images", test_rows_run_beside_images},
        {"versions are replaced under load", test_versions_are_replaced_under_load},
        {"versions live side by side", test_versions_live_side_by_side},
        {"options out of range", test_options_out_of_range},
    };
    alarm(120); /* a hang fails */
    log_configure(false, LOG_ERROR);
    printf("1..%zu\n", 2 * COUNT_OF(tests));
    for (size_t i = 0; i < 2 * COUNT_OF(tests); i++) {
        const size_t test = i % COUNT_OF(tests);
        const int depth = i < COUNT_OF(tests) ? 1 : 2;
        int freed = fake_models_freed();
        passes_under_way = tests[test].is_single ? 1 : depth;
        fake_depth(passes_under_way);
        tests[test].run();
        CHECK(fake_sessions_alive() == 0);
        CHECK(test + 1 == COUNT_OF(tests) || fake_models_freed() > freed);
        printf("ok %zu - %s, %d under way\n", i + 1, tests[test].name, depth);
        fflush(stdout);
    }
    CHECK(fake_greatest_under_way() == 2);
    return 0;
}
