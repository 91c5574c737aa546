/* Who is let in, and when the others should come back. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "server/schedule/policy/admission.h"

#define MS INT64_C(1000000)

static struct admission_request ask(size_t images, size_t bytes, int64_t time_left)
{
    return (struct admission_request){images, bytes, time_left, "digits", ADMIT_REQUEST};
}

Test(admission, bound_of_images)
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
    const struct admission admission = {.max_images = 10};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        struct model_load load = {.images = cases[i].admitted, .max_batch = 4};
        struct admission_request request = ask(cases[i].images, 0, INT64_MAX);
        enum status status = admission_check(&admission, &load, &request, NULL, &err);
        cr_assert_eq(status, cases[i].status, "case %zu: %s", i, err.message);
        cr_assert(status == STATUS_OK || err.retry_after_s == (status == STATUS_OVERLOADED),
                  "case %zu", i);
        if (status != STATUS_OK)
            cr_assert(strstr(err.message, "'digits'") && strstr(err.message, "10"), "%s",
                      err.message);
    }
    struct model_load full = {.images = 10, .max_batch = 4};
    struct admission_request request = ask(1, 0, INT64_MAX);
    cr_assert_eq(admission_check(&admission, &full, &request, NULL, NULL), STATUS_OVERLOADED);
}

Test(admission, the_last_eighth_is_for_clients_with_little_in_the_queue)
{
    static const struct {
        const char *name;
        size_t inside, of_client, images;
        enum status status;
    } cases[] = {
        {"a flood stops at seven eighths", 56, 50, 1, STATUS_OVERLOADED},
        {"just before", 55, 50, 1, STATUS_OK},
        {"somebody new", 56, 0, 1, STATUS_OK},
        {"somebody new, the last place", 63, 0, 1, STATUS_OK},
        {"somebody with a few", 60, 3, 1, STATUS_OK},
        {"somebody who has an eighth", 60, 8, 1, STATUS_OVERLOADED},
        {"nobody beyond the bound", 64, 0, 1, STATUS_OVERLOADED},
    };
    const struct admission admission = {.max_images = 64};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct model_load load = {
            .images = cases[i].inside, .of_client = cases[i].of_client, .max_batch = 4};
        struct admission_request request = ask(cases[i].images, 0, INT64_MAX);
        cr_assert_eq(admission_check(&admission, &load, &request, NULL, NULL), cases[i].status,
                     "%s", cases[i].name);
    }
}

/* They may take as many places again, also those that are kept for others; a quarter beyond these
 * is for clients with few images. */
Test(admission, crops_of_requests_that_were_let_in)
{
    const struct admission admission = {.max_images = 64, .max_wait_ns = 1000 * MS};
    static const struct {
        size_t inside, of_client;
        enum status status;
    } cases[] = {
        {60, 60, STATUS_OK},          {64, 60, STATUS_OK}, {120, 60, STATUS_OK},
        {121, 60, STATUS_OVERLOADED}, {121, 8, STATUS_OK}, {136, 0, STATUS_OK},
        {137, 0, STATUS_OVERLOADED},
    };
    cr_assert_eq(admission_capacity(&admission), 144);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct model_load load = {
            .images = cases[i].inside, .of_client = cases[i].of_client, .max_batch = 4};
        struct admission_request request = ask(8, 0, INT64_MAX);
        cr_assert_eq(admission_check(&admission, &load, &request, NULL, NULL), STATUS_OVERLOADED,
                     "case %zu", i);
        request.kind = ADMIT_CROPS;
        cr_assert_eq(admission_check(&admission, &load, &request, NULL, NULL), cases[i].status,
                     "case %zu", i);
    }
}

/* The crops that a request may come to have are not known: a full queue refuses it only if images
 * of its own client fill it. */
Test(admission, before_crops)
{
    static const struct {
        size_t inside, of_client;
        enum status status;
    } cases[] = {
        {55, 50, STATUS_OK}, {56, 50, STATUS_OVERLOADED}, {64, 1, STATUS_OVERLOADED},
        {64, 0, STATUS_OK},  {143, 0, STATUS_OK},         {144, 0, STATUS_OVERLOADED},
    };
    const struct admission admission = {.max_images = 64};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct model_load load = {
            .images = cases[i].inside, .of_client = cases[i].of_client, .max_batch = 4};
        struct admission_request request = ask(1, 0, INT64_MAX);
        request.kind = ADMIT_BEFORE_CROPS;
        cr_assert_eq(admission_check(&admission, &load, &request, NULL, NULL), cases[i].status,
                     "case %zu", i);
    }
}

Test(admission, bound_of_bytes)
{
    const struct admission admission = {.max_images = 100, .max_bytes = 1000};
    static const struct {
        size_t waiting, bytes;
        enum status status;
    } cases[] = {
        {0, 1000, STATUS_OK},          {0, 1001, STATUS_TOO_LARGE},  {500, 500, STATUS_OK},
        {500, 501, STATUS_OVERLOADED}, {1000, 1, STATUS_OVERLOADED}, {2000, 0, STATUS_OVERLOADED},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct model_load load = {.images = 1, .bytes = cases[i].waiting, .max_batch = 1};
        struct admission_request request = ask(1, cases[i].bytes, INT64_MAX);
        cr_assert_eq(admission_check(&admission, &load, &request, NULL, NULL), cases[i].status,
                     "case %zu", i);
    }
}

/* One lane: 10 ms for one image, 24 ms for eight. */
static struct model_load one_lane(size_t before_run)
{
    return (struct model_load){.images = before_run,
                               .before_prepare = before_run,
                               .before_run = before_run,
                               .max_batch = 8,
                               .rate = 8 / 24e6,
                               .batch = 24 * MS,
                               .single = 10 * MS,
                               .single_floor = 10 * MS};
}

