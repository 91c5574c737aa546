/* Reads calibration images, draws pictures, and prepares both as a client's photo. */
#include "server/precision/probes.h"

#include <errno.h>
#include <fts.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "server/image/transform.h"
#include "server/observe/log.h"
#include "server/precision/pictures.h"
#include "server/precision/precision.h"

#define FILE_MAX     ((size_t)64 << 20)
#define FOLDERS_DEEP 16

struct probes {
    const struct model *model;
    const struct image_limits *limits;
    struct image_decoder *decoder;
    struct transform *transform;
    char **files;
    size_t file_count;
    uint8_t *picture; /* PICTURE_SIDE squared, RGB */
};

static bool is_image_name(const char *name)
{
    static const char *const endings[] = {".jpg", ".jpeg", ".png",  ".bmp",  ".gif", ".webp",
                                          ".tif", ".tiff", ".avif", ".heic", ".heif"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < COUNT_OF(endings); i++)
        if (!strcasecmp(dot, endings[i]))
            return true;
    return false;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

/* Names that begin with a dot are left out, with all that lies in a folder of such a name; links to
 * folders are not followed. */
static enum status list_images(FTS *tree, char ***names, size_t *count, struct error *err)
{
    size_t capacity = 0;
    for (FTSENT *entry; (entry = fts_read(tree));) {
        const bool is_hidden = entry->fts_level > 0 && entry->fts_name[0] == '.';
        if (entry->fts_info == FTS_D && (is_hidden || entry->fts_level > FOLDERS_DEEP))
            fts_set(tree, entry, FTS_SKIP);
        if (entry->fts_info == FTS_D || entry->fts_info == FTS_DP || is_hidden ||
            !is_image_name(entry->fts_name))
            continue;
        if (*count == capacity) {
            capacity = capacity * 2 + 64;
            char **bigger = reallocarray(*names, capacity, sizeof **names);
            if (!bigger)
                return error_no_memory(err, "for the names of photos");
            *names = bigger;
        }
        (*names)[*count] = strdup(entry->fts_path);
        if (!(*names)[*count])
            return error_no_memory(err, "for the names of photos");
        ++*count;
    }
    return STATUS_OK;
}

/* Keeps `most` of them, spread evenly: folders of classes come one after the other. */
static size_t thin_out(char **names, size_t count, size_t most)
{
    if (count <= most)
        return count;
    for (size_t i = 0, taken = 0; i < count; i++)
        if (taken < most && i == taken * count / most)
            names[taken++] = names[i];
        else
            free(names[i]);
    return most;
}

enum status probes_list_folder(const char *folder, char ***ret, size_t *ret_count,
                               struct error *err)
{
    char *const roots[] = {(char *)(uintptr_t)folder, NULL};
    char **names = NULL;
    size_t count = 0;
    FTS *tree = folder ? fts_open(roots, FTS_COMFOLLOW | FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    enum status status = STATUS_OK;
    if (tree)
        status = list_images(tree, &names, &count, err);
    else if (folder && errno == ENOMEM)
        status = error_no_memory(err, "for the names of photos");
    if (tree)
        fts_close(tree);
    if (status != STATUS_OK) {
        free_names(names, count);
        return status;
    }
    if (count)
        qsort(names, count, sizeof *names, compare_names);
    *ret = names;
    *ret_count = thin_out(names, count, PROBES_FROM_FOLDER);
    return STATUS_OK;
}

enum status probes_open(const struct model *model, const struct image_limits *limits,
                        struct probes **ret, struct error *err)
{
    struct probes *probes = calloc(1, sizeof *probes);
    if (!probes)
        return error_no_memory(err, "for probe images");
    probes->model = model;
    probes->limits = limits;
    probes->decoder = image_decoder_create();
    probes->transform = transform_create();
    probes->picture = alloc_array((size_t)PICTURE_SIDE * PICTURE_SIDE, 3);
    enum status status =
        probes->decoder && probes->transform && probes->picture
            ? probes_list_folder(model->calibration, &probes->files, &probes->file_count, err)
            : error_no_memory(err, "for probe images");
    if (status != STATUS_OK) {
        probes_free(probes);
        return status;
    }
    *ret = probes;
    return STATUS_OK;
}

void probes_free(struct probes *probes)
{
    if (!probes)
        return;
    free_names(probes->files, probes->file_count);
    free(probes->picture);
    transform_free(probes->transform);
    image_decoder_free(probes->decoder);
    free(probes);
}

int probes_from_folder(const struct probes *probes)
{
    return (int)probes->file_count;
}

int probes_count(const struct probes *probes)
{
    const int files = probes_from_folder(probes);
    return files >= PRECISION_OWN_PROBES ? files : PRECISION_PROBES;
}

const char *probes_file(const struct probes *probes, int i)
{
    return probes->files[i];
}

enum status probes_read(struct probes *probes, int i, float *dst, struct error *err)
{
    uint8_t *data = NULL;
    size_t size = 0;
    struct image image;
    TRY(file_read(probes->files[i], FILE_MAX, &data, &size, err));
    enum status status = image_decode(probes->decoder, data, size, probes->limits, &image, err);
    free(data);
    TRY(status);
    return transform_apply(probes->transform, &image, &probes->model->preprocess, dst, err);
}

enum status probes_write(struct probes *probes, int i, float *dst, struct error *err)
{
    if ((size_t)i < probes->file_count) {
        struct error own;
        if (probes_read(probes, i, dst, &own) == STATUS_OK)
            return STATUS_OK;
        log_event(LOG_WARN, "calibration image left out", LOG_STR("model", probes->model->name),
                  LOG_STR("file", probes->files[i]), LOG_STR("error", own.message));
    }
    picture_draw((unsigned)i, probes->picture);
    const struct image image = {.width = PICTURE_SIDE,
                                .height = PICTURE_SIDE,
                                .stride = (size_t)PICTURE_SIDE * 3,
                                .pixels = probes->picture};
    return transform_apply(probes->transform, &image, &probes->model->preprocess, dst, err);
}
