/* lensd bench: milliseconds of a forward pass on each device and for each batch size, side by side.
 *
 * Each device has its own session. For each batch size the devices take turns, so that changes of
 * the machine's speed affect all devices alike. Only session_run() is timed: copies to the device
 * and back count, decoding does not. A batch is split into the same passes as in the server. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "lensd_version.h"
#include "proto/writer.h"
#include "server/app/process.h"
#include "server/cli/commands.h"
#include "server/precision/precision.h"
#include "server/schedule/policy/latency.h"

enum {
    BATCHES_MAX = 16,
    BATCH_MAX = 1024,
    RUNS_MAX = 20000, /* per batch size */
    ROUNDS_MIN = 3,
    TURN = 3, /* measured runs per turn, after one run that is not measured */
};

struct bench_batch {
    double milliseconds, best_milliseconds; /* median and best of all forward passes */
    double images_per_second;               /* computed from the median */
    double speed_up;                        /* compared with the first measured device */
};

/* A device, and what was measured on it. */
struct bench_target {
    char id[80]; /* the device as the user wrote it, or its usual name */
    char name[96];
    struct device_id device;
    struct error problem; /* if not STATUS_OK: why the device is not measured */
    struct session *session;
    struct latency latency;
    struct session_feed feed; /* inputs for the largest batch of the session */
    const struct tensor **outputs;
    double (*times)[RUNS_MAX]; /* times[k]: milliseconds of each run with batches[k] */
    size_t counts[BATCHES_MAX];
    double spent[BATCHES_MAX]; /* seconds */
    struct bench_batch rows[BATCHES_MAX];
};

struct device_bench {
    const struct config *config;
    struct model *model;
    int batches[BATCHES_MAX], largest;
    size_t batch_count;
    struct bench_target targets[DEVICE_MAX];
    size_t count;
};

static void on_load_progress(void *context, const char *phase, double fraction)
{
    const struct bench_target *target = context;
    char what[96];
    snprintf(what, sizeof what, "%s for %.64s", phase, target->id);
    progress_show(what, fraction, false);
}

/* ---- options ---- */

static enum status bench_parse_batches(struct device_bench *bench, struct error *err)
{
    const char *rest = bench->config->batch;
    do {
        char *end = NULL;
        long size = *rest >= '0' && *rest <= '9' ? strtol(rest, &end, 10) : 0;
        if (size < 1 || size > BATCH_MAX || (*end != ',' && *end) ||
            bench->batch_count == BATCHES_MAX)
            return error_set(err, STATUS_CONFIG,
                             "--batch is '%.60s'; it must be up to %d batch sizes from 1 to %d, "
                             "such as 1,8,32",
                             bench->config->batch, BATCHES_MAX, BATCH_MAX);
        bench->batches[bench->batch_count++] = (int)size;
        if (size > bench->largest)
            bench->largest = (int)size;
        rest = end;
    } while (*rest++ == ',');
    return STATUS_OK;
}

/* Adds a device. `problem`: the reason why it is not measured, or STATUS_OK. */
static void add_target(struct device_bench *bench, const char *id, struct device_id device,
                       const struct error *problem)
{
    if (bench->count == DEVICE_MAX)
        return;
    struct bench_target *target = &bench->targets[bench->count++];
    snprintf(target->id, sizeof target->id, "%s", id);
    target->device = device;
    target->problem = *problem;
}

/* Adds every device of the machine. The row of a device that is not usable gives the reason. */
static void add_all(struct device_bench *bench)
{
    struct device_info devices[DEVICE_MAX];
    size_t count = device_list(devices, DEVICE_MAX);
    for (size_t i = 0; i < count; i++) {
        struct error problem = {.status = STATUS_OK};
        if (!devices[i].usable)
            (void)error_set(&problem, STATUS_DEVICE, "%s", devices[i].reason);
        add_target(bench, DEVICE_STRING(devices[i].id), devices[i].id, &problem);
    }
}

/* Adds each device that --device names. The row of a missing device gives the reason. */
static void add_named(struct device_bench *bench)
{
    char *list = strdup(bench->config->device), *rest = list;
    const char *word;
    while (list && (word = strsep(&rest, ","))) {
        struct device_id ids[DEVICE_MAX];
        struct error problem = {.status = STATUS_OK};
        size_t count = 0;
        char fallback[256];
        if (device_parse(word, ids, &count, fallback, sizeof fallback, &problem) != STATUS_OK)
            add_target(bench, word, DEVICE_HOST, &problem);
        for (size_t i = 0; problem.status == STATUS_OK && i < count; i++)
            add_target(bench, DEVICE_STRING(ids[i]), ids[i], &problem);
    }
    free(list);
}

/* ---- preparation ---- */

