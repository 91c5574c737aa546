/* Describes LSTM, GRU and RNN (engine/op/recurrent.h), with reference kernels in double. */
#include "engine/op/recurrent.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"

/* ---- attributes and shapes ---- */

static const struct {
    const char *name;
    bool has_alpha, has_beta;
    float alpha, beta;
} functions[] = {
#define FUNCTION_ROW(name, text, has_alpha, has_beta, alpha, beta)                                 \
    {text, has_alpha, has_beta, alpha, beta},
    RECURRENT_FUNCTIONS(FUNCTION_ROW)
#undef FUNCTION_ROW
};

/* Counts of gates and activations. The first activation defaults to `first`, the other activations
 * default to Tanh. */
static const struct {
    size_t gates, functions;
    enum recurrent_function first;
} cells[] = {
    [CELL_LSTM] = {4, 3, FUNCTION_SIGMOID},
    [CELL_GRU] = {3, 2, FUNCTION_SIGMOID},
    [CELL_RNN] = {1, 1, FUNCTION_TANH},
};

static enum recurrent_cell cell_of(const struct node *node)
{
    return node->op == OP_LSTM  ? CELL_LSTM
           : node->op == OP_GRU ? CELL_GRU
           : node->op == OP_RNN ? CELL_RNN
                                : (enum recurrent_cell)node_int(node, "cell", CELL_LSTM);
}

static bool find_function(const char *name, enum recurrent_function *ret)
{
    for (size_t i = 0; i < COUNT_OF(functions); i++)
        if (!strcasecmp(functions[i].name, name)) {
            *ret = (enum recurrent_function)i;
            return true;
        }
    return false;
}

/* Takes the next of the node's numbers, or `otherwise` if none is left. */
static float next_number(const float **numbers, size_t *left, float otherwise)
{
    if (!*left)
        return otherwise;
    (*left)--;
    return *(*numbers)++;
}

static enum status read_activations(const struct node *node, struct recurrent *r, struct error *err)
{
    const struct attr *names = node_attr(node, "activations");
    const size_t each = cells[r->cell].functions, count = each * r->directions;
    size_t alphas, betas;
    const float *alpha = node_floats(node, "activation_alpha", &alphas);
    const float *beta = node_floats(node, "activation_beta", &betas);
    if (names && names->count && names->count != count)
        return error_set(err, STATUS_MODEL, "it has %zu activations, expected %zu", names->count,
                         count);
    for (size_t i = 0; i < count; i++) {
        enum recurrent_function function = i % each ? FUNCTION_TANH : cells[r->cell].first;
        if (names && names->count && !find_function(names->strings[i], &function))
            return error_set(err, STATUS_MODEL, "'%.60s' is not an activation of ONNX's %s",
                             names->strings[i], op_name(node->op));
        r->activation[i / each][i % each].function = function;
        r->activation[i / each][i % each].alpha =
            functions[function].has_alpha ? next_number(&alpha, &alphas, functions[function].alpha)
                                          : 0;
        r->activation[i / each][i % each].beta =
            functions[function].has_beta ? next_number(&beta, &betas, functions[function].beta) : 0;
    }
    return STATUS_OK;
}

static enum status read_attributes(const struct node *node, struct recurrent *r, struct error *err)
{
    const int64_t layout = node_int(node, "layout", 0);
    static const char directions[] = "forward reverse bidirectional";
    const int direction = node_word(node, "direction", directions);
    TRY(infer_word(node, "direction", directions, err));
    if (layout != 0 && layout != 1)
        return error_set(err, STATUS_MODEL, "layout is %lld, expected 0 or 1", (long long)layout);
    if (node_int(node, "cell", 0) < 0 || node_int(node, "cell", 0) > CELL_RNN)
        return error_set(err, STATUS_MODEL, "cell must be LSTM, GRU or RNN");
    r->cell = cell_of(node);
    r->batch_first = layout == 1;
    r->starts_reversed = direction == 1;
    r->directions = direction == 2 ? 2 : 1;
    r->clip = node_float(node, "clip", 0);
    r->clips = r->clip > 0;
    r->is_coupled = node_int(node, "input_forget", 0) != 0;
    r->resets_product = node_int(node, "linear_before_reset", 0) != 0;
    return read_activations(node, r, err);
}

