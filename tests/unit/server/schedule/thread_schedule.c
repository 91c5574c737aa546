/* Deadlines, hang-ups and refusals in the model host with real threads and fake neighbours
 * (fakes.h): what is late is not worked on, who hangs up makes room at once, and every request is
 * answered exactly once whoever gets to it first. A plain program, so that it also runs under
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
#include "server/schedule/runtime/model_host.h"
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

static struct model_host *start(struct model_host_options options)
{
    struct model_host *host = NULL;
    struct error err = {0};
    options.device_count = options.device_count ? options.device_count : 1;
    for (size_t i = 0; i < options.device_count; i++)
        options.devices[i] = DEVICE_HOST;
    options.workers = options.workers ? options.workers : 1;
    CHECK(model_host_create(&options, &host, &err) == STATUS_OK);
    CHECK(model_host_add_model(host, fake_model("a", 1), NULL, &err) == STATUS_OK);
    return host;
}

static struct job *submit(struct model_host *host, size_t images, int64_t deadline)
{
    struct job *job = job_create(images);
    struct error err = {0};
    job->request.deadline = deadline;
    if (model_host_submit(host, &job->request, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.message);
        CHECK(false);
    }
    return job;
}

/* The same with a time limit of `limit`, or a longer one if no pass was as short on this busy
 * machine. */
