/* Calibrates, chooses by measured error which layers stay float32, and compares with float32. */
#include "models/quantize/quantize_model.h"

#include <malloc.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "models/quantize/agreement.h"
#include "models/quantize/outputs.h"
#include "models/tasks/answer.h"

enum {
    HOLD_OUT = 5,      /* every fifth photo is held out */
    TRIED_PHOTOS = 32, /* for choosing layers */
    LAYER_PHOTOS = 4,  /* for measuring the error of each layer */
    TIMED_TURNS = 3,   /* turns for each model in the report */
    TIMED_RUNS = 5     /* runs per turn, after an untimed one */
};

/* At most this share of the multiply-adds stays in float32. With VNNI, 8-bit multiply-adds are four
 * times as fast. So a model with a third of its multiply-adds in float32 computes for half as long
 * as a float32 model. A wrong answer is worse than a slow one, because nobody notices it. But a
 * model that is no faster than float32 is useless. docs/quantize.md has the results for other
 * limits. */
#define KEPT_WORK (1.0 / 3)

/* While the bounds do not hold, more layers stay in float32 only if the error falls to this share
 * of its former value. Smaller gains on the photos that choose the layers were losses on the
 * held-out photos. */
#define KEPT_GAIN 0.5

#define LEAST_PROBABILITY 1e-7f

/* Limits for the memory of float32 answers, and of observed activations. */
#define ANSWERS_BYTES  ((size_t)64 << 20)
#define OBSERVED_BYTES ((size_t)48 << 20)

struct quantize_state {
    const struct model *model;
    const struct quantize_options *options;
    struct quantize_report *report;
    int *files;              /* readable photos */
    float *photo;            /* a photo after preprocessing */
    struct session *session; /* one at a time, because each has its own copy of the weights */
    struct outputs outputs;
    float *answers[2]; /* [0]: answers in fp32 for the tried photos, then for the held-out ones;
                          [1]: an 8-bit model's answer for one photo */
    size_t each;       /* count of the numbers in an answer */
    int tried, held_out;
    struct task_answer *decoded; /* answers in fp32 for held-out photos; NULL: no boxes, no text */
    struct quantizer *quantizer;
    bool corrects_biases;
    /* The best choice of layers so far: how many groups stay in float32, and on the tried photos
     * its error and whether it holds the bounds. */
    size_t kept_groups;
    double error;
    bool holds;
    bool is_quantized; /* the graph that try_layers() tried last has 8-bit layers */
    const char *phase;
    struct error *err;
};

/* Shows the progress of the phase: also the callback quantizer_images.on_progress. */
static void show(void *state, double fraction)
{
    const struct quantize_state *q = state;
    if (q->options->on_progress)
        q->options->on_progress(q->options->context, q->phase, fraction);
}

static enum status check_cancel(const struct quantize_state *q)
{
    return q->options->cancel && *q->options->cancel
               ? error_set(q->err, STATUS_CANCELLED, "quantizing was cancelled")
               : STATUS_OK;
}

static bool is_over(const struct quantize_state *q)
{
    return q->options->cpu_deadline_ms > 0 &&
           clock_ms(clock_thread()) >= q->options->cpu_deadline_ms;
}

/* ---- photos ---- */

/* Reads photo i: first come those for calibration, then the held-out ones, which are every fifth
 * readable photo or, of fewer than five, the last one. */
static enum status read_photo(struct quantize_state *q, int i)
{
    TRY(check_cancel(q));
    const struct quantize_photos *photos = &q->options->photos;
    const int calibrated = q->report->calibrated, last = calibrated + q->report->held_out - 1;
    const int fifth = (i - calibrated) * HOLD_OUT + HOLD_OUT - 1;
    const int at = i < calibrated ? i + i / (HOLD_OUT - 1) : fifth < last ? fifth : last;
    const size_t file = (size_t)q->files[at];
    const enum status status = photos->read(photos->context, file, q->photo, q->err);
    return status == STATUS_OK
               ? status
               : error_prefix(q->err, "%.200s", photos->name(photos->context, file));
}

