/* Computes products (compiled_product.h).
 *
 * A product consists of parts: an image and a group of a convolution, or a batch of a matrix
 * product. Each part is a matrix product, rows x k times k x n. A row of a convolution is a window
 * of taps x channels, gathered into a thread's scratch memory. The window of a transposed
 * convolution has the input pixels that contribute to an output pixel, and zeros for taps without a
 * pixel. Along each axis, tap k of result o lies at
 *
 *     (o * result_step + k * tap_step + offset) / divisor
 *
 * Rows that are one run of the source are read in place (float32: kernels/gemm.c). If weights are
 * few, float32 windows inside the image are also read in place: each line of taps is one run. If
 * the CPU has no instructions for products of bfloat16, rows of bfloat16 are widened and results
 * narrowed. Windows of narrow rows (bfloat16 and 8-bit integers) are read in the source's lines or
 * in copies of them (product_strips.c). Other windows, and numbers of another format than the
 * instructions take, are gathered. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/program/compiled_product.h"
#include "engine/cpu/program/parallel.h"
#include "engine/cpu/program/program.h"

/* ---- running: rows ---- */

/* Returns the input pixel of tap k of result o along an axis, or -1. */
static int64_t tap_position(const struct product_axis *axis, int64_t o, int64_t k)
{
    const int64_t at = o * axis->result_step + k * axis->tap_step + axis->offset;
    if (axis->divisor == 1)
        return at < 0 || at >= axis->in ? -1 : at;
    return at < 0 || at % axis->divisor || at / axis->divisor >= axis->in ? -1 : at / axis->divisor;
}

/* True if, along this axis, all taps of result o are inside the image. */
static bool is_inside(const struct product_axis *axis, int64_t o)
{
    return o >= axis->inside_from && o < axis->inside_to;
}

/* Returns the offset in elements of the first tap of result o, whose taps are all inside. */
static int64_t first_tap(const struct product_axis *axis, int64_t o)
{
    return (o * axis->result_step + axis->offset) * axis->stride;
}

/* The position of a result in its part. */
struct product_position {
    int64_t z, y, x;
};

static struct product_position position_of(const struct compiled_product *p, size_t row)
{
    const int64_t y = p->axis[1].out, x = p->axis[2].out, r = (int64_t)row;
    return (struct product_position){r / x / y, r / x % y, r % x};
}

static void position_next(const struct compiled_product *p, struct product_position *at)
{
    if (++at->x < p->axis[2].out)
        return;
    at->x = 0;
    if (++at->y < p->axis[1].out)
        return;
    at->y = 0;
    at->z++;
}

/* Returns the first tap of a result whose window is inside the part's source, otherwise NULL. */
static const unsigned char *window_inside(const struct compiled_product *p,
                                          const unsigned char *src, struct product_position at)
{
    const struct product_axis *z = &p->axis[0], *y = &p->axis[1], *x = &p->axis[2];
    if (!is_inside(z, at.z) || !is_inside(y, at.y) || !is_inside(x, at.x))
        return NULL;
    return src + (first_tap(z, at.z) + first_tap(y, at.y) + first_tap(x, at.x)) *
                     (int64_t)dtype_size(p->src.dtype);
}

