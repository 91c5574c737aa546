/* Runs OP_RECURRENCE (engine/op/recurrent.h), the step-by-step part of an LSTM, GRU or RNN. A
 * MatMul before it computes the product of all steps with W.
 *
 * Each step adds the states times R to the gates. The work is divided into units: by direction,
 * then by image and, if there are too few images for the threads, also by hidden numbers. Units
 * with whole rows of hidden numbers run through all steps independently. Other units wait for each
 * other after each step, because the next step reads the whole state. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/recurrent.h"

/* The epilogue's activation for a recurrent function. NONE: the reference kernel runs the node. */
static const enum activation activations[] = {
    [FUNCTION_SIGMOID] = ACTIVATION_SIGMOID,
    [FUNCTION_TANH] = ACTIVATION_TANH,
    [FUNCTION_RELU] = ACTIVATION_RELU,
    [FUNCTION_HARD_SIGMOID] = ACTIVATION_HARD_SIGMOID,
    [FUNCTION_LEAKY_RELU] = ACTIVATION_LEAKY_RELU,
    [FUNCTION_ELU] = ACTIVATION_ELU,
    [FUNCTION_SOFTPLUS] = ACTIVATION_NONE, /* like all functions that are not listed */
};

struct recurrent_step {
    struct step step;
    const struct simd_kernels *simd;
    struct recurrent shape;
    size_t gates;
    size_t row_parts, column_parts; /* their product is the number of units per direction */
    const float *weights;           /* panels of R: [direction][gate][packed] */
    size_t packed;                  /* floats in the panels of one gate */
    float *bias;                    /* [direction][width] */
    float *product_bias;            /* [direction][hidden], for GRU with resets_product; or NULL */
    float *peepholes;               /* [direction][3 * hidden], or NULL */
    void **in[RECURRENT_OPERANDS], **out[3]; /* addresses in program->data; NULL: omitted */
    /* set for each run */
    const float *x;
    const int32_t *lengths;
    float *y;                             /* NULL: output 0 is omitted */
    float *gates_data, *h[2], *c, *spare; /* gates_data: [direction][image][width]; others:
                                             [direction][image][hidden] */
    size_t from, to;                      /* steps from … to - 1 form one parallel loop */
};

/* A unit: images first … last - 1 and hidden numbers left … right - 1 of direction d. */
struct recurrent_unit {
    size_t d, first, last, left, right;
};

/* ---- running ---- */

static void unit_activate(const struct recurrent_step *s, const struct recurrent_unit *u,
                          size_t which, float *v)
{
    const struct recurrent *r = &s->shape;
    s->simd->activate(v, v, u->right - u->left, activations[r->activation[u->d][which].function],
                      r->activation[u->d][which].alpha, r->activation[u->d][which].beta);
}

static void unit_gate(const struct recurrent_step *s, const struct recurrent_unit *u, size_t which,
                      float *v)
{
    if (s->shape.clips)
        s->simd->activate(v, v, u->right - u->left, ACTIVATION_CLIP, -s->shape.clip, s->shape.clip);
    unit_activate(s, u, which, v);
}

/* Adds peephole `which` times the cell state to a gate. */
static void unit_peek(const struct recurrent_step *s, const struct recurrent_unit *u, size_t which,
                      const float *c, float *spare, float *v)
{
    const size_t hidden = s->shape.hidden, n = u->right - u->left;
    if (!s->peepholes)
        return;
    s->simd->binary(BINARY_MUL, s->peepholes + (u->d * 3 + which) * hidden + u->left, 1, c, 1,
                    spare, n);
    s->simd->binary(BINARY_ADD, v, 1, spare, 1, v, n);
}