static enum status find_photos(struct quantize_state *q)
{
    struct quantize_report *report = q->report;
    const struct quantize_photos *photos = &q->options->photos;
    const int count = (int)photos->count;
    int readable = 0;
    struct error first;
    q->files = alloc_array((size_t)count, sizeof *q->files);
    TRY(check_memory(q->files, "while quantizing", q->err));
    q->phase = "reading photos";
    for (int i = 0; i < count && check_cancel(q) == STATUS_OK; i++) {
        struct error why;
        show(q, (double)i / count);
        if (photos->read(photos->context, (size_t)i, q->photo, &why) != STATUS_OK) {
            if (report->unreadable++ == 0)
                first = why;
        } else {
            q->files[readable++] = i;
        }
    }
    TRY(check_cancel(q));
    report->held_out = readable < HOLD_OUT ? readable > 1 : readable / HOLD_OUT;
    report->calibrated = readable - report->held_out;
    if (readable >= QUANTIZE_MIN_PHOTOS)
        return STATUS_OK;
    if (report->unreadable)
        return error_set(q->err, STATUS_INVALID,
                         "of the %d photos in '%.150s' %d can be read (%.150s); give at least %d, "
                         "better 100, like those that the model will see",
                         count, photos->folder, readable, first.message, QUANTIZE_MIN_PHOTOS);
    return error_set(q->err, STATUS_INVALID,
                     "the folder '%.150s' has %s that lensd reads; give at least %d, better "
                     "100, like those that the model will see",
                     photos->folder, readable ? "one photo" : "no photos", QUANTIZE_MIN_PHOTOS);
}

/* Reads photo i: the callback quantizer_images.read. */
static enum status read_image(void *context, size_t i, const void **ret, struct error *err)
{
    struct quantize_state *q = context;
    (void)err; /* it is q->err */
    if (is_over(q))
        return error_set(q->err, STATUS_TIMEOUT,
                         "calibration takes longer than a server may spend; run 'lensd quantize', "
                         "which has no limit");
    TRY(read_photo(q, (int)i));
    *ret = q->photo;
    return STATUS_OK;
}

/* ---- sessions ---- */

static struct session_options options_of(const struct quantize_state *q, enum precision precision)
{
    const struct model *model = q->model;
    return (struct session_options){.device = DEVICE_HOST,
                                    .precision = precision,
                                    .threads = q->options->threads,
                                    .max_batch = 1,
                                    .trial = true,
                                    .image_input = model->image_input,
                                    .image_layout = IMAGE_NHWC_F32,
                                    .image_channels_last = model->input_channels_last,
                                    .image_height = model->preprocess.height,
                                    .image_width = model->preprocess.width,
                                    .cancel = q->options->cancel};
}

static void close_session(struct quantize_state *q)
{
    session_free(q->session);
    q->session = NULL;
    malloc_trim(0); /* because the next session's blocks have other sizes */
}

static enum status open_session(struct quantize_state *q, const struct graph *graph,
                                enum precision precision)
{
    const struct session_options options = options_of(q, precision);
    close_session(q);
    TRY(session_create(graph, &options, &q->session, q->err));
    return session_enter(q->session, q->err);
}

/* Runs photo i, and copies the answer to `dst` unless it is NULL. */
static enum status answer_photo(struct quantize_state *q, int i, float *dst)
{
    struct run_time ignored;
    TRY(read_photo(q, i));
    TRY(outputs_run(&q->outputs, q->session, q->photo, 1, &ignored, q->err));
    const size_t each = q->outputs.each;
    if (dst && each != q->each)
        return error_set(
            q->err, STATUS_UNSUPPORTED,
            "the sizes of the outputs depend on the photo, so answers cannot be compared");
    if (!dst)
        return STATUS_OK;
    outputs_read(&q->outputs, 1, dst);
    /* Logarithms turn probabilities into scores, so that correlations count small ones, too. */
    for (size_t k = 0; q->outputs.is_vector && q->model->has_probabilities && k < each; k++)
        dst[k] = logf(fmaxf(dst[k], LEAST_PROBABILITY));
    return STATUS_OK;
}

/* ---- boxes and text ---- */

