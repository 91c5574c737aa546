/* Lets kernels read the windows of a convolution in place, or in a copy of the source's lines. */
#include "engine/base/float_bits.h"
#include "engine/cpu/program/compiled_product.h"

void gather_run(const struct compiled_product *p, const void *from, size_t count, void *to)
{
    const int64_t step = p->channel_step;
    const bool as_stored =
        p->weights.operands == OPERANDS_BF16 || (p->weights.operands == OPERANDS_DOT && !p->flip);
    if (step == 1 && as_stored) {
        copy_short(from, count * operand_bytes(&p->weights), to);
    } else if (p->weights.operands == OPERANDS_DOT) { /* 8-bit integers always have step 1 */
        for (size_t i = 0; i < count; i++)
            ((uint8_t *)to)[i] = ((const uint8_t *)from)[i] ^ p->flip;
    } else if (p->weights.operands == OPERANDS_PAIRS) {
        const uint8_t flip = p->src.dtype == DTYPE_I8 ? 0x80 : 0;
        p->simd->widen_8bit(from, flip, p->src_zero + flip, to, count);
    } else if (p->weights.operands == OPERANDS_BF16) {
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = ((const uint16_t *)from)[(int64_t)i * step];
    } else if (p->src.dtype == DTYPE_BF16 && step == 1) {
        p->simd->widen_bf16(from, to, count);
    } else if (p->src.dtype == DTYPE_BF16) {
        for (size_t i = 0; i < count; i++)
            ((float *)to)[i] = bfloat16_to_float(((const uint16_t *)from)[(int64_t)i * step]);
    } else if (step == 1) {
        copy_short(from, count * sizeof(float), to);
    } else {
        for (size_t i = 0; i < count; i++)
            ((float *)to)[i] = ((const float *)from)[(int64_t)i * step];
    }
}

/* Returns how many lines of the source the windows of a line of the result span. */
static int64_t window_lines(const struct product_axis *y)
{
    return (y->kernel - 1) * y->tap_step + 1;
}

/* Returns the line of the block's strip where the windows of the result's line `line` begin.
 * Windows of one image's lines overlap; windows of different images do not. */
static int64_t strip_line(const struct compiled_product *p, int64_t first, int64_t line)
{
    const struct product_axis *y = &p->axis[1];
    const int64_t more = window_lines(y) - y->result_step;
    return (line - first) * y->result_step +
           (more > 0 ? (line / y->out - first / y->out) * more : 0);
}

/* True if numbers of the source are converted before they are multiplied. */
static bool converts(const struct compiled_product *p)
{
    return p->weights.operands == OPERANDS_PAIRS || p->flip;
}

