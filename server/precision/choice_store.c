/* Choices of earlier starts, in the tuning store (engine/backend/tuning_store.h), and the store in
 * the server's words: what fails is a line of the log. The text of a choice:
 *
 *     precision bf16
 *     from_folder 0
 *     trial bf16 passed 21.4 19.1 44.8 41.9 2.15 1 64 30 30 0.0009 0.0031 0.99992
 *
 * Whoever can write the folder decides which of two correct precisions is used, nothing more. */
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/backend/tuning_store.h"
#include "engine/base/size.h"
#include "server/observe/log.h"
#include "server/precision/internal.h"

/* ---- the file ---- */

static atomic_flag is_said = ATOMIC_FLAG_INIT;

void cache_read(const char *option)
{
    struct error err;
    char *folder = tuning_folder(option);
    if (folder && tuning_read(folder, &err) != STATUS_OK)
        log_event(LOG_WARN, "cache", LOG_STR("text", err.message));
    free(folder);
}

void cache_write(const char *option)
{
    struct error err;
    char text[600], *folder = tuning_folder(option);
    const bool failed = folder && tuning_write(folder, &err) != STATUS_OK;
    free(folder);
    if (!failed || atomic_flag_test_and_set(&is_said))
        return;
    snprintf(text, sizeof text,
             "what was measured is not kept, so every start repeats its trials: %s; --cache names "
             "another folder, or none",
             err.message);
    log_event(LOG_WARN, "cache", LOG_STR("text", text));
}

void precision_check_cache(const char *cache, char *warning, size_t size)
{
    struct error err;
    char *folder = tuning_folder(cache);
    warning[0] = '\0';
    if (folder && tuning_try_folder(folder, &err) != STATUS_OK) {
        (void)atomic_flag_test_and_set(&is_said); /* by whoever asked */
        snprintf(warning, size,
                 "nothing can be kept in --cache '%.200s' (%s), so every start repeats its trials; "
                 "name a folder that may be written to, or none",
                 folder, err.message);
    }
    free(folder);
}

/* ---- the key ---- */

static void hash_text(struct graph_hash *hash, const char *text)
{
    graph_hash_bytes(hash, text, strlen(text));
}

