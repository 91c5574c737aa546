/* Resizes, crops and normalises decoded pixels into a batch's slot.
 *
 * Works through the model's input row by row:
 *
 *     source rows ──horizontal──▶ ring of rows ──vertical──▶ one row ──normalise──▶ slot
 *                   four at once  (kept columns)                                    of the batch
 *
 * The ring has only the rows of one vertical window and of the last group of four, so that it stays
 * in the cache for pictures of every size. Rows and columns outside the crop are not computed.
 * Pillow computes them and cuts them off; the remaining bytes are equal. */
#include "server/image/transform.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "server/image/decode.h"
#include "server/image/frame.h"
#include "server/image/resample.h"
#include "server/image/warp.h"

enum { GROUP = 4, CHANNELS = 3 };

struct transform {
    const struct resample_kernels *kernels;
    struct resample_axis horizontal, vertical;
    struct pixel_buffer ring, line, last_row, window;
};

/* Where finished rows are written: as normalised numbers, or as bytes. */
struct sink {
    uint8_t *dst;
    bool is_normalised;
    enum channel_order channels;
    float table[CHANNELS][256]; /* transform_table() */
};

/* A resize in progress. */
struct resize_job {
    struct transform *transform;
    const struct resample_passes *passes;
    const struct image *image;
    const struct preprocess *preprocess;
    struct crop_frame frame;
    int x0, x1, y0, y1; /* the part of the resized picture to keep */
    int ring_rows;
    size_t ring_stride;
    int next_row; /* the first source row not yet in the ring */
    uint8_t flip;
};

struct transform *transform_create(void)
{
    struct transform *transform = calloc(1, sizeof *transform);
    if (transform)
        transform->kernels = resample_kernels_pick();
    return transform;
}

void transform_free(struct transform *transform)
{
    if (!transform)
        return;
    resample_axis_done(&transform->horizontal);
    resample_axis_done(&transform->vertical);
    pixel_buffer_done(&transform->ring);
    pixel_buffer_done(&transform->line);
    pixel_buffer_done(&transform->last_row);
    pixel_buffer_done(&transform->window);
    free(transform);
}

void transform_use_kernels(struct transform *transform, const struct resample_kernels *kernels)
{
    transform->kernels = kernels;
}

void transform_table(const struct preprocess *p, float table[static 3][256])
{
    const int channels = preprocess_channels(p);
    for (int c = 0; c < channels; c++)
        for (int x = 0; x < 256; x++)
            table[c][x] = ((float)x * p->scale - p->mean[c]) / p->std[c];
}