static void lstm_cells(const struct recurrent_step *s, const struct recurrent_unit *u, float *v,
                       float *c, float *spare, float *h)
{
    static const float one = 1;
    const struct simd_kernels *simd = s->simd;
    const size_t hidden = s->shape.hidden, n = u->right - u->left;
    float *in = v, *out = v + hidden, *forget = v + 2 * hidden, *cell = v + 3 * hidden;
    unit_peek(s, u, 0, c, spare, in);
    unit_peek(s, u, 2, c, spare, forget);
    unit_gate(s, u, 0, in);
    if (s->shape.is_coupled)
        simd->binary(BINARY_SUB, &one, 0, in, 1, forget, n);
    else
        unit_gate(s, u, 0, forget);
    unit_gate(s, u, 1, cell);
    simd->binary(BINARY_MUL, forget, 1, c, 1, c, n);
    simd->binary(BINARY_MUL, in, 1, cell, 1, spare, n);
    simd->binary(BINARY_ADD, c, 1, spare, 1, c, n);
    unit_peek(s, u, 1, c, spare, out);
    unit_gate(s, u, 0, out);
    memcpy(spare, c, n * sizeof *c);
    unit_activate(s, u, 2, spare);
    simd->binary(BINARY_MUL, out, 1, spare, 1, h, n);
}

/* Computes GRU's states h from the gates in v: z, r and the candidate. With resets_product the
 * candidate in v is only the product with R, which is multiplied by r before the rest is added. */
static void gru_cells(const struct recurrent_step *s, const struct recurrent_unit *u, float *v,
                      const float *x, const float *before, float *spare, float *h)
{
    const struct simd_kernels *simd = s->simd;
    const size_t hidden = s->shape.hidden, n = u->right - u->left;
    float *update = v, *reset = v + hidden, *candidate = v + 2 * hidden;
    if (s->shape.resets_product) {
        simd->binary(BINARY_MUL, reset, 1, candidate, 1, candidate, n);
        const float *bias = s->bias + u->d * s->shape.width + 2 * hidden + u->left;
        simd->binary(BINARY_ADD, candidate, 1, x + 2 * hidden, 1, candidate, n);
        simd->binary(BINARY_ADD, candidate, 1, bias, 1, candidate, n);
    }
    unit_gate(s, u, 1, candidate);
    simd->binary(BINARY_SUB, before, 1, candidate, 1, spare, n);
    simd->binary(BINARY_MUL, update, 1, spare, 1, spare, n);
    simd->binary(BINARY_ADD, candidate, 1, spare, 1, h, n);
}

/* Multiplies `a`, rows of hidden numbers, by R's part for `gate`. Adds the product to that gate of
 * the unit's rows; replaces the gate if its product has a separate bias (product_bias). */
static void unit_multiply(const struct recurrent_step *s, const struct recurrent_unit *u,
                          size_t gate, const float *a)
{
    const struct recurrent *r = &s->shape;
    const size_t row = u->d * r->batch + u->first, at = gate * r->hidden + u->left;
    const bool alone = gate == 2 && s->product_bias;
    const struct gemm g = {
        .a = a + row * r->hidden,
        .lda = r->hidden,
        .b = s->weights + (u->d * s->gates + gate) * s->packed + r->hidden * u->left,
        .bias =
            alone ? s->product_bias + u->d * r->hidden + u->left : s->bias + u->d * r->width + at,
        .c = s->gates_data + row * r->width + at,
        .ldc = r->width,
        .k = r->hidden,
        .n = u->right - u->left,
        .accumulate = !alone,
    };
    s->simd->gemm(&g, u->last - u->first);
}

/* Returns the unit's numbers of X for image n at this step, and the time step in *ret_t. Returns
 * NULL after the end of the image's sequence. */
static const float *unit_source(const struct recurrent_step *s, const struct recurrent_unit *u,
                                size_t step, size_t n, size_t *ret_t)
{
    const struct recurrent *r = &s->shape;
    const size_t length = recurrent_length(r, s->lengths, n);
    if (step >= length)
        return NULL;
    *ret_t = recurrent_time(r, u->d, step, length);
    return s->x + (recurrent_row(r, *ret_t, n) * r->directions + u->d) * r->width + u->left;
}

/* Sets the gates to X's numbers, or to 0 after the end of a sequence. */
static void unit_load(const struct recurrent_step *s, const struct recurrent_unit *u, size_t step)
{
    const struct recurrent *r = &s->shape;
    const size_t bytes = (u->right - u->left) * sizeof(float);
    size_t t;
    for (size_t n = u->first; n < u->last; n++) {
        const float *x = unit_source(s, u, step, n, &t);
        float *to = s->gates_data + (u->d * r->batch + n) * r->width + u->left;
        for (size_t gate = 0; gate < s->gates; gate++, to += r->hidden)
            if (x)
                memcpy(to, x + gate * r->hidden, bytes);
            else
                memset(to, 0, bytes);
    }
}

