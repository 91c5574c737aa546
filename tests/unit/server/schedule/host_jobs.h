/* What the thread programs of the model host share: requests whose answers are known, model hosts
 * over the fakes, and how their tests run. Plain programs, so that they also run under
 * ThreadSanitizer.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/schedule/runtime/model_host.h"
#include "tests/unit/server/schedule/fakes.h"
#include "tests/unit/tap.h"

#define MAX_IMAGES 8

struct job {
    struct predict_request request;
    struct predict_image images[MAX_IMAGES];
    char texts[MAX_IMAGES][24];
    pthread_mutex_t lock;
    pthread_cond_t condition;
    int done; /* calls of on_done */
};

/* A raw-tensor request: row r is of class first + r. */
struct rows {
    float values[8][FAKE_WIDTH];
    const void *inputs[1];
    struct predict_image images[8];
    struct job job;
};

/* A request's on_done, whose context is the job. */
void job_done(struct predict_request *request);

/* `texts`: images separated by '|'. */
struct job *job_create(const char *model, const char *texts);

void job_free(struct job *job);
bool job_is_done(struct job *job);
void job_wait(struct job *job);

/* What the text of an image asks for (fakes.h). */
enum status expected_status(const char *text);

/* Every image has exactly the answer that its own text asks for. */
void job_check(struct job *job);

/* With the fakes around it, and defaults where an option is 0. */
struct model_host *start_host(struct model_host_options options);

/* A fake model; images of that height are its own. */
void add_model(struct model_host *host, const char *name, int height);

/* A job that the model host has taken. */
struct job *submit_job(struct model_host *host, const char *model, const char *texts);

/* Waits, checks its answers, frees it. */
void finish_job(struct job *job);

/* The value of a counter or gauge. */
double count_metric(struct metrics *metrics, const char *name, const char *labels);

/* A request of rows that the model host has taken; and its end, which checks and frees it. */
struct rows *send_rows(struct model_host *host, const char *name, size_t count, int first);
void finish_rows(struct rows *rows, int first);

/* Threads that submit at the same time. */
#define SUBMITTERS       64
#define JOBS_A_SUBMITTER 25

struct submitter {
    pthread_t thread;
    struct model_host *host;
    unsigned seed;
    int by_status[64];
    int refused;
};

#define GPU(n) ((struct device_id){DEVICE_CUDA, (n)})

extern int passes_under_way; /* of a session, in the test at hand */

struct host_test {
    const char *name;
    void (*run)(void);
    bool is_single; /* counts passes one by one: only where none overlap */
};

/* Runs them twice, with one pass of a session under way and with two, in TAP; each must leave
 * nothing behind. The last one may do without a model. */
int run_host_tests(const struct host_test *tests, size_t count);
