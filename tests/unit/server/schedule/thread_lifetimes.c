/* The same while model hosts drain and end, and versions of models come and go. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "server/schedule/runtime/model_table.h"
#include "server/schedule/runtime/stages.h"
#include "tests/unit/server/schedule/host_jobs.h"

static void *submit_until_refused(void *argument)
{
    struct submitter *submitter = argument;
    for (;;) {
        struct job *job = job_create("a", "ok 1|ok 2|broken");
        struct error err;
        enum status status = model_host_submit(submitter->host, &job->request, &err);
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
        finish_job(job);
    }
}

static void test_drain_answers_everything_accepted(void)
{
    struct model_host *host = start_host((struct model_host_options){.max_queue = 40});
    fake_plan((struct fake_session_plan){.run_us = 500});
    add_model(host, "a", 1);
    fake_plan((struct fake_session_plan){0});
    struct submitter submitters[16] = {0};
    const int images = fake_images_run(1);
    for (size_t i = 0; i < COUNT_OF(submitters); i++) {
        submitters[i].host = host;
        CHECK(!pthread_create(&submitters[i].thread, NULL, submit_until_refused, &submitters[i]));
    }
    CHECK(fake_wait(fake_images_run, 1, images + 100));
    CHECK(model_host_drain(host, PATIENCE_MS));
    CHECK(model_host_state(host) == MODEL_HOST_DRAINING);
    int accepted = 0;
    for (size_t i = 0; i < COUNT_OF(submitters); i++) {
        pthread_join(submitters[i].thread, NULL);
        accepted += submitters[i].by_status[0];
    }
    CHECK(accepted > 0);
    model_host_free(host);
}

static _Atomic int has_drained;

/* Once the last job has been cut off. */
static void *open_later(void *last)
{
    while (!job_is_done(last))
        usleep(1000);
    usleep(20000);
    CHECK(!has_drained); /* the pass under way is waited for */
    fake_open_runs(1);
    return NULL;
}

static void test_drain_cuts_off_after_the_grace_time(void)
{
    struct model_host *host =
        start_host((struct model_host_options){.max_queue = 64, .max_batch = 2});
    add_model(host, "a", 1);
    int runs = fake_runs(1);
    fake_shut_runs(1);
    struct job *jobs[40];
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        jobs[i] = submit_job(host, "a", "ok 1");
    CHECK(fake_wait(fake_runs, 1, runs + 1));
    pthread_t opener;
    has_drained = 0;
    CHECK(!pthread_create(&opener, NULL, open_later, jobs[COUNT_OF(jobs) - 1]));
    CHECK(!model_host_drain(host, 20));
    has_drained = 1;
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
    model_host_free(host);
}

static void test_free_without_drain(void)
{
    struct model_host *host = start_host((struct model_host_options){0});
    add_model(host, "a", 1);
    struct job *jobs[20];
    for (size_t i = 0; i < COUNT_OF(jobs); i++)
        jobs[i] = submit_job(host, "a", "ok 1");
    model_host_free(host);
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        CHECK(jobs[i]->done == 1);
        job_free(jobs[i]);
    }
    model_host_free(NULL);
}

static enum status refused(struct model_host *host, const char *model, struct error *err)
{
    struct job *job = job_create(model, "ok 1");
    enum status status = model_host_submit(host, &job->request, err);
    CHECK(status != STATUS_OK && job->done == 0);
    CHECK((status_http(status) == 503) == (err->retry_after_s >= 1));
    job_free(job);
    return status;
}