/* Computes GRU's gates z and r, then the state times r for the third gate's product. */
static void unit_reset(const struct recurrent_step *s, const struct recurrent_unit *u,
                       const float *before)
{
    const struct recurrent *r = &s->shape;
    for (size_t n = u->first; n < u->last; n++) {
        const size_t row = u->d * r->batch + n, at = row * r->hidden + u->left;
        float *v = s->gates_data + row * r->width + u->left;
        unit_gate(s, u, 0, v);
        unit_gate(s, u, 0, v + r->hidden);
        if (!r->resets_product)
            s->simd->binary(BINARY_MUL, v + r->hidden, 1, before + at, 1, s->spare + at,
                            u->right - u->left);
    }
    if (!r->resets_product)
        unit_multiply(s, u, 2, s->spare);
}

static void unit_step(const struct recurrent_step *s, const struct recurrent_unit *u, size_t step)
{
    const struct recurrent *r = &s->shape;
    const float *before = s->h[step % 2];
    const size_t bytes = (u->right - u->left) * sizeof(float);
    unit_load(s, u, step);
    for (size_t gate = 0; gate < s->gates; gate++)
        if (gate < 2 || r->cell != CELL_GRU || r->resets_product)
            unit_multiply(s, u, gate, before);
    if (r->cell == CELL_GRU)
        unit_reset(s, u, before);
    for (size_t n = u->first; n < u->last; n++) {
        const size_t row = u->d * r->batch + n, at = row * r->hidden + u->left;
        float *v = s->gates_data + row * r->width + u->left, *h = s->h[(step + 1) % 2] + at;
        size_t t;
        const float *x = unit_source(s, u, step, n, &t);
        if (!x) {
            memcpy(h, before + at, bytes);
            continue;
        }
        if (r->cell == CELL_LSTM) {
            lstm_cells(s, u, v, s->c + at, s->spare + at, h);
        } else if (r->cell == CELL_GRU) {
            gru_cells(s, u, v, x, before + at, s->spare + at, h);
        } else {
            unit_gate(s, u, 0, v);
            memcpy(h, v, bytes);
        }
        if (s->y)
            memcpy(s->y + recurrent_result(r, t, u->d, n) + u->left, h, bytes);
    }
}

static void recurrent_units(void *context, size_t begin, size_t end)
{
    const struct recurrent_step *s = context;
    const struct recurrent *r = &s->shape;
    const size_t panel = s->simd->gemm_columns, panels = (r->hidden + panel - 1) / panel;
    for (size_t i = begin; i < end; i++) {
        const size_t column = i % s->column_parts, row = i / s->column_parts % s->row_parts;
        struct recurrent_unit u = {.d = i / s->column_parts / s->row_parts,
                                   .first = r->batch * row / s->row_parts,
                                   .last = r->batch * (row + 1) / s->row_parts,
                                   .left = panels * column / s->column_parts * panel,
                                   .right = panels * (column + 1) / s->column_parts * panel};
        u.right = u.right < r->hidden ? u.right : r->hidden;
        for (size_t step = s->from; step < s->to; step++)
            unit_step(s, &u, step);
    }
}

/* Copies initial states (`from` NULL: zeros) to `to` as [direction][image][hidden]. */
static void begin_state(const struct recurrent_step *s, const float *from, float *to)
{
    const struct recurrent *r = &s->shape;
    for (size_t d = 0; d < r->directions; d++)
        for (size_t n = 0; n < r->batch; n++, to += r->hidden)
            if (from)
                memcpy(to, from + recurrent_state(r, d, n), r->hidden * sizeof *to);
            else
                memset(to, 0, r->hidden * sizeof *to);
}

