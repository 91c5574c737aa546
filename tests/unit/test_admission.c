/* Who is let in, and when the others should come back. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "server/schedule/admission.h"

Test(admission, bound)
{
    static const struct {
        size_t admitted, images;
        enum status status;
    } cases[] = {
        {0, 1, STATUS_OK},          {0, 10, STATUS_OK},
        {9, 1, STATUS_OK},          {5, 5, STATUS_OK},
        {10, 1, STATUS_OVERLOADED}, {6, 5, STATUS_OVERLOADED},
        {1, 10, STATUS_OVERLOADED}, {0, 11, STATUS_TOO_LARGE},
        {10, 11, STATUS_TOO_LARGE}, {0, SIZE_MAX, STATUS_TOO_LARGE},
    };
    const struct admission admission = {.max_images = 10, .max_batch = 4, .lanes = 1};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        int seconds = -1;
        enum status status = admission_check(&admission, "digits", cases[i].admitted,
                                             cases[i].images, &seconds, &err);
        cr_assert_eq(status, cases[i].status, "case %zu: %s", i, err.message);
        cr_assert_eq(seconds, status == STATUS_OVERLOADED ? 1 : -1, "case %zu", i);
        if (status != STATUS_OK)
            cr_assert(strstr(err.message, "'digits'") && strstr(err.message, "10"), "%s",
                      err.message);
    }
    cr_assert_eq(admission_check(&admission, "digits", 10, 1, NULL, NULL), STATUS_OVERLOADED);
}

Test(admission, retry_after_is_the_predicted_end_of_the_queue)
{
    static const struct {
        const char *name;
        size_t admitted;
        double batch_ms;
        int max_batch, lanes, seconds;
    } cases[] = {
        {"fast", 8, 10, 8, 1, 1},
        {"20 batches of 320 ms", 160, 320, 8, 1, 7},
        {"on two devices", 160, 320, 8, 2, 4},
        {"the last batch is not full", 161, 1000, 8, 1, 21},
        {"nothing inside", 0, 1000, 8, 1, 1},
        {"not measured", 100, 0, 8, 1, 1},
        {"not a number", 100, NAN, 8, 1, 1},
        {"at most a minute", 100000, 1000, 8, 1, 60},
        {"endless", 100, INFINITY, 8, 1, 60},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct admission admission = {.max_images = 256,
                                      .batch_ms = cases[i].batch_ms,
                                      .max_batch = cases[i].max_batch,
                                      .lanes = cases[i].lanes};
        int seconds = admission_retry_after(&admission, cases[i].admitted);
        cr_assert_eq(seconds, cases[i].seconds, "%s: %d", cases[i].name, seconds);
    }
}
