/* lensd inspect --profile: shows the time of each layer of a forward pass, and how close each comes
 * to the machine's peak. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend/peak.h"
#include "engine/base/size.h"
#include "proto/writer.h"
#include "server/app/process.h"
#include "server/cli/commands.h"
#include "server/precision/precision.h"
#include "server/schedule/runtime/deployment.h"

#define PROFILE_RUNS 5

/* If timing the layers changes the time of a pass by more than this factor, a note says so. */
#define DISTURBED 1.2

struct profile {
    struct model *model;
    struct session *session;
    struct precision_choice choice;
    struct session_step *steps;
    size_t count;
    struct session_step total;          /* the sum of all steps; without names */
    double least_ms;                    /* the time of a pass if each layer ran at its peak */
    struct peak peaks[PRECISION_COUNT]; /* measured for each precision in which a layer runs */
    bool has_work[PRECISION_COUNT];     /* a layer of this precision has arithmetic */
    int batch;
    double batch_ms; /* time of a pass that does not time layers; 0: not measured */
};

static enum status profile_open_session(const struct config *config, struct profile *profile,
                                        struct error *err)
{
    TRY(model_load(config->model, NULL, NULL, &profile->model, err));
    const struct model *model = profile->model;
    struct session_options options = command_session_options(model);
    options.precision = config->model_host.precision;
    options.threads = config->model_host.threads;
    options.max_batch = (int)config->profile_batch;
    const struct precision_options how = {
        .limits = &IMAGE_LIMITS_DEFAULT, .cache = config->cache_folder, .trials = TRIALS_NOW};
    /* precision_open() may store a precision that servers reuse, so its trial needs the batch sizes
     * of a server. */
    if (deployment_may_batch(model) && options.max_batch < PRECISION_TRIAL_BATCH)
        options.max_batch = PRECISION_TRIAL_BATCH;
    TRY(precision_open(model, &how, &options, &profile->choice, &profile->session, err));
    const int batch = (int)config->profile_batch;
    if (batch < options.max_batch && session_batch_for(profile->session, batch) != batch) {
        session_free(profile->session);
        profile->session = NULL;
        options.precision = profile->choice.precision;
        options.max_batch = batch;
        TRY(model_advise(model, session_create(model->graph, &options, &profile->session, err),
                         err));
    }
    model_drop_graph(profile->model);
    return STATUS_OK;
}

/* Sets profile->batch to --profile-batch, but at most to the largest batch of the session. */
static void settle_batch(const struct config *config, struct profile *profile)
{
    const struct session_info *info = session_info(profile->session);
    const int most = info->batch_count ? info->batches[info->batch_count - 1].size : 1;
    profile->batch = config->profile_batch < most ? (int)config->profile_batch : most;
    for (size_t i = 0; i < info->batch_count; i++)
        if (info->batches[i].size == profile->batch)
            profile->batch_ms = info->batches[i].milliseconds;
}

static double per(double amount, double by)
{
    return by > 0 ? amount / by : 0;
}

/* 1e9 operations per second. */
static double gflops_of(const struct session_step *step)
{
    return per(step->gflop * 1e3, step->milliseconds);
}

/* Returns the speed of a layer, or of the whole pass, divided by the peak speed; 0: unknown. */
static double of_peak(const struct profile *profile, const struct session_step *step)
{
    return step == &profile->total ? per(profile->least_ms, step->milliseconds)
                                   : per(gflops_of(step), profile->peaks[step->precision].gflops);
}

/* Returns gigabytes per second; counts only operands read and results written. */
static double gb_per_s(const struct session_step *step)
{
    return per((double)step->bytes * 1e-6, step->milliseconds);
}

static enum status profile_measure(struct profile *profile, struct error *err)
{
    const struct session_info *info = session_info(profile->session);
    TRY(session_profile(profile->session, profile->batch, PROFILE_RUNS, &profile->steps,
                        &profile->count, err));
    for (size_t i = 0; i < profile->count; i++) {
        const struct session_step *step = &profile->steps[i];
        struct peak *peak = &profile->peaks[step->precision];
        if (step->gflop > 0 && !peak->instructions)
            *peak = peak_measure(info->device, step->precision, info->threads);
        profile->has_work[step->precision] |= step->gflop > 0;
        profile->total.milliseconds += step->milliseconds;
        profile->total.gflop += step->gflop;
        profile->total.bytes += step->bytes;
        profile->least_ms += of_peak(profile, step) * step->milliseconds;
    }
    struct peak *whole = &profile->peaks[info->precision];
    if (!whole->instructions)
        *whole = peak_measure(info->device, info->precision, info->threads);
    return STATUS_OK;
}

