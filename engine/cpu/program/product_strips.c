/* Lets AMX read the windows of a convolution in place, or in a copy of the source's lines. */
#include "engine/cpu/program/compiled_product_private.h"

/* Returns how many lines of the source the windows of a line of the result span. */
static int64_t window_lines(const struct product_axis *y)
{
    return (y->kernel - 1) * y->tap_step + 1;
}

/* Returns the line of the block's strip where the windows of the result's line `line` begin. Lines
 * of one image overlap; lines of different images do not. */
static int64_t strip_line(const struct compiled_product *p, int64_t first, int64_t line)
{
    const struct product_axis *y = &p->axis[1];
    const int64_t more = window_lines(y) - y->result_step;
    return (line - first) * y->result_step +
           (more > 0 ? (line / y->out - first / y->out) * more : 0);
}

/* Copies pixels of `bytes`, which become p->pixel_bytes. May write 8 bytes more. */
static void copy_pixels(const struct compiled_product *p, const unsigned char *from, size_t bytes,
                        size_t count, unsigned char *to)
{
    const size_t wide = p->pixel_bytes;
    const size_t apart = (size_t)p->axis[2].stride * dtype_size(p->src.dtype);
    uint64_t few, mask = ~UINT64_C(0);
    if (bytes == wide && bytes == apart) {
        memcpy(to, from, count * bytes);
        return;
    }
    if (bytes < sizeof mask)
        mask = (UINT64_C(1) << bytes * 8) - 1; /* little-endian, as is each CPU with AMX */
    for (; wide <= sizeof few && count * apart >= apart + sizeof few; count--) {
        memcpy(&few, from, sizeof few);
        few &= mask;
        memcpy(to, &few, sizeof few);
        from += apart;
        to += wide;
    }
    for (; count > 0; count--, from += apart, to += wide) {
        copy_short(from, bytes, to);
        memset(to + bytes, 0, wide - bytes);
    }
}

/* Copies line `at` of image z, or makes a line of padding. */
static void copy_line(const struct compiled_product *p, const unsigned char *src, int64_t z,
                      int64_t at, unsigned char *to)
{
    const struct product_axis *y = &p->axis[1], *x = &p->axis[2];
    const int64_t pixels = p->line_bytes / (int64_t)p->pixel_bytes, size = dtype_size(p->src.dtype);
    const int64_t left = -x->offset < pixels ? -x->offset : pixels;
    const int64_t most = pixels - left < x->in ? pixels - left : x->in;
    const int64_t count = at < 0 || at >= y->in ? 0 : most, pixel = (int64_t)p->pixel_bytes;
    memset(to, p->src_zero, (size_t)(left * pixel));
    to += left * pixel;
    if (count > 0)
        copy_pixels(p, src + (z * p->axis[0].stride + at * y->stride) * size,
                    p->channels * (size_t)size, (size_t)count, to);
    memset(to + count * pixel, p->src_zero, (size_t)((pixels - left - count) * pixel));
}

void strip_copy(const struct compiled_product *p, const struct product_block *b)
{
    const struct product_axis *y = &p->axis[1];
    const int64_t first = (int64_t)(b->first / p->unit_rows);
    const int64_t last = first + (int64_t)(b->rows / p->unit_rows);
    for (int64_t line = first, done = 0; line < last; line++) {
        const int64_t begin = strip_line(p, first, line), end = begin + window_lines(y);
        const int64_t top = line % y->out * y->result_step + y->offset;
        for (int64_t at = begin > done ? begin : done; at < end; at++)
            copy_line(p, b->src, line / y->out, top + at - begin, b->gathered + at * p->line_bytes);
        done = end;
    }
}

/* Returns where the window of pixel x of a line of the result begins. */
static const unsigned char *strip_pixel(const struct compiled_product *p,
                                        const struct product_block *b, int64_t line, size_t x)
{
    const int64_t first = (int64_t)(b->first / p->unit_rows);
    const struct product_axis *y = &p->axis[1];
    const int64_t along = (int64_t)(x * (size_t)p->axis[2].result_step * p->pixel_bytes);
    if (p->copies)
        return b->gathered + strip_line(p, first, line) * p->line_bytes + along;
    return b->src + (line / y->out * p->axis[0].stride) * (int64_t)dtype_size(p->src.dtype) +
           line % y->out * y->result_step * p->line_bytes + along;
}