static void end_state(const struct recurrent_step *s, const float *from, float *to)
{
    const struct recurrent *r = &s->shape;
    for (size_t d = 0; to && d < r->directions; d++)
        for (size_t n = 0; n < r->batch; n++, from += r->hidden)
            memcpy(to + recurrent_state(r, d, n), from, r->hidden * sizeof *to);
}

static void *value_data(void **address)
{
    return address ? *address : NULL;
}

STEP_RUN(recurrent_run)
{
    struct recurrent_step *s = (struct recurrent_step *)base;
    const struct recurrent *r = &s->shape;
    const size_t states = r->directions * r->batch * r->hidden;
    const size_t units = r->directions * s->row_parts * s->column_parts;
    s->x = value_data(s->in[RECURRENT_X]);
    s->lengths = value_data(s->in[RECURRENT_LENGTHS]);
    s->y = value_data(s->out[0]);
    TRY(recurrent_check_lengths(r, s->lengths, err));
    s->h[0] = (float *)(void *)program->scratch;
    s->h[1] = s->h[0] + states;
    s->c = s->h[1] + states;
    s->spare = s->c + states;
    s->gates_data = s->spare + states;
    begin_state(s, value_data(s->in[RECURRENT_H]), s->h[0]);
    begin_state(s, value_data(s->in[RECURRENT_C]), s->c);
    if (s->y && s->lengths)
        memset(s->y, 0, r->steps * states * sizeof *s->y);
    const size_t at_once = s->column_parts > 1 ? 1 : r->steps;
    for (s->from = 0; s->from < r->steps; s->from = s->to) {
        TRY(backend_check_stop(program->backend, err));
        s->to = s->from + at_once;
        parallel_for(program->threads, units,
                     at_once * r->batch * r->width * r->hidden * r->directions / units / 16 + 1,
                     recurrent_units, s);
    }
    end_state(s, s->h[r->steps % 2], value_data(s->out[1]));
    end_state(s, s->c, value_data(s->out[2]));
    return STATUS_OK;
}

/* ---- compiling ---- */

static void recurrent_free(struct step *base)
{
    struct recurrent_step *s = (struct recurrent_step *)base;
    FREE_ALL(s->bias, s->product_bias, s->peepholes);
}

static bool is_plain(const struct value *value)
{
    return !value || is_f32_constant(value);
}

KERNEL_CLAIM(recurrent_claim)
{
    const struct value *x = node->inputs[RECURRENT_X], *weights = node_input(node, RECURRENT_R);
    struct recurrent r;
    if (!is_f32_constant(weights) || x->dtype != DTYPE_F32 ||
        !is_plain(node_input(node, RECURRENT_B)) || !is_plain(node_input(node, RECURRENT_P)) ||
        recurrent_init(node, &x->shape, NULL, &weights->shape, &r, NULL) != STATUS_OK)
        return false;
    bool is_known = r.steps && r.batch;
    for (size_t i = 0; i < r.directions * 3; i++)
        is_known = is_known &&
                   (size_t)r.activation[i / 3][i % 3].function < COUNT_OF(activations) &&
                   activations[r.activation[i / 3][i % 3].function] != ACTIVATION_NONE;
    return is_known;
}

/* Packs R: a matrix [hidden, hidden] per direction and gate, whose rows are R's columns. */
static enum status pack_gates(const struct lowering *lowering, struct recurrent_step *s,
                              struct tensor *weights, struct error *err)
{
    const size_t hidden = s->shape.hidden;
    const int64_t n = (int64_t)hidden, gates = (int64_t)s->gates;
    const struct strided_layout given = {
        DTYPE_F32, 4, {(int64_t)s->shape.directions, gates, n, n}, {gates * n * n, n * n, 1, n}};
    const struct packed_layout wanted = {.simd = s->simd,
                                         .parts = s->shape.directions * s->gates,
                                         .k = hidden,
                                         .n = hidden,
                                         .run = hidden,
                                         .whole_run = hidden,
                                         .leading = 2,
                                         .matrix = true};
    const void *packed;
    TRY(weights_get(lowering->backend, weights, &given, &wanted, &packed, err));
    s->weights = packed;
    s->packed = part_bytes(&wanted) / sizeof(float);
    s->step.bytes += packed_layout_bytes(&wanted);
    return STATUS_OK;
}