/* Boxes are in pixels of the model's input. */
static enum status decode_answer(struct quantize_state *q, struct task_answer *ret)
{
    const struct task *task = &q->model->task;
    const float width = (float)q->model->preprocess.width;
    const float height = (float)q->model->preprocess.height;
    const struct task_geometry geometry = {.gain_x = 1,
                                           .gain_y = 1,
                                           .photo_width = width,
                                           .photo_height = height,
                                           .input_width = width,
                                           .input_height = height};
    struct task_buffer buffers[TASK_MAX_OUTPUTS] = {{0}};
    *ret = (struct task_answer){0};
    const enum status status = task_answer_of(task, q->outputs.tensors, 1, 0, &task->options,
                                              &geometry, buffers, ret, q->err);
    for (size_t i = 0; i < TASK_MAX_OUTPUTS; i++)
        task_buffer_done(&buffers[i]);
    return status;
}

/* Pairs each box of `a`, best first, with the remaining box of its class in `b` that overlaps it
 * most, if by half or more. */
static void pair_boxes(const struct detections *a, struct detections *b,
                       struct quantize_report *ret)
{
    ret->fp32_boxes += a->count;
    ret->int8_boxes += b->count;
    for (size_t i = 0; i < a->count; i++) {
        struct detection *nearest = NULL;
        double most = 0.5;
        for (size_t k = 0; k < b->count; k++) {
            const double overlap = detection_overlap(&a->items[i], &b->items[k]);
            if (b->items[k].index != a->items[i].index || overlap < most)
                continue;
            most = overlap;
            nearest = &b->items[k];
        }
        if (!nearest)
            continue;
        ret->overlap += (most - ret->overlap) / (double)++ret->box_pairs;
        nearest->index = UINT32_MAX; /* marks a box with a pair */
    }
}

/* Levenshtein's distance. Returns false when out of memory. */
static bool count_edits(const struct text_reading *a, const struct text_reading *b, size_t *ret)
{
    size_t *row = alloc_array(b->count + 1, sizeof *row);
    if (!row)
        return false;
    for (size_t k = 0; k <= b->count; k++)
        row[k] = k;
    for (size_t i = 0; i < a->count; i++) {
        size_t before = row[0]++;
        for (size_t k = 0; k < b->count; k++) {
            size_t least = before + (a->characters[i] != b->characters[k]);
            before = row[k + 1];
            least = row[k] + 1 < least ? row[k] + 1 : least;
            row[k + 1] = before + 1 < least ? before + 1 : least;
        }
    }
    *ret = row[b->count];
    free(row);
    return true;
}

static enum status compare_texts(struct quantize_state *q, const struct text_reading *fp32,
                                 const struct text_reading *int8)
{
    size_t edits;
    TRY(check_memory(count_edits(fp32, int8, &edits), "while quantizing", q->err));
    q->report->lines += fp32->count > 0;
    q->report->same_lines += fp32->count > 0 && edits == 0;
    q->report->characters += fp32->count;
    q->report->edits += edits;
    return STATUS_OK;
}

/* ---- answers ---- */

/* Returns the photo of answer i: one for choosing layers, or a held-out one. */
static int photo_of(const struct quantize_state *q, int i)
{
    return i < q->tried ? i : q->report->calibrated + i - q->tried;
}

static float *fp32_answer(const struct quantize_state *q, int i)
{
    return q->answers[0] + (size_t)i * q->each;
}

static enum status allocate_answers(struct quantize_state *q)
{
    const size_t fit = q->each ? ANSWERS_BYTES / sizeof(float) / q->each : SIZE_MAX;
    const int half = fit < 2 ? 1 : fit < 2 * TRIED_PHOTOS ? (int)(fit / 2) : TRIED_PHOTOS;
    q->tried = q->report->calibrated < half ? q->report->calibrated : half;
    q->held_out = q->report->held_out < half ? q->report->held_out : half;
    const size_t count = (size_t)(q->tried + q->held_out);
    size_t total;
    if (!size_mul(q->each, count, &total))
        return error_set(q->err, STATUS_TOO_LARGE, "the outputs of the model are too large");
    q->answers[0] = alloc_array(total, sizeof(float));
    q->answers[1] = alloc_array(q->each, sizeof(float));
    const bool is_decoded = q->report->has_boxes || q->report->has_text;
    if (is_decoded)
        q->decoded = alloc_array((size_t)q->held_out, sizeof *q->decoded);
    return q->answers[0] && q->answers[1] && (q->decoded || !is_decoded)
               ? STATUS_OK
               : error_no_memory(q->err, "while quantizing");
}

