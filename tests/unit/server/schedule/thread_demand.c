/* Models that requests load, while loads fail, clients leave, the API unloads, files change and the
 * server drains. Models "a", "b" and "c" have images of height 1, 2 and 3. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "tests/unit/server/schedule/host_jobs.h"

static _Atomic int wakes;

static void count_wake(void *context)
{
    (void)context;
    atomic_fetch_add(&wakes, 1);
}

static struct model_host *start_lazy(const char *names, struct model_host_options options)
{
    struct error err = {0};
    struct model_host *host = start_host(options);
    model_host_set_source(host, &(struct model_host_source){.wake = count_wake});
    for (; *names; names++)
        CHECK(model_host_list_model(host, fake_model((char[]){*names, '\0'}, *names - 'a' + 1),
                                    &err) == STATUS_OK);
    CHECK(model_host_state(host) == MODEL_HOST_READY && fake_sessions_alive() == 0);
    return host;
}

/* What the loader's thread does when it is woken; the number of loads. */
static int load_what_is_wanted(struct model_host *host)
{
    char name[128], version[16];
    struct error err;
    int loads = 0;
    while (model_host_next_load(host, name, version)) {
        enum status ignored =
            model_host_add_model(host, fake_model(name, name[0] - 'a' + 1), NULL, &err);
        (void)ignored;
        loads++;
    }
    return loads;
}

/* A request that waits for its model, whose on_done is called when the wait is over. */
static struct job *await_model(struct model_host *host, const char *model)
{
    struct error err = {0};
    struct job *job = job_create(model, "ok 7");
    CHECK(!model_host_hold(host, &job->request));
    CHECK(model_host_await(host, &job->request, &err) == STATUS_OK);
    return job;
}

static enum status submit_again(struct model_host *host, struct job *job, struct error *err)
{
    job_wait(job);
    job->done = 0;
    return model_host_submit(host, &job->request, err);
}

static size_t count_waiting(struct model_host *host, const char *model, struct job **jobs,
                            size_t count)
{
    for (size_t i = 0; i < count; i++)
        jobs[i] = await_model(host, model);
    return count;
}

static void test_all_who_wait_share_one_load(void)
{
    struct error err = {0};
    struct job *jobs[6];
    struct model_host *host = start_lazy("ab", (struct model_host_options){0});
    const size_t count = count_waiting(host, "a", jobs, COUNT_OF(jobs));
    CHECK(atomic_load(&wakes) > 0 && !job_is_done(jobs[0]));
    CHECK(load_what_is_wanted(host) == 1 && fake_sessions_alive() == 1);
    for (size_t i = 0; i < count; i++) {
        CHECK(submit_again(host, jobs[i], &err) == STATUS_OK);
        finish_job(jobs[i]);
    }
    model_host_free(host);
}

static void test_a_load_that_fails_ends_every_wait(void)
{
    struct error err = {0};
    struct job *jobs[3];
    struct model_host *host = start_lazy("a", (struct model_host_options){0});
    const size_t count = count_waiting(host, "a", jobs, COUNT_OF(jobs));
    fake_plan((struct fake_session_plan){.fails = true});
    CHECK(load_what_is_wanted(host) == 1);
    fake_plan((struct fake_session_plan){0});
    for (size_t i = 0; i < count; i++) {
        CHECK(submit_again(host, jobs[i], &err) == STATUS_NOT_READY);
        job_free(jobs[i]);
    }
    CHECK(load_what_is_wanted(host) == 0); /* it has failed until its files change */
    add_model(host, "a", 1);
    finish_job(submit_job(host, "a", "ok 3"));
    model_host_free(host);
}

