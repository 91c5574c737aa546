/* The model host with real threads and fake neighbours (fakes.h): nothing lost, nothing answered
 * twice, every image answered for itself, under load and cancellation. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "tests/unit/server/schedule/host_jobs.h"

static void test_one_image(void)
{
    struct metrics *metrics = metrics_create();
    struct model_host *host = start_host((struct model_host_options){.metrics = metrics});
    add_model(host, "digits", 1);
    struct job *job = submit_job(host, NULL, "ok 17");
    job_wait(job);
    CHECK(!strcmp(job->request.used_model->name, "digits"));
    CHECK(job->images[0].times.batch == 1);
    finish_job(job);
    CHECK(model_host_drain(host, PATIENCE_MS));
    CHECK(count_metric(metrics, "lensd_images_total", "model=\"digits\",result=\"ok\"") == 1);
    CHECK(count_metric(metrics, "lensd_batches_closed_total",
                       "model=\"digits\",reason=\"idle_device\"") == 1);
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
    model_host_free(host);
    metrics_free(metrics);
}

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
        struct error err;
        enum status status;
        while ((status = model_host_submit(submitter->host, &job->request, &err)) ==
               STATUS_OVERLOADED) {
            CHECK(err.retry_after_s >= 1);
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
    struct model_host_options options = {.metrics = metrics, .max_queue = 48, .device_count = 2};
    options.devices[0] = options.devices[1] = DEVICE_HOST;
    struct model_host *host = start_host(options);
    fake_plan((struct fake_session_plan){.run_us = 300});
    add_model(host, "a", 1);
    fake_plan((struct fake_session_plan){.run_us = 100, .smallest_batch = 2});
    add_model(host, "b", 2);
    fake_plan((struct fake_session_plan){0});
    static struct submitter submitters[SUBMITTERS];
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        submitters[i] = (struct submitter){.host = host, .seed = i + 1};
        CHECK(!pthread_create(&submitters[i].thread, NULL, submit_many, &submitters[i]));
    }
    int by_status[64] = {0};
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        pthread_join(submitters[i].thread, NULL);
        for (int k = 0; k < 64; k++)
            by_status[k] += submitters[i].by_status[k];
    }
    CHECK(model_host_drain(host, PATIENCE_MS));
    static const enum status results[] = {STATUS_OK, STATUS_BAD_IMAGE, STATUS_TOO_LARGE,
                                          STATUS_NUMERIC, STATUS_DEVICE};
    for (size_t i = 0; i < COUNT_OF(results); i++) {
        double counted = 0;
        for (int model = 0; model < 2; model++) {
            char labels[64];
            snprintf(labels, sizeof labels, "model=\"%c\",result=\"%s\"", 'a' + model,
                     status_word(results[i]));
            counted += count_metric(metrics, "lensd_images_total", labels);
        }
        CHECK(by_status[results[i]] > 0);
        CHECK(counted == by_status[results[i]]);
    }
    CHECK(fake_greatest_run(1) > 1); /* images did meet in batches */
    CHECK(count_metric(metrics, "lensd_forward_failures_total", "model=\"a\",device=\"cpu\"") > 0);
    model_host_free(host);
    metrics_free(metrics);
}

static void test_queue_bound(void)
{
    struct model_host *host = start_host((struct model_host_options){.max_queue = 10});
    add_model(host, "a", 1);
    fake_shut_runs(1);
    struct job *jobs[5];
    for (int i = 0; i < 5; i++)
        jobs[i] = submit_job(host, "a", "ok 1|ok 2");
    struct job *late = job_create("a", "ok 3");
    struct error err = {0};
    CHECK(model_host_submit(host, &late->request, &err) == STATUS_OVERLOADED);
    CHECK(err.retry_after_s >= 1 && strstr(err.message, "10"));
    fake_open_runs(1);
    for (int i = 0; i < 5; i++)
        finish_job(jobs[i]);
    /* "Answered" is noted just after on_done. */
    while (model_host_submit(host, &late->request, &err) == STATUS_OVERLOADED)
        usleep(100);
    finish_job(late);

    struct model_host *small = start_host((struct model_host_options){.max_queue = 2});
    add_model(small, "a", 1);
    struct job *large = job_create("a", "ok 1|ok 2|ok 3");
    CHECK(model_host_submit(small, &large->request, &err) == STATUS_TOO_LARGE);
    job_free(large);
    model_host_free(small);
    model_host_free(host);
}

