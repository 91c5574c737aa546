/* Makes requests for pipelines over the fakes, waits for their answers and checks them. */
#include "tests/unit/server/schedule/host_jobs.h"

#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/observe/log.h"

int passes_under_way;

void job_done(struct predict_request *request)
{
    struct job *job = request->context;
    pthread_mutex_lock(&job->lock);
    job->done++;
    pthread_cond_broadcast(&job->condition);
    pthread_mutex_unlock(&job->lock);
}

struct job *job_create(const char *model, const char *texts)
{
    struct job *job = calloc(1, sizeof *job);
    CHECK(job);
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->condition, NULL);
    job->request = (struct predict_request){.images = job->images,
                                            .model = model,
                                            .top_k = 3,
                                            .started = clock_now(),
                                            .on_done = job_done,
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

void job_free(struct job *job)
{
    predict_request_free_results(&job->request);
    pthread_cond_destroy(&job->condition);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

bool job_is_done(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    bool done = job->done > 0;
    pthread_mutex_unlock(&job->lock);
    return done;
}

void job_wait(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    while (job->done == 0)
        pthread_cond_wait(&job->condition, &job->lock);
    pthread_mutex_unlock(&job->lock);
}

enum status expected_status(const char *text)
{
    return !strncmp(text, "ok ", 3)         ? STATUS_OK
           : !strcmp(text, "nan")           ? STATUS_NUMERIC
           : !strcmp(text, "poison")        ? STATUS_DEVICE
           : !strcmp(text, "vast")          ? STATUS_DEVICE_MEMORY
           : !strcmp(text, "untransformed") ? STATUS_TOO_LARGE
                                            : STATUS_BAD_IMAGE;
}

void job_check(struct job *job)
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
        CHECK(image->times.batch >= 1 && image->times.forward_ms >= 0 &&
              image->times.queue_ms >= 0);
    }
}

struct model_host *start_host(struct model_host_options options)
{
    struct model_host *host = NULL;
    struct error err = {0};
    if (options.device_count == 0) {
        options.device_count = 1;
        options.devices[0] = DEVICE_HOST;
    }
    if (!options.workers)
        options.workers = 3;
    if (!options.max_batch)
        options.max_batch = 4;
    CHECK(model_host_create(&options, &host, &err) == STATUS_OK);
    return host;
}

void add_model(struct model_host *host, const char *name, int height)
{
    struct error err = {0};
    enum status status = model_host_add_model(host, fake_model(name, height), NULL, &err);
    if (status != STATUS_OK)
        fprintf(stderr, "%s\n", err.message);
    CHECK(status == STATUS_OK);
}

struct job *submit_job(struct model_host *host, const char *model, const char *texts)
{
    struct job *job = job_create(model, texts);
    struct error err = {0};
    enum status status = model_host_submit(host, &job->request, &err);
    if (status != STATUS_OK)
        fprintf(stderr, "%s\n", err.message);
    CHECK(status == STATUS_OK);
    return job;
}

void finish_job(struct job *job)
{
    job_wait(job);
    job_check(job);
    job_free(job);
}

double count_metric(struct metrics *metrics, const char *name, const char *labels)
{
    return metric_value(metrics_get(metrics, METRIC_COUNTER, name, "", labels));
}

struct rows *send_rows(struct model_host *host, const char *name, size_t count, int first)
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
                                        .on_done = job_done,
                                        .context = &rows->job};
    CHECK(model_host_acquire(host, name, NULL, &request->target, &err) == STATUS_OK);
    CHECK(request->target->has_rows && request->target->inputs[0].count == FAKE_WIDTH);
    CHECK(model_host_submit(host, request, &err) == STATUS_OK);
    model_host_release(host, request->target);
    return rows;
}

void finish_rows(struct rows *rows, int first)
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
    predict_request_free_results(&rows->job.request);
    pthread_cond_destroy(&rows->job.condition);
    pthread_mutex_destroy(&rows->job.lock);
    free(rows);
}

int run_host_tests(const struct host_test *tests, size_t count)
{
    log_lowest = LOG_ERROR;
    printf("1..%zu\n", 2 * count);
    for (size_t i = 0; i < 2 * count; i++) {
        const size_t test = i % count;
        const int depth = i < count ? 1 : 2;
        int freed = fake_models_freed();
        passes_under_way = tests[test].is_single ? 1 : depth;
        fake_depth(passes_under_way);
        tests[test].run();
        CHECK(fake_sessions_alive() == 0);
        CHECK(test + 1 == count || fake_models_freed() > freed);
        printf("ok %zu - %s, %d under way\n", i + 1, tests[test].name, depth);
        fflush(stdout);
    }
    CHECK(fake_greatest_under_way() == 2);
    return 0;
}