static enum status answer_in_fp32(struct quantize_state *q)
{
    TRY(open_session(q, q->model->graph, PRECISION_FP32));
    TRY(outputs_init(&q->outputs, q->model, q->session, q->err));
    TRY(answer_photo(q, 0, NULL));
    q->each = q->outputs.each;
    TRY(allocate_answers(q));
    for (int i = 0; i < q->tried + q->held_out; i++) {
        TRY(answer_photo(q, photo_of(q, i), fp32_answer(q, i)));
        if (q->decoded && i >= q->tried)
            TRY(decode_answer(q, &q->decoded[i - q->tried]));
    }
    close_session(q); /* because calibrating needs the memory */
    return STATUS_OK;
}

/* ---- errors ---- */

static double error_of(const struct agreement *a)
{
    return !isfinite(a->mean) ? INFINITY : a->is_vector ? 1 - a->correlation : a->mean;
}

/* Compares up to `count` answers of `graph` with those in float32, beginning with image `first`.
 * For held-out images it compares boxes and text, too. Leaves the session open. */
static enum status compare_graph(struct quantize_state *q, const struct graph *graph, int first,
                                 int count, struct agreement *ret)
{
    const int all = first < q->tried ? q->tried : q->tried + q->held_out;
    *ret = (struct agreement){.is_vector = q->outputs.is_vector};
    /* The graph is not quantized if all its layers stay in float32. */
    TRY(open_session(q, graph, quantizer_is_quantized(graph) ? PRECISION_INT8 : PRECISION_FP32));
    for (int i = first; i < first + count && i < all; i++) {
        struct task_answer answer = {0};
        TRY(answer_photo(q, photo_of(q, i), q->answers[1]));
        outputs_compare(&q->outputs, fp32_answer(q, i), q->answers[1], false, ret);
        if (!q->decoded || i < q->tried)
            continue;
        const struct task_answer *fp32 = &q->decoded[i - q->tried];
        enum status status = decode_answer(q, &answer);
        if (status == STATUS_OK && q->report->has_text)
            status = compare_texts(q, &fp32->text, &answer.text);
        else if (status == STATUS_OK)
            pair_boxes(&fp32->detections, &answer.detections, q->report);
        task_answer_done(&answer);
        TRY(status);
    }
    return STATUS_OK;
}

/* Quantizes the graph by quantizer_make(), and compares it by compare_graph(). */
static enum status try_layers(struct quantize_state *q, bool keeps, int first, int photos,
                              struct agreement *ret)
{
    struct graph *graph;
    TRY(quantizer_make(q->quantizer, keeps, q->corrects_biases, &graph, q->err));
    q->is_quantized = quantizer_is_quantized(graph);
    const enum status status = compare_graph(q, graph, first, photos, ret);
    graph_free(graph);
    close_session(q);
    return status;
}

/* Corrects biases only if this lowers the error of the answers. For some models a correction does
 * not lower it. */
static enum status quantize_all(struct quantize_state *q)
{
    struct agreement plain, corrected;
    q->phase = "quantizing";
    show(q, 0);
    TRY(try_layers(q, false, 0, q->tried, &plain));
    if (!q->is_quantized)
        return error_set(q->err, STATUS_UNSUPPORTED,
                         "no Conv, Gemm or MatMul can be quantized: their inputs are computed in a "
                         "Loop, Scan or If, or are not finite for these photos");
    q->corrects_biases = true;
    TRY(try_layers(q, false, 0, q->tried, &corrected));
    q->corrects_biases = error_of(&corrected) < error_of(&plain);
    const struct agreement *best = q->corrects_biases ? &corrected : &plain;
    q->error = error_of(best);
    q->holds = agreement_holds(best, NULL);
    return STATUS_OK;
}