enum status recurrent_init(const struct node *node, const struct shape *x, const struct shape *w,
                           const struct shape *r, struct recurrent *ret, struct error *err)
{
    struct recurrent made = {0};
    TRY(read_attributes(node, &made, err));
    if (x->rank != 3 || r->rank != 3)
        return error_set(err, STATUS_SHAPE, "X and R have rank %d and %d, expected 3", x->rank,
                         r->rank);
    const int64_t hidden = r->dims[2], declared = node_int(node, "hidden_size", hidden);
    if (hidden < 1 || hidden != declared || hidden > INT32_MAX)
        return error_set(err, STATUS_SHAPE,
                         "hidden_size is %lld, but the last dimension of R is %lld",
                         (long long)declared, (long long)hidden);
    made.hidden = (size_t)hidden;
    made.width = cells[made.cell].gates * made.hidden;
    made.steps = (size_t)x->dims[made.batch_first];
    made.batch = (size_t)x->dims[!made.batch_first];
    made.inputs = (size_t)x->dims[2];
    const int64_t directions = (int64_t)made.directions, width = (int64_t)made.width;
    const struct shape rows = SHAPE(directions, width, hidden);
    if (!shape_equal(r, &rows))
        return error_set(err, STATUS_SHAPE, "R has shape %s, expected %s", SHAPE_STRING(r),
                         SHAPE_STRING(&rows));
    const struct shape columns = SHAPE(directions, width, x->dims[2]);
    if (w && !shape_equal(w, &columns))
        return error_set(err, STATUS_SHAPE, "W has shape %s, expected %s", SHAPE_STRING(w),
                         SHAPE_STRING(&columns));
    if (!w && x->dims[2] != directions * width)
        return error_set(err, STATUS_SHAPE, "the last dimension of X is %lld, expected %lld",
                         (long long)x->dims[2], (long long)(directions * width));
    *ret = made;
    return STATUS_OK;
}

enum status recurrent_check_lengths(const struct recurrent *r, const int32_t *lengths,
                                    struct error *err)
{
    for (size_t n = 0; lengths && n < r->batch; n++)
        if (lengths[n] < 0 || (size_t)lengths[n] > r->steps)
            return error_set(err, STATUS_INVALID,
                             "sequence_lens[%zu] is %d, expected 0 to %zu, the number of steps", n,
                             (int)lengths[n], r->steps);
    return STATUS_OK;
}

static enum status infer_recurrent(struct node *node, struct error *err)
{
    const struct value *w = node_input(node, RECURRENT_W);
    const enum dtype dtype = node->inputs[0]->dtype;
    struct recurrent r;
    TRY(recurrent_init(node, &node->inputs[0]->shape, w ? &w->shape : NULL,
                       &node->inputs[RECURRENT_R]->shape, &r, err));
    const int64_t d = (int64_t)r.directions, n = (int64_t)r.batch, t = (int64_t)r.steps;
    const int64_t h = (int64_t)r.hidden;
    const struct shape state = r.batch_first ? SHAPE(n, d, h) : SHAPE(d, n, h);
    const struct shape all = r.batch_first ? SHAPE(n, t, d, h) : SHAPE(t, d, n, h);
    const struct shape bias = SHAPE(d, 2 * (int64_t)r.width), peepholes = SHAPE(d, 3 * h);
    TRY(operand_has_shape(node, RECURRENT_B, "B", &bias, err));
    TRY(operand_has_shape(node, RECURRENT_LENGTHS, "sequence_lens", &SHAPE(n), err));
    TRY(operand_has_shape(node, RECURRENT_H, "initial_h", &state, err));
    TRY(operand_has_shape(node, RECURRENT_C, "initial_c", &state, err));
    TRY(operand_has_shape(node, RECURRENT_P, "P", &peepholes, err));
    for (size_t i = 1; i < node->output_count; i++)
        TRY(infer_output(node, i, dtype, &state, err));
    return infer_output(node, 0, dtype, &all, err);
}

/* Returns the work of multiplying the rows of X by W and R. */
static double work_recurrent(const struct node *node)
{
    const struct value *x = node_input(node, 0);
    double weights = 0;
    for (size_t i = RECURRENT_W; i <= RECURRENT_R; i++)
        if (node_input(node, i) && shape_is_known(&node->inputs[i]->shape))
            weights += (double)shape_count(&node->inputs[i]->shape);
    if (!x || x->shape.rank != 3 || !shape_is_known(&x->shape))
        return 0;
    return (double)x->shape.dims[0] * (double)x->shape.dims[1] * weights;
}

