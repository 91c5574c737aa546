/* Milliseconds per image of what happens before a model: decode (whole, and of what the crop keeps,
 * beside libjpeg-turbo's own full
 * decode of the same bytes to RGB) and preprocess (short side 256, crop 224) to float32, bfloat16
 * and uint8, and the first two again as with --fast-decode where that changes something, on one
 * thread.
 *
 *     bench_image [-n ROUNDS] [-k plain|avx2] FILE...
 *
 * Each number is the best and the median over the rounds, the decoders taking turns within a
 * round so that a slow moment of the machine hits both. */
#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>

#include "models/folder/preprocess.h"
#include "server/image/image.h"
#include "server/image/resample.h"
#include "server/image/transform.h"

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static uint8_t *read_file(const char *path, size_t *ret_size)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return NULL;
    }
    uint8_t *data = NULL;
    long size = -1;
    if (fseek(file, 0, SEEK_END) == 0)
        size = ftell(file);
    if (size > 0 && fseek(file, 0, SEEK_SET) == 0)
        data = malloc((size_t)size);
    if (data && fread(data, 1, (size_t)size, file) != (size_t)size) {
        free(data);
        data = NULL;
    }
    if (!data)
        fprintf(stderr, "%s: cannot be read, or is empty\n", path);
    fclose(file);
    *ret_size = data ? (size_t)size : 0;
    return data;
}

/* The shortest program that decodes a JPEG with libjpeg-turbo into memory that is there already. */
static void plain_decode(const uint8_t *data, size_t size, uint8_t *pixels)
{
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    cinfo.err = jpeg_std_error(&errors); /* a file image_decode accepted does not fail here */
    jpeg_create_decompress(&cinfo);
    jpeg_mem_src(&cinfo, data, size);
    (void)jpeg_read_header(&cinfo, TRUE);
    cinfo.out_color_space = JCS_RGB;
    jpeg_start_decompress(&cinfo);
    const size_t stride = (size_t)cinfo.output_width * 3;
    while (cinfo.output_scanline < cinfo.output_height) {
        JSAMPROW row = pixels + stride * cinfo.output_scanline;
        jpeg_read_scanlines(&cinfo, &row, 1);
    }
    jpeg_finish_decompress(&cinfo);
    jpeg_destroy_decompress(&cinfo);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *name, double *times, int rounds)
{
    qsort(times, (size_t)rounds, sizeof *times, ascending);
    printf("    %-24s %8.3f ms best  %8.3f ms median\n", name, times[0], times[rounds / 2]);
}

enum { DECODE, PART, PLAIN, PREPROCESS, FAST_DECODE, FAST_PREPROCESS, STAGES };

struct bench {
    struct image_decoder *decoder;
    struct transform *transform;
    struct preprocess preprocess;
    float *dst;
    int rounds;
    double *times[STAGES];
};

