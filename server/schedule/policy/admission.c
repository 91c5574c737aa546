/* Predicts when a request would be answered, and decides whether to admit it. */
#include "server/schedule/policy/admission.h"

#include <math.h>

#include "engine/base/clock.h"

#define RETRY_MAX_S   60
#define SHARE_DIVISOR 8 /* max_images / SHARE_DIVISOR is reserved for clients with few images */

/* Every image passes two stages: workers prepare it, then a lane runs it. The prediction is the
 * time of the slower stage. The second stage waits until a lane is free; then all lanes together
 * run the full batches at `rate`, and then the request's last pass runs. */
int64_t admission_predict(const struct model_load *load, size_t images)
{
    if (load->rate <= 0)
        return 0;
    double prepared = 0;
    if (load->prepare > 0 && load->workers > 0)
        prepared =
            ceil((double)(load->before_prepare + images) / load->workers) * (double)load->prepare;
    size_t all = load->before_run + images;
    const size_t most = (size_t)load->max_batch;
    size_t last = all % most == 0 ? most : all % most;
    double slope = load->max_batch > 1
                       ? (double)(load->batch - load->single) / (double)(load->max_batch - 1)
                       : 0;
    double full = (double)(all - last) / load->rate;
    /* Images that arrive before the last pass begins also run in it. */
    double before = fmax((double)load->lane_free + full, prepared);
    double shared = fmin((double)last + before * load->arrivals, (double)load->max_batch);
    double last_run = (double)load->single + slope * (fmax(shared, (double)last) - 1);
    double lanes = (double)load->lane_free + full + last_run;
    double workers = prepared + last_run;
    double predicted = (lanes > workers ? lanes : workers) + (double)load->margin;
    if (predicted < (double)load->single)
        return load->single;
    return predicted < (double)(INT64_MAX / 4) ? (int64_t)predicted : INT64_MAX / 4;
}

size_t admission_capacity(const struct admission *admission)
{
    return 2 * admission->max_images + admission->max_images / ADMISSION_CROPS_DIVISOR;
}

/* Seconds until there is room for the refused request; `wait` is that time in nanoseconds. */
static int retry_after(int64_t wait)
{
    double seconds = ceil((double)wait * 1e-9);
    if (!(seconds >= 1))
        return 1;
    return seconds < RETRY_MAX_S ? (int)seconds : RETRY_MAX_S;
}

/* Checks the limits for which a later retry cannot help. */
static enum status check_size(const struct admission *admission,
                              const struct admission_request *request, struct error *err)
{
    if (request->images > admission->max_images)
        return error_set(err, STATUS_TOO_LARGE,
                         "the request has %zu images, but model '%s' takes at most %zu at a time; "
                         "send them in several requests",
                         request->images, request->model, admission->max_images);
    if (admission->max_bytes > 0 && request->bytes > admission->max_bytes)
        return error_set(err, STATUS_TOO_LARGE,
                         "the request's images have %zu bytes, but the queue of model '%s' takes "
                         "at most %zu (--max-queue-bytes); send them in several requests",
                         request->bytes, request->model, admission->max_bytes);
    if (request->time_left <= 0)
        return error_set(err, STATUS_TIMEOUT,
                         "the request's time limit ran out before it had arrived; allow it more "
                         "time");
    return STATUS_OK;
}

static enum status check_bounds(const struct admission *admission, const struct model_load *load,
                                const struct admission_request *request, int seconds,
                                struct error *err)
{
    const bool are_crops = request->kind == ADMIT_CROPS ||
                           (request->kind == ADMIT_BEFORE_CROPS && load->of_client == 0);
    size_t most = are_crops ? admission_capacity(admission) : admission->max_images;
    size_t room = load->images < most ? most - load->images : 0;
    if (request->images > room)
        return error_set(
            err, STATUS_OVERLOADED,
            "model '%s' has %zu of at most %zu images waiting or in progress; try again "
            "in %d s",
            request->model, load->images, most, seconds);
    size_t kept = admission->max_images / (are_crops ? ADMISSION_CROPS_DIVISOR : SHARE_DIVISOR);
    if (request->images + kept > room && load->of_client > 0 &&
        load->of_client + request->images > kept)
        return error_set(
            err, STATUS_OVERLOADED,
            "model '%s' has %zu of at most %zu images waiting or in progress, %zu of them from "
            "this client; the other places are reserved for other clients; try again in %d s",
            request->model, load->images, most, load->of_client, seconds);
    if (admission->max_bytes > 0 &&
        (load->bytes > admission->max_bytes || request->bytes > admission->max_bytes - load->bytes))
        return error_set(err, STATUS_OVERLOADED,
                         "model '%s' has %zu of at most %zu bytes of images waiting; try again in "
                         "%d s",
                         request->model, load->bytes, admission->max_bytes, seconds);
    return STATUS_OK;
}

static enum status check_time(const struct admission *admission, const struct model_load *load,
                              const struct admission_request *request, int64_t predicted,
                              int seconds, struct error *err)
{
    if (request->kind != ADMIT_CROPS && admission->max_wait_ns > 0 && load->images > 0 &&
        predicted > admission->max_wait_ns)
        return error_set(err, STATUS_OVERLOADED,
                         "an answer of model '%s' would take about %.0f ms, more than the limit of "
                         "%.0f ms (--max-queue-ms); try again in %d s",
                         request->model, clock_ms(predicted), clock_ms(admission->max_wait_ns),
                         seconds);
    /* While no image is admitted, no pass renews the measurements, and the prediction may be
     * outdated. Then the shortest time so far is used instead. */
    int64_t needed = load->images > 0 ? predicted : load->single_floor;
    if (load->single_floor > request->time_left)
        return error_set(
            err, STATUS_OVERLOADED,
            "%.1f ms of the request's time limit are left, but an answer of model '%s' takes about "
            "%.1f ms on this machine even without other requests; allow more time",
            clock_ms(request->time_left), request->model, clock_ms(load->single_floor));
    if (needed > request->time_left)
        return error_set(err, STATUS_OVERLOADED,
                         "an answer of model '%s' would take about %.0f ms, but %.0f ms of the "
                         "request's time limit are left; try again in %d s, or allow more time",
                         request->model, clock_ms(predicted > needed ? predicted : needed),
                         clock_ms(request->time_left), seconds);
    return STATUS_OK;
}

enum status admission_check(const struct admission *admission, const struct model_load *load,
                            const struct admission_request *request, int64_t *ret_predicted,
                            struct error *err)
{
    TRY(check_size(admission, request, err));
    int64_t predicted = admission_predict(load, request->images);
    if (ret_predicted)
        *ret_predicted = predicted;
    int64_t wait = predicted;
    if (admission->max_wait_ns > 0 && predicted > admission->max_wait_ns)
        wait = predicted - admission->max_wait_ns;
    else if (request->time_left != INT64_MAX && predicted > request->time_left)
        wait = predicted - request->time_left;
    int seconds = retry_after(wait);
    enum status status = check_bounds(admission, load, request, seconds, err);
    IF_OK(status, check_time(admission, load, request, predicted, seconds, err));
    if (status == STATUS_OVERLOADED && err)
        err->retry_after_s = seconds;
    return status;
}