/* Another file under the same name is another image. */
static void hash_file(struct graph_hash *hash, const char *path)
{
    struct stat info;
    hash_text(hash, path);
    if (stat(path, &info) != 0)
        return;
    const int64_t stamp[] = {(int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec,
                             (int64_t)info.st_mtim.tv_nsec};
    graph_hash_bytes(hash, stamp, sizeof stamp);
}

static void hash_calibration(struct graph_hash *hash, const char *folder)
{
    char **files;
    size_t count;
    struct error ignored;
    if (probes_list_folder(folder, &files, &count, &ignored) != STATUS_OK)
        return;
    for (size_t i = 0; i < count; i++) {
        hash_file(hash, files[i]);
        free(files[i]);
    }
    free(files);
}

static void hash_preparation(struct graph_hash *hash, const struct preprocess *p)
{
    const int32_t sizes[] = {(int32_t)p->resize, (int32_t)p->resample,   p->resize_short,
                             p->resize_width,    p->resize_height,       p->width,
                             p->height,          (int32_t)p->channels,   p->pad_value,
                             p->pads_normalised, p->pads_corner,         p->sides_floor,
                             (int32_t)p->invert, (int32_t)p->crop_floors};
    graph_hash_bytes(hash, sizes, sizeof sizes);
    graph_hash_bytes(hash, &p->first_width, sizeof p->first_width);
    graph_hash_bytes(hash, &p->first_height, sizeof p->first_height);
    graph_hash_bytes(hash, &p->scale, sizeof p->scale);
    graph_hash_bytes(hash, p->mean, sizeof p->mean);
    graph_hash_bytes(hash, p->std, sizeof p->std);
}

/* Another GPU under the same number. */
static void hash_device(struct graph_hash *hash, struct device_id device)
{
    struct device_info devices[DEVICE_MAX];
    if (device.kind == DEVICE_CPU)
        return;
    const size_t count = device_list(devices, DEVICE_MAX);
    for (size_t i = 0; i < count; i++) {
        if (devices[i].id.kind != device.kind || devices[i].id.index != device.index)
            continue;
        hash_text(hash, devices[i].name);
        hash_text(hash, devices[i].isa);
    }
}

struct graph_hash choice_key_of(const struct model *model, const struct session_options *options)
{
    struct graph_hash hash = {{0, 0}};
    const bool is_cut =
        options->device.kind == DEVICE_CPU && options->max_batch > PRECISION_TRIAL_BATCH;
    const int32_t numbers[] = {is_cut ? PRECISION_TRIAL_BATCH : options->max_batch,
                               (int32_t)options->device.kind,
                               options->device.index,
                               options->threads,
                               device_cpu_threads(),
                               PRECISION_PROBES,
                               (int32_t)model->output,
                               model->labels.count > 0,
                               model->has_probabilities};
    graph_hash(&hash, model->graph);
    hash_preparation(&hash, &model->preprocess);
    hash_calibration(&hash, model->calibration);
    graph_hash_bytes(&hash, numbers, sizeof numbers);
    hash_device(&hash, options->device);
    return hash;
}

/* ---- reading ---- */

static bool read_precision(const char *word, enum precision *ret)
{
    for (int p = 0; p < (int)PRECISION_COUNT; p++)
        if (!strcmp(word, precision_name((enum precision)p))) {
            *ret = (enum precision)p;
            return true;
        }
    return false;
}

static bool read_outcome(const char *word, enum trial_outcome *ret)
{
    for (int o = TRIAL_PASSED; o <= TRIAL_COSTLY; o++)
        if (!strcmp(word, trial_outcome_name((enum trial_outcome)o))) {
            *ret = (enum trial_outcome)o;
            return true;
        }
    return false;
}

static bool is_sane(const struct precision_trial *trial)
{
    const struct agreement *a = &trial->agreement;
    return trial->one_ms >= 0 && trial->image_ms >= 0 && trial->fp32_one_ms >= 0 &&
           trial->fp32_image_ms >= 0 && trial->speed >= 0 && isfinite(trial->speed) &&
           a->images >= 0 && a->agreeing <= a->clear && a->mean >= 0 && a->greatest >= 0 &&
           fabs(a->correlation) < 1.001;
}

static bool read_trial(const char *line, struct precision_choice *choice)
{
    char precision[16], outcome[16];
    int vector, end = 0;
    struct precision_trial trial = {.precision = PRECISION_FP32};
    struct agreement *a = &trial.agreement;
    if (choice->trial_count == PRECISION_TRIALS ||
        /* NOLINTNEXTLINE(cert-err34-c): a number out of range fails is_sane() */
        sscanf(line, "trial %15s %15s %lf %lf %lf %lf %lf %d %d %zu %zu %lf %lf %lf%n", precision,
               outcome, &trial.one_ms, &trial.image_ms, &trial.fp32_one_ms, &trial.fp32_image_ms,
               &trial.speed, &vector, &a->images, &a->clear, &a->agreeing, &a->mean, &a->greatest,
               &a->correlation, &end) != 14 ||
        line[end] != '\0' || !read_precision(precision, &trial.precision) ||
        !read_outcome(outcome, &trial.outcome) || !is_sane(&trial))
        return false;
    a->is_vector = vector != 0;
    choice->trials[choice->trial_count++] = trial;
    return true;
}

/* The precision that was chosen is fp32 or one whose trial passed. */
static bool is_believable(const struct precision_choice *choice)
{
    if (choice->precision == PRECISION_FP32)
        return true;
    const struct precision_trial *trial = precision_chosen_trial(choice);
    return trial && trial->agreement.images >= PRECISION_LEAST_PROBES;
}

static bool choice_parse(char *text, struct precision_choice *ret)
{
    struct precision_choice choice = {.origin = CHOICE_CACHED};
    char word[16], *rest = text;
    const char *line;
    bool named = false;
    while ((line = strsep(&rest, "\n")) && rest) {
        int end = 0;
        if (sscanf(line, "precision %15s%n", word, &end) == 1 && !line[end])
            named = read_precision(word, &choice.precision);
        /* NOLINTNEXTLINE(cert-err34-c): the range is checked below */
        else if (sscanf(line, "from_folder %d%n", &choice.from_folder, &end) == 1 && !line[end])
            continue;
        /* NOLINTNEXTLINE(cert-err34-c): the range is checked below */
        else if (sscanf(line, "calibrated %d%n", &choice.calibrated, &end) == 1 && !line[end])
            continue;
        else if (!read_trial(line, &choice))
            return false;
    }
    if (line[0] || !named || choice.from_folder < 0 || choice.from_folder > PROBES_FROM_FOLDER ||
        choice.calibrated < 0 || choice.calibrated > PROBES_FROM_FOLDER || !is_believable(&choice))
        return false;
    *ret = choice;
    return true;
}

bool choice_find(const struct graph_hash *key, struct precision_choice *ret)
{
    char text[TUNING_TEXT];
    return tuning_find(TUNING_PRECISION, key, text) && choice_parse(text, ret);
}

/* ---- writing ---- */

static bool print(FILE *file, const struct precision_choice *choice)
{
    bool good = fprintf(file, "precision %s\nfrom_folder %d\n", precision_name(choice->precision),
                        choice->from_folder) > 0;
    if (choice->calibrated > 0)
        good = good && fprintf(file, "calibrated %d\n", choice->calibrated) > 0;
    for (size_t i = 0; i < choice->trial_count; i++) {
        const struct precision_trial *t = &choice->trials[i];
        const struct agreement *a = &t->agreement;
        good = good &&
               fprintf(file, "trial %s %s %.9g %.9g %.9g %.9g %.9g %d %d %zu %zu %.9g %.9g %.9g\n",
                       precision_name(t->precision), trial_outcome_name(t->outcome), t->one_ms,
                       t->image_ms, t->fp32_one_ms, t->fp32_image_ms, t->speed, a->is_vector,
                       a->images, a->clear, a->agreeing, a->mean, a->greatest, a->correlation) > 0;
    }
    return good;
}

void choice_keep(const struct graph_hash *key, const struct precision_choice *choice)
{
    char text[TUNING_TEXT] = "";
    FILE *file = fmemopen(text, sizeof text - 1, "w");
    const bool good = file && print(file, choice);
    if (file && fclose(file) == 0 && good)
        tuning_keep(TUNING_PRECISION, key, text);
}