static bool bench_file(struct bench *bench, const char *path)
{
    size_t size;
    uint8_t *data = read_file(path, &size);
    if (!data)
        return false;
    const struct image_limits limits = IMAGE_LIMITS_DEFAULT;
    struct image image;
    struct error err;
    uint8_t *pixels = NULL;
    bool done =
        image_decode(bench->decoder, data, size, &limits, NULL, false, &image, &err) == STATUS_OK;
    if (done)
        pixels = malloc((size_t)image.width * image.height * 3);
    /* libjpeg alone does not turn ink into RGB. */
    const bool plain = pixels && image.info.format == IMAGE_JPEG;
    for (int round = 0; done && pixels && round < bench->rounds; round++) {
        double begin = now_ms();
        done = image_decode(bench->decoder, data, size, &limits, NULL, false, &image, &err) ==
               STATUS_OK;
        double whole = now_ms();
        done = done && image_decode(bench->decoder, data, size, &limits, &bench->preprocess, false,
                                    &image, &err) == STATUS_OK;
        double decoded = now_ms();
        if (plain)
            plain_decode(data, size, pixels);
        double plain_decoded = now_ms();
        done = done && transform_numbers(bench->transform, &image, &bench->preprocess, bench->dst,
                                         &err) == STATUS_OK;
        bench->times[DECODE][round] = whole - begin;
        bench->times[PART][round] = decoded - whole;
        bench->times[PLAIN][round] = plain_decoded - decoded;
        double prepared = now_ms();
        bench->times[PREPROCESS][round] = prepared - plain_decoded;
        done = done && image_decode(bench->decoder, data, size, &limits, &bench->preprocess, true,
                                    &image, &err) == STATUS_OK;
        double reduced = now_ms();
        done = done && transform_numbers(bench->transform, &image, &bench->preprocess, bench->dst,
                                         &err) == STATUS_OK;
        bench->times[FAST_DECODE][round] = reduced - prepared;
        bench->times[FAST_PREPROCESS][round] = now_ms() - reduced;
    }
    if (done && pixels) {
        printf("%s: %u x %u, %zu bytes\n", path, image.info.width, image.info.height, size);
        print_times("decode", bench->times[DECODE], bench->rounds);
        print_times("  of what is kept", bench->times[PART], bench->rounds);
        if (plain)
            print_times("libjpeg-turbo alone", bench->times[PLAIN], bench->rounds);
        print_times("preprocess", bench->times[PREPROCESS], bench->rounds);
        if (image.width < image.info.width) {
            print_times("fast decode", bench->times[FAST_DECODE], bench->rounds);
            print_times("fast preprocess", bench->times[FAST_PREPROCESS], bench->rounds);
        }
    } else if (!done) {
        fprintf(stderr, "%s: %s\n", path, err.message);
    }
    free(pixels);
    free(data);
    return done;
}

static const struct resample_kernels *find_kernels(const char *name)
{
    for (int i = 0; resample_kernels_at(i); i++)
        if (strcmp(resample_kernels_at(i)->name, name) == 0)
            return resample_kernels_at(i);
    fprintf(stderr, "-k %s: this machine has no such kernels\n", name);
    return NULL;
}

int main(int argc, char **argv)
{
    int first = 1;
    long rounds = 200;
    const struct resample_kernels *kernels = resample_kernels_pick();
    for (; first + 1 < argc && argv[first][0] == '-'; first += 2) {
        if (strcmp(argv[first], "-n") == 0) {
            char *end;
            rounds = strtol(argv[first + 1], &end, 10);
            if (*end || rounds < 1 || rounds > 100000) {
                fprintf(stderr, "-n %s: must be a number of rounds, 1 … 100000\n", argv[first + 1]);
                return 2;
            }
        } else if (strcmp(argv[first], "-k") == 0) {
            kernels = find_kernels(argv[first + 1]);
            if (!kernels)
                return 2;
        } else {
            break;
        }
    }
    if (first >= argc || argv[first][0] == '-') {
        fprintf(stderr, "usage: bench_image [-n ROUNDS] [-k plain|avx2] FILE...\n");
        return 2;
    }
    struct bench bench = {.decoder = image_decoder_create(NULL),
                          .transform = transform_create(),
                          .rounds = (int)rounds};
    preprocess_default(&bench.preprocess);
    bench.dst = calloc((size_t)bench.preprocess.width * (size_t)bench.preprocess.height * 3,
                       sizeof *bench.dst);
    bool done = bench.decoder && bench.transform && bench.dst;
    for (int i = 0; i < STAGES; i++) {
        bench.times[i] = calloc((size_t)rounds, sizeof **bench.times);
        done = done && bench.times[i];
    }
    if (done)
        transform_use_kernels(bench.transform, kernels);
    if (done)
        printf("kernels: %s\n", kernels->name);
    for (int i = first; done && i < argc; i++)
        done = bench_file(&bench, argv[i]);
    for (int i = 0; i < STAGES; i++)
        free(bench.times[i]);
    free(bench.dst);
    transform_free(bench.transform);
    image_decoder_free(bench.decoder);
    return done ? 0 : 1;
}
