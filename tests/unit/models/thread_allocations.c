/* Memory runs out while files are read: the n-th allocation fails, for one n after the other. The
 * result is the right one, or a sentence and STATUS_NO_MEMORY. A plain program. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "models/folder/repository.h"
#include "models/onnx/onnx_write.h"
#include "models/quantize/quantize_model.h"
#include "models/text/tokenizer.h"
#include "tests/fuzz/target.h"
#include "tests/unit/models/failing_memory.h"
#include "tests/unit/tap.h"

#define DATA LENSD_SOURCE_ROOT "/tests/data/"

/* The disk is not waited for: files are written a thousand times. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    (void)fd;
    return 0;
}

/* ---- the sweep ---- */

struct job {
    enum status (*run)(const struct job *job, struct error *err);
    const char *path;
    long all; /* 0: ALL */
};

static enum status run_once(const struct job *job, long n, struct error *err)
{
    *err = (struct error){0};
    atomic_store(&has_failed, false);
    atomic_store(&left, n);
    const enum status status = job->run(job, err);
    atomic_store(&left, LONG_MAX);
    return status;
}

enum { ALL = 256 }; /* Of the allocations after the first ALL a sample fails. */

/* Returns false for what fails without a shortage: it is no job. */
static bool sweep(const struct job *job)
{
    struct error err;
    const long all = job->all ? job->all : ALL;
    if (run_once(job, LONG_MAX, &err) != STATUS_OK)
        return false;
    for (long n = 1;; n += 1 + n / all) {
        const enum status status = run_once(job, n, &err);
        const bool is_right = status == STATUS_OK || (status == STATUS_NO_MEMORY && err.message[0]);
        if (!is_right)
            fprintf(stderr, "%s, allocation %ld: %s: %s\n", job->path, n, status_word(status),
                    err.message);
        CHECK(is_right);
        if (!atomic_load(&has_failed))
            return true;
    }
}

/* With each file or folder in a folder, of which so many are good. */
static void sweep_folder(const char *folder, enum status (*run)(const struct job *, struct error *),
                         size_t good)
{
    char path[PATH_MAX];
    size_t count = 0;
    DIR *dir = opendir(folder);
    CHECK(dir);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        count += sweep(&(struct job){run, path, 0});
    }
    closedir(dir);
    CHECK(count >= good);
}

/* ---- models ---- */

static enum status make_session(const struct graph *graph, struct error *err)
{
    struct session *session;
    const struct session_options options = {.threads = 1, .max_batch = 2, .image_input = SIZE_MAX};
    const enum status status = session_create(graph, &options, &session, err);
    if (status == STATUS_OK)
        session_free(session);
    return status;
}

static enum status write_file(const struct graph *graph, struct error *err)
{
    char path[] = "/tmp/lensd-allocations-XXXXXX";
    const struct onnx_write_options options = {.producer = "test"};
    CHECK(mkdtemp(path));
    char file[sizeof path + 8];
    snprintf(file, sizeof file, "%s/m.onnx", path);
    const enum status status = onnx_write_file(graph, &options, file, err);
    CHECK((unlink(file) == 0) == (status == STATUS_OK));
    CHECK(rmdir(path) == 0);
    return status;
}

static enum status read_onnx(const struct job *job, struct error *err)
{
    static const size_t memory_limit = (size_t)64 << 20;
    struct onnx_model model;
    struct graph *copy = NULL;
    TRY(onnx_load_file(job->path, memory_limit, &model, err));
    enum status status = graph_clone(model.graph, &copy, err);
    onnx_model_done(&model);
    if (status == STATUS_OK)
        graph_free(copy);
    return status;
}

static enum status compile_onnx(const struct job *job, struct error *err)
{
    static const size_t memory_limit = (size_t)64 << 20;
    struct onnx_model model;
    TRY(onnx_load_file(job->path, memory_limit, &model, err));
    const enum status status = make_session(model.graph, err);
    onnx_model_done(&model);
    return status;
}

static enum status write_onnx(const struct job *job, struct error *err)
{
    static const size_t memory_limit = (size_t)64 << 20;
    struct onnx_model model;
    TRY(onnx_load_file(job->path, memory_limit, &model, err));
    const enum status status = write_file(model.graph, err);
    onnx_model_done(&model);
    return status;
}

static enum status list_onnx(const struct job *job, struct error *err)
{
    struct onnx_op_use *uses;
    size_t count;
    TRY(onnx_list_ops(job->path, NULL, 0, &uses, &count, err));
    free(uses);
    return STATUS_OK;
}

static enum status scan_repository(const struct job *job, struct error *err)
{
    struct repository repository = {0}; /* stays so if the scan fails */
    enum status status = repository_scan(job->path, false, &repository, err);
    for (size_t i = 0; status == STATUS_OK && i < repository.count; i++)
        if (repository.models[i].problem.status == STATUS_NO_MEMORY)
            status = error_set(err, STATUS_NO_MEMORY, "%s", repository.models[i].problem.message);
    repository_done(&repository);
    return status;
}