static void test_states_and_refusals(void)
{
    struct metrics *metrics = metrics_create();
    struct model_host *host =
        start_host((struct model_host_options){.metrics = metrics, .default_model = "a"});
    struct error err = {0};
    CHECK(model_host_state(host) == MODEL_HOST_LOADING);
    CHECK(refused(host, NULL, &err) == STATUS_NOT_READY);
    CHECK(refused(host, "a", &err) == STATUS_NOT_FOUND);
    model_host_announce(host, "a", NULL, true);
    model_host_announce(host, "b", NULL, true);
    CHECK(refused(host, "a", &err) == STATUS_NOT_READY);
    CHECK(strstr(err.message, "'a'") && strstr(err.message, "loading"));

    struct model_status *models = calloc(4, sizeof *models);
    CHECK(list_models(host, models, 4) == 2);
    CHECK(!strcmp(models[0].name, "a") && models[0].state == MODEL_LOADING);
    CHECK(!models[0].is_default && !strcmp(models[0].phase, "waiting"));
    CHECK(models[0].seconds_left >= 1 && model_host_retry_after(host) >= 1);

    add_model(host, "a", 3);
    CHECK(model_host_state(host) == MODEL_HOST_LOADING); /* one of two */
    finish_job(submit_job(host, NULL, "ok 3"));
    CHECK(refused(host, "c", &err) == STATUS_NOT_FOUND);
    CHECK(strstr(err.message, "a, b"));

    fake_plan((struct fake_session_plan){.fails = true});
    CHECK(model_host_add_model(host, fake_model("b", 1), NULL, &err) == STATUS_UNSUPPORTED);
    CHECK(model_host_state(host) == MODEL_HOST_FAILED);
    CHECK(refused(host, "b", &err) == STATUS_NOT_READY);
    CHECK(strstr(err.message, "operator Fake"));
    CHECK(list_models(host, models, 4) == 2);
    CHECK(models[0].state == MODEL_READY && models[0].is_default && models[0].progress == 1);
    CHECK(models[0].lane_count == 1 && models[0].brief.class_count == FAKE_CLASSES);
    CHECK(models[0].brief.width == FAKE_WIDTH && models[0].brief.height == 3 &&
          models[0].brief.channels == 1);
    CHECK(models[1].state == MODEL_FAILED && strstr(models[1].failure, "operator Fake"));

    fake_plan((struct fake_session_plan){.refuses = true}); /* the lane's thread gets no team */
    CHECK(model_host_add_model(host, fake_model("b", 1), NULL, &err) == STATUS_NO_MEMORY);
    CHECK(strstr(err.message, "no thread for it"));
    fake_plan((struct fake_session_plan){.unlike_classifier = true});
    model_host_announce(host, "b", NULL, true);
    CHECK(model_host_state(host) == MODEL_HOST_LOADING);
    add_model(host, "b", 1);
    CHECK(model_host_state(host) == MODEL_HOST_READY);
    CHECK(refused(host, "b", &err) == STATUS_INVALID);
    CHECK(strstr(err.message, "[1, 84, 8400]") && strstr(err.message, "/v2/models/b/infer"));
    fake_plan((struct fake_session_plan){0});
    add_model(host, "b", 1); /* takes the place of the other */
    finish_job(submit_job(host, "b", "ok 3"));
    CHECK(model_host_state(host) == MODEL_HOST_READY);

    struct job *job = job_create("a", "ok 1");
    job->request.top_k = 0;
    CHECK(model_host_submit(host, &job->request, &err) == STATUS_INVALID);
    job->request.top_k = 1;
    job->request.image_count = 0;
    CHECK(model_host_submit(host, &job->request, &err) == STATUS_INVALID);
    job_free(job);

    CHECK(model_host_drain(host, PATIENCE_MS));
    CHECK(model_host_drain(host, PATIENCE_MS)); /* a second one finds nothing to do */
    CHECK(refused(host, "a", &err) == STATUS_DRAINING);
    CHECK(model_host_add_model(host, fake_model("d", 1), NULL, &err) == STATUS_DRAINING);
    CHECK(count_metric(metrics, "lensd_refused_total", "model=\"a\",cause=\"draining\"") == 1);
    CHECK(count_metric(metrics, "lensd_refused_total", "model=\"\",cause=\"not_found\"") == 2);
    free(models);
    model_host_free(host);
    metrics_free(metrics);
}

struct replacer {
    struct model_host *host;
    _Atomic int stop;
    int answered;
};

static void *submit_until_stopped(void *argument)
{
    struct replacer *replacer = argument;
    do {
        finish_rows(send_rows(replacer->host, "m", 3, replacer->answered % 50),
                    replacer->answered % 50);
        finish_job(submit_job(replacer->host, "m", "ok 5|ok 6"));
        replacer->answered++;
    } while (!replacer->stop);
    return NULL;
}

static void test_versions_are_replaced_under_load(void)
{
    enum { THREADS = 8, ROUNDS = 30 };
    struct model_host *host =
        start_host((struct model_host_options){.max_queue = 1000, .device_count = 2});
    struct error err;
    fake_plan((struct fake_session_plan){.run_us = 100});
    add_model(host, "m", 1);
    struct replacer replacers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        replacers[i] = (struct replacer){.host = host};
        CHECK(!pthread_create(&threads[i], NULL, submit_until_stopped, &replacers[i]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 5 == 4) { /* a broken one leaves the old one alone */
            fake_plan((struct fake_session_plan){.fails = true});
            CHECK(model_host_add_model(host, fake_model("m", 1), NULL, &err) == STATUS_UNSUPPORTED);
            struct model_status status[2];
            CHECK(list_models(host, status, 2) == 1);
            CHECK(status[0].state == MODEL_READY && strstr(status[0].failure, "Fake"));
            fake_plan((struct fake_session_plan){.run_us = 100});
        }
        add_model(host, "m", 1);
        CHECK(model_host_state(host) == MODEL_HOST_READY);
        CHECK(fake_sessions_alive() == 2); /* the old one's are gone */
        usleep(2000);
    }
    for (int i = 0; i < THREADS; i++) {
        replacers[i].stop = 1;
        CHECK(!pthread_join(threads[i], NULL));
    }
    fake_plan((struct fake_session_plan){0});
    model_host_free(host);
}

static struct model *version_of(const char *name, const char *version, int height)
{
    struct model *model = fake_model(name, height);
    free(model->version);
    model->version = strdup(version);
    return model;
}

/* The version that answers, by the height of its images. */
static int height_of(struct model_host *host, const char *version)
{
    struct deployment *deployment;
    struct error err;
    if (model_host_acquire(host, "m", version, &deployment, &err) != STATUS_OK)
        return -(int)err.status;
    int height = deployment->model->preprocess.height;
    model_host_release(host, deployment);
    return height;
}