/* ---- sensitive layers ---- */

/* Layers that read the same tensor. All layers of a group stay in float32 together: if one layer is
 * in 8 bits, the tensor is stored in 8 bits. */
struct layer_group {
    const struct value *input;
    size_t first; /* index of a layer */
    double work;  /* multiply-adds */
    double gain;  /* error with only this group in 8 bits, per multiply-add */
};

static size_t find_groups(const struct quantize_state *q, struct layer_group *ret)
{
    size_t count = 0;
    for (size_t i = 0; i < q->report->layer_count; i++) {
        const struct quantizer_layer *layer = &q->report->layers[i];
        size_t g = 0;
        while (g < count && ret[g].input != layer->node->inputs[0])
            g++;
        if (g == count)
            ret[count++] = (struct layer_group){.input = layer->node->inputs[0], .first = i};
        ret[g].work += layer->work;
    }
    return count;
}

/* Decides which layers stay in float32: the layers of `groups`, or with `others` all other layers.
 * Returns how many layers stay in float32. */
static size_t keep_groups(const struct quantize_state *q, const struct layer_group *groups,
                          size_t count, bool others)
{
    size_t kept = 0;
    for (size_t i = 0; i < q->report->layer_count; i++) {
        struct quantizer_layer *layer = &q->report->layers[i];
        size_t g = 0;
        while (g < count && groups[g].input != layer->node->inputs[0])
            g++;
        layer->is_kept = (g < count) != others;
        kept += layer->is_kept;
    }
    return kept;
}

/* Measures the error with only this group in 8 bits. */
static enum status measure_group(struct quantize_state *q, struct layer_group *group)
{
    struct agreement a;
    (void)keep_groups(q, group, 1, true);
    TRY(try_layers(q, true, 0, LAYER_PHOTOS, &a));
    group->gain = error_of(&a) / fmax(group->work, 1);
    for (size_t i = 0; i < q->report->layer_count; i++)
        if (!q->report->layers[i].is_kept)
            q->report->layers[i].error_alone = error_of(&a);
    return STATUS_OK;
}

static int compare_gains(const void *a, const void *b)
{
    const struct layer_group *x = a, *y = b;
    if (x->gain != y->gain)
        return x->gain < y->gain ? 1 : -1;
    return x->first < y->first ? -1 : 1;
}

/* Tries the first `count` groups in float32. If that is better, it becomes the best choice. */
static enum status try_groups(struct quantize_state *q, const struct layer_group *groups,
                              size_t count, bool *ret_holds)
{
    struct agreement a;
    (void)keep_groups(q, groups, count, false);
    TRY(try_layers(q, true, 0, q->tried, &a));
    *ret_holds = q->is_quantized && agreement_holds(&a, NULL);
    /* A choice that holds the bounds becomes the best one, because search_groups() then tries only
     * fewer groups. Before that, more groups in float32 must lower the error. */
    if (!*ret_holds && (!q->is_quantized || q->holds || error_of(&a) >= KEPT_GAIN * q->error))
        return STATUS_OK;
    q->error = error_of(&a);
    q->holds = *ret_holds;
    q->kept_groups = count;
    return STATUS_OK;
}

/* Goes through the groups in order, and removes each one with which the kept groups would have more
 * than the share KEPT_WORK of all multiply-adds. Returns how many groups are left. */
static size_t leave_affordable(struct layer_group *groups, size_t count)
{
    double all = 0, kept = 0;
    size_t left = 0;
    for (size_t g = 0; g < count; g++)
        all += groups[g].work;
    for (size_t g = 0; g < count; g++) {
        if (kept + groups[g].work > KEPT_WORK * all)
            continue;
        kept += groups[g].work;
        groups[left++] = groups[g];
    }
    return left;
}

/* Doubles the number of groups in float32 until the bounds hold, then searches by bisection. */
static enum status search_groups(struct quantize_state *q, const struct layer_group *groups,
                                 size_t most)
{
    size_t low = 0, high = 0;
    bool holds = false;
    q->phase = "keeping layers";
    for (size_t count = 1; !holds && low < most; count *= 2) {
        high = count < most ? count : most;
        show(q, (double)high / (double)most / 2);
        TRY(try_groups(q, groups, high, &holds));
        low = holds ? low : high;
    }
    while (holds && high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        bool still;
        TRY(try_groups(q, groups, middle, &still));
        *(still ? &high : &low) = middle;
    }
    return STATUS_OK;
}