/* While memory is short, the next request tries again. */
static void test_a_shortage_is_no_failure(void)
{
    struct error err = {0};
    struct model_host *host = start_lazy("ab", (struct model_host_options){0});
    struct job *a = await_model(host, "a");
    load_what_is_wanted(host);
    job_wait(a); /* and holds its model: it is in use */
    fake_plan((struct fake_session_plan){.most_alive = 1});
    struct job *b = await_model(host, "b");
    load_what_is_wanted(host);
    CHECK(submit_again(host, b, &err) == STATUS_NOT_READY && strstr(err.message, "in use"));
    job_free(b);
    CHECK(submit_again(host, a, &err) == STATUS_OK);
    finish_job(a);
    fake_plan((struct fake_session_plan){0});
    b = await_model(host, "b");
    load_what_is_wanted(host);
    CHECK(submit_again(host, b, &err) == STATUS_OK);
    finish_job(b);
    model_host_free(host);
}

static void test_clients_leave_while_they_wait(void)
{
    struct model_host *host = start_lazy("a", (struct model_host_options){0});
    struct job *gone = await_model(host, "a"), *stays = await_model(host, "a");
    struct error err = {0};
    CHECK(predict_request_pin(&gone->request));
    model_host_cancel(host, &gone->request);
    job_wait(gone);
    CHECK(!job_is_done(stays));
    job_free(gone);
    load_what_is_wanted(host);
    CHECK(submit_again(host, stays, &err) == STATUS_OK);
    finish_job(stays);
    model_host_free(host);
}

static void test_a_drain_ends_every_wait(void)
{
    struct error err = {0};
    struct model_host *host = start_lazy("a", (struct model_host_options){0});
    struct job *job = await_model(host, "a");
    (void)model_host_drain(host, PATIENCE_MS);
    CHECK(submit_again(host, job, &err) == STATUS_DRAINING);
    job_free(job);
    CHECK(load_what_is_wanted(host) == 0 && fake_sessions_alive() == 0);
    model_host_free(host);
}

static void test_the_deadline_may_be_over_before(void)
{
    struct error err = {0};
    struct model_host *host = start_lazy("a", (struct model_host_options){0});
    struct job *job = job_create("a", "ok 1");
    job->request.deadline = clock_now() - 1;
    CHECK(!model_host_hold(host, &job->request));
    CHECK(model_host_await(host, &job->request, &err) == STATUS_NOT_READY);
    CHECK(err.retry_after_s >= 1 && !job_is_done(job));
    job_free(job);
    model_host_free(host);
}

static void test_a_deadline_ends_a_wait(void)
{
    struct error err = {0};
    struct model_host *host = start_lazy("a", (struct model_host_options){0});
    struct job *late = await_model(host, "a"), *stays = await_model(host, "a");
    model_host_end_waits(host);
    CHECK(!job_is_done(late));
    late->request.deadline = clock_now() - 1;
    model_host_end_waits(host);
    CHECK(submit_again(host, late, &err) == STATUS_NOT_READY && !job_is_done(stays));
    job_free(late);
    load_what_is_wanted(host);
    CHECK(submit_again(host, stays, &err) == STATUS_OK);
    finish_job(stays);
    model_host_free(host);
}

/* A request that holds its model keeps it, whatever idle_unload says. */
static void test_what_is_in_use_stays(void)
{
    struct error err = {0};
    struct model_host *host = start_lazy("a", (struct model_host_options){.idle_unload_ms = 1});
    struct job *job = await_model(host, "a");
    load_what_is_wanted(host);
    job_wait(job);
    const int64_t end = clock_now() + 20 * INT64_C(1000000);
    while (clock_now() < end)
        CHECK(model_host_unload_idle(host) != INT64_MAX && fake_sessions_alive() == 1);
    CHECK(submit_again(host, job, &err) == STATUS_OK);
    finish_job(job);
    while (fake_sessions_alive() > 0)
        (void)model_host_unload_idle(host);
    CHECK(model_host_may_wait(host, "a", "1", false));
    model_host_free(host);
}

/* ---- everything at once ---- */

struct crowd {
    struct model_host *host;
    _Atomic bool is_over;
    _Atomic int answered, refused;
};

