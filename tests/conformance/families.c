/* Exported model families against PyTorch's own numbers.
 *
 *     lensd_families FOLDER [--bf16]   ($LENSD_FAMILIES wins over FOLDER)
 *
 * FOLDER holds a folder per family as `./dev families` writes it: model.onnx, input.npy (float32
 * [3, 3, H, W]) and logits.npy (what PyTorch computes in float32). Every family is loaded once and
 * run as one batch of three, and image by image, in both input layouts. Logits may differ by 1e-4
 * of the largest one, and the best class must be the same. Prints a line per family; exits 1 when
 * one disagrees, 77 (skipped) when FOLDER has no family. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/runtime/session.h"
#include "models/onnx/onnx.h"

struct array { /* a little-endian float32 .npy, C order */
    float *data;
    size_t count;
    int64_t dims[4];
    int rank;
};

static bool read_npy(const char *path, struct array *ret)
{
    unsigned char head[10];
    char text[512] = "";
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    bool ok = fread(head, 1, 10, file) == 10 && !memcmp(head, "\x93NUMPY\x01", 7);
    size_t length = ok ? head[8] | (size_t)head[9] << 8 : 0;
    ok = ok && length < sizeof text && fread(text, 1, length, file) == length;
    const char *shape = ok ? strstr(text, "'shape': (") : NULL;
    ok = ok && shape && strstr(text, "'<f4'") && strstr(text, "'fortran_order': False");
    ret->count = 1;
    ret->rank = 0;
    for (shape = ok ? shape + 10 : ""; *shape && *shape != ')' && ret->rank < 4;) {
        char *end;
        int64_t dim = strtoll(shape, &end, 10);
        if (end == shape)
            break;
        ret->dims[ret->rank++] = dim;
        ret->count *= (size_t)dim;
        shape = end + strspn(end, ", ");
    }
    ret->data = ok ? malloc(ret->count * sizeof *ret->data + 1) : NULL;
    ok = ret->data && fread(ret->data, sizeof *ret->data, ret->count, file) == ret->count;
    fclose(file);
    return ok;
}

static void to_channels_last(const struct array *nchw, float *nhwc)
{
    size_t channels = (size_t)nchw->dims[1], pixels = (size_t)(nchw->dims[2] * nchw->dims[3]);
    for (size_t n = 0; n < (size_t)nchw->dims[0]; n++)
        for (size_t c = 0; c < channels; c++)
            for (size_t p = 0; p < pixels; p++)
                nhwc[(n * pixels + p) * channels + c] = nchw->data[(n * channels + c) * pixels + p];
}