/* Copies `bytes` of each pixel, padded to p->pixel_bytes. May write up to 8 bytes more. */
static void copy_pixels(const struct compiled_product *p, const unsigned char *from, size_t bytes,
                        size_t count, unsigned char *to)
{
    const size_t wide = p->pixel_bytes;
    const size_t apart = (size_t)p->axis[2].stride * dtype_size(p->src.dtype);
    uint64_t few, mask = ~UINT64_C(0);
    if (bytes == wide && p->axis[2].stride == (int64_t)p->channels) {
        gather_run(p, from, count * p->channels, to);
        return;
    }
    if (bytes < sizeof mask)
        mask = (UINT64_C(1) << bytes * 8) - 1; /* every supported CPU is little-endian */
    for (; wide <= sizeof few && !converts(p) && count * apart >= apart + sizeof few; count--) {
        memcpy(&few, from, sizeof few);
        few &= mask;
        memcpy(to, &few, sizeof few);
        from += apart;
        to += wide;
    }
    for (; count > 0; count--, from += apart, to += wide) {
        gather_run(p, from, p->channels, to);
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
    const int zero = p->weights.operands == OPERANDS_PAIRS ? 0 : (uint8_t)p->src_zero ^ p->flip;
    memset(to, zero, (size_t)(left * pixel));
    to += left * pixel;
    if (count > 0)
        copy_pixels(p, src + (z * p->axis[0].stride + at * y->stride) * size,
                    p->channels * operand_bytes(&p->weights), (size_t)count, to);
    memset(to + count * pixel, zero, (size_t)((pixels - left - count) * pixel));
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

/* Returns where the first window of a line of the result begins. */
static const unsigned char *strip_start(const struct compiled_product *p,
                                        const struct product_block *b, int64_t line)
{
    const struct product_axis *y = &p->axis[1];
    if (p->copies)
        return b->gathered +
               strip_line(p, (int64_t)(b->first / p->unit_rows), line) * p->line_bytes;
    return b->src + (line / y->out * p->axis[0].stride) * (int64_t)dtype_size(p->src.dtype) +
           line % y->out * y->result_step * p->line_bytes;
}

void locate_groups(const struct compiled_product *p, const struct product_block *b, size_t taps,
                   size_t apart)
{
    const size_t most = tile_pointers(p->simd), step = p->group * apart;
    const unsigned char *from = p->in_place ? b->src + b->first * apart : b->gathered;
    if (!p->strips) {
        for (size_t g = 0; g * p->group < b->rows; g++, from += step)
            b->taps[g] = from;
        return;
    }
    size_t line = b->first / p->unit_rows, x = 0;
    const size_t groups = b->rows / p->unit_rows * p->line_groups;
    for (size_t g = 0; g < groups; g += most)
        for (size_t i = 0; i < most && g + i < groups; i++, from += step) {
            if (x == 0)
                from = strip_start(p, b, (int64_t)line++);
            x = x + 1 < p->line_groups ? x + 1 : 0;
            for (size_t tap = 0; tap < taps; tap++)
                b->taps[g * taps + tap * most + i] = from + p->tap_offsets[tap];
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

/* Without AMX a chunk of strips has at least one line of the result. True if such chunks are
 * suitable: a line's pointers to taps must take little memory, and all threads must get lines,
 * unless a line is at most one tile, or columns will be divided instead of lines. */
static bool lines_are_chunks(const struct compiled_product *p)
{
    enum { MOST_POINTERS = 1 << 18 };
    const struct product_axis *x = &p->axis[2];
    const size_t lines = p->parts * (size_t)p->axis[0].out * (size_t)p->axis[1].out;
    const size_t across = x->tap_step == 1 ? 1 : (size_t)x->kernel, width = (size_t)x->out;
    const size_t runs = (size_t)p->axis[1].kernel * across;
    const size_t panels = whole_columns(&p->weights) / p->simd->tile_columns;
    const bool by_columns = p->rows < p->weights.n && panels >= (size_t)p->threads;
    return (lines >= (size_t)p->threads || width <= p->tile_rows || by_columns) &&
           width <= MOST_POINTERS / sizeof(void *) / runs;
}

/* True if kernels read strips: images have two axes, and the windows of a line of the result fit in
 * the second-level cache. Padding and dilation can be of any size. Without AMX, the stride must not
 * skip pixels. */
static bool reads_strips(const struct compiled_product *p)
{
    enum { MOST = 1 << 20 };
    size_t bytes = p->channels * operand_bytes(&p->weights);
    bool strips = are_narrow(&p->weights) && !p->in_place && p->op == PRODUCT_CONV &&
                  p->src.rank == 4 && p->channel_step == 1;
    for (int a = 1; strips && a < AXES; a++) {
        const struct product_axis *axis = &p->axis[a];
        const int64_t results = a == 1 ? 1 : axis->out;
        strips = axis->offset <= 0 && axis->tap_step < MOST && axis->kernel < MOST &&
                 axis->result_step < MOST && results < MOST &&
                 (p->simd->tile_rows_are_even || axis->result_step <= axis->kernel);
        const int64_t span =
            strips ? (axis->kernel - 1) * axis->tap_step + results * axis->result_step : 0;
        strips = strips && size_mul(bytes, (size_t)span, &bytes) && bytes <= MOST;
    }
    return strips && (p->simd->tile_rows_are_even || lines_are_chunks(p));
}

void strips_describe(struct compiled_product *p)
{
    enum { GROUP = 16 };
    const struct product_axis *y = &p->axis[1], *x = &p->axis[2];
    const size_t size = operand_bytes(&p->weights), width = (size_t)x->out;
    p->strips = reads_strips(p);
    if (!p->strips)
        return;
    p->in_place = true;
    const size_t together = x->tap_step == 1 ? (size_t)x->kernel : 1;
    const size_t pixel = p->channels * size, apart = (size_t)x->stride * size;
    /* The next pixel, times 0, may pad integers, but not bfloat16, where it may be infinite. */
    const bool pads = p->simd->tile_rows_are_even || p->weights.operands == OPERANDS_BF16;
    p->pixel_bytes = pads ? padded_run(p, pixel, together) : pixel;
    p->run_bytes = padded_run(p, p->pixel_bytes * together, 1);
    p->line_groups = p->simd->tile_rows_are_even ? (width + GROUP - 1) / GROUP : width;
    p->group = (width + p->line_groups - 1) / p->line_groups;
    p->copies = p->run_bytes != pixel * together || (together > 1 && apart != pixel) ||
                converts(p) || y->offset || x->offset || y->inside_to < y->out ||
                x->inside_to < x->out || p->line_groups * p->group != width;
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
    p->weights.run = pads ? p->channels : p->channels * together;
    p->weights.whole_run = (pads ? p->pixel_bytes : p->run_bytes) / size;
    p->unit_rows = width;
    if (p->simd->tile_rows_are_even)
        p->tile_rows = 2 * p->group;
}