static void *ask_at_random(void *context)
{
    struct crowd *crowd = context;
    unsigned seed = (unsigned)(uintptr_t)&seed;
    for (int i = 0; i < 150; i++) {
        struct error err = {0};
        const char name[] = {(char)('a' + rand_r(&seed) % 3), '\0'};
        struct job *job = job_create(name, "ok 7|ok 8");
        job->request.has_keep_alive = rand_r(&seed) % 3 == 0;
        const bool leaves = rand_r(&seed) % 5 == 0;
        enum status status = STATUS_OK;
        if (!model_host_hold(crowd->host, &job->request)) {
            status = model_host_await(crowd->host, &job->request, &err);
            if (status == STATUS_OK && leaves && predict_request_pin(&job->request))
                model_host_cancel(crowd->host, &job->request);
            if (status == STATUS_OK)
                job_wait(job);
            job->done = 0;
            atomic_store(&job->request.cancelled, 0);
        }
        if (status == STATUS_OK)
            status = model_host_submit(crowd->host, &job->request, &err);
        CHECK(status == STATUS_OK || status == STATUS_NOT_READY || status == STATUS_OVERLOADED);
        atomic_fetch_add(status == STATUS_OK ? &crowd->answered : &crowd->refused, 1);
        if (status == STATUS_OK)
            finish_job(job);
        else
            job_free(job);
    }
    return NULL;
}

/* The loader: loads what is wanted, unloads what is idle, and does what admins and files ask for.
 */
static void *load_at_random(void *context)
{
    struct crowd *crowd = context;
    unsigned seed = 7;
    while (!atomic_load(&crowd->is_over)) {
        struct error err = {0};
        load_what_is_wanted(crowd->host);
        (void)model_host_unload_idle(crowd->host);
        if (rand_r(&seed) % 20 == 0) /* changed files of a model, loaded or not */
            add_model(crowd->host, "b", 2);
        if (rand_r(&seed) % 20 == 0 &&
            model_host_remove_model(crowd->host, "c", NULL, false, &err) == STATUS_OK)
            add_model(crowd->host, "c", 3);
    }
    return NULL;
}

static void test_everything_at_once(void)
{
    pthread_t loader, clients[6];
    struct model_host *host = start_lazy(
        "abc", (struct model_host_options){.idle_unload_ms = 2, .max_queue = 64, .workers = 2});
    struct crowd crowd = {.host = host};
    CHECK(!pthread_create(&loader, NULL, load_at_random, &crowd));
    for (size_t i = 0; i < COUNT_OF(clients); i++)
        CHECK(!pthread_create(&clients[i], NULL, ask_at_random, &crowd));
    for (size_t i = 0; i < COUNT_OF(clients); i++)
        pthread_join(clients[i], NULL);
    atomic_store(&crowd.is_over, true);
    pthread_join(loader, NULL);
    CHECK(crowd.answered + crowd.refused == 150 * (int)COUNT_OF(clients));
    CHECK(crowd.answered > crowd.refused);
    const int64_t end = clock_now() + PATIENCE_MS * INT64_C(1000000);
    while (fake_sessions_alive() > 0 && clock_now() < end)
        (void)model_host_unload_idle(host);
    CHECK(fake_sessions_alive() == 0);
    model_host_free(host);
}

int main(void)
{
    static const struct host_test tests[] = {
        {"all who wait share one load", test_all_who_wait_share_one_load},
        {"a load that fails ends every wait", test_a_load_that_fails_ends_every_wait},
        {"a shortage is no failure", test_a_shortage_is_no_failure},
        {"clients leave while they wait", test_clients_leave_while_they_wait},
        {"a drain ends every wait", test_a_drain_ends_every_wait},
        {"the deadline may be over before", test_the_deadline_may_be_over_before},
        {"a deadline ends a wait", test_a_deadline_ends_a_wait},
        {"what is in use stays", test_what_is_in_use_stays},
        {"everything at once", test_everything_at_once},
    };
    return run_host_tests(tests, COUNT_OF(tests));
}