static void test_cancelled_requests_are_skipped(void)
{
    struct model_host *host = start_host((struct model_host_options){.workers = 1});
    add_model(host, "a", 1);
    int runs = fake_runs(1), images = fake_images_run(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *first = submit_job(host, "a", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    /* In a slot, but not running: dropped before the forward pass. */
    struct job *slotted = submit_job(host, "a", "ok 2|ok 3");
    struct job *kept = submit_job(host, "a", "ok 4");
    CHECK(fake_wait_decodes(decodes + 4));
    /* In the queue behind an image that is being decoded: dropped before its decode. */
    fake_shut_decodes();
    struct job *slow = submit_job(host, "a", "ok 5");
    struct job *queued = submit_job(host, "a", "ok 6");
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
    finish_job(first);
    finish_job(kept);
    finish_job(slow);
    CHECK(fake_images_run(1) == images + 3);
    CHECK(fake_decodes() == decodes + 5);
    job_free(slotted);
    job_free(queued);
    CHECK(model_host_drain(host, PATIENCE_MS));
    model_host_free(host);
}

static void test_decode_overlaps_the_forward_pass(void)
{
    struct model_host *host = start_host((struct model_host_options){.max_batch = 4});
    add_model(host, "a", 1);
    int runs = fake_runs(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *first = submit_job(host, "a", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    struct job *others[4];
    for (int i = 0; i < 4; i++)
        others[i] = submit_job(host, "a", "ok 2");
    CHECK(fake_wait_decodes(decodes + 5)); /* while the first still runs */
    CHECK(!job_is_done(first));
    fake_open_runs(1);
    finish_job(first);
    for (int i = 0; i < 4; i++)
        finish_job(others[i]);
    model_host_free(host);
}

static void test_a_stuck_model_does_not_stop_decodes(void)
{
    struct model_host *host =
        start_host((struct model_host_options){.workers = 2, .max_batch = 2, .max_queue = 64});
    add_model(host, "stuck", 1);
    add_model(host, "other", 2);
    fake_shut_runs(1);
    int runs_of_other = fake_runs(2), runs = fake_runs(1);
    struct job *stuck[64];
    for (size_t i = 0; i < COUNT_OF(stuck); i++)
        stuck[i] = submit_job(host, "stuck", "ok 7");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    for (int i = 0; i < 50; i++) /* with every buffer of the first full */
        finish_job(submit_job(host, "other", "broken"));
    /* Decoded, too; its forward pass waits for the device. */
    int decodes = fake_decodes();
    struct job *other = submit_job(host, "other", "ok 8");
    CHECK(fake_wait_decodes(decodes + 1));
    CHECK(!job_is_done(other) && fake_runs(2) == runs_of_other);
    for (size_t i = 0; i < COUNT_OF(stuck); i++)
        CHECK(!job_is_done(stuck[i]));
    fake_open_runs(1);
    for (size_t i = 0; i < COUNT_OF(stuck); i++)
        finish_job(stuck[i]);
    finish_job(other);
    model_host_free(host);
}

static void test_two_lanes_run_at_the_same_time(void)
{
    struct model_host_options options = {.device_count = 2};
    options.devices[0] = options.devices[1] = DEVICE_HOST;
    struct model_host *host = start_host(options);
    add_model(host, "a", 1);
    fake_shut_runs(1);
    struct job *first = submit_job(host, "a", "ok 1");
    struct job *second = NULL;
    CHECK(fake_wait(fake_running, 1, 1));
    second = submit_job(host, "a", "ok 2");
    CHECK(fake_wait(fake_running, 1, 2));
    fake_open_runs(1);
    finish_job(first);
    finish_job(second);
    model_host_free(host);
}

static void test_models_share_a_device_by_time(void)
{
    enum { IMAGES = 400 };
    struct metrics *metrics = metrics_create();
    struct model_host_options options = {.device_count = 1,
                                         .devices = {GPU(0)},
                                         .metrics = metrics,
                                         .max_queue = 2 * IMAGES,
                                         .max_batch = 1};
    struct model_host *host = start_host(options);
    fake_plan((struct fake_session_plan){.run_us = 4000});
    add_model(host, "slow", 1);
    fake_plan((struct fake_session_plan){.run_us = 1000});
    add_model(host, "fast", 2);
    fake_plan((struct fake_session_plan){0});
    fake_shut_runs(1);
    struct job *slow[IMAGES / 4], *fast[IMAGES];
    int runs = fake_runs(1);
    for (size_t i = 0; i < COUNT_OF(slow); i++)
        slow[i] = submit_job(host, "slow", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    for (size_t i = 0; i < COUNT_OF(fast); i++)
        fast[i] = submit_job(host, "fast", "ok 2");
    fake_open_runs(1);
    /* One pass may take long on a busy machine; what follows makes up for it. Equal numbers of
     * passes would be a quarter of the time all along. */
    static const char name[] = "lensd_device_seconds_total";
    bool is_fair = false;
    double slow_s = 0, fast_s = 0;
    for (int more = 20; more < (int)COUNT_OF(slow) - 10 && !is_fair; more++) {
        CHECK(fake_wait(fake_runs, 1, runs + more));
        slow_s = count_metric(metrics, name, "model=\"slow\",device=\"cuda:0\"");
        fast_s = count_metric(metrics, name, "model=\"fast\",device=\"cuda:0\"");
        is_fair = fast_s > 0.6 * slow_s && fast_s < 1.7 * slow_s;
    }
    for (size_t i = 0; i < COUNT_OF(slow); i++)
        finish_job(slow[i]);
    for (size_t i = 0; i < COUNT_OF(fast); i++)
        finish_job(fast[i]);
    if (!is_fair)
        fprintf(stderr, "slow had %.3f s of the device, fast %.3f s\n", slow_s, fast_s);
    CHECK(is_fair);
    model_host_free(host);
    metrics_free(metrics);
}

static void test_rows_run_beside_images(void)
{
    struct model_host *host =
        start_host((struct model_host_options){.max_batch = 8, .workers = 1, .max_queue = 100});
    add_model(host, "m", 1);
    int runs = fake_runs(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *first = submit_job(host, "m", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    struct rows *rows = send_rows(host, "m", 5, 20);
    struct job *images = submit_job(host, "m", "ok 7|ok 8");
    struct job *behind = submit_job(host, "m", "ok 9|ok 10");
    CHECK(fake_wait_decodes(decodes + 5));
    fake_open_runs(1);
    finish_job(first);
    finish_rows(rows, 20);
    CHECK(job_is_done(images) || fake_wait(fake_runs, 1, runs + 2));
    finish_job(images);
    finish_job(behind);
    CHECK(fake_greatest_run(1) >= 7);
    model_host_free(host);
}

/* As many large images of any models as there are workers, and a thread more for small ones. */
static void test_large_images_of_all_models_leave_a_thread(void)
{
    struct model_host *host = start_host((struct model_host_options){.workers = 2});
    const int decodes = fake_decodes(), larges = fake_large_decodes();
    struct job *jobs[5];
    add_model(host, "a", 1);
    add_model(host, "b", 2);
    fake_shut_decodes();
    for (size_t i = 0; i < 4; i++)
        jobs[i] = submit_job(host, i % 2 ? "b" : "a", "ok 1 large|ok 2 large");
    CHECK(fake_wait_decodes(decodes + 2));
    jobs[4] = submit_job(host, "a", "ok 3");
    CHECK(fake_wait_decodes(decodes + 3));
    CHECK(fake_large_decodes() == larges + 2);
    fake_open_decodes();
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        finish_job(jobs[i]);
    model_host_free(host);
}

static struct model *fake_segmenter(const char *name, int height)
{
    struct model *model = fake_model(name, height);
    model->task.kind = TASK_SEGMENTATION;
    model->task.output_count = 1;
    return model;
}

/* A decode worker makes the masks of a large photo: the lane runs the next batch meanwhile. (The
 * outputs of the fakes are no masks.) */
static void test_slow_answers_do_not_keep_the_lane(void)
{
    struct error err;
    struct model_host *host = start_host((struct model_host_options){.workers = 1, .max_batch = 1});
    CHECK(model_host_add_model(host, fake_segmenter("a", 1), NULL, &err) == STATUS_OK);
    const int runs = fake_runs(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *large = submit_job(host, "a", "ok 1 large");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    struct job *next = submit_job(host, "a", "ok 2");
    CHECK(fake_wait_decodes(decodes + 2));
    fake_shut_decodes();
    struct job *busy = submit_job(host, "a", "ok 3");
    CHECK(fake_wait_decodes(decodes + 3)); /* so the worker has written the second one */
    fake_open_runs(1);
    job_wait(next);
    CHECK(!job_is_done(large));
    fake_open_decodes();
    job_wait(large);
    job_wait(busy);
    CHECK(large->images[0].status == STATUS_INVALID && next->images[0].status == STATUS_INVALID);
    CHECK(!large->images[0].outputs);
    job_free(large);
    job_free(next);
    job_free(busy);
    model_host_free(host);
}

/* A model of the same name and another task takes the place of one that words were encoded for: its
 * classes are more than the words. */
static void test_words_of_an_earlier_load(void)
{
    struct model_host *host = start_host((struct model_host_options){.max_queue = 4});
    struct request_words words = {.words = {.count = 1}};
    struct zero_shot texts = {.count = 1};
    const char *names[] = {"a dog"};
    add_model(host, "digits", 1);
    for (int i = 0; i < 2; i++) {
        struct job *job = job_create("digits", "ok 99");
        struct error err = {0};
        job->request.text_names = names;
        if (i)
            job->request.words = &words;
        else
            job->request.texts = &texts;
        CHECK(model_host_submit(host, &job->request, &err) == STATUS_NOT_READY);
        CHECK(strstr(err.message, "has been reloaded"));
        job_free(job);
    }
    model_host_free(host);
}

int main(void)
{
    static const struct host_test tests[] = {
        {"one image", test_one_image},
        {"64 submitters, good and bad images, two models, two lanes", test_many_submitters},
        {"the queue's bound", test_queue_bound},
        {"cancelled requests are skipped", test_cancelled_requests_are_skipped},
        {"decode overlaps the forward pass", test_decode_overlaps_the_forward_pass},
        {"a stuck model does not stop another's decodes", test_a_stuck_model_does_not_stop_decodes},
        {"large images of all models leave a thread",
         test_large_images_of_all_models_leave_a_thread},
        {"slow answers do not keep the lane", test_slow_answers_do_not_keep_the_lane},
        {"two lanes run at the same time", test_two_lanes_run_at_the_same_time},
        {"models share a device by time", test_models_share_a_device_by_time},
        {"rows run beside images", test_rows_run_beside_images},
        {"words of an earlier load", test_words_of_an_earlier_load},
    };
    return run_host_tests(tests, COUNT_OF(tests));
}
