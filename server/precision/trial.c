/* fp32 and a candidate run the same probes in turns, so that a machine that changes its pace
 * disturbs both alike; the ratio of a turn counts, and of all turns the median. A candidate that is
 * not quicker after a few turns, or that answers one probe differently, is not looked at further.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/precision/agreement.h"
#include "server/precision/internal.h"

enum {
    TURNS_OF_ONE = 5,
    FEW_TURNS = 2,    /* enough to see that a candidate is slower */
    MOST_TURNS = 512, /* PROBES_FROM_FOLDER images, one by one, and then some */
};

/* A candidate has to gain this much: less is within what a machine's pace changes. */
#define WORTHWHILE 1.05

struct turns {
    double reference[MOST_TURNS], candidate[MOST_TURNS], ratio[MOST_TURNS];
    size_t count;
};

struct trial {
    const struct trial_input *input;
    struct session *candidate;
    struct precision_trial *ret;
    int batch;           /* images of a turn */
    size_t image_floats; /* of a probe */
    size_t output, output_count;
    float *values;    /* a batch of probes */
    float *scores[2]; /* of fp32 and of the candidate: what a turn gave */
    size_t scores_capacity;
    const struct tensor **outputs;
    struct turns ones, batches;
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return count ? values[count / 2] : 0;
}

/* The class scores of a model are one output; of any other network all floats are compared. */
static bool scores_shape(const struct session_tensor *output)
{
    int wide = 0;
    for (int d = 0; d < output->shape.rank; d++)
        wide += output->shape.dims[d] != 1;
    return output->shape.rank != SHAPE_UNKNOWN && wide <= 1 && dtype_is_float(output->dtype);
}

static enum status prepare(struct trial *trial, struct error *err)
{
    struct session *reference = trial->input->reference;
    const struct session_info *info = session_info(reference);
    const struct session_tensor *input = session_input(reference, 0);
    trial->batch = info->batched ? info->batches[info->batch_count - 1].size : 1;
    trial->image_floats = shape_count(&input->shape);
    trial->output_count = session_output_count(reference);
    trial->output = trial->input->model->output;
    trial->ret->is_classifier = scores_shape(session_output(reference, trial->output));
    const size_t padded = (size_t)session_batch_for(reference, trial->batch);
    size_t count;
    if (!size_mul(trial->image_floats, padded, &count))
        return error_set(err, STATUS_TOO_LARGE, "a batch of probe images is too large");
    trial->values = alloc_array(count, sizeof *trial->values);
    trial->outputs = alloc_array(trial->output_count, sizeof(struct tensor *));
    if (!trial->values || !trial->outputs)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    return STATUS_OK;
}

static void trial_done(struct trial *trial)
{
    session_free(trial->candidate);
    free(trial->values);
    free(trial->outputs);
    free(trial->scores[0]);
    free(trial->scores[1]);
}

static enum status run(struct trial *trial, struct session *session, int images, double *ret_ms,
                       struct error *err)
{
    const void *const inputs[] = {trial->values};
    const int64_t start = clock_now();
    TRY(session_run(session, images, inputs, trial->outputs, err));
    *ret_ms = clock_ms(clock_now() - start);
    return STATUS_OK;
}

/* Keeps the compared outputs of the last run of `images` images: scores[side], each image's floats
 * after the other's. *ret_each: floats of an image. */
static enum status keep(struct trial *trial, int side, int images, size_t *ret_each,
                        struct error *err)
{
    size_t first = trial->ret->is_classifier ? trial->output : 0;
    size_t end = trial->ret->is_classifier ? trial->output + 1 : trial->output_count;
    size_t total = 0;
    for (size_t o = first; o < end; o++)
        total +=
            dtype_is_float(trial->outputs[o]->dtype) ? shape_count(&trial->outputs[o]->shape) : 0;
    if (total > trial->scores_capacity) {
        free(trial->scores[0]);
        free(trial->scores[1]);
        trial->scores[0] = alloc_array(total, sizeof(float));
        trial->scores[1] = alloc_array(total, sizeof(float));
        trial->scores_capacity = trial->scores[0] && trial->scores[1] ? total : 0;
        if (!trial->scores_capacity)
            return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    }
    const size_t each = total / (size_t)images;
    size_t used = 0;
    for (size_t o = first; o < end; o++) {
        const struct tensor *tensor = trial->outputs[o];
        if (!dtype_is_float(tensor->dtype))
            continue;
        const size_t part = shape_count(&tensor->shape) / (size_t)images;
        for (size_t i = 0; i < (size_t)images; i++)
            for (size_t e = 0; e < part; e++)
                trial->scores[side][i * each + used + e] =
                    (float)tensor_number(tensor, i * part + e);
        used += part;
    }
    *ret_each = each;
    return STATUS_OK;
}

static void note_turn(struct turns *turns, const double ms[2])
{
    if (turns->count == MOST_TURNS || ms[1] <= 0)
        return;
    turns->reference[turns->count] = ms[0];
    turns->candidate[turns->count] = ms[1];
    turns->ratio[turns->count++] = ms[0] / ms[1];
}