static size_t best_of(const float *row, size_t classes)
{
    size_t best = 0;
    for (size_t i = 1; i < classes; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

struct verdict {
    double largest; /* greatest logit of all expected rows */
    double worst;   /* greatest difference, over it */
    size_t top1_wrong;
};

static void judge(const struct array *expected, size_t first, size_t rows, const float *got,
                  struct verdict *verdict)
{
    size_t classes = (size_t)expected->dims[1];
    for (size_t r = 0; r < rows; r++) {
        const float *row = expected->data + (first + r) * classes;
        for (size_t i = 0; i < classes; i++) {
            double d = fabs((double)row[i] - (double)got[r * classes + i]) / verdict->largest;
            verdict->worst = d <= verdict->worst ? verdict->worst : d; /* NaN stays */
        }
        verdict->top1_wrong += best_of(row, classes) != best_of(got + r * classes, classes);
    }
}

static enum status run_all(struct session *session, const struct array *input, const float *images,
                           const struct array *logits, struct verdict *verdict, struct error *err)
{
    const struct tensor *outputs[16];
    size_t rows = (size_t)input->dims[0], each = input->count / rows;
    /* the buffer of a padded batch must be as large as the compiled size */
    size_t padded = (size_t)session_batch_for(session, (int)rows);
    float *batch = calloc(padded * each, sizeof *batch);
    if (!batch)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    memcpy(batch, images, input->count * sizeof *batch);
    const void *inputs[1] = {batch};
    enum status status = session_run(session, (int)rows, inputs, outputs, err);
    if (status == STATUS_OK)
        judge(logits, 0, rows, outputs[0]->data, verdict);
    for (size_t i = 0; status == STATUS_OK && i < rows; i++) {
        inputs[0] = images + i * each;
        status = session_run(session, 1, inputs, outputs, err);
        if (status == STATUS_OK)
            judge(logits, i, 1, outputs[0]->data, verdict);
    }
    free(batch);
    return status;
}

static enum status check_family(const char *folder, enum precision precision,
                                struct verdict *verdict, struct error *err)
{
    char path[4352];
    struct array input, logits;
    struct onnx_model model;
    snprintf(path, sizeof path, "%s/input.npy", folder);
    if (!read_npy(path, &input) || input.rank != 4)
        return error_set(err, STATUS_IO, "cannot read %s", path);
    snprintf(path, sizeof path, "%s/logits.npy", folder);
    if (!read_npy(path, &logits) || logits.rank != 2 || logits.dims[0] != input.dims[0])
        return error_set(err, STATUS_IO, "cannot read %s", path);
    verdict->largest = 1e-9;
    for (size_t i = 0; i < logits.count; i++)
        verdict->largest = fmax(verdict->largest, fabs((double)logits.data[i]));
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    TRY(onnx_load_file(path, 0, &model, err));
    float *last = malloc(input.count * sizeof *last + 1);
    enum status status = last ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (last)
        to_channels_last(&input, last);
    for (int layout = 0; layout < 2 && status == STATUS_OK; layout++) {
        struct session *session = NULL;
        struct session_options options = {
            .precision = precision,
            .max_batch = (int)input.dims[0],
            .image_layout = layout ? IMAGE_NHWC_F32 : IMAGE_AS_DECLARED,
            .image_height = (int)input.dims[2],
            .image_width = (int)input.dims[3],
        };
        status = session_create(model.graph, &options, &session, err);
        if (status == STATUS_OK && !session_info(session)->batched)
            status = error_set(err, STATUS_SHAPE, "%s", session_info(session)->note);
        if (status == STATUS_OK)
            status = run_all(session, &input, layout ? last : input.data, &logits, verdict, err);
        session_free(session);
    }
    onnx_model_done(&model);
    free(last);
    free(input.data);
    free(logits.data);
    return status;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int main(int argc, char **argv)
{
    bool bf16 = argc > 2 && !strcmp(argv[2], "--bf16");
    const char *root = getenv("LENSD_FAMILIES"); /* wins over the default on the command line */
    if (!root || !*root)
        root = argc > 1 ? argv[1] : NULL;
    struct dirent **entries = NULL;
    int count = root ? scandir(root, &entries, NULL, by_name) : 0;
    int passed = 0, failed = 0;
    for (int i = 0; i < count; i++) {
        char folder[4096], model[4200];
        struct stat info;
        snprintf(folder, sizeof folder, "%.3000s/%.255s", root, entries[i]->d_name);
        snprintf(model, sizeof model, "%s/logits.npy", folder);
        bool family = entries[i]->d_name[0] != '.' && stat(model, &info) == 0;
        free(entries[i]);
        if (!family)
            continue;
        const char *name = strrchr(folder, '/') + 1;
        struct verdict verdict = {0};
        struct error err = {0};
        /* bfloat16 has 8 bits: only a bound on nonsense; random weights are no trained model */
        double tolerance = bf16 ? 0.25 : 1e-4;
        enum status status =
            check_family(folder, bf16 ? PRECISION_BF16 : PRECISION_FP32, &verdict, &err);
        bool ok =
            status == STATUS_OK && verdict.worst <= tolerance && (bf16 || verdict.top1_wrong == 0);
        passed += ok;
        failed += !ok;
        if (status != STATUS_OK)
            printf("FAIL %-24s %s\n", name, err.message);
        else
            printf("%s %-24s greatest difference %.2e of the greatest logit, best class %s\n",
                   ok ? "ok  " : "FAIL", name, verdict.worst,
                   verdict.top1_wrong ? "differs" : "equal");
        fflush(stdout);
    }
    free(entries);
    if (!passed && !failed) {
        printf("skipped: no exported family in %s (./dev families makes them)\n",
               root ? root : "$LENSD_FAMILIES");
        return 77;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
