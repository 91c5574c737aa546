#include "server/schedule/admission.h"

#include <math.h>

#define RETRY_MAX_S 60

int admission_retry_after(const struct admission *admission, size_t admitted)
{
    double images_per_round = (double)admission->max_batch * admission->lanes;
    double rounds = ceil((double)admitted / images_per_round);
    double seconds = ceil(rounds * admission->batch_ms * 1e-3);
    if (!(seconds >= 1)) /* also when the time is not known, or not a number */
        return 1;
    return seconds < RETRY_MAX_S ? (int)seconds : RETRY_MAX_S;
}

enum status admission_check(const struct admission *admission, const char *model, size_t admitted,
                            size_t images, int *ret_retry_after_s, struct error *err)
{
    if (images > admission->max_images)
        return error_set(err, STATUS_TOO_LARGE,
                         "the request has %zu images, but model '%s' takes at most %zu at a time; "
                         "send them in several requests",
                         images, model, admission->max_images);
    if (admitted <= admission->max_images && images <= admission->max_images - admitted)
        return STATUS_OK;
    int seconds = admission_retry_after(admission, admitted);
    if (ret_retry_after_s)
        *ret_retry_after_s = seconds;
    return error_set(err, STATUS_OVERLOADED,
                     "model '%s' has %zu of at most %zu images waiting or in work; try again in "
                     "%d s",
                     model, admitted, admission->max_images, seconds);
}
