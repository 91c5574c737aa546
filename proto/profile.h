/* JSON of `lensd inspect --profile`: from a plain description, as in answers.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct profile_layer {
    const char *name, *kernel;   /* NULL for the total */
    double milliseconds, share;  /* of the whole, 0 … 1 */
    double gflop, gflops;        /* work, and work a second */
    double of_peak;              /* of the machine's arithmetic; 0: not known */
    bool tried;                  /* the kernel was chosen by a trial */
    double gigabytes_per_second; /* operands read plus results written, at least */
};

struct profile_answer {
    const char *model, *device, *precision, *why; /* why: of the precision */
    int threads, batch;
    double batch_milliseconds; /* L(b), without a clock around each layer */
    const char *instructions;  /* of the peak */
    double peak_gflops;
    const struct profile_layer *layers;
    size_t layer_count;
    struct profile_layer total;
    const char *note; /* how the numbers are to be read; NULL: as they are */
};

/* {"model","device","precision","precision_why","threads","batch","batch_ms","peak":{
 * "gflops","instructions"},"total":{…},"layers":[{"name","kernel","tried","ms","share","gflop","gflops",
 * "of_peak"?,"gb_per_s"}…],"note"?}; malloc'ed, NULL when out of memory. */
char *profile_answer_json(const struct profile_answer *answer, size_t *ret_size);