static struct job *submit_short(struct model_host *host, size_t images, int64_t limit)
{
    for (;;) {
        struct job *job = job_create(images);
        struct error err = {0};
        job->request.deadline = clock_now() + limit;
        const enum status status = model_host_submit(host, &job->request, &err);
        if (status == STATUS_OK)
            return job;
        CHECK(status == STATUS_TIMEOUT || status == STATUS_OVERLOADED);
        if (status == STATUS_OVERLOADED)
            limit *= 2;
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

static size_t queued(struct model_host *host)
{
    struct model_status *status = calloc(1, sizeof *status);
    CHECK(status && list_models(host, status, 1) == 1);
    size_t images = status->queued;
    free(status);
    return images;
}

/* --- the tests --- */

static void test_late_in_the_queue_is_not_decoded(void)
{
    struct model_host *host = start((struct model_host_options){.max_batch = 4});
    int decodes = fake_decodes();
    fake_shut_decodes();
    struct job *slow = submit(host, 1, 0);
    CHECK(fake_wait_decodes(decodes + 1));
    struct job *late = submit_short(host, 2, 60 * MS);
    struct job *patient = submit(host, 1, clock_now() + 600000 * MS);
    wait_until(late->request.deadline);
    fake_open_decodes();
    finish(slow, STATUS_OK);
    finish(patient, STATUS_OK);
    finish(late, STATUS_TIMEOUT);
    CHECK(fake_decodes() == decodes + 2);
    model_host_free(host);
}

/* False if the machine was too busy to decode it within its time limit. */
static bool is_late_in_its_slot(int64_t limit)
{
    struct model_host *host = start((struct model_host_options){.max_batch = 4});
    int runs = fake_runs(1), images = fake_images_run(1), decodes = fake_decodes();
    fake_shut_runs(1);
    struct job *first = submit(host, 1, 0);
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    struct job *late = submit_short(host, 2, limit);
    struct job *patient = submit(host, 1, 0);
    while (fake_decodes() < decodes + 4 && clock_now() <= late->request.deadline)
        usleep(100);
    const bool is_told = fake_decodes() >= decodes + 4;
    wait_until(late->request.deadline);
    fake_open_runs(1);
    finish(first, STATUS_OK);
    finish(patient, STATUS_OK);
    finish(late, STATUS_TIMEOUT);
    CHECK(fake_images_run(1) == images + 2);
    model_host_free(host);
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
    struct model_host *host = start((struct model_host_options){.max_batch = 4});
    int runs = fake_runs(1);
    fake_shut_runs(1);
    struct job *late = submit_short(host, 1, limit);
    while (fake_runs(1) == runs && clock_now() <= late->request.deadline)
        usleep(100);
    const bool is_told = fake_runs(1) > runs;
    wait_until(late->request.deadline);
    fake_open_runs(1);
    finish(late, STATUS_TIMEOUT);
    model_host_free(host);
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
    struct model_host *host =
        start((struct model_host_options){.max_batch = 1, .metrics = metrics, .max_queue = 64});
    struct error err = {0};
    struct job *over = job_create(1);
    over->request.deadline = clock_now() - 1;
    CHECK(model_host_submit(host, &over->request, &err) == STATUS_TIMEOUT);
    CHECK(!predict_request_pin(&over->request));
    job_free(over);

    fake_shut_runs(1);
    struct job *inside[40];
    for (size_t i = 0; i < COUNT_OF(inside); i++)
        inside[i] = submit(host, 1, 0);
    struct job *late = job_create(1); /* behind 40 passes of 1 ms each, as the session says */
    enum status status;
    do { /* its time may be over before it is asked */
        late->request.deadline = clock_now() + 15 * MS;
        status = model_host_would_admit(host, &late->request, 1, 100, &err);
    } while (status == STATUS_TIMEOUT);
    CHECK(status == STATUS_OVERLOADED && err.retry_after_s >= 1);
    do {
        late->request.deadline = clock_now() + 15 * MS;
        status = model_host_submit(host, &late->request, &err);
    } while (status == STATUS_TIMEOUT);
    CHECK(status == STATUS_OVERLOADED && err.retry_after_s >= 1 && !is_done(late));
    late->request.deadline = clock_now() + 600000 * MS;
    CHECK(model_host_would_admit(host, &late->request, 1, 100, &err) == STATUS_OK);
    late->request.priority = 9;
    CHECK(model_host_submit(host, &late->request, &err) == STATUS_INVALID);
    fake_open_runs(1);
    for (size_t i = 0; i < COUNT_OF(inside); i++)
        finish(inside[i], STATUS_OK);
    job_free(late);
    model_host_free(host);
    metrics_free(metrics);
}

static void test_who_hangs_up_makes_room_at_once(void)
{
    struct model_host *host = start((struct model_host_options){.max_batch = 1, .max_queue = 16});
    int runs = fake_runs(1);
    fake_shut_runs(1);
    struct job *jobs[16];
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        jobs[i] = submit(host, 1, 0);
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    struct job *next = job_create(4);
    struct error err;
    CHECK(model_host_submit(host, &next->request, &err) == STATUS_OVERLOADED);
    CHECK(queued(host) >= 8);

    /* The device stands still all the while. */
    for (size_t i = 12; i < 16; i++) {
        CHECK(predict_request_pin(&jobs[i]->request));
        CHECK(!is_done(jobs[i]));
        model_host_cancel(host, &jobs[i]->request);
        CHECK(is_done(jobs[i]));
        CHECK(!predict_request_pin(&jobs[i]->request));
        finish(jobs[i], STATUS_CANCELLED);
    }
    CHECK(model_host_submit(host, &next->request, &err) == STATUS_OK);

    /* The one that runs is answered as it is; a pin keeps its request. */
    CHECK(predict_request_pin(&jobs[0]->request));
    fake_open_runs(1);
    CHECK(fake_wait(fake_runs, 1, runs + 16));
    finish(next, STATUS_OK);
    CHECK(!is_done(jobs[0]));
    model_host_cancel(host, &jobs[0]->request);
    for (size_t i = 0; i < 12; i++)
        finish(jobs[i], STATUS_OK);
    CHECK(model_host_drain(host, PATIENCE_MS));
    model_host_free(host);
}

static void test_hung_up_before_it_was_submitted(void)
{
    struct model_host *host = start((struct model_host_options){.max_batch = 1});
    int images = fake_images_run(1);
    struct job *job = job_create(3);
    atomic_store(&job->request.cancelled, 1);
    CHECK(model_host_submit(host, &job->request, NULL) == STATUS_OK);
    finish(job, STATUS_CANCELLED);
    CHECK(fake_images_run(1) == images);
    model_host_free(host);
}

/* A flood of one client, and single images of another. */
static void test_a_flood_does_not_stop_another_client(void)
{
    fake_plan((struct fake_session_plan){.run_us = 500});
    struct model_host *host = start((struct model_host_options){.max_batch = 1, .max_queue = 400});
    fake_plan((struct fake_session_plan){0});
    fake_shut_runs(1);
    struct job *flood[300];
    for (size_t i = 0; i < COUNT_OF(flood); i++) {
        flood[i] = job_create(1);
        flood[i]->request.client = 1;
        CHECK(model_host_submit(host, &flood[i]->request, NULL) == STATUS_OK);
    }
    struct job *single = job_create(1);
    single->request.client = 2;
    int runs = fake_runs(1);
    CHECK(model_host_submit(host, &single->request, NULL) == STATUS_OK);
    fake_open_runs(1);
    job_wait(single);
    CHECK(single->runs - runs < 150); /* not behind the flood */
    finish(single, STATUS_OK);
    for (size_t i = 0; i < COUNT_OF(flood); i++)
        finish(flood[i], STATUS_OK);
    model_host_free(host);
}

/* One after the other: no device waits for more images. */
static void test_one_at_a_time_nothing_waits(void)
{
    enum { IMAGES = 200 };
    struct metrics *metrics = metrics_create();
    struct model_host *host =
        start((struct model_host_options){.max_batch = 8, .metrics = metrics});
    for (int i = 0; i < IMAGES; i++)
        finish(submit(host, 1, 0), STATUS_OK);
    const struct metric *idle = metrics_get(metrics, METRIC_COUNTER, "lensd_batches_closed_total",
                                            "", "model=\"a\",reason=\"idle_device\"");
    CHECK(metric_value(idle) == IMAGES);
    model_host_free(host);
    metrics_free(metrics);
}

/* --- everything at once --- */

#define SUBMITTERS 16
#define ROUNDS     60

struct submitter {
    pthread_t thread;
    struct model_host *host;
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
    struct model_host *host;
    useconds_t after;
};

/* Hangs up as the watcher of connections does. */
static void *leave(void *argument)
{
    const struct leaver *leaver = argument;
    usleep(leaver->after);
    atomic_store(&leaver->job->request.cancelled, 1);
    if (predict_request_pin(&leaver->job->request))
        model_host_cancel(leaver->host, &leaver->job->request);
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
        struct leaver leaver = {job, submitter->host,
                                (useconds_t)(rand_r(&submitter->seed) % 3000)};
        pthread_t thread;
        bool leaves = rand_r(&submitter->seed) % 3 == 0;
        if (leaves)
            CHECK(!pthread_create(&thread, NULL, leave, &leaver));
        if (model_host_submit(submitter->host, request, NULL) == STATUS_OK) {
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
    struct model_host *host = start((struct model_host_options){
        .max_batch = 4, .max_queue = 24, .workers = 3, .device_count = 2});
    fake_plan((struct fake_session_plan){0});
    static struct submitter submitters[SUBMITTERS];
    struct submitter all = {0};
    for (unsigned i = 0; i < SUBMITTERS; i++) {
        submitters[i] = (struct submitter){.host = host, .seed = i + 1};
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
    CHECK(queued(host) == 0);
    CHECK(model_host_drain(host, PATIENCE_MS));
    model_host_free(host);
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
    log_lowest = LOG_ERROR;
    return tap_run(tests, COUNT_OF(tests), no_session_is_left);
}
