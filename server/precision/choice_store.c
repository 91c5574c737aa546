/* Keeps choices of earlier starts in the tuning store (engine/backend/tuning_store.h). Failures
 * only cause a line in the log. The text of a choice:
 *
 *     precision bf16
 *     from_folder 0
 *     why bf16 is 2.15 times as fast as fp32: …
 *
 * A user who writes to the folder can only choose a precision that a trial may choose, too. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/backend/tuning_store.h"
#include "server/observe/log.h"
#include "server/precision/internal.h"

static atomic_flag is_said = ATOMIC_FLAG_INIT;

void cache_read(const char *folder)
{
    struct error err;
    if (folder && tuning_read(folder, &err) != STATUS_OK)
        log_event(LOG_WARN, "cache", LOG_STR("text", err.message));
}

void cache_write(const char *folder)
{
    struct error err;
    char text[600];
    if (!folder || tuning_write(folder, &err) == STATUS_OK || atomic_flag_test_and_set(&is_said))
        return;
    snprintf(text, sizeof text,
             "the measurements cannot be stored, so every start repeats its trials: %s; name "
             "another folder with --cache, or none",
             err.message);
    log_event(LOG_WARN, "cache", LOG_STR("text", text));
}

void precision_check_cache(const char *folder)
{
    struct error err;
    char text[900];
    if (!folder || tuning_try_folder(folder, &err) == STATUS_OK)
        return;
    (void)atomic_flag_test_and_set(&is_said);
    snprintf(text, sizeof text,
             "nothing can be stored in --cache '%.200s' (%s), so every start repeats its trials; "
             "name a folder that lensd may write to, or none",
             folder, err.message);
    log_event(LOG_WARN, "cache", LOG_STR("text", text));
}

static void hash_text(struct graph_hash *hash, const char *text)
{
    graph_hash_bytes(hash, text, strlen(text));
}

/* Hashes size and time, too, because another photo may get the same file name. */
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
    struct photo_files files = {0};
    struct error ignored;
    if (photo_files_add_folder(&files, folder, PROBES_FROM_FOLDER, &ignored) == STATUS_OK)
        for (size_t i = 0; i < files.count; i++)
            hash_file(hash, files.paths[i]);
    photo_files_done(&files);
}

static void hash_preparation(struct graph_hash *hash, const struct preprocess *p)
{
    const int32_t sizes[] = {(int32_t)p->resize, (int32_t)p->resample,    p->resize_short,
                             p->resize_width,    p->resize_height,        p->width,
                             p->height,          (int32_t)p->channels,    p->pad_value,
                             p->pads_normalised, p->pads_corner,          p->sides_floor,
                             (int32_t)p->invert, (int32_t)p->crop_floors, p->pads_square};
    graph_hash_bytes(hash, sizes, sizeof sizes);
    graph_hash_bytes(hash, &p->first_width, sizeof p->first_width);
    graph_hash_bytes(hash, &p->first_height, sizeof p->first_height);
    graph_hash_bytes(hash, &p->scale, sizeof p->scale);
    graph_hash_bytes(hash, p->mean, sizeof p->mean);
    graph_hash_bytes(hash, p->std, sizeof p->std);
}

struct graph_hash choice_key_of(const struct model *model, const struct session_options *options)
{
    struct graph_hash hash = {{0, 0}};
    struct device_info device;
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
    if (options->device.kind != DEVICE_CPU && device_find(options->device, &device)) {
        hash_text(&hash, device.name); /* the same index may now be another GPU */
        hash_text(&hash, device.isa);
    }
    return hash;
}

bool choice_find(const struct graph_hash *key, struct precision_choice *ret)
{
    struct precision_choice choice = {.origin = CHOICE_CACHED};
    char text[TUNING_TEXT], word[16];
    int end = 0, p = 0;
    if (!tuning_find(TUNING_PRECISION, key, text))
        return false;
    /* NOLINTNEXTLINE(cert-err34-c): the range is checked below */
    if (sscanf(text, "precision %15s\nfrom_folder %d\nwhy %n", word, &choice.from_folder, &end) !=
            2 ||
        end == 0 || choice.from_folder < 0 || choice.from_folder > PROBES_FROM_FOLDER)
        return false;
    char *line = text + end, *line_end = strchr(line, '\n');
    if (!line_end || line_end == line || line_end[1] != '\0')
        return false;
    while (p < PRECISION_AUTO && strcmp(word, precision_name((enum precision)p)) != 0)
        p++;
    if (p == PRECISION_AUTO)
        return false;
    choice.precision = (enum precision)p;
    snprintf(choice.why, sizeof choice.why, "%.*s", (int)(line_end - line), line);
    *ret = choice;
    return true;
}

void choice_keep(const struct graph_hash *key, const struct precision_choice *choice)
{
    char text[TUNING_TEXT];
    snprintf(text, sizeof text, "precision %s\nfrom_folder %d\nwhy %s\n",
             precision_name(choice->precision), choice->from_folder, choice->why);
    tuning_keep(TUNING_PRECISION, key, text);
}