static void test_versions_live_side_by_side(void)
{
    struct model_host *host = start_host((struct model_host_options){0});
    struct error err;
    model_host_announce(host, "m", "9", true);
    model_host_announce(host, "m", "10", true);
    CHECK(model_host_add_model(host, version_of("m", "10", 2), NULL, &err) == STATUS_OK);
    CHECK(model_host_state(host) == MODEL_HOST_LOADING); /* clients may ask for the other version */
    CHECK(model_host_add_model(host, version_of("m", "9", 1), NULL, &err) == STATUS_OK);
    CHECK(model_host_state(host) == MODEL_HOST_READY);
    model_host_settle(host);
    CHECK(height_of(host, NULL) == 2 && height_of(host, "9") == 1);
    CHECK(height_of(host, "10") == 2 && height_of(host, "1") == -(int)STATUS_NOT_FOUND);
    /* A newer one that does not load is passed over. */
    fake_plan((struct fake_session_plan){.fails = true});
    CHECK(model_host_add_model(host, version_of("m", "11", 3), NULL, &err) == STATUS_UNSUPPORTED);
    fake_plan((struct fake_session_plan){0});
    CHECK(model_host_state(host) == MODEL_HOST_READY);
    CHECK(height_of(host, NULL) == 2 && height_of(host, "11") == -(int)STATUS_NOT_READY);

    struct job *job = submit_job(host, "m", "ok 4"); /* of a version that leaves meanwhile */
    CHECK(model_host_remove_model(host, "m", "10", false, &err) == STATUS_OK);
    CHECK(job_is_done(job));
    CHECK(!strcmp(job->request.used_model->version, "10"));
    finish_job(job);
    CHECK(height_of(host, NULL) == 1 && height_of(host, "10") == -(int)STATUS_NOT_READY);
    CHECK(fake_sessions_alive() == 1);
    CHECK(model_host_remove_model(host, "m", NULL, true, &err) == STATUS_OK);
    CHECK(height_of(host, NULL) == -(int)STATUS_NOT_FOUND);
    CHECK(model_host_remove_model(host, "m", NULL, true, &err) == STATUS_NOT_FOUND);
    struct model_status status[2];
    CHECK(list_models(host, status, 2) == 0);
    model_host_settle(host);
    CHECK(model_host_state(host) == MODEL_HOST_UNLOADED);
    model_host_free(host);
}

/* The choice of model "a" on the CPU. */
static struct precision_choice choice_of(struct model_host *host)
{
    struct model_status *models = calloc(4, sizeof *models);
    CHECK(models && list_models(host, models, 4) == 1);
    const struct precision_choice choice = models[0].choices[DEVICE_CPU];
    free(models);
    return choice;
}

/* Reads a version again. `context`: NULL, or the error that it returns instead. */
static enum status read_model(void *context, const char *name, const char *version,
                              struct model **ret, struct error *err)
{
    const struct error *why = context;
    CHECK(!strcmp(version, "1"));
    if (!why)
        *ret = fake_model(name, 1);
    else
        *err = *why;
    return why ? why->status : STATUS_OK;
}

/* The trial shares the session with the requests; fakes.c fails where two threads run it. */
static void try_under_load(bool wins)
{
    _Atomic int cancel = 1;
    struct model_host *host = start_host((struct model_host_options){.max_queue = 40});
    model_host_set_source(host, &(struct model_host_source){.read = read_model});
    fake_plan((struct fake_session_plan){.run_us = 200, .pends = true, .wins = wins});
    CHECK(!model_host_try_precision(host, &cancel));
    add_model(host, "a", 1);
    fake_plan((struct fake_session_plan){.run_us = 200});
    CHECK(choice_of(host).origin == CHOICE_PENDING);
    struct submitter submitters[4] = {0};
    for (size_t i = 0; i < COUNT_OF(submitters); i++) {
        submitters[i].host = host;
        CHECK(!pthread_create(&submitters[i].thread, NULL, submit_until_refused, &submitters[i]));
    }
    CHECK(model_host_try_precision(host, &cancel));
    CHECK(choice_of(host).origin == CHOICE_PENDING);
    cancel = 0;
    CHECK(model_host_try_precision(host, &cancel));
    CHECK(!model_host_try_precision(host, &cancel));
    CHECK(choice_of(host).origin == CHOICE_MEASURED);
    CHECK((choice_of(host).precision == PRECISION_BF16) == wins);
    CHECK(fake_sessions_alive() == 1);
    finish_job(submit_job(host, "a", "ok 7"));
    CHECK(model_host_drain(host, PATIENCE_MS));
    for (size_t i = 0; i < COUNT_OF(submitters); i++)
        pthread_join(submitters[i].thread, NULL);
    model_host_free(host);
    fake_plan((struct fake_session_plan){0});
}

/* Milliseconds of a pass of the only model's largest batch. */
static double pass_ms(struct model_host *host)
{
    struct model_status *models = calloc(4, sizeof *models);
    CHECK(models && list_models(host, models, 4) == 1);
    const struct session_info *info = &models[0].lanes[0];
    const double ms = info->batches[info->batch_count - 1].milliseconds;
    free(models);
    return ms;
}

