/* lensd predict --text: prints the vector of a text, which a model host computes, as in the
 * server. */
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "server/answers/describe.h"
#include "server/app/process.h"
#include "server/cli/commands.h"
#include "server/loader/model_open.h"

static void text_on_done(struct predict_request *request)
{
    sem_post(request->context);
}

/* Opens the model itself, or its text encoder. */
static enum status open_text_model(const struct config *config, struct model **ret,
                                   struct error *err)
{
    char half[PATH_MAX];
    const char *ending;
    const bool has_half =
        !model_is_embedded(config->model) && model_find_half(config->model, half, &ending);
    enum status status = model_open(has_half ? half : config->model, NULL, ret, err);
    if (status == STATUS_OK && !deployment_takes_texts(*ret)) {
        status = error_set(err, STATUS_INVALID,
                           "model '%s' takes no texts; name a folder with a half for texts and a "
                           "tokenizer",
                           (*ret)->name);
        model_free(*ret);
    }
    return status;
}

static int print_vector(struct predict_request *request)
{
    struct error err = request->images[0].error;
    const struct describe_how how = {.answer.total_ms = clock_ms(clock_now() - request->started)};
    if (request->images[0].status != STATUS_OK)
        return process_failed(&err);
    return print_json(describe_predictions(request, &how, NULL));
}

/* Runs one text through the only model of the host, and prints its vector. */
static int answer_text(struct model_host *host, const struct config *config)
{
    struct text_item item = {.text = config->text, .size = strlen(config->text)};
    struct text_rows rows = {0};
    struct predict_image image = {0};
    struct deployment *deployment;
    struct error err;
    sem_t done;
    int retry_after_s, result;
    sem_init(&done, 0, 0);
    struct predict_request request = {.images = &image,
                                      .image_count = 1,
                                      .top_k = 1,
                                      .started = clock_now(),
                                      .on_done = text_on_done,
                                      .context = &done};
    if (model_host_acquire(host, NULL, NULL, &deployment, NULL, &err) != STATUS_OK)
        return process_failed(&err);
    enum status status = text_rows_make(&deployment->model->text, &item, 1, false, &rows, &err);
    request.tensors = (const void *const *)rows.inputs;
    request.target = deployment;
    IF_OK(status, model_host_submit(host, &request, &retry_after_s, &err));
    model_host_release(host, deployment);
    while (status == STATUS_OK && sem_wait(&done) != 0 && errno == EINTR)
        ;
    result = status == STATUS_OK ? print_vector(&request) : process_failed(&err);
    (void)model_host_drain(host, 0); /* wait for the callback, which uses the semaphore */
    predict_request_free_results(&request);
    text_rows_done(&rows);
    return result;
}

int command_predict_text(const struct config *config)
{
    const struct model_host_options options = config_model_host(config, NULL);
    struct model_host *host = NULL;
    struct model *model;
    struct error err;
    enum status status = open_text_model(config, &model, &err);
    IF_OK(status, command_host(&options, model, &host, &err));
    const int result = status == STATUS_OK ? answer_text(host, config) : process_failed(&err);
    model_host_free(host);
    return result;
}