/* Both sessions on the `images` probes that lie in values; who begins changes from turn to turn. */
static enum status take_turn(struct trial *trial, int images, struct turns *turns, bool compare,
                             struct error *err)
{
    struct session *sessions[2] = {trial->input->reference, trial->candidate};
    double ms[2];
    size_t each[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        const int side = (k + (int)turns->count) % 2;
        TRY(run(trial, sessions[side], images, &ms[side], err));
        if (compare)
            TRY(keep(trial, side, images, &each[side], err));
    }
    note_turn(turns, ms);
    for (int i = 0; compare && i < images; i++) {
        if (each[0] != each[1])
            return error_set(err, STATUS_SHAPE, "the outputs have other sizes than in fp32");
        agreement_add(trial->ret, trial->scores[0] + (size_t)i * each[0],
                      trial->scores[1] + (size_t)i * each[0], each[0],
                      trial->input->model->has_probabilities);
    }
    return STATUS_OK;
}

/* What is known so far: times, and the speed, which is the mean (geometric) of that of a single
 * image and that of a full batch. */
static void settle_times(struct trial *trial)
{
    struct precision_trial *ret = trial->ret;
    struct turns ones = trial->ones, batches = trial->batches;
    ret->fp32_one_ms = median(ones.reference, ones.count);
    ret->one_ms = median(ones.candidate, ones.count);
    ret->fp32_image_ms = median(batches.reference, batches.count) / trial->batch;
    ret->image_ms = median(batches.candidate, batches.count) / trial->batch;
    const double one = median(ones.ratio, ones.count);
    ret->speed = batches.count ? sqrt(one * median(batches.ratio, batches.count)) : one;
}

static enum status time_ones(struct trial *trial, struct error *err)
{
    struct turns warm_up = {.count = 0};
    TRY(probes_write(trial->input->probes, 0, trial->values, err));
    TRY(take_turn(trial, 1, &warm_up, false, err));
    for (int turn = 0; turn < TURNS_OF_ONE; turn++)
        TRY(take_turn(trial, 1, &trial->ones, false, err));
    settle_times(trial);
    return STATUS_OK;
}

static bool cancelled(const struct trial *trial)
{
    return trial->input->options.cancel && *trial->input->options.cancel;
}

static enum status compare_all(struct trial *trial, struct error *err)
{
    const int count = probes_count(trial->input->probes);
    const struct session_options *options = &trial->input->options;
    struct precision_trial *ret = trial->ret;
    for (int first = 0; first < count; first += trial->batch) {
        if (cancelled(trial))
            return error_set(err, STATUS_CANCELLED, "loading was cancelled");
        const int images = first + trial->batch <= count ? trial->batch : count - first;
        for (int i = 0; i < images; i++)
            TRY(probes_write(trial->input->probes, first + i,
                             trial->values + (size_t)i * trial->image_floats, err));
        struct turns warm_up = {.count = 0};
        if (first == 0)
            TRY(take_turn(trial, images, &warm_up, false, err));
        /* The rest of a division is a batch that is padded, and says nothing about time. */
        struct turns partly = {.count = trial->batches.count};
        TRY(take_turn(trial, images, images == trial->batch ? &trial->batches : &partly, true,
                      err));
        settle_times(trial);
        if (!agreement_holds(ret)) {
            ret->outcome = TRIAL_DIFFERS;
            return STATUS_OK;
        }
        if (trial->batches.count >= FEW_TURNS && ret->speed < 1)
            break;
        if (options->on_progress)
            options->on_progress(options->progress_context, (double)(first + images) / count);
    }
    ret->outcome = ret->speed >= WORTHWHILE ? TRIAL_PASSED : TRIAL_SLOWER;
    return STATUS_OK;
}

enum status trial_run(const struct trial_input *input, enum precision precision,
                      struct precision_trial *ret, struct error *err)
{
    struct trial *trial = calloc(1, sizeof *trial);
    if (!trial)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a trial of precisions");
    *ret = (struct precision_trial){.precision = precision};
    trial->input = input;
    trial->ret = ret;
    struct session_options options = input->options;
    options.precision = precision;
    options.on_progress = NULL;
    options.threads = session_info(input->reference)->threads;
    enum status status = session_create(input->model->graph, &options, &trial->candidate, err);
    if (status == STATUS_OK)
        status = prepare(trial, err);
    if (status == STATUS_OK)
        status = time_ones(trial, err);
    if (status == STATUS_OK)
        status = compare_all(trial, err);
    trial_done(trial);
    free(trial);
    if (status == STATUS_OK || status == STATUS_CANCELLED)
        return status;
    ret->outcome = TRIAL_FAILED;
    return STATUS_OK;
}

enum status trial_time_one(const struct trial_input *input, double *ret_ms, struct error *err)
{
    struct precision_trial ignored = {.precision = PRECISION_FP32};
    struct trial trial = {.input = input, .ret = &ignored};
    double ms[3];
    enum status status = prepare(&trial, err);
    if (status == STATUS_OK)
        status = probes_write(input->probes, 0, trial.values, err);
    for (size_t i = 0; status == STATUS_OK && i < COUNT_OF(ms); i++)
        status = run(&trial, input->reference, 1, &ms[i], err);
    trial_done(&trial);
    if (status == STATUS_OK)
        *ret_ms = median(ms, COUNT_OF(ms));
    return status;
}