/* A model that is loaded again from the same files is not measured again. */
static void test_times_of_passes_outlive_an_unload(void)
{
    struct error err = {0};
    struct model_host *host = start_host((struct model_host_options){0});
    struct model *other = fake_model("a", 1);
    fake_plan((struct fake_session_plan){.batch_ms = 5});
    add_model(host, "a", 1);
    CHECK(pass_ms(host) < 6);
    CHECK(model_host_remove_model(host, "a", NULL, false, &err) == STATUS_OK);
    fake_plan((struct fake_session_plan){.batch_ms = 50});
    add_model(host, "a", 1);
    CHECK(pass_ms(host) < 6);
    other->file_bytes++;
    CHECK(model_host_add_model(host, other, NULL, &err) == STATUS_OK);
    CHECK(pass_ms(host) > 49);
    model_host_free(host);
    fake_plan((struct fake_session_plan){0});
}

static void test_a_trial_that_is_won_replaces_fp32(void)
{
    try_under_load(true);
}

static void test_a_trial_that_is_lost_changes_nothing(void)
{
    try_under_load(false);
}

static void test_a_trial_that_is_skipped_says_why(void)
{
    struct error why = {STATUS_IO, .message = "no reason"};
    struct model_host *host = start_host((struct model_host_options){0});
    model_host_set_source(host, &(struct model_host_source){.read = read_model, .context = &why});
    fake_plan((struct fake_session_plan){.pends = true});
    add_model(host, "a", 1);
    fake_plan((struct fake_session_plan){0});
    CHECK(model_host_try_precision(host, NULL));
    CHECK(!model_host_try_precision(host, NULL));
    CHECK(choice_of(host).origin == CHOICE_ONLY);
    CHECK(!strcmp(choice_of(host).why, "no reason"));
    model_host_free(host);
}

static struct model *fake_free_model(const char *name, int height)
{
    struct model *model = fake_model(name, height);
    model->free_height = model->free_width = true;
    return model;
}

static enum status read_free_model(void *context, const char *name, const char *version,
                                   struct model **ret, struct error *err)
{
    TRY(read_model(context, name, version, ret, err));
    (*ret)->free_height = (*ret)->free_width = true;
    return STATUS_OK;
}

/* Starts a host that serves model "a" with free height and width. */
static struct model_host *start_free(void)
{
    struct error err = {0};
    struct model_host *host = start_host((struct model_host_options){0});
    model_host_set_source(host, &(struct model_host_source){.read = read_free_model});
    CHECK(model_host_add_model(host, fake_free_model("a", 1), NULL, &err) == STATUS_OK);
    return host;
}

static _Atomic int wishes;

static void note_wish(void *context)
{
    (void)context;
    wishes++;
}

/* Asks for a size; compiles it where that is wanted. */
static void use_size(struct model_host *host, int height)
{
    struct error err = {0};
    struct deployment *base, *sized;
    CHECK(model_host_acquire(host, "a", NULL, &base, &err) == STATUS_OK);
    const enum status status =
        model_host_acquire_size(host, base, height, FAKE_WIDTH, SIZE_EXACT, &sized, &err);
    if (status == STATUS_NOT_READY) {
        CHECK(err.retry_after_s >= 1 && strstr(err.message, "is being compiled"));
        model_host_release(host, base);
        CHECK(model_host_make_size(host, NULL) && !model_host_make_size(host, NULL));
        use_size(host, height);
        return;
    }
    CHECK(status == STATUS_OK && sized->model->preprocess.height == height);
    model_host_release(host, base);
    model_host_release(host, sized);
}

static enum status ask_size(struct model_host *host, int height, struct error *err)
{
    struct deployment *base, *sized;
    CHECK(model_host_acquire(host, "a", NULL, &base, err) == STATUS_OK);
    const enum status status =
        model_host_acquire_size(host, base, height, FAKE_WIDTH, SIZE_EXACT, &sized, err);
    model_host_release(host, base);
    if (status == STATUS_OK)
        model_host_release(host, sized);
    return status;
}

/* The size of model "a" that a client waits for; height 0: none. */
static struct stage_size wanted_size(struct model_host *host)
{
    LOCK(&host->lock);
    return table_find_version_locked(host, "a", "1")->wanted;
}

/* A client asks for another size while the model is read, and its files have gone. */
static enum status wish_while_reading(void *context, const char *name, const char *version,
                                      struct model **ret, struct error *err)
{
    (void)name, (void)version, (void)ret;
    CHECK(ask_size(context, 21, err) == STATUS_NOT_READY);
    return error_set(err, STATUS_IO, "the model's files have gone");
}