void locate_groups(const struct compiled_product *p, const struct product_block *b, size_t taps,
                   size_t apart)
{
    const size_t lines = b->rows / p->unit_rows;
    const size_t groups = p->strips ? lines * p->line_groups : (b->rows + p->group - 1) / p->group;
    const unsigned char *const start = p->in_place ? b->src + b->first * apart : b->gathered;
    for (size_t g = 0; g < groups; g++) {
        const unsigned char **at = b->taps + g / 2 * taps * 2 + g % 2;
        if (!p->strips) {
            *at = start + g * p->group * apart;
            continue;
        }
        const size_t line = b->first / p->unit_rows + g / p->line_groups;
        const unsigned char *pixel =
            strip_pixel(p, b, (int64_t)line, g % p->line_groups * p->group);
        for (size_t tap = 0; tap < taps; tap++)
            at[tap * 2] = pixel + p->tap_offsets[tap];
    }
}

size_t strip_bytes(const struct compiled_product *p, int64_t lines)
{
    enum { BEYOND = 8 };
    const int64_t images = p->axis[0].out < lines ? p->axis[0].out : lines;
    const int64_t more = images * window_lines(&p->axis[1]);
    return size_align((size_t)((lines * p->axis[1].result_step + more) * p->line_bytes) + BEYOND,
                      TENSOR_ALIGN);
}

/* True if AMX can read strips: images have two axes, and the windows of a line of the result fit in
 * the second-level cache. Padding and dilation can be of any size. */
static bool reads_strips(const struct compiled_product *p)
{
    enum { MOST = 1 << 20 };
    const size_t pixel = p->channels * dtype_size(p->src.dtype);
    size_t bytes = pixel;
    bool strips = p->simd->tile_rows_are_even && are_narrow(&p->weights) && !p->in_place &&
                  p->op == PRODUCT_CONV && p->src.rank == 4 && p->channel_step == 1 &&
                  p->weights.operands != OPERANDS_PAIRS && !p->flip;
    for (int a = 1; strips && a < AXES; a++) {
        const struct product_axis *axis = &p->axis[a];
        const int64_t results = a == 1 ? 1 : axis->out;
        strips = axis->offset <= 0 && axis->tap_step < MOST && axis->kernel < MOST &&
                 axis->result_step < MOST && results < MOST;
        const int64_t span =
            strips ? (axis->kernel - 1) * axis->tap_step + results * axis->result_step : 0;
        strips = strips && size_mul(bytes, (size_t)span, &bytes) && bytes <= MOST;
    }
    return strips;
}

void strips_describe(struct compiled_product *p)
{
    enum { GROUP = 16 };
    const struct product_axis *y = &p->axis[1], *x = &p->axis[2];
    const size_t size = dtype_size(p->src.dtype), width = (size_t)x->out;
    p->strips = reads_strips(p);
    if (!p->strips)
        return;
    p->in_place = true;
    const size_t together = x->tap_step == 1 ? (size_t)x->kernel : 1;
    const size_t pixel = p->channels * size, apart = (size_t)x->stride * size;
    p->pixel_bytes = padded_run(p, pixel, together);
    p->run_bytes = p->pixel_bytes * together;
    p->line_groups = (width + GROUP - 1) / GROUP;
    p->group = (width + p->line_groups - 1) / p->line_groups;
    p->copies = p->pixel_bytes != pixel || (together > 1 && apart != pixel) || y->offset ||
                x->offset || y->inside_to < y->out || x->inside_to < x->out ||
                p->line_groups * p->group != width;
    const int64_t pixels = ((int64_t)(p->line_groups * p->group) - 1) * x->result_step +
                           (x->kernel - 1) * x->tap_step + 1;
    p->line_bytes = y->stride * (int64_t)size;
    if (p->copies)
        p->line_bytes = pixels * (int64_t)p->pixel_bytes;
    else
        p->pixel_bytes = apart;
    const size_t across = (size_t)x->kernel / together;
    p->taps /= together;
    for (size_t t = 0; t < p->taps; t++)
        p->tap_offsets[t] = (int64_t)(t / across) * y->tap_step * p->line_bytes +
                            (int64_t)(t % across) * x->tap_step * (int64_t)p->pixel_bytes;
    p->weights.run = p->channels;
    p->weights.whole_run = p->run_bytes / together / size;
    p->unit_rows = width;
    p->tile_rows = 2 * p->group;
}