/* Returns the axis of images in operand i, or -1 if operand i must be the same for all images. */
static int recurrent_batch_axis(const struct node *node, size_t i)
{
    const bool is_state = i == RECURRENT_X || i == RECURRENT_H || i == RECURRENT_C;
    const int of_state = node_int(node, "layout", 0) ? 0 : 1;
    return i == RECURRENT_LENGTHS ? 0 : is_state ? of_state : -1;
}

static int recurrent_axis(const struct node *node, const int *axes)
{
    for (size_t i = 0; i < node->input_count; i++)
        if (axes[i] != BATCH_FREE && axes[i] != recurrent_batch_axis(node, i))
            return BATCH_MIXES;
    return node_int(node, "layout", 0) ? 0 : 2; /* of Y */
}

static int recurrent_beside(const struct node *node, size_t i, int axis)
{
    (void)axis;
    const int own = recurrent_batch_axis(node, i);
    return own < 0 ? BATCH_OTHER : own;
}

const struct batch_rule batch_recurrent = {recurrent_axis, recurrent_beside};

/* The data of one direction. Rows have `width` numbers; bias may be NULL. */
struct recurrent_run {
    struct recurrent shape;
    size_t direction;
    const double *projected; /* X times W, of all directions */
    const double *weights;   /* the transpose of R, [hidden, width] */
    const double *bias, *peepholes;
    const int32_t *lengths;
    double *h, *c; /* in the layout of Y_h; only LSTM uses c */
    double *sums;  /* [batch, width]: h times R */
    double *reset; /* [batch, hidden]: r * h of GRU */
    double *y;     /* NULL: not wanted */
};

static double activate(const struct recurrent_run *run, size_t which, double x)
{
    const double alpha = run->shape.activation[run->direction][which].alpha;
    const double beta = run->shape.activation[run->direction][which].beta;
    switch (run->shape.activation[run->direction][which].function) {
    case FUNCTION_SIGMOID:
        return 1 / (1 + exp(-x));
    case FUNCTION_TANH:
        return tanh(x);
    case FUNCTION_RELU:
        return x < 0 ? 0 : x;
    case FUNCTION_HARD_SIGMOID:
        return fmax(0, fmin(1, alpha * x + beta));
    case FUNCTION_LEAKY_RELU:
        return x < 0 ? alpha * x : x;
    case FUNCTION_ELU:
        return x < 0 ? alpha * expm1(x) : x;
    case FUNCTION_THRESHOLDED_RELU:
        return x > alpha ? x : 0;
    case FUNCTION_AFFINE:
        return alpha * x + beta;
    case FUNCTION_SCALED_TANH:
        return alpha * tanh(beta * x);
    case FUNCTION_SOFTSIGN:
        return x / (1 + fabs(x));
    case FUNCTION_SOFTPLUS:
        return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
    }
    return x;
}

static double clipped(const struct recurrent_run *run, double x)
{
    const double clip = run->shape.clip;
    return run->shape.clips ? fmax(-clip, fmin(clip, x)) : x;
}

/* Returns bias i of the direction. The biases of W come before the biases of R. */
static double bias_at(const struct recurrent_run *run, size_t i)
{
    return run->bias ? run->bias[i] : 0;
}

/* Returns the input of the activation of gate number i, without the peephole's part. */
static double gate_sum(const struct recurrent_run *run, const double *x, const double *sums,
                       size_t i)
{
    return x[i] + sums[i] + bias_at(run, i) + bias_at(run, run->shape.width + i);
}

static void lstm_row(const struct recurrent_run *run, const double *x, const double *sums,
                     double *h, double *c)
{
    const size_t hidden = run->shape.hidden;
    const double *p = run->peepholes;
    for (size_t k = 0; k < hidden; k++) {
        const size_t o = hidden + k, f = 2 * hidden + k, g = 3 * hidden + k;
        const double in =
            activate(run, 0, clipped(run, gate_sum(run, x, sums, k) + (p ? p[k] * c[k] : 0)));
        const double kept = clipped(run, gate_sum(run, x, sums, f) + (p ? p[f] * c[k] : 0));
        const double forget = run->shape.is_coupled ? 1 - in : activate(run, 0, kept);
        const double cell = activate(run, 1, clipped(run, gate_sum(run, x, sums, g)));
        c[k] = forget * c[k] + in * cell;
        const double out =
            activate(run, 0, clipped(run, gate_sum(run, x, sums, o) + (p ? p[o] * c[k] : 0)));
        h[k] = out * activate(run, 2, c[k]);
    }
}