static void test_sizes_that_fail_are_remembered(void)
{
    struct error err = {0};
    struct model_host *host = start_free();
    fake_plan((struct fake_session_plan){.fails = true});
    for (int height = 2; height <= 3; height++)
        CHECK(ask_size(host, height, &err) == STATUS_NOT_READY && model_host_make_size(host, NULL));
    fake_plan((struct fake_session_plan){0});
    for (int turn = 0; turn < 3; turn++)
        for (int height = 2; height <= 3; height++) {
            CHECK(ask_size(host, height, &err) == STATUS_INVALID);
            CHECK(strstr(err.message, "operator Fake") && !model_host_make_size(host, NULL));
        }
    CHECK(ask_size(host, 20, &err) == STATUS_NOT_READY && wanted_size(host).height == 20);
    model_host_set_source(host,
                          &(struct model_host_source){.read = wish_while_reading, .context = host});
    CHECK(model_host_make_size(host, NULL) && wanted_size(host).height == 21);
    CHECK(ask_size(host, 20, &err) == STATUS_INVALID && strstr(err.message, "have gone"));
    CHECK(ask_size(host, 21, &err) == STATUS_NOT_READY);
    model_host_free(host);
}

/* Where memory is short a size ends for another one, which is then compiled. */
static void test_sizes_make_room_for_each_other(void)
{
    struct error err = {0};
    struct model_host *host = start_free();
    use_size(host, 2);
    const int alive = fake_sessions_alive();
    fake_plan((struct fake_session_plan){.most_alive = alive});
    CHECK(ask_size(host, 3, &err) == STATUS_NOT_READY && model_host_make_size(host, NULL));
    CHECK(wanted_size(host).height == 3 && fake_sessions_alive() == alive - 1);
    CHECK(model_host_make_size(host, NULL) && !model_host_make_size(host, NULL));
    CHECK(ask_size(host, 3, &err) == STATUS_OK);
    /* None is left to end. */
    fake_plan((struct fake_session_plan){.most_alive = 1});
    for (int i = 0; i < 2; i++)
        CHECK(ask_size(host, 2, &err) == STATUS_NOT_READY && model_host_make_size(host, NULL));
    fake_plan((struct fake_session_plan){0});
    CHECK(ask_size(host, 2, &err) == STATUS_SHORT_OF_MEMORY && strstr(err.message, "no memory"));
    CHECK(fake_sessions_alive() == alive - 1);
    /* A model that is unloaded makes room. */
    CHECK(model_host_add_model(host, fake_free_model("b", 1), NULL, &err) == STATUS_OK);
    CHECK(model_host_remove_model(host, "b", NULL, true, &err) == STATUS_OK);
    CHECK(ask_size(host, 2, &err) == STATUS_NOT_READY);
    model_host_free(host);
}

static struct model *fake_text_model(const char *name, int length)
{
    struct model *model = fake_model(name, 1);
    model->free_width = model->text.allows_short_rows = true;
    model->text.length = 128;
    model_set_size(model, 1, length);
    return model;
}

static enum status read_text_model(void *context, const char *name, const char *version,
                                   struct model **ret, struct error *err)
{
    (void)context, (void)version, (void)err;
    *ret = fake_text_model(name, 128);
    return STATUS_OK;
}

/* Returns the length of the rows for a text of so many tokens. `wanted`: the length that is then to
 * be compiled; 0: none. */
static size_t row_length(struct model_host *host, size_t tokens, int wanted)
{
    struct error err = {0};
    struct deployment *base;
    CHECK(model_host_acquire(host, "a", NULL, &base, &err) == STATUS_OK);
    struct deployment *shorter = model_host_acquire_length(host, base, tokens);
    const size_t length = (shorter ? shorter : base)->model->text.length;
    CHECK(wanted_size(host).width == wanted && wanted_size(host).height == (wanted > 0));
    if (shorter)
        model_host_release(host, shorter);
    model_host_release(host, base);
    return length;
}

static bool has_shorter(struct model_host *host, const struct deployment *base, size_t tokens)
{
    struct deployment *shorter = model_host_acquire_length(host, base, tokens);
    if (shorter)
        model_host_release(host, shorter);
    return shorter != NULL;
}

static void *replace_text_model(void *host)
{
    struct error err = {0};
    CHECK(model_host_add_model(host, fake_text_model("a", 128), NULL, &err) == STATUS_OK);
    return NULL;
}

static void test_short_texts_have_short_rows(void)
{
    struct error err = {0};
    struct deployment *old;
    pthread_t replacer;
    struct model_host *host = start_host((struct model_host_options){0});
    model_host_set_source(host, &(struct model_host_source){.read = read_text_model});
    CHECK(model_host_add_model(host, fake_text_model("a", 128), NULL, &err) == STATUS_OK);
    CHECK(row_length(host, 65, 0) == 128 && row_length(host, 128, 0) == 128);
    CHECK(row_length(host, 17, 32) == 128 && row_length(host, 3, 32) == 128); /* one at a time */
    CHECK(model_host_make_size(host, NULL));
    CHECK(row_length(host, 17, 0) == 32 && row_length(host, 32, 0) == 32);
    CHECK(row_length(host, 3, 16) == 32); /* the next longer one, until its own is compiled */
    CHECK(row_length(host, 33, 16) == 128);
    CHECK(model_host_make_size(host, NULL));
    CHECK(row_length(host, 16, 0) == 16 && row_length(host, 17, 0) == 32);
    /* If memory is short, no length replaces another one: they would replace each other for ever.
     */
    const int alive = fake_sessions_alive();
    fake_plan((struct fake_session_plan){.most_alive = alive});
    CHECK(row_length(host, 64, 64) == 128);
    CHECK(model_host_make_size(host, NULL));
    CHECK(row_length(host, 64, 0) == 128 && fake_sessions_alive() == alive);
    fake_plan((struct fake_session_plan){0});
    /* Tokens of a model that was replaced are not those of the new one. Its end waits for `old`.
     * Without `read` its lengths are not compiled again. */
    model_host_set_source(host, &(struct model_host_source){0});
    CHECK(model_host_acquire(host, "a", NULL, &old, &err) == STATUS_OK);
    CHECK(pthread_create(&replacer, NULL, replace_text_model, host) == 0);
    while (has_shorter(host, old, 17))
        sched_yield();
    model_host_release(host, old);
    pthread_join(replacer, NULL);
    CHECK(row_length(host, 17, 32) == 128);
    model_host_free(host);
}