static enum status bench_prepare(struct device_bench *bench, struct bench_target *target,
                                 struct error *err)
{
    const struct model *model = bench->model;
    struct device_info device;
    if (device_find(target->device, &device))
        snprintf(target->name, sizeof target->name, "%s", device.name);
    struct session_options options = command_session_options(model);
    options.device = target->device;
    options.precision = bench->config->model_host.precision;
    options.threads = bench->config->model_host.threads;
    options.max_batch = bench->largest < LATENCY_MAX_BATCH ? bench->largest : LATENCY_MAX_BATCH;
    options.on_progress = on_load_progress;
    options.progress_context = target;
    const struct precision_options how = {.limits = &IMAGE_LIMITS_DEFAULT,
                                          .cache = bench->config->cache_folder,
                                          .trials = TRIALS_NOW};
    struct precision_choice choice;
    TRY(precision_open(model, &how, &options, &choice, &target->session, err));
    const struct session_info *info = session_info(target->session);
    latency_init(&target->latency, info->batches, info->batch_count);
    TRY(session_feed_make(target->session, &target->feed, err));
    target->outputs =
        alloc_array(session_info(target->session)->output_count, sizeof *target->outputs);
    target->times = alloc_array(bench->batch_count, sizeof *target->times);
    return check_memory(target->outputs && target->times, NULL, err);
}

static void target_done(struct bench_target *target)
{
    session_feed_done(&target->feed);
    FREE_ALL(target->outputs, target->times);
    session_free(target->session);
}

/* ---- measurement ---- */

static enum status bench_run_batch(struct bench_target *target, int batch, struct error *err)
{
    for (int left = batch, count; left > 0; left -= count) {
        count = latency_first(&target->latency, left);
        TRY(session_run(target->session, count, (const void *const *)target->feed.buffers,
                        target->outputs, err));
    }
    return STATUS_OK;
}

static enum status bench_turn(struct bench_target *target, size_t which, int batch,
                              struct error *err)
{
    const int64_t turn = clock_now();
    TRY(bench_run_batch(target, batch, err));
    for (int i = 0; i < TURN && target->counts[which] < RUNS_MAX; i++) {
        const int64_t begin = clock_now();
        TRY(bench_run_batch(target, batch, err));
        target->times[which][target->counts[which]++] = clock_ms(clock_now() - begin);
    }
    target->spent[which] += clock_ms(clock_now() - turn) * 1e-3;
    return STATUS_OK;
}

static void show_measuring(const struct device_bench *bench, double seconds)
{
    double spent = 0, total = 0;
    for (size_t i = 0; i < bench->count; i++) {
        for (size_t k = 0; k < bench->batch_count && bench->targets[i].session; k++) {
            const double part = bench->targets[i].spent[k];
            spent += part < seconds ? part : seconds;
            total += seconds;
        }
    }
    progress_show("measuring", total > 0 ? spent / total : 1, false);
}

/* Gives each pair of batch size and device one more turn, unless the pair has had its time or
 * RUNS_MAX runs. Returns false if there was no such pair. */
static bool run_round(struct device_bench *bench, int round, double seconds)
{
    bool busy = false;
    for (size_t k = 0; k < bench->batch_count; k++) {
        for (size_t i = 0; i < bench->count; i++) {
            struct bench_target *target = &bench->targets[i];
            if (target->problem.status != STATUS_OK || target->counts[k] == RUNS_MAX ||
                (round >= ROUNDS_MIN && target->spent[k] >= seconds))
                continue;
            struct error problem;
            if (bench_turn(target, k, bench->batches[k], &problem) != STATUS_OK)
                target->problem = problem;
            show_measuring(bench, seconds);
            busy = true;
        }
    }
    return busy;
}

static int bench_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarise(struct device_bench *bench)
{
    const struct bench_target *first = NULL;
    for (size_t i = 0; i < bench->count; i++) {
        struct bench_target *target = &bench->targets[i];
        if (target->problem.status != STATUS_OK)
            continue;
        first = first ? first : target;
        for (size_t k = 0; k < bench->batch_count; k++) {
            double *times = target->times[k];
            const size_t count = target->counts[k];
            qsort(times, count, sizeof *times, bench_ascending);
            const double median = times[count / 2];
            target->rows[k] =
                (struct bench_batch){median, times[0], bench->batches[k] * 1e3 / median,
                                     target == first ? 1 : first->rows[k].milliseconds / median};
        }
    }
}

/* ---- output ---- */

static void print_target(const struct device_bench *bench, const struct bench_target *target)
{
    if (target->problem.status != STATUS_OK) {
        printf("%-9s not measured: %s\n", target->id, target->problem.message);
        return;
    }
    for (size_t k = 0; k < bench->batch_count; k++) {
        const struct bench_batch *row = &target->rows[k];
        printf("%-9s %-9s %6d %11.3f %11.3f %11.1f %9.2f\n", target->id,
               precision_name(session_info(target->session)->precision), bench->batches[k],
               row->milliseconds, row->best_milliseconds, row->images_per_second, row->speed_up);
    }
}

