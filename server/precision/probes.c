/* Reads calibration images, draws pictures, and prepares both as a client's photo. */
#include "server/precision/internal.h"

#include <stdint.h>
#include <stdlib.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "server/image/transform.h"
#include "server/observe/log.h"

#define FILE_MAX ((size_t)64 << 20)

enum status probes_open(const struct model *model, const struct image_limits *limits,
                        struct probes **ret, struct error *err)
{
    struct probes *probes = calloc(1, sizeof *probes);
    TRY(check_memory(probes, "for probe images", err));
    probes->model = model;
    probes->limits = limits;
    probes->decoder = image_decoder_create(NULL);
    probes->transform = transform_create();
    enum status status =
        probes->decoder && probes->transform
            ? photo_files_add_folder(&probes->files, model->calibration, PROBES_FROM_FOLDER, err)
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
    photo_files_done(&probes->files);
    transform_free(probes->transform);
    image_decoder_free(probes->decoder);
    free(probes);
}

int probes_count(const struct probes *probes)
{
    const int files = (int)probes->files.count;
    return files >= PRECISION_OWN_PROBES ? files : PRECISION_PROBES;
}

const char *probes_file(void *context, size_t i)
{
    const struct probes *probes = context;
    return probes->files.paths[i];
}

enum status probes_read(void *context, size_t i, float *dst, struct error *err)
{
    struct probes *probes = context;
    uint8_t *data = NULL;
    size_t size = 0;
    struct image image;
    TRY(file_read(probes->files.paths[i], FILE_MAX, &data, &size, err));
    enum status status =
        image_decode(probes->decoder, data, size, probes->limits, NULL, false, &image, err);
    free(data);
    TRY(status);
    return transform_numbers(probes->transform, &image, &probes->model->preprocess, dst, err);
}

enum status probes_write(struct probes *probes, int i, float *dst, struct error *err)
{
    if ((size_t)i < probes->files.count) {
        struct error own;
        if (probes_read(probes, (size_t)i, dst, &own) == STATUS_OK)
            return STATUS_OK;
        log_event(LOG_WARN, "calibration image left out", LOG_STR("model", probes->model->name),
                  LOG_STR("file", probes->files.paths[i]), LOG_STR("error", own.message));
    }
    picture_draw((unsigned)i, probes->picture);
    const struct image image = {.info = {.width = PICTURE_SIDE, .height = PICTURE_SIDE},
                                .width = PICTURE_SIDE,
                                .height = PICTURE_SIDE,
                                .stride = (size_t)PICTURE_SIDE * 3,
                                .pixels = probes->picture};
    return transform_numbers(probes->transform, &image, &probes->model->preprocess, dst, err);
}