/* Requests a size whose compilation then fails. */
static void fail_size(struct model_host *host, int height, enum status status)
{
    struct error err = {0}, why = {status, .message = "it fails"};
    model_host_set_source(host,
                          &(struct model_host_source){.read = read_free_model, .context = &why});
    CHECK(ask_size(host, height, &err) == STATUS_NOT_READY && model_host_make_size(host, NULL));
    model_host_set_source(host, &(struct model_host_source){.read = read_free_model});
}

/* Also where memory was short so often that sizes are not made ahead any more. */
static void test_sizes_are_made_ahead_when_memory_returns(void)
{
    struct error err = {0};
    struct pipeline_config config = {
        .stages = {{.model = "a", .sizes = {{FAKE_WIDTH, 2}}, .size_count = 1}}, .stage_count = 1};
    struct model_host *host = start_free();
    CHECK(model_host_add_model(host, fake_free_model("b", 1), NULL, &err) == STATUS_OK);
    fail_size(host, 100, STATUS_INVALID);
    for (int height = 101; height < 120; height++)
        fail_size(host, height, STATUS_NO_MEMORY);
    fail_size(host, 120, STATUS_INVALID);
    CHECK(model_host_add_pipeline(host, "p", "1", &config, &err) == STATUS_OK);
    CHECK(!model_host_make_size(host, NULL));
    CHECK(ask_size(host, 119, &err) == STATUS_SHORT_OF_MEMORY);
    CHECK(model_host_remove_model(host, "b", NULL, true, &err) == STATUS_OK);
    CHECK(model_host_make_size(host, NULL) && ask_size(host, 2, &err) == STATUS_OK);
    CHECK(ask_size(host, 120, &err) == STATUS_INVALID);
    CHECK(ask_size(host, 119, &err) == STATUS_NOT_READY);
    model_host_free(host);
}

static void test_sizes_come_and_go_with_their_model(void)
{
    struct error err = {0};
    struct model_host *host = start_free();
    wishes = 0;
    model_host_set_source(host,
                          &(struct model_host_source){.wake = note_wish, .read = read_free_model});
    struct submitter submitters[4] = {0};
    for (size_t i = 0; i < COUNT_OF(submitters); i++) {
        submitters[i].host = host;
        CHECK(!pthread_create(&submitters[i].thread, NULL, submit_until_refused, &submitters[i]));
    }
    use_size(host, 1);
    CHECK(wishes == 0);
    use_size(host, 2);
    use_size(host, 3);
    use_size(host, 2);
    CHECK(wishes == 2 && fake_sessions_alive() == 3);
    struct job *job = job_create("a", "ok 7");
    job->request.height = 2;
    job->request.width = FAKE_WIDTH;
    CHECK(model_host_submit(host, &job->request, &err) == STATUS_OK);
    finish_job(job);
    CHECK(model_host_add_model(host, fake_free_model("a", 1), NULL, &err) == STATUS_OK);
    CHECK(fake_sessions_alive() == 3);
    use_size(host, 3);
    CHECK(model_host_drain(host, PATIENCE_MS));
    for (size_t i = 0; i < COUNT_OF(submitters); i++)
        pthread_join(submitters[i].thread, NULL);
    model_host_free(host);
}

/* A version that is replaced, by other weights or another precision, keeps the sizes in use. */
static void test_sizes_are_carried_over(void)
{
    _Atomic int cancel = 0;
    struct error err = {0};
    struct model_host *host = start_host((struct model_host_options){0});
    model_host_set_source(host, &(struct model_host_source){.read = read_free_model});
    fake_plan((struct fake_session_plan){.pends = true, .wins = true});
    CHECK(model_host_add_model(host, fake_free_model("a", 1), NULL, &err) == STATUS_OK);
    fake_plan((struct fake_session_plan){0});
    use_size(host, 2);
    use_size(host, 3);
    CHECK(model_host_try_precision(host, &cancel));
    CHECK(choice_of(host).precision == PRECISION_BF16 && fake_sessions_alive() == 3);
    CHECK(ask_size(host, 2, &err) == STATUS_OK && ask_size(host, 3, &err) == STATUS_OK);
    CHECK(model_host_add_model(host, fake_free_model("a", 1), NULL, &err) == STATUS_OK);
    CHECK(ask_size(host, 2, &err) == STATUS_OK && ask_size(host, 3, &err) == STATUS_OK);
    CHECK(fake_sessions_alive() == 3);
    /* Memory for one more session: the sizes of the new one are compiled when they are needed. */
    fake_plan((struct fake_session_plan){.most_alive = 4});
    CHECK(model_host_add_model(host, fake_free_model("a", 1), NULL, &err) == STATUS_OK);
    fake_plan((struct fake_session_plan){0});
    CHECK(fake_sessions_alive() == 1 && ask_size(host, 2, &err) == STATUS_NOT_READY);
    /* The files have changed to a model of one size. */
    use_size(host, 2);
    add_model(host, "a", 1);
    CHECK(fake_sessions_alive() == 1 && ask_size(host, 2, &err) == STATUS_INVALID);
    model_host_free(host);
}