static int64_t clamp_to(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Copies one line of a window, in the operand type. result: the result's position along the last
 * axis. line: where the source's line begins; NULL: it is in the padding. */
static void gather_line(const struct compiled_product *p, const unsigned char *line, int64_t result,
                        unsigned char *to)
{
    const struct product_axis *x = &p->axis[2];
    const size_t channels = p->channels, bytes = channels * operand_bytes(&p->weights);
    const int64_t size = (int64_t)dtype_size(p->src.dtype);
    if (line && !p->taps_join) {
        for (int64_t k = 0; k < x->kernel; k++, to += bytes) {
            const int64_t at = tap_position(x, result, k);
            gather_run(p, at < 0 ? p->outside : line + at * x->stride * size, channels, to);
        }
        return;
    }
    const int64_t first = result * x->result_step + x->offset;
    const int64_t left = line ? clamp_to(-first, 0, x->kernel) : x->kernel;
    const int64_t right = clamp_to(x->in - first, left, x->kernel);
    if (left > 0)
        gather_run(p, p->outside, (size_t)left * channels, to);
    if (right > left)
        gather_run(p, line + (first + left) * x->stride * size, (size_t)(right - left) * channels,
                   to + (size_t)left * bytes);
    if (x->kernel > right)
        gather_run(p, p->outside, (size_t)(x->kernel - right) * channels,
                   to + (size_t)right * bytes);
}

/* Copies the window of a result, in the operand type. */
static void gather_row(const struct compiled_product *p, const unsigned char *src,
                       struct product_position at, unsigned char *to)
{
    const struct product_axis *z = &p->axis[0], *y = &p->axis[1];
    const size_t line = (size_t)p->axis[2].kernel * p->channels * operand_bytes(&p->weights);
    const int64_t size = (int64_t)dtype_size(p->src.dtype);
    const unsigned char *const end = to + p->row_bytes;
    for (int64_t kz = 0; kz < z->kernel; kz++) {
        const int64_t iz = tap_position(z, at.z, kz);
        for (int64_t ky = 0; ky < y->kernel; ky++, to += line) {
            const int64_t iy = tap_position(y, at.y, ky);
            const bool inside = iz >= 0 && iy >= 0;
            gather_line(p, inside ? src + (iz * z->stride + iy * y->stride) * size : NULL, at.x,
                        to);
        }
    }
    memset(to, 0, (size_t)(end - to)); /* padding after k, for weights of 0 */
}

/* Writes rows first … first + rows - 1 of the block's part to b->gathered: gathers their windows
 * or, if the product has a gate, multiplies the rows by their image's gate. */
static void gather_rows(const struct product_run *call, const struct product_block *b, size_t first,
                        size_t rows)
{
    const struct compiled_product *p = call->product;
    const size_t k = p->weights.k;
    struct product_position at = position_of(p, first);
    unsigned char *to = b->gathered;
    for (size_t row = first; row < first + rows; row++, to += p->row_bytes, position_next(p, &at))
        if (p->gated)
            p->simd->binary(BINARY_MUL, (const float *)(const void *)b->src + row * k, 1,
                            call->gate + (size_t)at.z * k, 1, (float *)(void *)to, k);
        else
            gather_row(p, b->src, at, to);
}

/* ---- running: parts ---- */

/* Finds the offsets of part i, in elements, and its matrix of weights. */
static void locate_part(const struct compiled_product *p, size_t i, int64_t *ret_src,
                        int64_t *ret_dst, size_t *ret_matrix)
{
    if (p->op != PRODUCT_MATMUL) {
        const int64_t image = (int64_t)(i / p->groups), group = (int64_t)(i % p->groups);
        *ret_src = image * p->src.strides[0] + group * (int64_t)p->channels * p->src.strides[1];
        *ret_dst = image * p->dst.strides[0] + group * (int64_t)p->weights.n * p->dst.strides[1];
        *ret_matrix = (size_t)group;
        return;
    }
    size_t matrices = 1;
    *ret_src = *ret_dst = 0;
    *ret_matrix = 0;
    for (int a = p->dst.rank - 3; a >= 0; a--) {
        const int64_t at = (int64_t)(i % (size_t)p->dst.dims[a]);
        i /= (size_t)p->dst.dims[a];
        *ret_dst += at * p->dst.strides[a];
        *ret_src += p->src.dims[a] == 1 ? 0 : at * p->src.strides[a];
        *ret_matrix += p->given.dims[a] == 1 ? 0 : (size_t)at * matrices;
        matrices *= (size_t)p->given.dims[a];
    }
}

/* Gathers and multiplies rows first … first + rows - 1 of the part. Moves g->c past these rows. */
static void multiply_gathered(const struct product_run *call, const struct product_block *b,
                              struct gemm *g, size_t first, size_t rows)
{
    if (!rows)
        return;
    gather_rows(call, b, first, rows);
    g->a = (const float *)(const void *)b->gathered;
    g->lda = call->product->row_bytes / sizeof(float);
    g->run = g->run_step = 0;
    call->product->simd->gemm(g, rows);
    g->c += rows * g->ldc;
}

/* Computes the block, line by line of the result. Reads windows inside the image in place, and
 * gathers the others. */
static void multiply_windows(const struct product_run *call, const struct product_block *b,
                             struct gemm *g)
{
    const struct compiled_product *p = call->product;
    const struct product_axis *y = &p->axis[1], *x = &p->axis[2];
    size_t row = b->first;
    while (row < b->first + b->rows) {
        struct product_position at = position_of(p, row);
        const int64_t left = (int64_t)(b->first + b->rows - row);
        const int64_t end = x->out - at.x < left ? x->out : at.x + left;
        const int64_t from = is_inside(y, at.y) ? clamp_to(x->inside_from, at.x, end) : end;
        const int64_t to = clamp_to(x->inside_to, from, end);
        multiply_gathered(call, b, g, row, (size_t)(from - at.x));
        row += (size_t)(to - at.x);
        if (to > from) {
            at.x = from;
            g->a = (const float *)(const void *)window_inside(p, b->src, at);
            g->lda = (size_t)(x->result_step * x->stride);
            g->run = (size_t)x->kernel * p->channels;
            g->run_step = (size_t)(y->tap_step * y->stride);
            p->simd->gemm(g, (size_t)(to - from));
            g->c += (size_t)(to - from) * g->ldc;
        }
        multiply_gathered(call, b, g, row, (size_t)(end - to));
        row += (size_t)(end - to);
    }
}

static void run_floats(const struct product_run *call, const struct product_block *b)
{
    const struct compiled_product *p = call->product;
    const bool narrow = p->dst.dtype == DTYPE_BF16;
    const size_t n = b->to - b->from;
    struct gemm g = p->finish;
    g.b = (const float *)(const void *)(call->weights + b->matrix * part_bytes(&p->weights)) +
          b->from * p->weights.k;
    g.k = p->weights.k;
    g.n = n;
    g.bias = p->bias ? p->bias + b->channel : NULL;
    g.c = (float *)(void *)(narrow ? b->result : b->dst);
    g.ldc = narrow ? n : p->ldc;
    uint16_t *rows = (uint16_t *)(void *)b->dst;
    for (size_t r = 0; narrow && g.accumulate && r < b->rows; r++)
        p->simd->widen_bf16(rows + r * p->ldc, g.c + r * n, n);
    if (p->in_place) {
        g.lda = (size_t)p->axis[2].stride;
        g.a = (const float *)(const void *)b->src + b->first * g.lda;
        g.copies = p->copies_rows ? (float *)(void *)b->gathered : NULL;
        p->simd->gemm(&g, b->rows);
    } else if (p->in_windows) {
        multiply_windows(call, b, &g);
    } else {
        multiply_gathered(call, b, &g, b->first, b->rows);
    }
    for (size_t r = 0; narrow && r < b->rows; r++)
        p->simd->narrow_bf16((float *)(void *)b->result + r * n, rows + r * p->ldc, n);
}

/* ---- running: tiles ---- */

/* Number of rows of sums that are finished together: few, so that they stay in the first-level
 * cache. */
static size_t finished_together(const struct compiled_product *p, size_t columns)
{
    enum { TILES = 4, FEW = 32 };
    return p->simd->tile_rows_are_even || columns > FEW ? p->tile_rows : TILES * p->tile_rows;
}

/* Finishes `rows` rows of sums from `row` on. `dst` is the address of result row 0. */
static void finish_rows(const struct compiled_product *p, const struct tile_finish *f,
                        int32_t *sums, size_t row, size_t rows, unsigned char *dst)
{
    const size_t along = p->line_groups * p->group, width = p->unit_rows;
    if (!p->strips || along == width) {
        p->simd->finish_tile(f, sums, rows, dst + row * f->ldy);
        return;
    }
    for (size_t end = row + rows; row < end; row += p->group, sums += p->group * f->lds) {
        const size_t line = row / along, x = row % along;
        const size_t some = width - x < p->group ? width - x : p->group;
        p->simd->finish_tile(f, sums, some, dst + (line * width + x) * f->ldy);
    }
}

/* Fetches a tile's rows of the result. The hardware does not prefetch them well, because the tile
 * has only a part of each row. 25,088 rows of [24, 144] in bfloat16 take 1.1 ms instead of 1.4. */
static void fetch_rows(const unsigned char *from, size_t step, size_t bytes, size_t rows)
{
    enum { LINE = 64 };
    for (size_t r = 0; r < rows; r++, from += step)
        for (size_t at = 0; at < bytes; at += LINE)
            __builtin_prefetch(from + at);
}

/* Multiplies all rows of the block, `count` rows of sums, by a panel. Finishes a few tiles at a
 * time. */
static void multiply_panel(const struct compiled_product *p, const struct product_block *b,
                           struct tile t, size_t count, const struct tile_finish *f,
                           unsigned char *dst)
{
    enum { LEAST = 128 }; /* bytes; the hardware prefetches shorter rows */
    const struct packed_layout *w = &p->weights;
    const size_t most = p->tile_rows, together = finished_together(p, t.n);
    void (*const multiply)(const struct tile *, size_t) =
        w->operands == OPERANDS_BF16  ? p->simd->tile_bf16
        : w->operands == OPERANDS_DOT ? p->simd->tile_dot
                                      : p->simd->tile_pairs;
    const size_t result_bytes = t.n * dtype_size(f->to);
    const bool fetches = result_bytes >= LEAST && !p->simd->tile_rows_are_even;
    int32_t *const sums = t.c;
    t.rows = b->taps;
    for (size_t row = 0, from = 0, end; row < count; row = end) {
        end = count - row < most ? count : row + most;
        t.c = sums + (row - from) * t.ldc;
        if (fetches)
            fetch_rows(dst + row * f->ldy, f->ldy, result_bytes, end - row);
        multiply(&t, end - row);
        t.rows += t.taps * tile_pointers(p->simd);
        if (end - from < together && end < count)
            continue;
        finish_rows(p, f, sums, from, end - from, dst);
        from = end;
    }
}

static void run_tiles(const struct product_run *call, const struct product_block *b)
{
    const struct compiled_product *p = call->product;
    const struct packed_layout *w = &p->weights;
    const size_t columns = p->simd->tile_columns, size = dtype_size(p->dst.dtype);
    struct tile t = {.taps = p->in_place ? p->taps : 1,
                     .run = p->run_bytes,
                     .c = b->result,
                     .ldc = columns,
                     .is_signed = p->is_signed,
                     .group = p->group,
                     .apart = p->strips     ? (size_t)p->axis[2].result_step * p->pixel_bytes
                              : p->in_place ? (size_t)p->axis[2].stride * dtype_size(p->src.dtype)
                                            : p->row_bytes,
                     .chunk = p->chunk};
    struct tile_finish f = p->narrow_finish;
    f.lds = columns;
    f.ldy = p->ldc * size;
    const size_t count = p->strips ? b->rows / p->unit_rows * p->line_groups * p->group : b->rows;
    locate_groups(p, b, t.taps, t.apart);
    for (size_t j = b->from; j < b->to; j += columns) {
        const size_t channel = b->channel + j - b->from;
        t.n = f.n = b->to - j < columns ? b->to - j : columns;
        t.b =
            call->weights + b->matrix * part_bytes(&p->weights) + j * whole_k(w) * weight_bytes(w);
        f.scales = p->scales ? p->scales + channel : NULL;
        f.bias = p->bias ? p->bias + channel : NULL;
        if (p->bias_sums)
            f.bias = p->bias_sums + b->matrix * whole_columns(w) + j;
        multiply_panel(p, b, t, count, &f, b->dst + (j - b->from) * size);
    }
    if (p->simd->tile_end)
        p->simd->tile_end();
}

/* Returns the first row of chunk r. Only the last chunk has a partial tile. */
static size_t chunk_begin(const struct compiled_product *p, size_t r)
{
    const size_t unit = are_narrow(&p->weights) ? p->unit_rows : 1;
    const size_t units = (p->rows + unit - 1) / unit, row = units * r / p->row_chunks * unit;
    return row < p->rows ? row : p->rows;
}

/* Runs blocks begin … end - 1. Columns vary slowest, so a thread keeps reading the same weights. */
static void run_blocks(void *context, size_t begin, size_t end)
{
    const struct product_run *call = context;
    const struct compiled_product *p = call->product;
    const size_t panel = panel_columns(&p->weights), panels = whole_columns(&p->weights) / panel;
    unsigned char *own =
        call->scratch + p->packed_bytes + (size_t)forkjoin_member() * p->thread_bytes;
    for (size_t i = begin; i < end; i++) {
        const size_t r = i % p->row_chunks, part = i / p->row_chunks % p->parts;
        const size_t c = i / p->row_chunks / p->parts;
        struct product_block b = {.gathered = own,
                                  .result = own + p->result_at,
                                  .taps = (const unsigned char **)(void *)(own + p->taps_at)};
        int64_t src, dst;
        locate_part(p, part, &src, &dst, &b.matrix);
        b.first = chunk_begin(p, r);
        b.rows = chunk_begin(p, r + 1) - b.first;
        b.from = panels * c / p->column_chunks * panel;
        b.to = panels * (c + 1) / p->column_chunks * panel;
        b.to = b.to < p->weights.n ? b.to : p->weights.n;
        b.channel = b.from + (p->op == PRODUCT_MATMUL ? 0 : b.matrix * p->weights.n);
        b.src = call->src + src * (int64_t)dtype_size(p->src.dtype);
        b.dst = call->dst + ((size_t)dst + b.first * p->ldc + b.from) * dtype_size(p->dst.dtype);
        if (!are_narrow(&p->weights)) {
            run_floats(call, &b);
            continue;
        }
        if (!p->in_place)
            gather_rows(call, &b, b.first, b.rows);
        if (p->copies)
            strip_copy(p, &b);
        run_tiles(call, &b);
    }
}

/* Packs matrices begin … end - 1 of weights that are an activation. */
static void pack_matrices(void *context, size_t begin, size_t end)
{
    const struct product_run *call = context;
    const struct compiled_product *p = call->product;
    for (size_t i = begin; i < end; i++)
        pack_part(&p->weights, &p->given, call->weights, i,
                  call->scratch + i * part_bytes(&p->weights), NULL);
}

void compiled_product_run(struct product_run run)
{
    const struct compiled_product *p = run.product;
    const struct packed_layout *w = &p->weights;
    if (run.weights)
        parallel_for(p->threads, w->parts, w->k * w->n / 4, pack_matrices, &run);
    run.weights = run.weights ? run.scratch : p->bound;
    const size_t blocks = p->row_chunks * p->column_chunks * p->parts;
    parallel_for(p->threads, blocks, p->parts * p->rows * w->k * w->n / blocks / 32 + 1, run_blocks,
                 &run);
}

/* ---- compiling ---- */

static void describe_axes(struct compiled_product *p, const struct product_desc *desc)
{
    const int spatial = desc->op == PRODUCT_MATMUL ? 1 : desc->src.rank - 2;
    for (int i = 0; i < AXES; i++)
        p->axis[i] =
            (struct product_axis){.in = 1, .out = 1, .kernel = 1, .result_step = 1, .divisor = 1};
    for (int i = 0; i < spatial; i++) {
        struct product_axis *axis = &p->axis[AXES - spatial + i];
        const int at = desc->op == PRODUCT_MATMUL ? desc->src.rank - 2 : 2 + i;
        axis->in = desc->src.dims[at];
        axis->out = desc->dst.dims[at];
        axis->stride = desc->src.strides[at];
        if (desc->op == PRODUCT_MATMUL)
            continue;
        axis->kernel = desc->weights.dims[desc->weights.rank - spatial + i];
        axis->result_step = desc->op == PRODUCT_CONV ? desc->stride[i] : 1;
        axis->tap_step = desc->op == PRODUCT_CONV ? desc->dilation[i] : -desc->dilation[i];
        axis->offset = desc->op == PRODUCT_CONV ? -desc->pad_begin[i] : desc->pad_begin[i];
        axis->divisor = desc->op == PRODUCT_CONV ? 1 : desc->stride[i];
    }
    /* Joins images with adjacent results into one, so that weights are read once. */
    struct product_axis *z = &p->axis[0];
    if (desc->op != PRODUCT_MATMUL && spatial < AXES &&
        desc->dst.strides[0] == z[1].out * z[2].out * desc->dst.strides[desc->dst.rank - 1]) {
        z->in = z->out = desc->dst.dims[0];
        z->stride = desc->src.strides[0];
    }
}

/* Finds results with windows inside the image, and the offsets of taps. False: out of memory. */
static bool describe_taps(struct compiled_product *p)
{
    const struct product_axis *y = &p->axis[1], *x = &p->axis[2];
    const int64_t size = (int64_t)dtype_size(p->src.dtype);
    for (int i = 0; i < AXES; i++) {
        struct product_axis *a = &p->axis[i];
        const int64_t last = a->in - 1 - (a->kernel - 1) * a->tap_step - a->offset;
        a->inside_from = a->offset < 0 ? (-a->offset + a->result_step - 1) / a->result_step : 0;
        a->inside_to =
            last < 0 || a->divisor != 1 || a->tap_step < 0 ? 0 : last / a->result_step + 1;
    }
    p->tap_offsets = alloc_array(p->taps, sizeof *p->tap_offsets);
    for (size_t t = 0; p->tap_offsets && t < p->taps; t++) {
        const int64_t tx = (int64_t)t % x->kernel, ty = (int64_t)t / x->kernel % y->kernel;
        const int64_t tz = (int64_t)t / x->kernel / y->kernel;
        p->tap_offsets[t] = (tx * x->tap_step * x->stride + ty * y->tap_step * y->stride +
                             tz * p->axis[0].tap_step * p->axis[0].stride) *
                            size;
    }
    p->taps_join = p->channel_step == 1 && x->tap_step * x->stride == (int64_t)p->channels;
    return p->tap_offsets;
}

/* True if every row is one run of the source, and all rows are equally far apart. */
static bool rows_are_even(const struct compiled_product *p)
{
    bool in_place = p->channel_step == 1;
    for (int i = 0; i < AXES; i++) {
        const struct product_axis *a = &p->axis[i];
        in_place = in_place && a->kernel == 1 && a->result_step == 1 && !a->offset &&
                   a->divisor == 1 && a->in == a->out;
        if (i + 1 < AXES && a->in > 1)
            in_place = in_place && a->stride == p->axis[i + 1].stride * p->axis[i + 1].in;
    }
    return in_place;
}

/* True if the kernels can read rows in place. */
static bool reads_in_place(const struct compiled_product *p)
{
    const struct packed_layout *w = &p->weights;
    if (!rows_are_even(p))
        return false;
    if (!are_narrow(w))
        return p->src.dtype == DTYPE_F32 && !p->gated;
    return w->operands != OPERANDS_PAIRS && !p->flip &&
           tile_chunk(p->simd, p->channels * operand_bytes(w));
}

/* True if float32 windows inside the image are read in place. Each line of results is then a
 * separate product that fetches the weights, so the weights must be few. */
static bool reads_in_windows(const struct compiled_product *p)
{
    enum { NEAR = 64 * 1024, FEWEST = 14 };
    return !are_narrow(&p->weights) && p->src.dtype == DTYPE_F32 && p->op == PRODUCT_CONV &&
           !p->in_place && !p->gated && p->channel_step == 1 && p->axis[0].kernel == 1 &&
           (p->taps_join || p->axis[2].kernel == 1) && p->axis[2].out >= FEWEST &&
           part_bytes(&p->weights) <= NEAR;
}

/* Finds how rows are read, and the packing of k that this way of reading needs. */
static void describe_rows(struct compiled_product *p)
{
    struct packed_layout *w = &p->weights;
    const size_t size = operand_bytes(w);
    p->row_bytes = are_narrow(w) ? padded_run(p, w->k * size, 1) : w->k * size;
    if (!are_narrow(w) && p->row_bytes % 4096 == 0)
        p->row_bytes += 64; /* against conflicts in the cache: gemm_copies() in simd.h */
    p->in_place = reads_in_place(p);
    p->in_windows = reads_in_windows(p);
    p->unit_rows = p->tile_rows = p->simd->tile_rows;
    p->group = p->simd->tile_rows_are_even ? p->tile_rows / 2 : 1;
    p->run_bytes = p->in_place ? p->channels * size : p->row_bytes;
    if (are_narrow(w))
        w->whole_run = p->row_bytes / size;
    strips_describe(p);
    if (w->run == w->whole_run) /* without padding, one layout serves all ways of reading */
        w->run = w->whole_run = w->k;
    p->chunk = tile_chunk(p->simd, p->run_bytes);
}

/* Finds the sizes of the matrices that the product consists of. */
static void describe_matrices(struct compiled_product *p, const struct product_desc *desc)
{
    const bool matrix = desc->op == PRODUCT_MATMUL;
    const struct strided_layout *w = &desc->weights;
    struct packed_layout *packed = &p->weights;
    *packed = (struct packed_layout){.simd = p->simd, .parts = 1, .matrix = matrix};
    packed->leading = matrix ? w->rank - 2 : w->rank - desc->src.rank;
    for (int a = 0; a < packed->leading; a++)
        packed->parts *= (size_t)w->dims[a];
    p->groups = matrix ? 1 : packed->parts;
    p->channels = (size_t)w->dims[packed->leading + (matrix ? 0 : 1)];
    packed->n = (size_t)w->dims[packed->leading + (matrix ? 1 : 0)];
    p->rows = p->taps = 1;
    for (int a = 0; a < AXES; a++) {
        p->taps *= (size_t)p->axis[a].kernel;
        p->rows *= (size_t)p->axis[a].out;
    }
    packed->k = packed->run = packed->whole_run = p->channels * p->taps;
    const bool together = desc->src.rank < 2 + AXES && p->axis[0].out > 1; /* see describe_axes() */
    p->parts = matrix || together ? p->groups : (size_t)desc->dst.dims[0] * p->groups;
    for (int a = 0; matrix && a < desc->dst.rank - 2; a++)
        p->parts *= (size_t)desc->dst.dims[a];
    p->channel_step = desc->src.strides[matrix ? desc->src.rank - 1 : 1];
    p->ldc = (size_t)desc->dst.strides[desc->dst.rank - (matrix ? 2 : 1)];
}

/* Divides the work of float32 products. Threads divide the rows or the columns of a part. Each
 * thread reads the whole undivided operand, so the smaller operand is not divided. If rows are
 * gathered, columns are divided only if there are too few rows for every thread. A chunk's source
 * and result stay in the second-level cache. If the weights do not fit in that cache, a chunk has
 * more rows, because each chunk reads all weights (kernels/gemm.c). Each thread gets several chunks
 * of columns, so that idle threads can take some. */
static void divide_floats(struct compiled_product *p)
{
    enum { NEAR = 256 * 1024, ROWS_NEAR = 704 * 1024, DEPTH = 768, EACH = 4 };
    const struct packed_layout *w = &p->weights;
    const size_t unit = p->simd->gemm_rows, panel = p->simd->gemm_columns;
    const size_t panels = whole_columns(w) / panel;
    const size_t threads = ((size_t)p->threads + p->parts - 1) / p->parts; /* threads per part */
    const bool by_columns =
        p->rows < (p->in_place ? w->n : unit * threads) && panels >= threads && threads > 1;
    const size_t pieces = panels / threads < EACH ? panels / threads : EACH;
    p->column_chunks = !by_columns ? 1 : p->in_place ? threads * pieces : threads;
    const size_t columns = (panels + p->column_chunks - 1) / p->column_chunks * panel;
    const size_t deep = w->k < DEPTH ? w->k : DEPTH;
    const bool narrow = p->dst.dtype == DTYPE_BF16;
    size_t most = NEAR / ((w->k + columns) * sizeof(float));
    if (!narrow && w->k * columns * sizeof(float) > NEAR &&
        ROWS_NEAR / (deep * sizeof(float)) > most)
        most = ROWS_NEAR / (deep * sizeof(float));
    most = most < unit ? unit : most / unit * unit;
    const size_t sharers = by_columns ? 1 : threads;
    const size_t each = (p->rows + sharers - 1) / sharers;
    p->row_chunks = (each + most - 1) / most * sharers;
    if (p->row_chunks > p->rows)
        p->row_chunks = p->rows;
    const size_t rows = p->rows / p->row_chunks + 1;
    const struct gemm g = {.lda = (size_t)p->axis[2].stride, .k = w->k, .n = columns};
    const size_t copied = p->in_place ? p->simd->gemm_copies(&g, rows) : 0;
    p->copies_rows = copied > 0;
    p->result_at =
        size_align(p->in_place ? copied * sizeof(float) : rows * p->row_bytes, TENSOR_ALIGN);
    p->thread_bytes =
        p->result_at + size_align(narrow ? rows * columns * sizeof(float) : 0, TENSOR_ALIGN);
}

/* Divides rows of 8- and 16-bit types into chunks whose source fits in the first-level cache or, if
 * the weights are large, in the second-level cache, so that the weights are read less often. To
 * make EACH chunks per thread, also divides the columns if there are fewer rows than columns. */
static void divide_tiles(struct compiled_product *p)
{
    enum { NEAR = 48 * 1024, MANY = 512 * 1024, FAR = 512 * 1024, MOST_ROWS = 192, EACH = 4 };
    const struct packed_layout *w = &p->weights;
    const size_t unit = p->unit_rows, threads = (size_t)p->threads;
    const size_t panels = whole_columns(w) / p->simd->tile_columns;
    const size_t units = (p->rows + unit - 1) / unit, wanted = threads * EACH;
    const size_t near = part_bytes(w) > MANY ? FAR : NEAR;
    size_t most = (near / p->row_bytes < MOST_ROWS ? near / p->row_bytes : MOST_ROWS) / unit;
    if (p->strips)
        most = near / (size_t)(p->line_bytes * p->axis[1].result_step) + (size_t)p->axis[1].kernel;
    most = most ? most : 1; /* at least one unit */
    p->row_chunks = (units + most - 1) / most;
    p->column_chunks = 1;
    if (threads > 1 && p->parts * p->row_chunks < wanted) {
        const size_t more = (wanted + p->parts * p->row_chunks - 1) / (p->parts * p->row_chunks);
        if (p->rows < w->n && panels >= threads)
            p->column_chunks = more < panels ? more : panels;
        else
            p->row_chunks = p->row_chunks * more < units ? p->row_chunks * more : units;
    }
    const size_t chunk = (units + p->row_chunks - 1) / p->row_chunks, rows = chunk * unit;
    const size_t sums = finished_together(p, 1) * p->simd->tile_columns * sizeof(int32_t);
    const size_t groups = (p->strips ? chunk * p->line_groups : rows) + tile_pointers(p->simd);
    const size_t located = p->in_place ? groups * p->taps : rows + p->taps;
    p->result_at = p->in_place ? 0 : size_align(rows * p->row_bytes, TENSOR_ALIGN);
    if (p->copies)
        p->result_at = strip_bytes(p, (int64_t)chunk);
    p->taps_at = p->result_at + size_align(sums, TENSOR_ALIGN);
    p->thread_bytes = p->taps_at + size_align(located * sizeof(void *), TENSOR_ALIGN);
}

static bool describe_8bit(struct compiled_product *p, const struct product_desc *desc)
{
    const bool is_signed = desc->src.dtype == DTYPE_I8;
    p->weights.operands = simd_has_dot(p->simd) ? OPERANDS_DOT : OPERANDS_PAIRS;
    const size_t sums = p->weights.parts * whole_columns(&p->weights);
    p->src_zero = desc->src_zero;
    if (p->weights.operands == OPERANDS_DOT) {
        p->is_signed = p->simd->dot_takes_both ? is_signed : p->simd->dot_is_signed;
        p->flip = is_signed == p->is_signed ? 0 : 0x80;
    }
    const size_t channels = p->groups * p->weights.n;
    p->scales = alloc_array(channels, sizeof *p->scales);
    p->bias_sums = alloc_array(sums, sizeof *p->bias_sums);
    for (size_t i = 0; p->scales && i < channels; i++) {
        const size_t at = shape_count(&desc->scales->shape) == 1 ? 0 : i;
        p->scales[i] = desc->src_scale * (float)tensor_number(desc->scales, at) / desc->sum_divisor;
    }
    return p->scales && p->bias_sums;
}

static void describe_finish(struct compiled_product *p, const struct product_desc *desc,
                            const struct epilogue *epilogue)
{
    p->finish = (struct gemm){.row = epilogue_with_clip(epilogue),
                              .accumulate = epilogue->residual != NULL};
    p->narrow_finish =
        (struct tile_finish){.residual = epilogue->residual && dtype_size(desc->dst.dtype) > 1,
                             .row = p->finish.row,
                             .to = desc->dst.dtype,
                             .step = desc->dst_scale,
                             .zero = desc->dst_zero};
}

enum status compiled_product_create(int threads, const struct product_desc *desc,
                                    const struct epilogue *epilogue, struct compiled_product **ret,
                                    struct error *err)
{
    struct compiled_product *product = calloc(1, sizeof *product);
    TRY(check_memory(product, "while compiling", err));
    product->simd = simd();
    product->op = desc->op;
    product->threads = threads;
    product->gated = desc->gated;
    product->src = desc->src;
    product->dst = desc->dst;
    product->given = desc->weights;
    describe_axes(product, desc);
    describe_matrices(product, desc);
    const size_t line = (size_t)product->axis[2].kernel;
    const size_t outside = line * product->channels * dtype_size(desc->src.dtype);
    product->outside = malloc(outside);
    if (!product->outside || !describe_taps(product) ||
        (desc->scales && !describe_8bit(product, desc))) {
        compiled_product_free(product);
        return error_no_memory(err, "while compiling");
    }
    memset(product->outside, desc->src_zero, outside);
    if (desc->src.dtype == DTYPE_BF16 && product->simd->tile_bf16)
        product->weights.operands = OPERANDS_BF16;
    describe_rows(product);
    describe_finish(product, desc, epilogue);
    if (are_narrow(&product->weights))
        divide_tiles(product);
    else
        divide_floats(product);
    if (!desc->weights_constant)
        product->packed_bytes =
            size_align(product->weights.parts * part_bytes(&product->weights), TENSOR_ALIGN);
    product->scratch = product->packed_bytes + (size_t)threads * product->thread_bytes;
    *ret = product;
    return STATUS_OK;
}

void compiled_product_free(struct compiled_product *product)
{
    if (!product)
        return;
    FREE_ALL(product->scales, product->bias_sums, product->outside, product->tap_offsets, product);
}

const char *compiled_product_name(const struct compiled_product *product)
{
    static const char *const names[][2] = {[OPERANDS_BF16] = {"bf16:tiles", "bf16:amx"},
                                           [OPERANDS_PAIRS] = {"int8:pairs", "int8:pairs"},
                                           [OPERANDS_DOT] = {"int8:dot", "int8:amx"}};
    if (are_narrow(&product->weights))
        return names[product->weights.operands][product->simd->tile_end != NULL];
    return product->gated ? "gemm:gated" : "gemm";
}

/* Makes biases that correct for the zero point: with OPERANDS_DOT a sum is too large by the zero
 * point times the sum of its column's weights. gather_run() subtracts the zero point from pairs. */
static void bind_sums(struct compiled_product *p, const int32_t *bias)
{
    const struct packed_layout *w = &p->weights;
    const size_t columns = whole_columns(w);
    const int32_t *sums = (const int32_t *)(const void *)(p->bound + w->parts * part_bytes(w));
    const uint8_t flipped = (uint8_t)p->src_zero ^ p->flip;
    const int zero = w->operands == OPERANDS_PAIRS ? 0 : p->is_signed ? (int8_t)flipped : flipped;
    for (size_t i = 0; i < w->parts; i++)
        for (size_t j = 0; j < w->n; j++) {
            const size_t channel = p->op == PRODUCT_MATMUL ? j : i * w->n + j;
            const uint32_t start = bias ? (uint32_t)bias[channel] : 0;
            p->bias_sums[i * columns + j] =
                (int32_t)(start - (uint32_t)sums[i * columns + j] * (uint32_t)zero);
        }
}

void compiled_product_bind(struct compiled_product *product, const void *weights, const void *bias)
{
    product->bound = weights;
    if (are_8bit(&product->weights))
        bind_sums(product, bias);
    else
        product->bias = bias;
}
