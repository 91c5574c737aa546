/* Prepares photos for a model and prints the numbers. check_photos.py compares them with
 * frameworks.
 *
 *     lensd_prepare CONFIG WIDTH HEIGHT PHOTO…
 *
 * CONFIG is a preprocessor_config.json, or the text of an Ultralytics file's imgsz ("[640, 640]").
 * WIDTH and HEIGHT are the model's; 0 where it does not fix them. For each photo a line "WIDTH
 * HEIGHT CHANNELS" goes to standard output, then float32 numbers by row, column and channel. Exits
 * 1 with a sentence on standard error, where remarks on CONFIG go, too. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"
#include "models/folder/preprocess_config.h"
#include "server/image/transform.h"

enum { FILE_MAX = 64 << 20 };

static enum status read_whole(const char *path, char **ret, size_t *ret_size, struct error *err)
{
    FILE *file = fopen(path, "rb");
    char *data = file ? calloc(1, FILE_MAX + 1) : NULL;
    *ret_size = data ? fread(data, 1, FILE_MAX, file) : 0;
    if (file)
        (void)fclose(file);
    *ret = data;
    return data ? STATUS_OK : error_set(err, STATUS_IO, "%s cannot be read", path);
}

static enum status read_config(const char *config, struct preprocess *ret, struct error *err)
{
    char *text;
    size_t size;
    if (*config == '[')
        return preprocess_from_metadata(config, "detect", ret, err);
    TRY(read_whole(config, &text, &size, err));
    char remarks[PREPROCESS_REMARKS] = "";
    cJSON *json = NULL;
    enum status status = json_parse(text, size, &json, err);
    IF_OK(status, preprocess_from_huggingface(json, ret, remarks, err));
    cJSON_Delete(json);
    if (*remarks)
        fprintf(stderr, "%s\n", remarks);
    free(text);
    return status;
}

static enum status prepare(const char *path, const struct preprocess *p, struct error *err)
{
    const struct image_limits limits = {0};
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct transform *transform = transform_create();
    const size_t count = (size_t)p->width * (size_t)p->height * (size_t)preprocess_channels(p);
    float *numbers = alloc_array(count, sizeof *numbers);
    struct image image;
    char *data = NULL;
    size_t size = 0;
    enum status status = error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (decoder && transform && numbers)
        status = read_whole(path, &data, &size, err);
    if (status == STATUS_OK)
        status = image_decode(decoder, (uint8_t *)data, size, &limits, p, false, &image, err);
    if (status == STATUS_OK)
        status = transform_numbers(transform, &image, p, numbers, err);
    if (status == STATUS_OK) {
        printf("%d %d %d\n", p->width, p->height, preprocess_channels(p));
        (void)fwrite(numbers, sizeof *numbers, count, stdout);
    }
    free(data);
    free(numbers);
    transform_free(transform);
    image_decoder_free(decoder);
    return status;
}

int main(int argc, char **argv)
{
    struct preprocess p;
    struct error err = {0};
    if (argc < 5) {
        fprintf(stderr, "usage: %s CONFIG WIDTH HEIGHT PHOTO...\n", argv[0]);
        return 1;
    }
    const int width = (int)strtol(argv[2], NULL, 10), height = (int)strtol(argv[3], NULL, 10);
    enum status status = read_config(argv[1], &p, &err);
    if (status == STATUS_OK && width && height)
        (void)preprocess_fit(&p, width, height);
    if (status == STATUS_OK)
        status = preprocess_check(&p, &err);
    for (int i = 4; i < argc && status == STATUS_OK; i++)
        status = prepare(argv[i], &p, &err);
    if (status != STATUS_OK)
        fprintf(stderr, "%s: %s\n", argv[1], err.message);
    return status == STATUS_OK ? 0 : 1;
}