/* Sizes that a pipeline names are compiled before it is ready. */
static void test_sizes_of_a_pipeline_come_before_it_is_ready(void)
{
    struct error err = {0};
    struct pipeline_config config = {
        .stages = {{.model = "a"}, {.model = "a", .sizes = {{FAKE_WIDTH, 2}}, .size_count = 1}},
        .stage_count = 2};
    struct model_host *host = start_host((struct model_host_options){0});
    model_host_set_source(host, &(struct model_host_source){.read = read_free_model});
    model_host_announce(host, "p", NULL, true);
    CHECK(model_host_add_model(host, fake_free_model("a", 1), NULL, &err) == STATUS_OK);
    CHECK(model_host_add_pipeline(host, "p", "1", &config, &err) == STATUS_OK);
    CHECK(model_host_state(host) == MODEL_HOST_LOADING);
    CHECK(ask_size(host, 3, &err) == STATUS_NOT_READY); /* a client waits longer */
    CHECK(model_host_make_size(host, NULL) && ask_size(host, 2, &err) == STATUS_OK);
    CHECK(model_host_state(host) == MODEL_HOST_LOADING && wanted_size(host).height == 3);
    CHECK(model_host_make_size(host, NULL) && ask_size(host, 3, &err) == STATUS_OK);
    CHECK(model_host_state(host) == MODEL_HOST_READY);
    model_host_free(host);
}

static void *replace_model(void *host)
{
    struct error err = {0};
    CHECK(model_host_add_model(host, fake_free_model("a", 1), NULL, &err) == STATUS_OK);
    return NULL;
}

static bool is_served(struct model_host *host, const struct deployment *deployment)
{
    struct error err = {0};
    struct deployment *now;
    CHECK(model_host_acquire(host, "a", NULL, &now, &err) == STATUS_OK);
    const bool is_same = now == deployment;
    model_host_release(host, now);
    return is_same;
}

/* A request has the model when another deployment takes its place, and its sizes with it. */
static void test_sizes_are_found_while_their_model_is_replaced(void)
{
    struct error err = {0};
    struct deployment *base, *sized;
    struct model_host *host = start_host((struct model_host_options){0});
    model_host_set_source(host, &(struct model_host_source){.read = read_free_model});
    CHECK(model_host_add_model(host, fake_free_model("a", 1), NULL, &err) == STATUS_OK);
    use_size(host, 2);
    CHECK(model_host_acquire(host, "a", NULL, &base, &err) == STATUS_OK);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, replace_model, host));
    while (is_served(host, base))
        usleep(1000);
    CHECK(model_host_acquire_size(host, base, 2, FAKE_WIDTH, SIZE_EXACT, &sized, &err) ==
          STATUS_OK);
    model_host_release(host, base);
    model_host_release(host, sized);
    pthread_join(thread, NULL);
    model_host_free(host);
}

/* A part of a request in parts, answered. */
static void finish_part(struct model_host *host, struct job *job, struct predict_request *part)
{
    struct error err = {0};
    job->done = 0;
    CHECK(model_host_submit(host, part, &err) == STATUS_OK);
    job_wait(job);
}

/* Its model is replaced between the parts of a request. */
static void test_photos_are_answered_by_the_model_that_saw_them(void)
{
    struct error err = {0};
    struct pipeline_config config = {.stages = {{.model = "a"}}, .stage_count = 1};
    struct staged_request *staged;
    struct request_part *part;
    struct model_host *host = start_host((struct model_host_options){0});
    add_model(host, "a", 1);
    CHECK(model_host_add_pipeline(host, "p", "1", &config, &err) == STATUS_OK);
    struct job *job = job_create("p", "ok 1|ok 2");
    CHECK(stages_begin(host, &job->request, &staged, &err) == STATUS_OK);
    CHECK(staged);
    staged->max_images = 1;
    finish_part(host, job, &job->request);
    for (int i = 0; i < 2; i++) {
        CHECK(staged->parts.next(&staged->parts, &part, &err) == STATUS_OK && part);
        finish_part(host, job, &part->request);
        add_model(host, "a", 2 + i);
    }
    CHECK(staged->parts.next(&staged->parts, &part, &err) == STATUS_OK && !part);
    for (int i = 0; i < 2; i++)
        CHECK(job->images[i].request->used_model->preprocess.height == 1 + i);
    stages_free(staged);
    job_free(job);
    model_host_free(host);
}

