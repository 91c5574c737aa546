/* Deadlines, hang-ups and refusals in the pipeline with real threads and fake neighbours (fakes.h):
 * what is late is not worked on, who hangs up makes room at once, and every request is answered
 * exactly once whoever gets to it first. A plain program, so that it also runs under
 * ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/observe/log.h"
#include "server/schedule/runtime/pipeline.h"
#include "tests/unit/server/schedule/fakes.h"
#include "tests/unit/tap.h"

#define MS INT64_C(1000000)

/* --- requests of one to four images, "ok 1" each --- */

struct job {
    struct predict_request request;
    struct predict_image images[4];
    _Atomic int done; /* calls of on_done */
    int runs;         /* that had begun then */
};

static void on_done(struct predict_request *request)
{
    struct job *job = request->context;
    job->runs = fake_runs(1);
    atomic_fetch_add(&job->done, 1);
}

static struct job *job_create(size_t images)
{
    static const char text[] = "ok 1";
    struct job *job = calloc(1, sizeof *job);
    CHECK(job && images <= COUNT_OF(job->images));
    job->request = (struct predict_request){.images = job->images,
                                            .image_count = images,
                                            .top_k = 1,
                                            .started = clock_now(),
                                            .on_done = on_done,
                                            .context = job};
    for (size_t i = 0; i < images; i++) {
        job->images[i].data = (const uint8_t *)text;
        job->images[i].size = sizeof text - 1;
    }
    return job;
}

static void job_free(struct job *job)
{
    CHECK(atomic_load(&job->done) <= 1);
    predict_request_free_results(&job->request);
    free(job);
}

static bool is_done(struct job *job)
{
    return atomic_load(&job->done) > 0;
}

static void job_wait(struct job *job)
{
    for (int64_t end = clock_now() + PATIENCE_MS * MS; !is_done(job); usleep(100))
        CHECK(clock_now() < end);
}

static struct pipeline *start(struct pipeline_options options)
{
    struct pipeline *pipeline = NULL;
    struct error err = {0};
    options.device_count = options.device_count ? options.device_count : 1;
    for (size_t i = 0; i < options.device_count; i++)
        options.devices[i] = DEVICE_HOST;
    options.workers = options.workers ? options.workers : 1;
    CHECK(pipeline_create(&options, &pipeline, &err) == STATUS_OK);
    CHECK(pipeline_add_model(pipeline, fake_model("a", 1), NULL, &err) == STATUS_OK);
    return pipeline;
}

static struct job *submit(struct pipeline *pipeline, size_t images, int64_t deadline)
{
    struct job *job = job_create(images);
    struct error err = {0};
    job->request.deadline = deadline;
    if (pipeline_submit(pipeline, &job->request, NULL, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.message);
        CHECK(false);
    }
    return job;
}

/* The same with a time limit that it is let in with, however busy the machine is. */
static struct job *submit_short(struct pipeline *pipeline, size_t images, int64_t limit)
{
    for (;;) {
        struct job *job = job_create(images);
        struct error err = {0};
        job->request.deadline = clock_now() + limit;
        const enum status status = pipeline_submit(pipeline, &job->request, NULL, &err);
        if (status == STATUS_OK)
            return job;
        CHECK(status == STATUS_TIMEOUT);
        job_free(job);
    }
}

static void wait_until(int64_t time)
{
    while (clock_now() <= time)
        usleep(1000);
}

static void finish(struct job *job, enum status status)
{
    job_wait(job);
    for (size_t i = 0; i < job->request.image_count; i++) {
        if (job->images[i].status != status)
            fprintf(stderr, "%s: %s\n", status_word(job->images[i].status),
                    job->images[i].error.message);
        CHECK(job->images[i].status == status);
    }
    job_free(job);
}

static size_t queued(struct pipeline *pipeline)
{
    struct model_status *status = calloc(1, sizeof *status);
    CHECK(status && pipeline_models(pipeline, status, 1) == 1);
    size_t images = status->queued;
    free(status);
    return images;
}

/* --- the tests --- */