static int profile_slowest_first(const void *a, const void *b)
{
    double x = ((const struct session_step *)a)->milliseconds;
    double y = ((const struct session_step *)b)->milliseconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void print_layer(const struct profile *profile, const struct session_step *layer)
{
    printf("%9.3f %6.1f %9.3f %9.1f", layer->milliseconds,
           per(layer->milliseconds, profile->total.milliseconds) * 100, layer->gflop,
           gflops_of(layer));
    if (of_peak(profile, layer) > 0)
        printf(" %7.1f", of_peak(profile, layer) * 100);
    else
        printf(" %7s", "-");
    printf(" %7.1f  %-28.28s %s\n", gb_per_s(layer), layer->kernel ? layer->kernel : "",
           layer->name ? layer->name : "total");
}

/* Returns a note about Winograd layers, or NULL. The work of a layer is counted from its
 * definition, not from its kernel, so that kernels can be compared. So a kernel that needs fewer
 * operations may exceed the machine's peak. */
static const char *note_of(const struct profile *profile)
{
    for (size_t i = 0; i < profile->count; i++)
        if (profile->steps[i].kernel && !strncmp(profile->steps[i].kernel, "winograd", 8))
            return "winograd layers are counted as plain convolutions, but do about a quarter of "
                   "the multiplications, so they may exceed 100 % of the peak";
    return NULL;
}

/* Prints the time of the fastest pass with and without timing the layers, and a note if the times
 * differ much. */
static void profile_print_times(const struct profile *profile)
{
    const double with = profile->total.milliseconds, without = profile->batch_ms;
    printf(
        "layers      %.3f ms: the quickest of %d passes that time each layer (the table below)\n",
        with, PROFILE_RUNS);
    if (without <= 0)
        return;
    printf("batch       %.3f ms: the quickest pass before that, without timing the layers\n",
           without);
    if (with > DISTURBED * without || without > DISTURBED * with)
        printf("            they differ much: other work kept the machine busy, or the model is so "
               "small that timing the layers takes long\n");
}

static void profile_print_table(const struct profile *profile)
{
    const struct session_info *info = session_info(profile->session);
    printf("%s on %s, %d thread%s, batch %d\n", profile->model->name, DEVICE_STRING(info->device),
           info->threads, info->threads == 1 ? "" : "s", profile->batch);
    printf("precision   %s (%s)\n", precision_name(info->precision), profile->choice.why);
    profile_print_times(profile);
    for (int p = 0; p < PRECISION_COUNT; p++)
        if (profile->peaks[p].gflops > 0)
            printf("peak        %.0f GFLOP/s in %s, measured (%s)\n", profile->peaks[p].gflops,
                   precision_name((enum precision)p), profile->peaks[p].instructions);
    printf("\n%9s %6s %9s %9s %7s %7s  %-28s %s\n", "ms", "%", "GFLOP", "GFLOP/s", "% peak", "GB/s",
           "kernel", "layer");
    for (size_t i = 0; i < profile->count; i++)
        print_layer(profile, &profile->steps[i]);
    print_layer(profile, &profile->total);
    printf("\n");
    if (note_of(profile))
        printf("%s\n", note_of(profile));
}

static void write_layer(struct writer *w, json_node *entry, const struct profile *profile,
                        const struct session_step *layer)
{
    const bool has_peak = layer->name && profile->has_work[layer->precision] &&
                          profile->peaks[layer->precision].gflops > 0;
    write_members(w, entry,
                  "name=%s kernel=%s precision=%s ms=%g share=%.3f gflop=%g gflops=%g "
                  "of_peak?=%.3f gb_per_s=%g",
                  layer->name, layer->kernel, has_peak ? precision_name(layer->precision) : NULL,
                  layer->milliseconds, per(layer->milliseconds, profile->total.milliseconds),
                  layer->gflop, gflops_of(layer), of_peak(profile, layer), gb_per_s(layer));
}

/* {"model","device","precision","precision_why","threads","batch","batch_ms","peak":{
 * "gflops","instructions"},"total":{…},"layers":[{"name","kernel","precision"?,"ms","share","gflop",
 * "gflops","of_peak"?,"gb_per_s"}…],"note"?} */
static int print_profile_json(const struct profile *profile)
{
    const struct session_info *info = session_info(profile->session);
    struct writer w = {.root = write_root()};
    write_members(&w, w.root,
                  "model=%s device=%s precision=%s precision_why=%s threads=%d batch=%d "
                  "batch_ms=%.3f peak{gflops=%.3f instructions=%s}",
                  profile->model->name, DEVICE_STRING(info->device),
                  precision_name(info->precision), profile->choice.why, info->threads,
                  profile->batch, profile->batch_ms, profile->peaks[info->precision].gflops,
                  profile->peaks[info->precision].instructions);
    write_layer(&w, write_object(&w, w.root, "total"), profile, &profile->total);
    json_node *layers = write_array(&w, w.root, "layers");
    for (size_t i = 0; i < profile->count; i++)
        write_layer(&w, write_object(&w, layers, NULL), profile, &profile->steps[i]);
    write_members(&w, w.root, "note=%s", note_of(profile));
    return print_json(write_finish(&w));
}

int command_profile(const struct config *config)
{
    struct profile profile = {.model = NULL};
    struct error err;
    int result = 0;
    enum status status = profile_open_session(config, &profile, &err);
    if (status == STATUS_OK) {
        settle_batch(config, &profile);
        status = profile_measure(&profile, &err);
    }
    if (status == STATUS_OK && config->profile_by_time)
        qsort(profile.steps, profile.count, sizeof *profile.steps, profile_slowest_first);
    if (status != STATUS_OK)
        result = process_failed(&err);
    else if (config->json)
        result = print_profile_json(&profile);
    else
        profile_print_table(&profile);
    free(profile.steps);
    session_free(profile.session);
    model_free(profile.model);
    return result;
}
