/* What it is worth that a layer's parts are shared out while it runs
 * (engine/cpu/program/parallel.h): passes with that and with an even split take turns in one
 * process, beside processes that burn time.
 *
 *     bench_split [--disturb N] [--batch B] [--runs R] [--threads T] MODEL...
 *
 * Milliseconds: the least, the median and the 90th percentile of a pass, and its CPU time (lower
 * quartile). The ratios are even : shared, above 1 where sharing is quicker. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/cpu/program/parallel.h"
#include "engine/runtime/session.h"
#include "models/folder/model.h"

enum { RUNS_MOST = 1000, DISTURBERS = 16 };

static int disturbers, batch = 1, runs = 40, threads;

/* Of all threads: what other processes do is not in it, waiting awake is. */
static int64_t cpu_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum status measure(struct session *session, struct error *err)
{
    static double times[2][RUNS_MOST], work[2][RUNS_MOST];
    const size_t images = (size_t)session_batch_for(session, batch);
    const struct session_tensor *input = session_input(session, 0);
    size_t count, bytes;
    TRY(shape_check(&input->shape, input->dtype, &count, &bytes, err));
    const struct tensor **outputs =
        alloc_array(session_output_count(session), sizeof(struct tensor *));
    float *values = aligned_alloc(TENSOR_ALIGN, size_align(bytes * images, TENSOR_ALIGN));
    enum status status = outputs && values ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "memory");
    for (size_t i = 0; status == STATUS_OK && i < count * images; i++)
        values[i] = (float)(i * 2654435761u % 1000) * 0.002f - 1;
    for (int run = -3; status == STATUS_OK && run < runs; run++)
        for (int even = 0; even < 2 && status == STATUS_OK; even++) {
            const void *inputs[1] = {values};
            parallel_is_even = (even ^ run) & 1;
            const int64_t start = clock_now(), before = cpu_time();
            status = session_run(session, batch, inputs, outputs, err);
            if (run < 0)
                continue;
            times[parallel_is_even][run] = clock_ms(clock_now() - start);
            work[parallel_is_even][run] = clock_ms(cpu_time() - before);
        }
    free(values);
    free(outputs);
    TRY(status);
    for (int even = 0; even < 2; even++) {
        qsort(times[even], (size_t)runs, sizeof(double), by_size);
        qsort(work[even], (size_t)runs, sizeof(double), by_size);
        printf("%8.2f %8.2f %8.2f %8.2f ", times[even][0], times[even][runs / 2],
               times[even][runs * 9 / 10], work[even][runs / 4]);
    }
    printf("%7.3f %7.3f %7.3f\n", times[1][0] / times[0][0],
           times[1][runs / 2] / times[0][runs / 2], work[1][runs / 4] / work[0][runs / 4]);
    return STATUS_OK;
}

static enum status run_model(const char *path, struct error *err)
{
    struct model *model = NULL;
    struct session *session = NULL;
    TRY(model_load(path, NULL, NULL, &model, err));
    const struct session_options options = {.threads = threads,
                                            .max_batch = batch,
                                            .image_input = model->image_input,
                                            .image_layout = IMAGE_NHWC_F32,
                                            .image_channels_last = model->input_channels_last,
                                            .image_height = model->preprocess.height,
                                            .image_width = model->preprocess.width};
    enum status status = session_create(model->graph, &options, &session, err);
    pid_t busy[DISTURBERS];
    int started = 0;
    for (; status == STATUS_OK && started < disturbers; started++) {
        busy[started] = fork();
        if (busy[started] < 0)
            break;
        if (busy[started] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                __asm__ volatile("");
        }
    }
    const char *name = strrchr(path, '/');
    printf("%-20s %5d %5d ", name ? name + 1 : path, batch, started);
    if (status == STATUS_OK)
        status = measure(session, err);
    for (int i = 0; i < started; i++) {
        kill(busy[i], SIGKILL);
        waitpid(busy[i], NULL, 0);
    }
    session_free(session);
    model_free(model);
    return status;
}

int main(int argc, char **argv)
{
    struct {
        const char *name;
        int *value, most;
    } options[] = {{"--disturb", &disturbers, DISTURBERS},
                   {"--batch", &batch, 256},
                   {"--runs", &runs, RUNS_MOST},
                   {"--threads", &threads, PARALLEL_SHARES}};
    struct error err;
    printf("%-20s %5s %5s %8s %8s %8s %8s %8s %8s %8s %8s %7s %7s %7s\n", "model", "batch", "busy",
           "shared", "median", "p90", "CPU", "even", "median", "p90", "CPU", "least", "median",
           "CPU");
    for (int i = 1; i < argc; i++) {
        size_t o = 0;
        while (o < COUNT_OF(options) && strcmp(argv[i], options[o].name) != 0)
            o++;
        if (o < COUNT_OF(options)) {
            const long value = i + 1 < argc ? strtol(argv[++i], NULL, 10) : -1;
            if (value < 0 || value > options[o].most) {
                fprintf(stderr, "%s takes a number of at most %d\n", options[o].name,
                        options[o].most);
                return 2;
            }
            *options[o].value = (int)value;
        } else if (run_model(argv[i], &err) != STATUS_OK) {
            fprintf(stderr, "%s: %s\n", argv[i], err.message);
            return 1;
        }
        fflush(stdout);
    }
    return 0;
}