static void test_late_in_the_queue_is_not_decoded(void)
{
    struct pipeline *pipeline = start((struct pipeline_options){.max_batch = 4});
    int decodes = fake_decodes();
    fake_shut_decodes();
    struct job *slow = submit(pipeline, 1, 0);
    CHECK(fake_wait_decodes(decodes + 1));
    struct job *late = submit_short(pipeline, 2, 60 * MS);
    struct job *patient = submit(pipeline, 1, clock_now() + 600000 * MS);
    wait_until(late->request.deadline);
    fake_open_decodes();
    finish(slow, STATUS_OK);
    finish(patient, STATUS_OK);
    finish(late, STATUS_TIMEOUT);
    CHECK(fake_decodes() == decodes + 2);
    pipeline_free(pipeline);
}

/* False if the machine was too busy to decode it within its time limit. */
static bool is_late_in_its_slot(int64_t limit)
{
    struct pipeline *pipeline = start((struct pipeline_options){.max_batch = 4});
    int runs = fake_runs(1), images = fake_images_run(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *first = submit(pipeline, 1, 0);
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    struct job *late = submit_short(pipeline, 2, limit);
    struct job *patient = submit(pipeline, 1, 0);
    while (fake_decodes() < decodes + 4 && clock_now() <= late->request.deadline)
        usleep(100);
    const bool is_told = fake_decodes() >= decodes + 4;
    wait_until(late->request.deadline);
    fake_open_runs(1);
    finish(first, STATUS_OK);
    finish(patient, STATUS_OK);
    finish(late, STATUS_TIMEOUT);
    CHECK(fake_images_run(1) == images + 2);
    pipeline_free(pipeline);
    return is_told;
}

static void test_late_in_its_slot_is_not_run(void)
{
    int64_t limit = 60 * MS;
    while (!is_late_in_its_slot(limit))
        limit *= 2;
}

/* False if the machine was too busy to begin its pass within its time limit. */
static bool is_late_after_its_pass(int64_t limit)
{
    struct pipeline *pipeline = start((struct pipeline_options){.max_batch = 4});
    int runs = fake_runs(1);
    fake_shut_runs(1);
    struct job *late = submit_short(pipeline, 1, limit);
    while (fake_runs(1) == runs && clock_now() <= late->request.deadline)
        usleep(100);
    const bool is_told = fake_runs(1) > runs;
    wait_until(late->request.deadline);
    fake_open_runs(1);
    finish(late, STATUS_TIMEOUT);
    pipeline_free(pipeline);
    return is_told;
}

static void test_late_after_its_pass_is_no_answer(void)
{
    int64_t limit = 60 * MS;
    while (!is_late_after_its_pass(limit))
        limit *= 2;
}

static void test_what_cannot_be_met_is_not_let_in(void)
{
    struct metrics *metrics = metrics_create();
    struct pipeline *pipeline =
        start((struct pipeline_options){.max_batch = 1, .metrics = metrics, .max_queue = 64});
    struct error err = {0};
    int retry_after = 0;
    struct job *over = job_create(1);
    over->request.deadline = clock_now() - 1;
    CHECK(pipeline_submit(pipeline, &over->request, &retry_after, &err) == STATUS_TIMEOUT);
    CHECK(!predict_request_pin(&over->request));
    job_free(over);

    fake_shut_runs(1);
    struct job *inside[40];
    for (size_t i = 0; i < COUNT_OF(inside); i++)
        inside[i] = submit(pipeline, 1, 0);
    struct job *late = job_create(1); /* behind 40 passes of 1 ms each, as the session says */
    enum status status;
    do { /* its time may be over before it is asked */
        late->request.deadline = clock_now() + 15 * MS;
        status = pipeline_would_admit(pipeline, &late->request, 1, 100, &retry_after, &err);
    } while (status == STATUS_TIMEOUT);
    CHECK(status == STATUS_OVERLOADED && retry_after >= 1);
    retry_after = 0;
    do {
        late->request.deadline = clock_now() + 15 * MS;
        status = pipeline_submit(pipeline, &late->request, &retry_after, &err);
    } while (status == STATUS_TIMEOUT);
    CHECK(status == STATUS_OVERLOADED && retry_after >= 1 && !is_done(late));
    late->request.deadline = clock_now() + 600000 * MS;
    CHECK(pipeline_would_admit(pipeline, &late->request, 1, 100, NULL, &err) == STATUS_OK);
    late->request.priority = 9;
    CHECK(pipeline_submit(pipeline, &late->request, NULL, &err) == STATUS_INVALID);
    fake_open_runs(1);
    for (size_t i = 0; i < COUNT_OF(inside); i++)
        finish(inside[i], STATUS_OK);
    job_free(late);
    pipeline_free(pipeline);
    metrics_free(metrics);
}

static void test_who_hangs_up_makes_room_at_once(void)
{
    struct pipeline *pipeline = start((struct pipeline_options){.max_batch = 1, .max_queue = 16});
    int runs = fake_runs(1);
    fake_shut_runs(1);
    struct job *jobs[16];
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        jobs[i] = submit(pipeline, 1, 0);
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    struct job *next = job_create(4);
    struct error err;
    CHECK(pipeline_submit(pipeline, &next->request, NULL, &err) == STATUS_OVERLOADED);
    CHECK(queued(pipeline) >= 8);

    /* The device stands still all the while. */
    for (size_t i = 12; i < 16; i++) {
        CHECK(predict_request_pin(&jobs[i]->request));
        CHECK(!is_done(jobs[i]));
        pipeline_cancel(pipeline, &jobs[i]->request);
        CHECK(is_done(jobs[i]));
        CHECK(!predict_request_pin(&jobs[i]->request));
        finish(jobs[i], STATUS_CANCELLED);
    }
    CHECK(pipeline_submit(pipeline, &next->request, NULL, &err) == STATUS_OK);

    /* The one that runs is answered as it is; a pin keeps its request. */
    CHECK(predict_request_pin(&jobs[0]->request));
    fake_open_runs(1);
    CHECK(fake_wait(fake_runs, 1, runs + 16));
    finish(next, STATUS_OK);
    CHECK(!is_done(jobs[0]));
    pipeline_cancel(pipeline, &jobs[0]->request);
    for (size_t i = 0; i < 12; i++)
        finish(jobs[i], STATUS_OK);
    CHECK(pipeline_drain(pipeline, PATIENCE_MS));
    pipeline_free(pipeline);
}

static void test_hung_up_before_it_was_submitted(void)
{
    struct pipeline *pipeline = start((struct pipeline_options){.max_batch = 1});
    int images = fake_images_run(1);
    struct job *job = job_create(3);
    atomic_store(&job->request.cancelled, 1);
    CHECK(pipeline_submit(pipeline, &job->request, NULL, NULL) == STATUS_OK);
    finish(job, STATUS_CANCELLED);
    CHECK(fake_images_run(1) == images);
    pipeline_free(pipeline);
}

/* A flood of one client, and single images of another. */
static void test_a_flood_does_not_stop_another_client(void)
{
    fake_plan((struct fake_session_plan){.run_us = 500});
    struct pipeline *pipeline = start((struct pipeline_options){.max_batch = 1, .max_queue = 400});
    fake_plan((struct fake_session_plan){0});
    fake_shut_runs(1);
    struct job *flood[300];
    for (size_t i = 0; i < COUNT_OF(flood); i++) {
        flood[i] = job_create(1);
        flood[i]->request.client = 1;
        CHECK(pipeline_submit(pipeline, &flood[i]->request, NULL, NULL) == STATUS_OK);
    }
    struct job *single = job_create(1);
    single->request.client = 2;
    int runs = fake_runs(1);
    CHECK(pipeline_submit(pipeline, &single->request, NULL, NULL) == STATUS_OK);
    fake_open_runs(1);
    job_wait(single);
    CHECK(single->runs - runs < 150); /* not behind the flood */
    finish(single, STATUS_OK);
    for (size_t i = 0; i < COUNT_OF(flood); i++)
        finish(flood[i], STATUS_OK);
    pipeline_free(pipeline);
}

/* One after the other: no device waits for more images. */
static void test_one_at_a_time_nothing_waits(void)
{
    enum { IMAGES = 200 };
    struct metrics *metrics = metrics_create();
    struct pipeline *pipeline =
        start((struct pipeline_options){.max_batch = 8, .metrics = metrics});
    for (int i = 0; i < IMAGES; i++)
        finish(submit(pipeline, 1, 0), STATUS_OK);
    const struct metric *idle = metrics_get(metrics, METRIC_COUNTER, "lensd_batches_closed_total",
                                            "", "model=\"a\",reason=\"idle_device\"", NULL, 0);
    CHECK(metric_value(idle) == IMAGES);
    pipeline_free(pipeline);
    metrics_free(metrics);
}

/* --- everything at once --- */

#define SUBMITTERS 16
#define ROUNDS     60

struct submitter {
    pthread_t thread;
    struct pipeline *pipeline;
    unsigned seed;
    int answered, refused, cancelled, late;
};

static void count(struct submitter *submitter, const struct job *job)
{
    for (size_t i = 0; i < job->request.image_count; i++) {
        enum status status = job->images[i].status;
        submitter->answered += status == STATUS_OK;
        submitter->cancelled += status == STATUS_CANCELLED;
        submitter->late += status == STATUS_TIMEOUT;
        CHECK(status == STATUS_OK || status == STATUS_CANCELLED || status == STATUS_TIMEOUT);
    }
}

struct leaver {
    struct job *job;
    struct pipeline *pipeline;
    useconds_t after;
};

/* Hangs up as the watcher of connections does. */
static void *leave(void *argument)
{
    const struct leaver *leaver = argument;
    usleep(leaver->after);
    atomic_store(&leaver->job->request.cancelled, 1);
    if (predict_request_pin(&leaver->job->request))
        pipeline_cancel(leaver->pipeline, &leaver->job->request);
    return NULL;
}

static void *submit_many(void *argument)
{
    struct submitter *submitter = argument;
    for (int i = 0; i < ROUNDS; i++) {
        struct job *job = job_create(1 + (size_t)rand_r(&submitter->seed) % 4);
        struct predict_request *request = &job->request;
        request->client = (uint64_t)rand_r(&submitter->seed) % 4;
        request->priority = rand_r(&submitter->seed) % 9;
        if (rand_r(&submitter->seed) % 2)
            request->deadline = clock_now() + (rand_r(&submitter->seed) % 8) * MS + 1;
        struct leaver leaver = {job, submitter->pipeline,
                                (useconds_t)(rand_r(&submitter->seed) % 3000)};
        pthread_t thread;
        bool leaves = rand_r(&submitter->seed) % 3 == 0;
        if (leaves)
            CHECK(!pthread_create(&thread, NULL, leave, &leaver));
        if (pipeline_submit(submitter->pipeline, request, NULL, NULL) == STATUS_OK) {
            job_wait(job);
            count(submitter, job);
        } else {
            submitter->refused++;
        }
        if (leaves)
            pthread_join(thread, NULL);
        job_free(job);
    }
    return NULL;
}

static void test_everything_at_once(void)
{
    fake_plan((struct fake_session_plan){.run_us = 300});
    struct pipeline *pipeline = start((struct pipeline_options){
        .max_batch = 4, .max_queue = 24, .workers = 3, .device_count = 2});
    fake_plan((struct fake_session_plan){0});
    static struct submitter submitters[SUBMITTERS];
    struct submitter all = {0};
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        submitters[i] = (struct submitter){.pipeline = pipeline, .seed = i + 1};
        CHECK(!pthread_create(&submitters[i].thread, NULL, submit_many, &submitters[i]));
    }
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        pthread_join(submitters[i].thread, NULL);
        all.answered += submitters[i].answered;
        all.refused += submitters[i].refused;
        all.cancelled += submitters[i].cancelled;
        all.late += submitters[i].late;
    }
    CHECK(all.answered > 0 && all.cancelled > 0);
    CHECK(queued(pipeline) == 0);
    CHECK(pipeline_drain(pipeline, PATIENCE_MS));
    pipeline_free(pipeline);
}

static void no_session_is_left(void)
{
    CHECK(fake_sessions_alive() == 0);
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"late in the queue is not decoded", test_late_in_the_queue_is_not_decoded},
        {"late in its slot is not run", test_late_in_its_slot_is_not_run},
        {"late after its pass is no answer", test_late_after_its_pass_is_no_answer},
        {"what cannot be met is not let in", test_what_cannot_be_met_is_not_let_in},
        {"who hangs up makes room at once", test_who_hangs_up_makes_room_at_once},
        {"hung up before it was submitted", test_hung_up_before_it_was_submitted},
        {"a flood does not stop another client", test_a_flood_does_not_stop_another_client},
        {"one at a time nothing waits", test_one_at_a_time_nothing_waits},
        {"everything at once", test_everything_at_once},
    };
    log_configure(false, LOG_ERROR);
    return tap_run(tests, COUNT_OF(tests), no_session_is_left);
}