static enum status keep_sensitive(struct quantize_state *q)
{
    if (q->holds || q->report->layer_count < 2)
        return STATUS_OK;
    struct layer_group *groups = alloc_array(q->report->layer_count, sizeof *groups);
    TRY(check_memory(groups, "while quantizing", q->err));
    const size_t count = find_groups(q, groups);
    enum status status = STATUS_OK;
    q->phase = "comparing layers";
    for (size_t g = 0; g < count && status == STATUS_OK && !is_over(q); g++) {
        show(q, (double)g / (double)count);
        status = measure_group(q, &groups[g]);
    }
    if (status == STATUS_OK && !is_over(q)) {
        qsort(groups, count, sizeof *groups, compare_gains);
        status = search_groups(q, groups, leave_affordable(groups, count));
    }
    q->report->kept = keep_groups(q, groups, q->kept_groups, false);
    free(groups);
    return status;
}

/* ---- the report ---- */

static enum status compare_held_out(struct quantize_state *q, bool keeps, struct agreement *ret)
{
    struct quantize_report *report = q->report;
    report->fp32_boxes = report->int8_boxes = report->box_pairs = 0;
    report->lines = report->same_lines = report->characters = report->edits = 0;
    report->overlap = 0;
    return try_layers(q, keeps, q->tried, q->held_out, ret);
}

/* Reports costs and gains of the layers that stay in float32. */
static enum status report_kept(struct quantize_state *q)
{
    struct quantize_report *report = q->report;
    struct agreement a;
    double work = 0, kept = 0;
    if (!report->kept)
        return STATUS_OK;
    for (size_t i = 0; i < report->layer_count; i++) {
        work += report->layers[i].work;
        kept += report->layers[i].is_kept ? report->layers[i].work : 0;
    }
    report->fp32_share = work > 0 ? kept / work : 0;
    TRY(compare_held_out(q, false, &a));
    report->all_error = error_of(&a);
    report->all_same = a.same;
    return STATUS_OK;
}

/* Times runs of the photo that was read last. *quickest: the fastest run so far; 0 if none. */
static enum status time_graph(struct quantize_state *q, const struct graph *graph,
                              enum precision precision, double *quickest)
{
    TRY(open_session(q, graph, precision));
    for (int run = 0; run <= TIMED_RUNS; run++) {
        struct run_time time;
        TRY(check_cancel(q));
        TRY(outputs_run(&q->outputs, q->session, q->photo, 1, &time, q->err));
        if (run > 0)
            *quickest = *quickest > 0 ? fmin(*quickest, time.ms) : time.ms;
    }
    close_session(q);
    return STATUS_OK;
}

static enum status time_int8(struct quantize_state *q, bool keeps, double *quickest)
{
    struct graph *graph;
    TRY(quantizer_make(q->quantizer, keeps, q->corrects_biases, &graph, q->err));
    const enum status status = time_graph(q, graph, PRECISION_INT8, quickest);
    graph_free(graph);
    return status;
}

/* Times the models in turns, because machines change their speed within seconds. Each turn creates
 * its session again, because two at once would hold the weights twice. */
static enum status time_in_turns(struct quantize_state *q)
{
    struct quantize_report *report = q->report;
    q->phase = "measuring";
    for (int turn = 0; turn < TIMED_TURNS; turn++) {
        show(q, (double)turn / TIMED_TURNS);
        TRY(time_graph(q, q->model->graph, PRECISION_FP32, &report->fp32_ms));
        TRY(time_int8(q, true, &report->int8_ms));
        if (report->kept)
            TRY(time_int8(q, false, &report->all_ms));
    }
    report->is_faster = report->int8_ms * PRECISION_GAIN <= report->fp32_ms;
    return STATUS_OK;
}

