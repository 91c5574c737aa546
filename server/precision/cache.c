/* Choices of earlier starts: one small text file a choice, named by its key.
 *
 *     lensd precision 3
 *     precision bf16
 *     from_folder 0
 *     trial bf16 passed 21.4 19.1 44.8 41.9 2.15 1 1 64 30 30 0.0009 0.0031 0.99992
 *     end
 *
 * Whoever can write the folder decides which of two correct precisions is used, nothing more; a
 * file that does not read exactly like this is as good as none. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "lensd_version.h"
#include "server/observe/log.h"
#include "server/precision/internal.h"

#define CACHE_FORMAT   3
#define CACHE_FILE_MAX 8192

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
    const int64_t facts[] = {(int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec,
                             (int64_t)info.st_mtim.tv_nsec};
    graph_hash_bytes(hash, facts, sizeof facts);
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
    const int32_t sizes[] = {(int32_t)p->resize, (int32_t)p->resample, p->resize_short,
                             p->resize_width,    p->resize_height,     p->width,
                             p->height,          (int32_t)p->channels, p->pad_value,
                             (int32_t)p->invert};
    graph_hash_bytes(hash, sizes, sizeof sizes);
    graph_hash_bytes(hash, &p->scale, sizeof p->scale);
    graph_hash_bytes(hash, p->mean, sizeof p->mean);
    graph_hash_bytes(hash, p->std, sizeof p->std);
}

/* Which CPU, and which lensd: a build that differs has other kernels, whatever its version says. */
static void hash_machine(struct graph_hash *hash)
{
    char name[96];
    struct stat self;
    cpu_model_name(name, sizeof name);
    hash_text(hash, name);
    graph_hash_bytes(hash, cpu_features(), sizeof *cpu_features());
    hash_text(hash, LENSD_VERSION);
    if (stat("/proc/self/exe", &self) == 0) {
        const int64_t facts[] = {(int64_t)self.st_size, (int64_t)self.st_mtim.tv_sec};
        graph_hash_bytes(hash, facts, sizeof facts);
    }
}

struct choice_key choice_key_of_hash(const struct graph_hash *hash)
{
    struct choice_key key;
    snprintf(key.text, sizeof key.text, "%016" PRIx64 "%016" PRIx64, hash->words[0],
             hash->words[1]);
    return key;
}

