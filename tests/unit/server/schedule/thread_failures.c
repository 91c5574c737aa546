/* The same when images, forward passes and devices fail: each failure reaches whom it is about, and
 * nobody else. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "tests/unit/server/schedule/host_jobs.h"

/* Has the images of `texts` run as one batch: they gather behind a forward pass. With one worker
 * the decode of the image behind them begins when the last of them is in its slot, if the buffer of
 * that batch holds them all: where the model has learned that smaller batches are as good, the
 * batches behind the pass use up the slots, and it begins only after the pass. Returns the sizes of
 * the passes, the one in front and the one behind left out. */
static const char *run_together(struct model_host *host, const char *name, const char *texts)
{
    int runs = fake_runs(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *first = submit_job(host, name, "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    fake_run_sizes(1);
    struct job *batch = submit_job(host, name, texts);
    struct job *behind = submit_job(host, name, "ok 4");
    CHECK(fake_wait_decodes(decodes + (int)batch->request.image_count + 2));
    fake_open_runs(1);
    finish_job(first);
    finish_job(batch);
    finish_job(behind);
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
        struct model_host *host =
            start_host((struct model_host_options){.max_batch = cases[i].largest, .workers = 1});
        fake_plan((struct fake_session_plan){.smallest_batch = cases[i].smallest});
        add_model(host, "m", 1);
        CHECK_SIZES(run_together(host, "m", cases[i].images), cases[i].sizes);
        model_host_free(host);
    }
    fake_plan((struct fake_session_plan){0});
}

static void test_out_of_memory_makes_batches_smaller(void)
{
    static const char eight[] = "ok 1|ok 2|ok 3|ok 4|ok 5|ok 6|ok 7|ok 8";
    static const char labels[] = "model=\"m\",device=\"cpu\",cause=\"memory\"";
    struct metrics *metrics = metrics_create();
    struct model_host *host =
        start_host((struct model_host_options){.max_batch = 8, .workers = 1, .metrics = metrics});
    /* However slow the machine, passes teach that all are quick: eight at once remain the best. */
    fake_plan((struct fake_session_plan){.batch_ms = 3600000});
    add_model(host, "m", 1);
    struct metric *cap =
        metrics_get(metrics, METRIC_GAUGE, "lensd_batch_cap", "", "model=\"m\",device=\"cpu\"");
    fake_memory_fits(2);
    CHECK_SIZES(run_together(host, "m", eight), "8 4 2 2 2 2");
    const int64_t failed = clock_now();
    CHECK(count_metric(metrics, "lensd_batch_splits_total", labels) == 2);
    /* The next batch is not even tried, nor counted, within a second. */
    const char *sizes = run_together(host, "m", eight);
    if (clock_ms(clock_now() - failed) < 900) {
        CHECK_SIZES(sizes, "2 2 2 2");
        CHECK(count_metric(metrics, "lensd_batch_splits_total", labels) == 2);
        CHECK(metric_value(cap) == 2);
    }
    /* It rises with time. Which passes run then is the planner's choice, by the times it has seen.
     */
    fake_memory_fits(0);
    while (metric_value(cap) < 4) {
        usleep(100000);
        run_together(host, "m", eight);
    }
    model_host_free(host);
    fake_plan((struct fake_session_plan){0});

    /* An image that does not fit even alone is nobody else's error. */
    host = start_host((struct model_host_options){.max_batch = 4, .workers = 1});
    add_model(host, "m", 1);
    CHECK_SIZES(run_together(host, "m", "ok 1|vast|ok 3|ok 4"), "4 2 1 1 1 1");
    model_host_free(host);
    metrics_free(metrics);
}

/* A batch that is larger than what fits now waits behind one that fails: it has had no pass yet. */
static void test_a_batch_that_was_not_begun_is_not_answered(void)
{
    struct model_host *host = start_host((struct model_host_options){.max_batch = 2, .workers = 1});
    fake_plan((struct fake_session_plan){.run_us = 50000});
    add_model(host, "m", 1);
    for (int i = 0; i < 16; i++) /* learns how long a pass takes: what follows is waited for */
        finish_job(submit_job(host, "m", "ok 5"));
    /* The failing one, a probe, and two images one by one: what did not fit is tried again only
     * after a second. */
    for (bool is_told = false; !is_told;) {
        const int64_t start = clock_now();
        finish_job(submit_job(host, "m", "vast"));
        int runs = fake_runs(1);
        struct job *failing = submit_job(host, "m", "poison");
        usleep(5000);
        struct job *behind = submit_job(host, "m", "ok 1|ok 2");
        finish_job(failing);
        finish_job(behind);
        is_told = clock_ms(clock_now() - start) < 900;
        CHECK(!is_told || fake_runs(1) >= runs + 4);
    }
    model_host_free(host);
    fake_plan((struct fake_session_plan){0});
}

static struct model_host *start_on_gpus(size_t count, struct metrics *metrics)
{
    struct model_host_options options = {.device_count = count, .metrics = metrics};
    for (size_t i = 0; i < count; i++)
        options.devices[i] = GPU((int)i);
    struct model_host *host = start_host(options);
    add_model(host, "a", 1);
    return host;
}

/* How many of the model's devices are quarantined; *ret has what is told of the last one. */
static size_t count_quarantined(struct model_host *host, struct lane_health *ret)
{
    struct model_status *models = calloc(1, sizeof *models);
    CHECK(models && list_models(host, models, 1) == 1);
    size_t count = 0;
    for (size_t i = 0; i < models[0].lane_count; i++) {
        if (!models[0].health[i].is_quarantined)
            continue;
        *ret = models[0].health[i];
        count++;
    }
    free(models);
    return count;
}

static void wait_quarantined(struct model_host *host, size_t expected)
{
    struct lane_health health;
    int64_t end = clock_now() + PATIENCE_MS * INT64_C(1000000);
    while (count_quarantined(host, &health) != expected && clock_now() < end)
        usleep(1000);
    CHECK(count_quarantined(host, &health) == expected);
}

static void test_a_large_request_is_split_across_devices(void)
{
    struct model_host *host = start_on_gpus(2, NULL);
    fake_shut_runs(1);
    struct job *job = submit_job(host, "a", "ok 1|ok 2|ok 3|ok 4|ok 5|ok 6|ok 7|ok 8");
    CHECK(fake_wait(fake_running, 1, 2));
    fake_open_runs(1);
    job_wait(job);
    bool on[2] = {false, false};
    for (int i = 0; i < 8; i++)
        on[job->images[i].times.device.index] = true;
    CHECK(on[0] && on[1]);
    finish_job(job);
    model_host_free(host);
}

static void test_a_device_that_fails_is_quarantined(void)
{
    struct metrics *metrics = metrics_create();
    struct model_host *host = start_on_gpus(2, metrics);
    struct lane_health health = {0};
    fake_break(GPU(1), true);
    /* Nobody notices: what it was given moves to the other one. */
    int64_t end = clock_now() + PATIENCE_MS * INT64_C(1000000);
    for (int i = 0; i < 40 || (count_quarantined(host, &health) != 1 && clock_now() < end); i++) {
        struct job *jobs[4];
        for (int k = 0; k < 4; k++)
            jobs[k] = submit_job(host, "a", "ok 1|ok 2|broken");
        for (int k = 0; k < 4; k++)
            finish_job(jobs[k]);
    }
    CHECK(count_quarantined(host, &health) == 1);
    CHECK(strstr(health.reason, "cuda:1: the fake device is broken"));
    CHECK(model_host_readiness(host) == MODEL_HOST_READY);
    CHECK(metric_value(metrics_get(metrics, METRIC_GAUGE, "lensd_device_quarantined", "",
                                   "model=\"a\",device=\"cuda:1\"")) == 1);
    CHECK(count_metric(metrics, "lensd_images_total", "model=\"a\",result=\"device_error\"") == 0);
    /* It is tried again, and taken back. */
    int before = fake_runs_on(GPU(1));
    fake_break(GPU(1), false);
    wait_quarantined(host, 0);
    CHECK(metric_value(metrics_get(metrics, METRIC_GAUGE, "lensd_device_quarantined", "",
                                   "model=\"a\",device=\"cuda:1\"")) == 0);
    fake_shut_runs(1);
    struct job *job = submit_job(host, "a", "ok 1|ok 2|ok 3|ok 4|ok 5|ok 6|ok 7|ok 8");
    CHECK(fake_wait(fake_running, 1, 2));
    fake_open_runs(1);
    finish_job(job);
    CHECK(fake_runs_on(GPU(1)) > before + 1);
    model_host_free(host);
    metrics_free(metrics);
}

static void test_without_a_device_everything_fails_at_once(void)
{
    struct model_host *host = start_on_gpus(2, NULL);
    int runs = fake_runs(1);
    fake_shut_runs(1);
    struct job *jobs[30];
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        jobs[i] = submit_job(host, "a", "ok 1");
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
    CHECK(model_host_readiness(host) == MODEL_HOST_FAILED);
    struct error err;
    struct job *late = job_create("a", "ok 1");
    CHECK(model_host_submit(host, &late->request, &err) == STATUS_DEVICE);
    CHECK(err.retry_after_s >= 1 && strstr(err.message, "no device of model"));
    CHECK(status_http(STATUS_DEVICE) == 503);
    /* One comes back. */
    fake_break(GPU(0), false);
    wait_quarantined(host, 1);
    CHECK(model_host_readiness(host) == MODEL_HOST_READY);
    CHECK(model_host_submit(host, &late->request, &err) == STATUS_OK);
    finish_job(late);
    CHECK(model_host_drain(host, PATIENCE_MS)); /* with one still quarantined */
    model_host_free(host);
    fake_break(GPU(1), false);
}

static void test_images_that_break_devices_do_not_travel(void)
{
    /* Every device fails on the image, as long as it is there: after the second it has its error.
     */
    struct model_host *host = start_on_gpus(4, NULL);
    struct lane_health health;
    for (int i = 0; i < 4; i++)
        fake_break(GPU(i), true);
    struct job *job = submit_job(host, "a", "ok 1");
    job_wait(job);
    CHECK(job->images[0].status == STATUS_DEVICE);
    CHECK(count_quarantined(host, &health) <= 2);
    job_free(job);
    for (int i = 0; i < 4; i++)
        fake_break(GPU(i), false);
    wait_quarantined(host, 0);
    finish_job(submit_job(host, "a", "ok 1"));
    model_host_free(host);
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
        while ((status = model_host_submit(submitter->host, &job->request, &err)) != STATUS_OK) {
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
    struct model_host *host = start_on_gpus(3, NULL);
    static struct submitter submitters[24];
    static _Atomic int stop_breaking;
    pthread_t breaker;
    atomic_store(&stop_breaking, 0);
    CHECK(!pthread_create(&breaker, NULL, break_and_repair, &stop_breaking));
    for (size_t i = 0; i < COUNT_OF(submitters); i++) {
        submitters[i].host = host;
        CHECK(
            !pthread_create(&submitters[i].thread, NULL, submit_through_failures, &submitters[i]));
    }
    for (size_t i = 0; i < COUNT_OF(submitters); i++)
        pthread_join(submitters[i].thread, NULL);
    atomic_store(&stop_breaking, 1);
    pthread_join(breaker, NULL);
    wait_quarantined(host, 0);
    finish_job(submit_job(host, "a", "ok 5|nan|ok 6|broken"));
    CHECK(model_host_drain(host, PATIENCE_MS));
    model_host_free(host);
}

static void test_images_known_bad_are_carried_along(void)
{
    struct metrics *metrics = metrics_create();
    struct model_host *host = start_host((struct model_host_options){.metrics = metrics});
    add_model(host, "a", 1);
    struct job *job = job_create("a", "x|ok 5|y");
    error_set(&job->images[0].preset, STATUS_INVALID, "bad base64");
    error_set(&job->images[2].preset, STATUS_INVALID, "bad base64");
    CHECK(model_host_submit(host, &job->request, NULL) == STATUS_OK);
    job_wait(job);
    CHECK(job->images[0].status == STATUS_INVALID && job->images[2].status == STATUS_INVALID);
    CHECK(!strcmp(job->images[0].error.message, "bad base64"));
    CHECK(job->images[1].status == STATUS_OK && job->images[1].predictions[0].index == 5);
    job_free(job);

    job = job_create("a", "x");
    error_set(&job->images[0].preset, STATUS_INVALID, "bad base64");
    CHECK(model_host_submit(host, &job->request, NULL) == STATUS_OK);
    CHECK(job->done == 1); /* before submit returned: there was nothing to wait for */
    CHECK(job->images[0].status == STATUS_INVALID);
    job_free(job);
    CHECK(count_metric(metrics, "lensd_images_total", "model=\"a\",result=\"invalid_request\"") ==
          3);
    model_host_free(host);
    metrics_free(metrics);
}

int main(void)
{
    static const struct host_test tests[] = {
        {"only the failing image fails", test_only_the_failing_image_fails, true},
        {"out of memory makes batches smaller", test_out_of_memory_makes_batches_smaller, true},
        {"a batch that was not begun is not answered",
         test_a_batch_that_was_not_begun_is_not_answered},
        {"a large request is split across devices", test_a_large_request_is_split_across_devices},
        {"a device that fails is quarantined", test_a_device_that_fails_is_quarantined},
        {"without a device everything fails at once",
         test_without_a_device_everything_fails_at_once},
        {"images that break devices do not travel", test_images_that_break_devices_do_not_travel},
        {"nothing is lost while devices come and go",
         test_nothing_is_lost_while_devices_come_and_go},
        {"images known bad are carried along", test_images_known_bad_are_carried_along},
    };
    return run_host_tests(tests, COUNT_OF(tests));
}