static enum status report_on(struct quantize_state *q)
{
    struct quantize_report *report = q->report;
    struct agreement a;
    q->phase = "comparing";
    show(q, 0);
    TRY(report_kept(q));
    TRY(compare_held_out(q, true, &a));
    report->corrects_biases = q->corrects_biases;
    report->agreement = a;
    report->error = error_of(&a);
    report->holds = agreement_holds(&a, report->bound);
    return time_in_turns(q);
}

/* ---- quantize_model ---- */

static enum status calibrate(struct quantize_state *q)
{
    const struct session_options options = options_of(q, PRECISION_FP32);
    const struct quantizer_images images = {.count = (size_t)q->report->calibrated,
                                            .read = read_image,
                                            .on_progress = show,
                                            .context = q};
    q->phase = "calibrating";
    const enum status status =
        quantizer_observe(q->quantizer, &options, &images, OBSERVED_BYTES, q->err);
    malloc_trim(0);
    return status;
}

/* Tries the model after smoothing, and uses it if that lowers the error. */
static enum status smooth(struct quantize_state *q)
{
    struct quantizer *plain = q->quantizer, *smoothed;
    const double error = q->error;
    const bool corrects_biases = q->corrects_biases;
    if (q->holds || is_over(q))
        return STATUS_OK;
    TRY(quantizer_smooth(plain, &smoothed, q->err));
    if (!smoothed)
        return STATUS_OK;
    q->quantizer = smoothed;
    q->corrects_biases = false;
    enum status status = calibrate(q);
    IF_OK(status, quantize_all(q));
    q->report->is_smoothed = status == STATUS_OK && q->error < error;
    if (!q->report->is_smoothed) {
        q->quantizer = plain;
        q->corrects_biases = corrects_biases;
        q->error = error;
        q->holds = false;
    }
    quantizer_free(q->report->is_smoothed ? plain : smoothed);
    return status == STATUS_TIMEOUT ? STATUS_OK : status; /* the model without smoothing remains */
}

static enum status quantize_steps(struct quantize_state *q, struct graph **ret)
{
    const struct preprocess *p = &q->model->preprocess;
    size_t count;
    if (q->model->image_input == SIZE_MAX || q->model->graph->input_count != 1)
        return error_set(q->err, STATUS_INVALID,
                         "lensd can quantize only models whose one input is an image");
    TRY(quantizer_create(q->model->graph, q->options->weight_max, &q->quantizer, q->err));
    if (!size_mul((size_t)p->width, (size_t)p->height, &count) ||
        !size_mul(count, (size_t)preprocess_channels(p), &count) ||
        !(q->photo = alloc_array(count, sizeof *q->photo)))
        return error_no_memory(q->err, "while quantizing");
    TRY(find_photos(q));
    TRY(answer_in_fp32(q));
    TRY(calibrate(q));
    TRY(quantize_all(q));
    TRY(smooth(q));
    q->report->layers = quantizer_layers(q->quantizer, &q->report->layer_count);
    TRY(keep_sensitive(q));
    /* The server compares and times the model itself, with its batch size. */
    if (q->options->has_report)
        TRY(report_on(q));
    return quantizer_make(q->quantizer, true, q->corrects_biases, ret, q->err);
}

enum status quantize_model(const struct model *model, const struct quantize_options *options,
                           struct graph **ret, struct quantize_report *report, struct error *err)
{
    struct quantize_state q = {.model = model, .options = options, .report = report, .err = err};
    *report = (struct quantize_report){.has_boxes = task_has_boxes(model->task.kind),
                                       .has_text = model->task.kind == TASK_TEXT};
    const enum status status = quantize_steps(&q, ret);
    close_session(&q);
    for (int i = 0; q.decoded && i < q.held_out; i++)
        task_answer_done(&q.decoded[i]);
    free(q.decoded);
    report->quantizer = q.quantizer;
    outputs_done(&q.outputs);
    FREE_ALL(q.files, q.photo, q.answers[0], q.answers[1]);
    if (status != STATUS_OK)
        quantize_report_done(report);
    return status;
}

void quantize_report_done(struct quantize_report *report)
{
    quantizer_free(report->quantizer);
    *report = (struct quantize_report){0};
}