static enum status copy_files(const struct job *job, struct error *err)
{
    char path[] = "/tmp/lensd-allocations-XXXXXX";
    CHECK(mkdtemp(path));
    const enum status status = model_copy_files(job->path, "", path, err);
    model_remove_files(path);
    CHECK(access(path, F_OK) != 0);
    return status;
}

static enum status read_folder(const struct job *job, struct error *err)
{
    static const struct model_limits limits = {.memory = (size_t)64 << 20};
    struct model *model;
    TRY(model_load(job->path, NULL, &limits, &model, err));
    model_free(model);
    return STATUS_OK;
}

static enum status draw_photo(void *context, size_t i, float *dst, struct error *err)
{
    const struct model *model = context;
    const struct preprocess *p = &model->preprocess;
    (void)err;
    for (int k = 0; k < p->height * p->width * preprocess_channels(p); k++)
        dst[k] = (float)((size_t)k * (i + 3) % 17) / 17;
    return STATUS_OK;
}

static const char *photo_name(void *context, size_t i)
{
    (void)context, (void)i;
    return "drawn";
}

static enum status quantize(const struct job *job, struct error *err)
{
    static const struct model_limits limits = {.memory = (size_t)64 << 20};
    struct model *model;
    struct graph *graph;
    struct quantize_report report = {0};
    TRY(model_load(job->path, NULL, &limits, &model, err));
    const struct quantize_options options = {
        .photos = {"", 5, draw_photo, photo_name, model}, .threads = 1, .has_report = true};
    const enum status status = quantize_model(model, &options, &graph, &report, err);
    if (status == STATUS_OK)
        graph_free(graph);
    quantize_report_done(&report);
    model_free(model);
    return status;
}

/* The fuzz target checks what it gets. */
static enum status decode_outputs(const struct job *job, struct error *err)
{
    static uint8_t data[1 << 16];
    FILE *file = fopen(job->path, "rb");
    (void)err;
    if (!file)
        return STATUS_OK;
    const size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    return STATUS_OK;
}

static enum status read_tokenizer(const struct job *job, struct error *err)
{
    static const char text[] = "A photo of two cats, 3.5 m\xc3\xa9tres high \xf0\x9f\x90\x88";
    static const struct encode_options options = {.max_length = 16, .truncate = true};
    struct tokenizer *tokenizer;
    struct token_list list;
    TRY(tokenizer_open((const char *const[]){job->path, NULL}, &tokenizer, err));
    const enum status status =
        tokenizer_encode(tokenizer, text, sizeof text - 1, &options, &list, err);
    if (status == STATUS_OK)
        token_list_done(&list);
    tokenizer_free(tokenizer);
    return status;
}

static void test_onnx_files(void)
{
    sweep_folder(LENSD_SOURCE_ROOT "/tests/fuzz/corpus/onnx", read_onnx, 12);
    sweep_folder(LENSD_SOURCE_ROOT "/tests/fuzz/corpus/onnx", list_onnx, 12);
}

static void test_onnx_files_that_are_written(void)
{
    sweep_folder(LENSD_SOURCE_ROOT "/tests/fuzz/corpus/onnx", write_onnx, 12);
}

static void test_sessions(void)
{
    sweep_folder(LENSD_SOURCE_ROOT "/tests/fuzz/corpus/onnx", compile_onnx, 12);
    sweep_folder(DATA "batches", compile_onnx, 4);
}

static void test_folders(void)
{
    static const struct {
        enum status (*run)(const struct job *job, struct error *err);
        const char *path;
    } jobs[] = {
        {read_folder, "text_models/clip"},
        {read_folder, "text_models/siglip"},
        {read_folder, "text_models/owl"},
        {read_folder, "text_models/grounding"},
        {read_folder, "text_models/sentences"},
        {read_folder, "text_models/world/visual"},
        {read_folder, "lists"},
        {read_folder, "poses"},
        {read_folder, "../../models/digits"},
        {scan_repository, "text_models"},
        {scan_repository, "sam"},
        {copy_files, "text_models/siglip"},
    };
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, DATA "%s", jobs[i].path);
        CHECK(sweep(&(struct job){jobs[i].run, path, 0}));
    }
}

/* Each run takes as long as a hundred of the others. */
static void test_quantizing(void)
{
    CHECK(sweep(&(struct job){quantize, LENSD_SOURCE_ROOT "/models/digits", 8}));
}

static void test_outputs(void)
{
    sweep_folder(LENSD_SOURCE_ROOT "/tests/fuzz/corpus/tasks", decode_outputs, 12);
}

static void test_tokenizers(void)
{
    sweep_folder(DATA "tokenizers", read_tokenizer, 8);
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"ONNX files are read", test_onnx_files},
        {"ONNX files are written", test_onnx_files_that_are_written},
        {"sessions are compiled", test_sessions},
        {"folders of models are read", test_folders},
        {"tokenizers are read, and used", test_tokenizers},
        {"outputs are decoded", test_outputs},
        {"a model is quantized", test_quantizing},
    };
    return tap_run(tests, COUNT_OF(tests), NULL);
}