struct choice_key choice_key_of_machine(void)
{
    struct graph_hash hash = {{0, 0}};
    hash_machine(&hash);
    return choice_key_of_hash(&hash);
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

struct choice_key choice_key_of(const struct model *model, const struct session_options *options)
{
    struct graph_hash hash = {{0, 0}};
    const int32_t numbers[] = {
        (int32_t)options->device.kind, options->device.index, options->threads,
        device_cpu_threads(),          options->max_batch,    PRECISION_PROBES};
    graph_hash(&hash, model->graph);
    hash_preparation(&hash, &model->preprocess);
    hash_calibration(&hash, model->calibration);
    hash_machine(&hash);
    graph_hash_bytes(&hash, numbers, sizeof numbers);
    hash_device(&hash, options->device);
    return choice_key_of_hash(&hash);
}

/* ---- the folder ---- */

static char *path_of(const char *folder, const struct choice_key *key)
{
    char *path;
    return asprintf(&path, "%s/precision-%s", folder, key->text) < 0 ? NULL : path;
}

/* Makes the folder and those above it, as far as they are missing. */
static bool make_folder(const char *folder)
{
    char *path = strdup(folder);
    bool made = path != NULL;
    for (char *p = path; made && *p; p++) {
        if (p[1] != '/' && p[1] != '\0')
            continue;
        const char kept = p[1];
        p[1] = '\0';
        made = mkdir(path, 0700) == 0 || errno == EEXIST || errno == EISDIR;
        p[1] = kept;
    }
    free(path);
    return made;
}

static atomic_flag is_said = ATOMIC_FLAG_INIT;

void choice_say_lost(const char *why)
{
    char text[600];
    if (atomic_flag_test_and_set(&is_said))
        return;
    snprintf(
        text, sizeof text,
        "the choice of a precision is not kept, so every start repeats its trials: %s; --cache "
        "names another folder, or none",
        why);
    log_event(LOG_WARN, "cache", LOG_STR("text", text));
}

/* May something be made in the folder? Asked by doing so: of /proc and the like access() says yes
 * to root. 0, or why not. */
static int try_folder(const char *folder)
{
    char *probe = NULL;
    int cause = 0;
    if (asprintf(&probe, "%s/.lensd-XXXXXX", folder) < 0)
        return ENOMEM;
    if (!mkdtemp(probe))
        cause = errno;
    else
        (void)rmdir(probe);
    free(probe);
    return cause;
}

void precision_check_cache(const char *cache, char *warning, size_t size)
{
    struct stat info;
    char *folder = tuning_folder(cache);
    char *path = folder ? strdup(folder) : NULL;
    int cause = 0;
    warning[0] = '\0';
    const char *at = path; /* the folder, or the nearest above it that is there */
    while (at && stat(at, &info) != 0 && !cause) {
        char *slash = at == path ? strrchr(path, '/') : NULL;
        if (errno != ENOENT || at != path || !path[0])
            cause = errno;
        else if (!slash)
            at = ".";
        else if (slash == path)
            at = "/";
        else
            *slash = '\0';
    }
    if (at && !cause && !S_ISDIR(info.st_mode))
        cause = ENOTDIR;
    if (at && !cause)
        cause = try_folder(at);
    if (cause) {
        (void)atomic_flag_test_and_set(&is_said); /* by whoever asked */
        snprintf(warning, size,
                 "nothing can be kept in --cache '%.200s' (%s), so every start repeats its trials; "
                 "name a folder that may be written to, or none",
                 folder, strerror(cause));
    }
    free(path);
    free(folder);
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
    for (int o = TRIAL_PASSED; o <= TRIAL_FAILED; o++)
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
    int vector, classifier, end = 0;
    struct precision_trial trial = {.precision = PRECISION_FP32};
    struct agreement *a = &trial.agreement;
    if (choice->trial_count == PRECISION_TRIALS ||
        /* NOLINTNEXTLINE(cert-err34-c): a number out of range fails is_sane() */
        sscanf(line, "trial %15s %15s %lf %lf %lf %lf %lf %d %d %d %zu %zu %lf %lf %lf%n",
               precision, outcome, &trial.one_ms, &trial.image_ms, &trial.fp32_one_ms,
               &trial.fp32_image_ms, &trial.speed, &vector, &classifier, &a->images, &a->clear,
               &a->agreeing, &a->mean, &a->greatest, &a->correlation, &end) != 15 ||
        line[end] != '\0' || !read_precision(precision, &trial.precision) ||
        !read_outcome(outcome, &trial.outcome) || !is_sane(&trial))
        return false;
    a->is_vector = vector != 0;
    a->is_classifier = classifier != 0;
    choice->trials[choice->trial_count++] = trial;
    return true;
}

/* The precision that was chosen is fp32 or one whose trial passed. */
static bool is_believable(const struct precision_choice *choice)
{
    if (choice->precision == PRECISION_FP32)
        return true;
    const struct precision_trial *trial = precision_chosen_trial(choice);
    return trial && trial->agreement.images >= PRECISION_OWN_PROBES;
}

static bool parse(char *text, struct precision_choice *ret)
{
    struct precision_choice choice = {.origin = CHOICE_CACHED};
    char first[64], word[16], *rest = text;
    const char *line;
    bool named = false;
    snprintf(first, sizeof first, "lensd precision %d", CACHE_FORMAT);
    if (!(line = strsep(&rest, "\n")) || strcmp(line, first) != 0)
        return false;
    while ((line = strsep(&rest, "\n")) && strcmp(line, "end") != 0) {
        int end = 0;
        if (sscanf(line, "precision %15s%n", word, &end) == 1 && !line[end])
            named = read_precision(word, &choice.precision);
        /* NOLINTNEXTLINE(cert-err34-c): the range is checked below */
        else if (sscanf(line, "from_folder %d%n", &choice.from_folder, &end) == 1 && !line[end])
            continue;
        else if (!read_trial(line, &choice))
            return false;
    }
    if (!line || !named || choice.from_folder < 0 || choice.from_folder > PROBES_FROM_FOLDER ||
        !is_believable(&choice))
        return false;
    *ret = choice;
    return true;
}

char *choice_read(const char *path, size_t most)
{
    struct stat info;
    /* without waiting for whom a FIFO would wait for */
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
    FILE *file =
        fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && (uintmax_t)info.st_size <= most
            ? fdopen(fd, "rb")
            : NULL;
    if (!file) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    char *text = malloc(most + 1);
    const size_t size = text ? fread(text, 1, most, file) : 0;
    const bool whole = text && !ferror(file) && fgetc(file) == EOF;
    fclose(file);
    if (whole)
        text[size] = '\0';
    if (whole && strlen(text) == size)
        return text;
    free(text);
    return NULL;
}

bool choice_load(const char *folder, const struct choice_key *key, struct precision_choice *ret)
{
    char *path = path_of(folder, key), *text = choice_read(path, CACHE_FILE_MAX);
    const bool good = text && parse(text, ret);
    free(text);
    free(path);
    return good;
}

/* ---- writing ---- */

static bool print(FILE *file, const void *context)
{
    const struct precision_choice *choice = context;
    bool good = fprintf(file, "lensd precision %d\nprecision %s\nfrom_folder %d\n", CACHE_FORMAT,
                        precision_name(choice->precision), choice->from_folder) > 0;
    for (size_t i = 0; i < choice->trial_count; i++) {
        const struct precision_trial *t = &choice->trials[i];
        const struct agreement *a = &t->agreement;
        good =
            good &&
            fprintf(file, "trial %s %s %.9g %.9g %.9g %.9g %.9g %d %d %d %zu %zu %.9g %.9g %.9g\n",
                    precision_name(t->precision), trial_outcome_name(t->outcome), t->one_ms,
                    t->image_ms, t->fp32_one_ms, t->fp32_image_ms, t->speed, a->is_vector,
                    a->is_classifier, a->images, a->clear, a->agreeing, a->mean, a->greatest,
                    a->correlation) > 0;
    }
    return good && fputs("end\n", file) >= 0;
}

enum status choice_write(const char *folder, const char *path,
                         bool (*write)(FILE *file, const void *context), const void *context,
                         struct error *err)
{
    char *aside = NULL;
    bool saved = path && asprintf(&aside, "%s.XXXXXX", path) >= 0 && make_folder(folder);
    const int fd = saved ? mkostemp(aside, O_CLOEXEC) : -1;
    FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    int cause = errno;
    if (!file && fd >= 0)
        close(fd);
    saved = file && write(file, context);
    if (file) {
        saved = fclose(file) == 0 && saved;
        cause = errno;
    }
    if (saved && rename(aside, path) != 0) {
        cause = errno;
        saved = false;
    }
    if (!saved && fd >= 0)
        unlink(aside);
    free(aside);
    if (saved)
        return STATUS_OK;
    return error_set(err, STATUS_IO, "the folder '%.200s' cannot be written: %s", folder,
                     strerror(cause));
}

enum status choice_save(const char *folder, const struct choice_key *key,
                        const struct precision_choice *choice, struct error *err)
{
    char *path = path_of(folder, key);
    const enum status status = choice_write(folder, path, print, choice, err);
    free(path);
    return status;
}