/* Pillow's convert("L"), ITU-R 601-2 in 16 bit fixed point. */
static uint8_t luma(const uint8_t *rgb)
{
    return (uint8_t)((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}

/* Writes table[c][byte] for each channel c of each pixel. */
static void look_up(float *dst, const uint8_t *rgb, const float table[CHANNELS][256],
                    enum channel_order order, size_t pixels)
{
    if (order == CHANNELS_GRAY) {
        for (size_t i = 0; i < pixels; i++, rgb += CHANNELS)
            *dst++ = table[0][luma(rgb)];
        return;
    }
    const int first = order == CHANNELS_BGR ? CHANNELS - 1 : 0, last = CHANNELS - 1 - first;
    for (size_t i = 0; i < pixels; i++, rgb += CHANNELS, dst += CHANNELS) {
        dst[0] = table[0][rgb[first]];
        dst[1] = table[1][rgb[1]];
        dst[2] = table[2][rgb[last]];
    }
}

static void sink_pixels(struct sink *sink, const uint8_t *rgb, size_t pixels)
{
    const bool is_gray = sink->channels == CHANNELS_GRAY;
    void *dst = sink->dst;
    sink->dst += pixels * (is_gray ? 1 : CHANNELS) * (sink->is_normalised ? sizeof(float) : 1);
    if (!sink->is_normalised) {
        uint8_t *bytes = dst;
        if (!is_gray)
            memcpy(bytes, rgb, pixels * CHANNELS);
        for (size_t i = 0; is_gray && i < pixels; i++, rgb += CHANNELS)
            bytes[i] = luma(rgb);
    } else {
        look_up(dst, rgb, sink->table, sink->channels, pixels);
    }
}

static void sink_fill(struct sink *sink, int value, int pixels)
{
    uint8_t rgb[CHANNELS * 16];
    memset(rgb, value, sizeof rgb);
    for (; pixels > 0; pixels -= 16)
        sink_pixels(sink, rgb, pixels < 16 ? (size_t)pixels : 16);
}

/* Writes the padding around a letterboxed picture. */
static void sink_pad(struct sink *sink, const struct preprocess *p, int pixels)
{
    if (!p->pads_normalised || !sink->is_normalised) {
        sink_fill(sink, p->pad_value, pixels);
        return;
    }
    const size_t count = pixels > 0 ? (size_t)pixels : 0;
    const size_t size = count * (size_t)preprocess_channels(p) * sizeof(float);
    memset(sink->dst, 0, size);
    sink->dst += size;
}

static int larger_of(int a, int b)
{
    return a > b ? a : b;
}

static int smaller_of(int a, int b)
{
    return a < b ? a : b;
}

/* Filters the next GROUP source rows horizontally into the ring. Below the picture, the picture's
 * last row is repeated. */
static void fill_ring(struct resize_job *job)
{
    struct transform *transform = job->transform;
    const int last = (int)job->image->height - 1;
    const uint8_t *src[GROUP];
    uint8_t *dst[GROUP];
    for (int i = 0; i < GROUP; i++) {
        const int row = job->next_row + i;
        src[i] = row < last ? job->image->pixels + (size_t)row * job->image->stride
                            : transform->last_row.data;
        dst[i] = transform->ring.data + (size_t)(row % job->ring_rows) * job->ring_stride;
    }
    job->passes->horizontal(dst, src, &transform->horizontal, job->flip);
    job->next_row += GROUP;
}

/* Writes row `y` of the kept part of the resized picture to transform->line. A window that begins
 * above the picture uses row 0 twice; below the picture, fill_ring() has repeated the last row. */
static void resize_row(struct resize_job *job, int y)
{
    struct transform *transform = job->transform;
    const struct resample_axis *axis = &transform->vertical;
    const int start = axis->start[y], length = axis->length;
    job->next_row = larger_of(job->next_row, start);
    while (job->next_row < start + length)
        fill_ring(job);
    const uint8_t **rows = (const uint8_t **)(void *)transform->window.data;
    for (int t = 0; t < length; t++)
        rows[t] = transform->ring.data +
                  (size_t)(larger_of(start + t, 0) % job->ring_rows) * job->ring_stride;
    job->passes->vertical(transform->line.data, rows, axis->weights + (size_t)y * (size_t)length,
                          length, (size_t)(job->x1 - job->x0) * CHANNELS);
}

/* Prepares memory and tables for the kept part of the picture, which is not empty. */
static enum status job_prepare(struct resize_job *job, struct error *err)
{
    struct transform *transform = job->transform;
    const struct preprocess *p = job->preprocess;
    const struct image *image = job->image;
    const int width = (int)image->width, height = (int)image->height;
    const int square = p->pads_square ? larger_of(width, height) : 0;
    TRY(resample_axis_prepare(&transform->horizontal, p->resample, width, larger_of(width, square),
                              job->frame.resized_width, job->x0, job->x1 - job->x0, err));
    TRY(resample_axis_prepare(&transform->vertical, p->resample, height, larger_of(height, square),
                              job->frame.resized_height, job->y0, job->y1 - job->y0, err));
    job->passes =
        p->resample == RESAMPLE_LINEAR ? &transform->kernels->linear : &transform->kernels->pillow;
    /* The ring has the rows of a window and the other rows of its last group. A row has room for
     * one sample more, which the kernel writes after the end. */
    job->ring_rows = transform->vertical.length + GROUP - 1;
    job->ring_stride = job->passes->sample *
                       size_align((size_t)(job->x1 - job->x0) * CHANNELS + 1, RESAMPLE_BLOCK);
    /* No overflow: a row has at most 2^16 pixels, and a window at most 2^24 rows. */
    TRY(pixel_buffer_reserve(&transform->ring, (size_t)job->ring_rows * job->ring_stride, err));
    TRY(pixel_buffer_reserve(&transform->line, job->ring_stride, err));
    TRY(pixel_buffer_reserve(&transform->window,
                             (size_t)transform->vertical.length * sizeof(uint8_t *), err));
    /* The kernel reads one byte beyond each row. Memory may end after the last row, so this is a
     * copy. */
    const size_t row_bytes = (size_t)image->width * CHANNELS;
    TRY(pixel_buffer_reserve(&transform->last_row, row_bytes + 1, err));
    memcpy(transform->last_row.data, image->pixels + (size_t)(image->height - 1) * image->stride,
           row_bytes);
    return STATUS_OK;
}

/* Writes one row of the model's input: zeros, letterbox, picture, letterbox, zeros. */
static void emit_row(struct resize_job *job, int y, struct sink *sink)
{
    const struct crop_frame *frame = &job->frame;
    const int width = job->preprocess->width;
    const int canvas_begin = smaller_of(larger_of(frame->canvas_left, 0), width);
    const int canvas_end =
        larger_of(smaller_of(frame->canvas_left + frame->canvas_width, width), 0);
    const int row = y - frame->top;
    if (y < frame->canvas_top || y >= frame->canvas_top + frame->canvas_height) {
        sink_fill(sink, 0, width);
        return;
    }
    sink_fill(sink, 0, canvas_begin);
    if (row < job->y0 || row >= job->y1 || job->x0 >= job->x1) {
        sink_pad(sink, job->preprocess, canvas_end - canvas_begin);
    } else {
        resize_row(job, row - job->y0);
        sink_pad(sink, job->preprocess, frame->left + job->x0 - canvas_begin);
        sink_pixels(sink, job->transform->line.data, (size_t)(job->x1 - job->x0));
        sink_pad(sink, job->preprocess, canvas_end - (frame->left + job->x1));
    }
    sink_fill(sink, 0, width - canvas_end);
}

/* Implements RESIZE_BODY. shrink[]: how many times larger the photo in the file is, per axis. */
static enum status warp_body(struct transform *transform, const struct image *image,
                             const struct preprocess *p, struct sink *sink, struct error *err)
{
    struct crop_frame frame;
    double *map = frame.map;
    const uint32_t width = image->info.width, height = image->info.height;
    const double shrink[] = {(double)width / image->width, (double)height / image->height};
    TRY(frame_of(p, width, height, &frame, err));
    for (int axis = 0; axis < 2; axis++) {
        map[4 * axis] /= shrink[axis];
        map[2 + 3 * axis] = (map[2 + 3 * axis] + 0.5) / shrink[axis] - 0.5;
    }
    const size_t pixels = (size_t)p->width * (size_t)p->height;
    TRY(pixel_buffer_reserve(&transform->ring, pixels * CHANNELS, err));
    warp_affine(image, map, (uint32_t)p->width, (uint32_t)p->height, false, transform->ring.data);
    sink_pixels(sink, transform->ring.data, pixels);
    return STATUS_OK;
}

static enum status resize_run(struct transform *transform, const struct image *whole,
                              const struct preprocess *p, struct sink *sink, struct error *err)
{
    enum { SOURCE_MAX = 1 << 24 }; /* the limit of resample_axis_prepare() */
    if (whole->width > SOURCE_MAX || whole->height > SOURCE_MAX)
        return error_set(
            err, STATUS_TOO_LARGE,
            "a picture of %u x %u pixels cannot be resized: a side may have at most %d",
            whole->width, whole->height, SOURCE_MAX);
    if (p->resize == RESIZE_BODY)
        return warp_body(transform, whole, p, sink, err);
    const struct source_frame source = frame_source(p, whole->width, whole->height);
    struct image image = *whole;
    image.width = source.width;
    image.height = source.height;
    image.pixels += source.top * whole->stride + (size_t)source.left * CHANNELS;
    struct resize_job job = {
        .transform = transform, .image = &image, .preprocess = p, .flip = p->invert ? 255 : 0};
    /* Also after a decode at a fraction of the size, the frame is that of the photo in the file. */
    const struct source_frame full = frame_source(p, whole->info.width, whole->info.height);
    TRY(frame_of(p, full.width, full.height, &job.frame, err));
    job.x0 = larger_of(0, -job.frame.left);
    job.y0 = larger_of(0, -job.frame.top);
    job.x1 = smaller_of(job.frame.resized_width, p->width - job.frame.left);
    job.y1 = smaller_of(job.frame.resized_height, p->height - job.frame.top);
    if (job.x0 < job.x1 && job.y0 < job.y1)
        TRY(job_prepare(&job, err));
    for (int y = 0; y < p->height; y++)
        emit_row(&job, y, sink);
    return STATUS_OK;
}

enum status transform_numbers(struct transform *transform, const struct image *image,
                              const struct preprocess *p, float *dst, struct error *err)
{
    struct sink sink = {.dst = (uint8_t *)dst, .is_normalised = true, .channels = p->channels};
    transform_table(p, sink.table);
    return resize_run(transform, image, p, &sink, err);
}

enum status transform_bytes(struct transform *transform, const struct image *image,
                            const struct preprocess *p, uint8_t *dst, struct error *err)
{
    struct sink sink = {.dst = dst, .channels = p->channels};
    return resize_run(transform, image, p, &sink, err);
}