/* Leaves gates z and r in `sums`, and writes r times h to `reset`. */
static void gru_gates(const struct recurrent_run *run, const double *x, double *sums,
                      const double *h, double *reset)
{
    const size_t hidden = run->shape.hidden;
    for (size_t k = 0; k < 2 * hidden; k++)
        sums[k] = activate(run, 0, clipped(run, gate_sum(run, x, sums, k)));
    for (size_t k = 0; k < hidden; k++)
        reset[k] = sums[hidden + k] * h[k];
}

static void gru_row(const struct recurrent_run *run, const double *x, const double *sums, double *h)
{
    const size_t hidden = run->shape.hidden, width = run->shape.width;
    for (size_t k = 0; k < hidden; k++) {
        const size_t n = 2 * hidden + k;
        const double factor = run->shape.resets_product ? sums[hidden + k] : 1;
        const double sum = x[n] + bias_at(run, n) + factor * (sums[n] + bias_at(run, width + n));
        h[k] = (1 - sums[k]) * activate(run, 1, clipped(run, sum)) + sums[k] * h[k];
    }
}

/* Sets columns `from` … `to` - 1 of run->sums to h times the same columns of run->weights. Rows of
 * h are `row` apart. */
static void multiply_states(const struct recurrent_run *run, const double *h, size_t row,
                            size_t from, size_t to)
{
    const struct recurrent *r = &run->shape;
    for (size_t n = 0; n < r->batch; n++)
        zero_bytes(run->sums + n * r->width + from, (to - from) * sizeof(double));
    gemm_nn(DTYPE_F64, r->batch, to - from, r->hidden, h, row, 1, run->weights + from, r->width,
            run->sums + from, r->width);
}

static void recurrent_step(const struct recurrent_run *run, size_t s)
{
    const struct recurrent *r = &run->shape;
    const size_t d = run->direction, row = r->batch_first ? r->directions * r->hidden : r->hidden;
    const bool gates_first = r->cell == CELL_GRU && !r->resets_product;
    multiply_states(run, run->h + recurrent_state(r, d, 0), row, 0,
                    gates_first ? 2 * r->hidden : r->width);
    for (int part = r->cell == CELL_GRU ? 0 : 1; part < 2; part++) {
        if (part == 1 && gates_first)
            multiply_states(run, run->reset, r->hidden, 2 * r->hidden, r->width);
        for (size_t n = 0; n < r->batch; n++) {
            const size_t length = recurrent_length(r, run->lengths, n);
            if (s >= length)
                continue;
            const size_t t = recurrent_time(r, d, s, length), state = recurrent_state(r, d, n);
            const double *x =
                run->projected + (recurrent_row(r, t, n) * r->directions + d) * r->width;
            double *h = run->h + state, *sums = run->sums + n * r->width;
            if (part == 0)
                gru_gates(run, x, sums, h, run->reset + n * r->hidden);
            else if (r->cell == CELL_LSTM)
                lstm_row(run, x, sums, h, run->c + state);
            else if (r->cell == CELL_GRU)
                gru_row(run, x, sums, h);
            else
                for (size_t k = 0; k < r->hidden; k++)
                    h[k] = activate(run, 0, clipped(run, gate_sum(run, x, sums, k)));
            if (part == 1 && run->y)
                memcpy(run->y + recurrent_result(r, t, d, n), h, r->hidden * sizeof *h);
        }
    }
}

/* Computes X times W, one matrix for all directions, if the node has W; otherwise *ret is x. */
static enum status project(const struct kernel_args *args, const struct recurrent *r,
                           const double *x, const double *w, const double **ret, struct error *err)
{
    const size_t rows = r->steps * r->batch, all = r->directions * r->width;
    *ret = x;
    if (!kernel_input(args, RECURRENT_W)) /* `w` is also NULL if W has no columns */
        return STATUS_OK;
    size_t count;
    if (!size_mul(rows, all, &count))
        return error_set(err, STATUS_TOO_LARGE, "the gates are too large");
    double *made = kernel_scratch(args, count, sizeof *made, err);
    w = transposed(args, w, all, r->inputs, sizeof *w, err);
    if (!made || !w)
        return STATUS_NO_MEMORY;
    zero_bytes(made, count * sizeof *made);
    for (size_t row = 0; row < rows && r->inputs; row += r->batch) {
        TRY(kernel_goes_on(args, r->batch * all * r->inputs, err));
        gemm_nn(DTYPE_F64, r->batch, all, r->inputs, x + row * r->inputs, r->inputs, 1, w, all,
                made + row * all, all);
    }
    *ret = made;
    return STATUS_OK;
}