static void bench_print_table(const struct device_bench *bench, const char *note)
{
    printf("%s: one forward pass, input in memory\n\n", bench->model->name);
    for (size_t i = 0; i < bench->count; i++) {
        const struct bench_target *target = &bench->targets[i];
        if (target->problem.status != STATUS_OK)
            continue;
        const struct session_info *info = session_info(target->session);
        printf("%-9s %s", target->id, target->name);
        if (info->threads > 0)
            printf(", %d thread%s", info->threads, info->threads == 1 ? "" : "s");
        printf("\n");
        if (info->note[0])
            printf("%-9s note: %s\n", "", info->note);
    }
    printf("\n%-9s %-9s %6s %11s %11s %11s %9s\n", "device", "precision", "batch", "ms median",
           "ms best", "images/s", "speed-up");
    for (size_t i = 0; i < bench->count; i++)
        print_target(bench, &bench->targets[i]);
    if (note[0])
        printf("\n%s\n", note);
}

static void write_target(struct writer *w, json_node *list, const struct device_bench *bench,
                         const struct bench_target *target)
{
    json_node *entry = write_object(w, list, NULL);
    write_text(w, entry, "id", target->id);
    if (target->problem.status != STATUS_OK) {
        write_text(w, entry, "error", target->problem.message);
        return;
    }
    const struct session_info *info = session_info(target->session);
    write_members(w, entry, "name=%s precision=%s threads?=%d", target->name,
                  precision_name(info->precision), info->threads);
    json_node *batches = write_array(w, entry, "batches");
    for (size_t i = 0; i < bench->batch_count; i++) {
        const struct bench_batch *batch = &target->rows[i];
        write_members(w, batches,
                      "{size=%d milliseconds=%.3f best_milliseconds=%.3f images_per_second=%.3f "
                      "speed_up=%.3f runs=%zu}",
                      bench->batches[i], batch->milliseconds, batch->best_milliseconds,
                      batch->images_per_second, batch->speed_up, target->counts[i]);
    }
}

/* {"model","version","devices":[{"id","name","precision","threads"?,"batches":[{"size",
 * "milliseconds","best_milliseconds","images_per_second","speed_up","runs"}…]} or {"id","error"}],
 * "note"?} */
static int print_bench_json(const struct device_bench *bench, const char *note)
{
    struct writer w = {.root = write_root()};
    write_members(&w, w.root, "model=%s version=%s", bench->model->name, LENSD_VERSION);
    json_node *list = write_array(&w, w.root, "devices");
    for (size_t i = 0; i < bench->count; i++)
        write_target(&w, list, bench, &bench->targets[i]);
    write_members(&w, w.root, "note?=%s", note);
    return print_json(write_finish(&w));
}

static enum status run_bench(struct device_bench *bench, char *note, size_t note_size,
                             struct error *err)
{
    const struct config *config = bench->config;
    TRY(bench_parse_batches(bench, err));
    TRY(model_load(config->model, NULL, NULL, &bench->model, err));
    if (!strcmp(config->device, "auto")) {
        struct device_id ids[DEVICE_MAX];
        size_t count;
        TRY(device_parse("auto", ids, &count, note, note_size, err));
        add_all(bench);
    } else {
        add_named(bench);
    }
    for (size_t i = 0; i < bench->count; i++) {
        struct bench_target *target = &bench->targets[i];
        /* If a device fails, its row gives the reason, and the other devices are measured. */
        struct error problem;
        if (target->problem.status == STATUS_OK &&
            bench_prepare(bench, target, &problem) != STATUS_OK)
            target->problem = problem;
    }
    const double seconds = (double)config->bench_time / 1e3;
    for (int round = 0; run_round(bench, round, seconds); round++)
        ;
    progress_clear();
    summarise(bench);
    return STATUS_OK;
}

int command_bench(const struct config *config)
{
    struct device_bench *bench = calloc(1, sizeof *bench);
    struct error err;
    char note[256] = "";
    int result = 1;
    if (!bench) {
        (void)error_no_memory(&err, NULL);
        return process_failed(&err);
    }
    bench->config = config;
    if (run_bench(bench, note, sizeof note, &err) != STATUS_OK) {
        result = process_failed(&err);
    } else {
        /* Exit status 0 if at least one device was measured. */
        for (size_t i = 0; i < bench->count; i++)
            if (bench->targets[i].problem.status == STATUS_OK)
                result = 0;
        if (config->json)
            result |= print_bench_json(bench, note);
        else
            bench_print_table(bench, note);
    }
    for (size_t i = 0; i < bench->count; i++)
        target_done(&bench->targets[i]);
    model_free(bench->model);
    free(bench);
    return result;
}