Test(admission, predicts_from_batches_lanes_and_workers)
{
    struct model_load load = one_lane(0);
    cr_assert_eq(admission_predict(&load, 1), 10 * MS, "alone");
    cr_assert_eq(admission_predict(&load, 8), 24 * MS, "a full batch");
    load = one_lane(7);
    cr_assert_eq(admission_predict(&load, 1), 24 * MS, "the last of a batch");
    load = one_lane(16);
    cr_assert_eq(admission_predict(&load, 1), 58 * MS, "after two full ones");
    load.lane_free = 5 * MS;
    cr_assert_eq(admission_predict(&load, 1), 63 * MS, "and what runs now");
    load.rate *= 4;
    cr_assert_eq(admission_predict(&load, 1), 27 * MS, "on four lanes");
    load.margin = 30 * MS;
    cr_assert_eq(admission_predict(&load, 1), 57 * MS, "and what it really took longer lately");
    load.arrivals = 1e-6;
    cr_assert_eq(admission_predict(&load, 1), 71 * MS, "in a pass that others share");
    load = one_lane(16);
    load.prepare = 30 * MS;
    load.workers = 2;
    cr_assert_eq(admission_predict(&load, 1), 280 * MS, "decoding is what takes long: 9 rounds");
    load.rate = 0;
    cr_assert_eq(admission_predict(&load, 1), 0, "nothing is known");
}

Test(admission, deadlines)
{
    const struct admission admission = {.max_images = 1000};
    static const struct {
        const char *name;
        size_t inside;
        int64_t time_left;
        enum status status;
        int seconds;
    } cases[] = {
        {"plenty", 16, 60 * MS, STATUS_OK, 0},
        {"just enough", 16, 58 * MS, STATUS_OK, 0},
        {"not enough", 16, 57 * MS, STATUS_OVERLOADED, 1},
        {"far from enough", 800, 100 * MS, STATUS_OVERLOADED, 3},
        {"over", 0, 0, STATUS_TIMEOUT, 0},
        {"long over", 0, -5 * MS, STATUS_TIMEOUT, 0},
        {"alone, and too short for any pass", 0, 9 * MS, STATUS_OVERLOADED, 1},
        {"alone", 0, 10 * MS, STATUS_OK, 0},
        {"none", 900, INT64_MAX, STATUS_OK, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct model_load load = one_lane(cases[i].inside);
        struct admission_request request = ask(1, 0, cases[i].time_left);
        struct error err = {0};
        int64_t predicted = -1;
        cr_assert_eq(admission_check(&admission, &load, &request, &predicted, &err),
                     cases[i].status, "%s: %s", cases[i].name, err.message);
        cr_assert_eq(err.retry_after_s, cases[i].seconds, "%s: %d", cases[i].name,
                     err.retry_after_s);
        cr_assert(predicted > 0 || cases[i].status == STATUS_TIMEOUT);
    }
    /* A slow phase has passed, nobody is inside: only a pass can tell, so one is let in. */
    struct model_load stale = one_lane(0);
    stale.single = stale.batch = 500 * MS;
    struct admission_request request = ask(1, 0, 100 * MS);
    cr_assert_eq(admission_check(&admission, &stale, &request, NULL, NULL), STATUS_OK);
    stale.images = stale.before_run = 1;
    cr_assert_eq(admission_check(&admission, &stale, &request, NULL, NULL), STATUS_OVERLOADED);
}

Test(admission, bound_of_milliseconds)
{
    const struct admission admission = {.max_images = 1000, .max_wait_ns = 50 * MS};
    struct admission_request request = ask(1, 0, INT64_MAX);
    struct model_load load = one_lane(16);
    struct error err = {0};
    cr_assert_eq(admission_check(&admission, &load, &request, NULL, &err), STATUS_OVERLOADED);
    cr_assert(strstr(err.message, "58 ms") && strstr(err.message, "--max-queue-ms"), "%s",
              err.message);
    load = one_lane(8);
    cr_assert_eq(admission_check(&admission, &load, &request, NULL, NULL), STATUS_OK);
    /* One that takes longer by itself is let in when nothing is before it. */
    load = one_lane(0);
    request.images = 80;
    cr_assert_eq(admission_check(&admission, &load, &request, NULL, NULL), STATUS_OK);
}

Test(admission, retry_after_is_when_what_is_too_much_is_done)
{
    static const struct {
        const char *name;
        size_t inside;
        double batch_ms, lanes;
        int seconds;
    } cases[] = {
        {"fast", 8, 10, 1, 1},
        {"20 batches of 320 ms", 159, 320, 1, 7},
        {"on two devices", 159, 320, 2, 4},
        {"not measured", 100, 0, 1, 1},
        {"at most a minute", 100000, 1000, 1, 60},
        {"endless", 100, 1e12, 1, 60},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct admission admission = {.max_images = cases[i].inside};
        double batch_ns = cases[i].batch_ms * 1e6;
        struct model_load load = {.images = cases[i].inside,
                                  .before_run = cases[i].inside,
                                  .max_batch = 8,
                                  .rate = batch_ns > 0 ? 8 * cases[i].lanes / batch_ns : 0,
                                  .batch = (int64_t)batch_ns,
                                  .single = (int64_t)batch_ns};
        struct admission_request request = ask(1, 0, INT64_MAX);
        struct error err;
        cr_assert_eq(admission_check(&admission, &load, &request, NULL, &err), STATUS_OVERLOADED,
                     "%s", cases[i].name);
        cr_assert_eq(err.retry_after_s, cases[i].seconds, "%s: %d", cases[i].name,
                     err.retry_after_s);
    }
}