static struct job *cut_job;
static int cut_count;
static enum { CUT_ALL, CUT_LATE, CUT_GONE } cut_end;

/* Called before each crop is rectified. */
static enum status note_cut(void *staged, size_t bytes, struct error *err)
{
    struct staged_request *request = staged;
    (void)bytes;
    (void)err;
    cut_count++;
    if (cut_end == CUT_LATE)
        cut_job->request.deadline = 1;
    if (cut_end == CUT_GONE)
        request->parts.last->request.cancelled = 1;
    return STATUS_OK;
}

/* Two boxes with an angle, as if the fake model had found them. */
static void find_boxes(struct predict_request *part, const struct model *detector)
{
    struct detections *found = &part->images[0].answer.detections;
    found->items = calloc(2, sizeof *found->items);
    CHECK(found->items);
    found->count = 2;
    for (int i = 0; i < 2; i++)
        found->items[i] =
            (struct detection){.x1 = 1, .y1 = 1, .x2 = 4, .y2 = 4, .angle = 0.5F, .score = 1};
    part->used_model = detector;
}

/* The crops of a request are cut out until its client has gone or its time is over. They are let in
 * although the queue is full by then. */
static void cut_boxes_until(int end, enum status expected)
{
    struct error err = {0};
    struct pipeline_config config = {.stages = {{.model = "a"}, {.model = "b", .max = 10}},
                                     .stage_count = 2};
    char name[] = "d";
    struct model detector = {.name = name, .task = {.kind = TASK_ORIENTED}};
    struct staged_request *staged;
    struct request_part *part;
    struct model_host *host = start_host((struct model_host_options){.max_queue = 8});
    add_model(host, "a", 1);
    add_model(host, "b", 2);
    CHECK(model_host_add_pipeline(host, "p", "1", &config, &err) == STATUS_OK);
    struct job *job = cut_job = job_create("p", "ok 1");
    /* The fake has a task without boxes, which is said before its part is asked for. */
    (void)!stages_begin(host, &job->request, &staged, &err);
    CHECK(staged);
    cut_count = 0;
    cut_end = (int)end;
    staged->max_images = 8;
    staged->rooms[1] = 2;
    staged->take = note_cut;
    staged->context = staged;
    finish_part(host, job, &job->request);
    (void)!staged->parts.next(&staged->parts, &part, &err);
    CHECK(part);
    finish_part(host, job, &part->request);
    find_boxes(&part->request, &detector);
    fake_shut_runs(2);
    struct job *others = submit_job(host, "b", "ok 1|ok 2|ok 3|ok 4|ok 5|ok 6|ok 7|ok 8");
    CHECK(staged->parts.next(&staged->parts, &part, &err) == expected);
    CHECK(cut_count == (end == CUT_ALL ? 2 : 1) && (end == CUT_ALL) == !!part);
    if (part) {
        job->done = 0;
        CHECK(model_host_submit(host, &part->request, &err) == STATUS_OK);
    }
    fake_open_runs(2);
    finish_job(others);
    if (part)
        job_wait(job);
    stages_free(staged);
    job_free(job);
    model_host_free(host);
}

static void test_crops_are_cut_out_until_the_request_ends(void)
{
    cut_boxes_until(CUT_ALL, STATUS_OK);
    cut_boxes_until(CUT_LATE, STATUS_TIMEOUT);
    cut_boxes_until(CUT_GONE, STATUS_CANCELLED);
}

int main(void)
{
    static const struct host_test tests[] = {
        {"drain answers everything accepted", test_drain_answers_everything_accepted},
        {"drain cuts off after the grace time", test_drain_cuts_off_after_the_grace_time},
        {"free without drain", test_free_without_drain},
        {"states and refusals", test_states_and_refusals},
        {"versions are replaced under load", test_versions_are_replaced_under_load},
        {"versions live side by side", test_versions_live_side_by_side},
        {"a trial that is won replaces fp32", test_a_trial_that_is_won_replaces_fp32},
        {"times of passes outlive an unload", test_times_of_passes_outlive_an_unload},
        {"a trial that is lost changes nothing", test_a_trial_that_is_lost_changes_nothing},
        {"a trial that is skipped says why", test_a_trial_that_is_skipped_says_why},
        {"sizes come and go with their model", test_sizes_come_and_go_with_their_model},
        {"sizes are carried over", test_sizes_are_carried_over},
        {"sizes of a pipeline come before it is ready",
         test_sizes_of_a_pipeline_come_before_it_is_ready},
        {"sizes are found while their model is replaced",
         test_sizes_are_found_while_their_model_is_replaced},
        {"sizes that fail are remembered", test_sizes_that_fail_are_remembered},
        {"sizes make room for each other", test_sizes_make_room_for_each_other},
        {"short texts have short rows", test_short_texts_have_short_rows},
        {"sizes are made ahead when memory returns", test_sizes_are_made_ahead_when_memory_returns},
        {"photos are answered by the model that saw them",
         test_photos_are_answered_by_the_model_that_saw_them},
        {"crops are cut out until the request ends", test_crops_are_cut_out_until_the_request_ends},
    };
    return run_host_tests(tests, COUNT_OF(tests));
}