/* Adds up B's two halves, except the part that GRU's reset gate multiplies. */
static bool add_biases(struct recurrent_step *s, const struct value *bias)
{
    const struct recurrent *r = &s->shape;
    const size_t apart = r->cell == CELL_GRU && r->resets_product ? 2 * r->hidden : r->width;
    s->bias = alloc_array(r->directions * r->width, sizeof *s->bias);
    if (apart < r->width)
        s->product_bias = alloc_array(r->directions * r->hidden, sizeof *s->product_bias);
    if (!s->bias || (apart < r->width && !s->product_bias))
        return false;
    for (size_t d = 0; bias && d < r->directions; d++) {
        const float *of_w = (const float *)bias->known->data + d * 2 * r->width;
        const float *of_r = of_w + r->width;
        for (size_t i = 0; i < r->width; i++)
            s->bias[d * r->width + i] = of_w[i] + (i < apart ? of_r[i] : 0);
        for (size_t i = apart; i < r->width; i++)
            s->product_bias[d * r->hidden + i - apart] = of_r[i];
    }
    return true;
}

/* Chooses the units. Does not split the hidden numbers of short steps, because threads would wait
 * longer than they compute. The last product of a GRU without resets_product needs whole rows. */
static void divide_units(struct recurrent_step *s, size_t threads)
{
    enum { FEWEST_ROWS = 4, LEAST_WORK = 128 * 1024 };
    const struct recurrent *r = &s->shape;
    const size_t panels = (r->hidden + s->simd->gemm_columns - 1) / s->simd->gemm_columns;
    const size_t wanted = (threads + r->directions - 1) / r->directions;
    const size_t rows = r->batch / FEWEST_ROWS;
    s->row_parts = wanted < rows ? wanted : rows ? rows : 1;
    const size_t idle = threads / (r->directions * s->row_parts);
    const bool pays = r->batch * r->width * r->hidden / s->row_parts >= LEAST_WORK;
    const bool may = r->cell != CELL_GRU || r->resets_product;
    s->column_parts = !pays || !may || idle < 2 ? 1 : idle < panels ? idle : panels;
}

STEP_CREATE(lower_recurrent)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[RECURRENT_X], *weights = node->inputs[RECURRENT_R];
    const struct value *peepholes = node_input(node, RECURRENT_P);
    struct recurrent_step *s = step_create(lowering, sizeof *s, recurrent_run, ret, err);
    if (!s)
        return STATUS_NO_MEMORY;
    s->step.kernel = "recurrent";
    s->step.free = recurrent_free;
    s->step.packs_constants = true;
    s->simd = simd();
    TRY(recurrent_init(node, &x->shape, NULL, &weights->shape, &s->shape, err));
    const struct recurrent *r = &s->shape;
    s->gates = r->width / r->hidden;
    divide_units(s, (size_t)lowering->program->threads);
    s->step.scratch = r->directions * r->batch * (4 * r->hidden + r->width) * sizeof(float);
    TRY(check_memory(add_biases(s, node_input(node, RECURRENT_B)), "while compiling", err));
    if (peepholes) {
        s->peepholes = alloc_array(r->directions * r->hidden, 3 * sizeof *s->peepholes);
        TRY(check_memory(s->peepholes, "while compiling", err));
        memcpy(s->peepholes, peepholes->known->data, peepholes->known->bytes);
    }
    for (size_t i = 0; i < RECURRENT_OPERANDS; i++) {
        const struct value *value = node_input(node, i);
        s->in[i] = value ? &lowering->program->data[value->index] : NULL;
        if (value && value->known && i != RECURRENT_R && i != RECURRENT_B && i != RECURRENT_P)
            TRY(program_keep_constant(lowering->program, value, err));
    }
    for (size_t i = 0; i < 3; i++)
        s->out[i] = node_output(node, i) ? &lowering->program->data[node->outputs[i]->index] : NULL;
    TRY(pack_gates(lowering, s, weights->known, err));
    return STATUS_OK;
}

const struct cpu_kernel cpu_recurrent = {{"recurrent", {OP_RECURRENCE}, recurrent_claim},
                                         lower_recurrent};