/* Opens a state that starts as operand `from`, or as zeros, and ends as output `to`. */
static enum status open_state(const struct kernel_args *args, const struct recurrent *r,
                              const double *from, size_t to, double **ret, struct error *err)
{
    const size_t count = r->directions * r->batch * r->hidden;
    TRY(result_open(args, to, DTYPE_F64, ret, err));
    if (!*ret)
        *ret = kernel_scratch(args, count, sizeof **ret, err);
    TRY(allocated(*ret));
    if (from)
        memcpy(*ret, from, count * sizeof *from);
    else
        zero_bytes(*ret, count * sizeof **ret);
    return STATUS_OK;
}

KERNEL(kernel_recurrent)
{
    const struct tensor *w = kernel_input(args, RECURRENT_W);
    const struct tensor *lengths = kernel_input(args, RECURRENT_LENGTHS);
    const double *in[RECURRENT_OPERANDS] = {NULL};
    struct recurrent_run run = {.lengths = lengths ? lengths->data : NULL};
    struct recurrent *r = &run.shape;
    TRY(recurrent_init(args->node, &args->in[RECURRENT_X]->shape, w ? &w->shape : NULL,
                       &args->in[RECURRENT_R]->shape, r, err));
    TRY(recurrent_check_lengths(r, run.lengths, err));
    for (size_t i = 0; i < RECURRENT_OPERANDS; i++)
        if (i != RECURRENT_LENGTHS)
            TRY(operands_open(args, i, 1, &in[i], err));
    TRY(project(args, r, in[RECURRENT_X], in[RECURRENT_W], &run.projected, err));
    TRY(open_state(args, r, in[RECURRENT_H], 1, &run.h, err));
    TRY(open_state(args, r, in[RECURRENT_C], 2, &run.c, err));
    TRY(result_open(args, 0, DTYPE_F64, &run.y, err));
    run.sums = kernel_scratch(args, r->batch, (r->width + r->hidden) * sizeof(double), err);
    TRY(allocated(run.sums));
    run.reset = run.sums + r->batch * r->width;
    if (run.y) /* steps beyond sequence_lens stay 0 */
        zero_bytes(run.y, shape_count(&args->out[0]->shape) * sizeof(double));
    for (size_t d = 0; d < r->directions; d++) {
        run.direction = d;
        run.weights = transposed(args, in[RECURRENT_R] + d * r->width * r->hidden, r->width,
                                 r->hidden, sizeof(double), err);
        TRY(allocated(run.weights));
        run.bias = in[RECURRENT_B] ? in[RECURRENT_B] + d * 2 * r->width : NULL;
        run.peepholes = in[RECURRENT_P] ? in[RECURRENT_P] + d * 3 * r->hidden : NULL;
        for (size_t s = 0; s < r->steps; s++) {
            TRY(kernel_goes_on(args, r->batch * r->width * r->hidden, err));
            recurrent_step(&run, s);
        }
    }
    return STATUS_OK;
}

#define RECURRENT_ATTRS                                                                            \
    "activation_alpha:floats activation_beta:floats activations:strings clip:float "               \
    "direction:string hidden_size:int layout:int"
#define RECURRENT_INPUTS "X:float W:= R:=! B:= sequence_lens:int32 initial_h:= initial_c:= P:="
/* opset 1's output_sequence has no effect: an output that the file names is always computed */
#define ENTRY(op, inputs, outputs, attrs)                                                          \
    {                                                                                              \
        op, 1, 0, 3, inputs, 0, outputs, RECURRENT_INPUTS, OP_HEAVY,                               \
            RECURRENT_ATTRS " output_sequence:int" attrs, infer_recurrent, &batch_recurrent,       \
            work_recurrent, kernel_recurrent                                                       \
    }

const struct op_info ops_recurrent[] = {
    ENTRY(OP_LSTM, 8, 3, " input_forget:int"),
    ENTRY(OP_GRU, 6, 2, " linear_before_reset:int"),
    ENTRY(OP_RNN, 6, 2, ""),
    {OP_RECURRENCE, 1, 0, 1, 8, 0, 3, RECURRENT_INPUTS, OP_HEAVY,
     RECURRENT_ATTRS " cell:int input_forget:int linear_before_reset:int", infer_recurrent,
     &batch_recurrent, work_recurrent, kernel_recurrent},
    {0},
};
