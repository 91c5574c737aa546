/* Einsum equations: "bij,bjk->bik", "...ii->...i", "ij,jk". Spaces are ignored, but not in "..."
 * and "->". Ellipsis dimensions are numbered from the end, so that ellipses of different lengths
 * broadcast as in numpy. */
#include <string.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"

#define EINSUM_MAX_OPERANDS 16
#define EINSUM_MAX_LABELS   (52 + TENSOR_MAX_RANK)

/* Labels are numbers: 0 … 51 for letters, 52 and above for the dimensions of an ellipsis, which are
 * aligned at the last dimension. label[] of an operand has one entry per dimension. */
struct einsum_plan {
    size_t operands;
    int8_t label[EINSUM_MAX_OPERANDS][TENSOR_MAX_RANK];
    int64_t extent[EINSUM_MAX_LABELS]; /* -1: no operand has the label */
    int8_t out_label[TENSOR_MAX_RANK];
    struct shape out;
};

#define LETTERS     52
#define ELLIPSIS    (-2)
#define TERM_LABELS (TENSOR_MAX_RANK + 1)

/* Numbers letters in the order of ASCII, upper case first, as an implicit output needs. */
static int letter_label(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return 26 + c - 'a';
    return -1;
}

struct term {
    int label[TERM_LABELS]; /* ELLIPSIS at most once */
    int count;
    bool ellipsis;
};

/* Reads one term, up to a comma, an arrow or the end, and advances *text past the term. */
static enum status read_term(const char **text, struct term *ret, struct error *err)
{
    struct term term = {.count = 0};
    const char *p = *text;
    for (; *p && *p != ',' && *p != '-'; p++) {
        int label = letter_label(*p);
        if (*p == ' ')
            continue;
        if (*p == '.') {
            if (strncmp(p, "...", 3) || term.ellipsis)
                return error_set(
                    err, STATUS_MODEL,
                    "the equation has a stray '.', expected at most one '...' per term");
            p += 2;
            label = ELLIPSIS;
            term.ellipsis = true;
        } else if (label < 0) {
            return error_set(err, STATUS_MODEL,
                             "the equation holds '%c', expected letters, '...', ',' and '->'", *p);
        }
        if (term.count == TERM_LABELS)
            return error_set(err, STATUS_UNSUPPORTED,
                             "a term of the equation names more than %d dimensions",
                             TENSOR_MAX_RANK);
        term.label[term.count++] = label;
    }
    *text = p;
    *ret = term;
    return STATUS_OK;
}

static enum status bind_extent(struct einsum_plan *plan, int label, int64_t extent,
                               struct error *err)
{
    int64_t *known = &plan->extent[label];
    if (*known >= 0 && *known != extent && *known != 1 && extent != 1)
        return error_set(err, STATUS_SHAPE,
                         "one label of the equation stands for dimensions of %lld and of %lld",
                         (long long)*known, (long long)extent);
    if (*known < 0 || *known == 1)
        *known = extent;
    return STATUS_OK;
}

static enum status bind_operand(struct einsum_plan *plan, size_t operand, const struct term *term,
                                const struct shape *shape, struct error *err)
{
    int letters = term->count - term->ellipsis, rest = shape->rank - letters, dim = 0;
    if (rest < 0 || (rest > 0 && !term->ellipsis))
        return error_set(err, STATUS_SHAPE,
                         "operand %zu has shape %s, expected %d dimensions, as its term of the "
                         "equation has",
                         operand, SHAPE_STRING(shape), letters);
    for (int i = 0; i < term->count; i++) {
        int first = term->label[i] == ELLIPSIS ? EINSUM_MAX_LABELS - rest : term->label[i];
        int labels = term->label[i] == ELLIPSIS ? rest : 1;
        for (int k = 0; k < labels; k++, dim++) {
            plan->label[operand][dim] = (int8_t)(first + k);
            TRY(bind_extent(plan, first + k, shape->dims[dim], err));
        }
    }
    return STATUS_OK;
}

static enum status add_output(struct einsum_plan *plan, int label, struct error *err)
{
    for (int i = 0; i < plan->out.rank; i++)
        if (plan->out_label[i] == label)
            return error_set(err, STATUS_MODEL, "the equation's output names a label twice");
    if (plan->extent[label] < 0)
        return error_set(err, STATUS_MODEL,
                         "the equation's output names a label that no operand has");
    if (plan->out.rank == TENSOR_MAX_RANK)
        return error_set(err, STATUS_UNSUPPORTED, "the equation's output has a rank above %d",
                         TENSOR_MAX_RANK);
    plan->out_label[plan->out.rank] = (int8_t)label;
    plan->out.dims[plan->out.rank++] = plan->extent[label];
    return STATUS_OK;
}

static enum status add_ellipsis(struct einsum_plan *plan, struct error *err)
{
    for (int label = LETTERS; label < EINSUM_MAX_LABELS; label++)
        if (plan->extent[label] >= 0)
            TRY(add_output(plan, label, err));
    return STATUS_OK;
}

static enum status bind_output(struct einsum_plan *plan, const struct term *term, struct error *err)
{
    for (int i = 0; i < term->count; i++) {
        if (term->label[i] == ELLIPSIS)
            TRY(add_ellipsis(plan, err));
        else
            TRY(add_output(plan, term->label[i], err));
    }
    return STATUS_OK;
}

/* Without an arrow, the output is the ellipsis, then the letters that occur once, by ASCII. */
static enum status imply_output(struct einsum_plan *plan, const int *occurrences, struct error *err)
{
    TRY(add_ellipsis(plan, err));
    for (int label = 0; label < LETTERS; label++)
        if (occurrences[label] == 1)
            TRY(add_output(plan, label, err));
    return STATUS_OK;
}

/* STATUS_MODEL for a malformed equation, STATUS_SHAPE for operands that do not fit the equation. */
static enum status einsum_plan_init(const struct node *node, struct einsum_plan *ret,
                                    struct error *err)
{
    const size_t operands = node->input_count;
    const char *text = node_string(node, "equation", NULL);
    if (!text)
        return error_set(err, STATUS_MODEL, "the attribute equation is missing");
    if (operands < 1 || operands > EINSUM_MAX_OPERANDS)
        return error_set(err, STATUS_UNSUPPORTED, "%zu operands, lensd handles 1 to %d", operands,
                         EINSUM_MAX_OPERANDS);
    struct einsum_plan plan = {.operands = operands};
    int occurrences[LETTERS] = {0};
    struct term term;
    for (int i = 0; i < EINSUM_MAX_LABELS; i++)
        plan.extent[i] = -1;
    for (size_t operand = 0; operand < operands; operand++) {
        TRY(read_term(&text, &term, err));
        bool last = operand + 1 == operands;
        if (last ? *text == ',' : *text != ',')
            return error_set(err, STATUS_MODEL,
                             "the equation does not have %zu terms, one for each operand",
                             operands);
        text += *text == ',';
        TRY(bind_operand(&plan, operand, &term, &node->inputs[operand]->shape, err));
        for (int i = 0; i < term.count; i++)
            if (term.label[i] >= 0)
                occurrences[term.label[i]]++;
    }
    if (!*text) {
        TRY(imply_output(&plan, occurrences, err));
    } else {
        if (strncmp(text, "->", 2))
            return error_set(err, STATUS_MODEL, "the equation has a '-' that is no '->'");
        text += 2;
        TRY(read_term(&text, &term, err));
        if (*text)
            return error_set(err, STATUS_MODEL, "the equation has text after its output");
        TRY(bind_output(&plan, &term, err));
    }
    *ret = plan;
    return STATUS_OK;
}

static enum status infer_einsum(struct node *node, struct error *err)
{
    struct einsum_plan plan;
    TRY(einsum_plan_init(node, &plan, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &plan.out, err);
}

/* Returns the dimension that has a label, -1 if no dimension has it, or -2 if several have it, as
 * on a diagonal. */
static int label_place(const int8_t *labels, int rank, int label)
{
    int place = -1;
    for (int i = 0; i < rank; i++)
        if (labels[i] == label)
            place = place == -1 ? i : -2;
    return place;
}

/* All operands that have images must have the same label on the images' axis. The result has the
 * images on the axis with that label. */
static int einsum_axis(const struct node *node, const int *axes)
{
    struct einsum_plan plan;
    int label = -1;
    if (einsum_plan_init(node, &plan, NULL) != STATUS_OK)
        return BATCH_MIXES;
    for (size_t i = 0; i < plan.operands; i++) {
        if (axes[i] != BATCH_FREE && label >= 0 && plan.label[i][axes[i]] != label)
            return BATCH_MIXES;
        label = axes[i] != BATCH_FREE ? plan.label[i][axes[i]] : label;
    }
    for (size_t i = 0; i < plan.operands; i++)
        if (label_place(plan.label[i], node->inputs[i]->shape.rank, label) == -2)
            return BATCH_MIXES;
    const int place = label_place(plan.out_label, plan.out.rank, label);
    return place >= 0 ? place : BATCH_MIXES;
}

static int einsum_beside(const struct node *node, size_t i, int axis)
{
    struct einsum_plan plan;
    const int place =
        einsum_plan_init(node, &plan, NULL) == STATUS_OK && axis < plan.out.rank
            ? label_place(plan.label[i], node->inputs[i]->shape.rank, plan.out_label[axis])
            : -1;
    return place >= 0 ? place : BATCH_OTHER;
}

/* An array whose axes are labels; steps are in elements, 0 for absent labels. A label that occurs
 * twice (a diagonal) has the sum of both steps. */
struct labelled {
    const void *data;
    uint64_t labels;
    size_t step[EINSUM_MAX_LABELS];
};

_Static_assert(EINSUM_MAX_LABELS <= 64, "labels are the bits of a uint64_t");

/* One loop: its steps, in elements, in the factors a and b and in the result. */
struct axis {
    size_t extent, a, b, to;
};

static double dot_f64(const double *a, size_t a_step, const double *b, size_t b_step, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i * a_step] * b[i * b_step];
    return sum;
}

static uint64_t dot_u64(const uint64_t *a, size_t a_step, const uint64_t *b, size_t b_step,
                        size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i * a_step] * b[i * b_step];
    return sum;
}

/* Moves the offsets in *offset to the next position. Returns false after the last. */
static bool advance(const struct axis *axes, int rank, size_t *at, struct axis *offset)
{
    for (int i = rank - 1; i >= 0; i--) {
        offset->a += axes[i].a;
        offset->b += axes[i].b;
        offset->to += axes[i].to;
        if (++at[i] < axes[i].extent)
            return true;
        offset->a -= axes[i].a * at[i];
        offset->b -= axes[i].b * at[i];
        offset->to -= axes[i].to * at[i];
        at[i] = 0;
    }
    return false;
}

/* Writes to dst, which `to` describes, the sum of a * b over all labels that `to` lacks. The last
 * of these labels is the innermost loop. */
static enum status contract(const struct kernel_args *args, const struct einsum_plan *plan,
                            enum dtype working, const struct labelled *a, const struct labelled *b,
                            const struct labelled *to, void *dst, struct error *err)
{
    struct axis axes[EINSUM_MAX_LABELS + 1], offset = {0};
    size_t at[EINSUM_MAX_LABELS + 1] = {0}, count = 1;
    int rank = 0;
    bool is_empty = false;
    for (int pass = 0; pass < 2; pass++) {
        const uint64_t labels = pass ? (a->labels | b->labels) & ~to->labels : to->labels;
        for (int label = 0; label < EINSUM_MAX_LABELS; label++) {
            if (!(labels >> label & 1))
                continue;
            const size_t extent = (size_t)plan->extent[label];
            axes[rank++] = (struct axis){extent, a->step[label], b->step[label], to->step[label]};
            is_empty = is_empty || !extent;
            count *= pass ? 1 : extent;
        }
    }
    if (!((a->labels | b->labels) & ~to->labels))
        axes[rank++] = (struct axis){.extent = 1}; /* no label is summed */
    zero_bytes(dst, count * sizeof(double));       /* 0.0 has the bits of the integer 0 */
    if (is_empty)
        return STATUS_OK;
    const struct axis *last = &axes[rank - 1];
    do {
        TRY(kernel_goes_on(args, last->extent + 1, err));
        if (working == DTYPE_F64)
            ((double *)dst)[offset.to] +=
                dot_f64((const double *)a->data + offset.a, last->a,
                        (const double *)b->data + offset.b, last->b, last->extent);
        else
            ((uint64_t *)dst)[offset.to] +=
                dot_u64((const uint64_t *)a->data + offset.a, last->a,
                        (const uint64_t *)b->data + offset.b, last->b, last->extent);
    } while (advance(axes, rank - 1, at, &offset));
    return STATUS_OK;
}

static void label_operand(const struct einsum_plan *plan, const int8_t *label,
                          const struct shape *shape, const void *data, struct labelled *ret)
{
    *ret = (struct labelled){.data = data};
    size_t step = 1;
    for (int d = shape->rank - 1; d >= 0; d--) {
        ret->labels |= UINT64_C(1) << label[d];
        if (shape->dims[d] == plan->extent[label[d]])
            ret->step[label[d]] += step; /* otherwise the extent is 1 and broadcasts: step 0 */
        step *= (size_t)shape->dims[d];
    }
}

/* Describes an intermediate result and allocates it. */
static enum status intermediate(const struct kernel_args *args, const struct einsum_plan *plan,
                                uint64_t labels, struct labelled *ret, void **ret_data,
                                struct error *err)
{
    size_t count = 1;
    *ret = (struct labelled){.labels = labels};
    for (int label = EINSUM_MAX_LABELS - 1; label >= 0; label--) {
        if (!(labels >> label & 1))
            continue;
        ret->step[label] = count;
        if (!size_mul(count, (size_t)plan->extent[label], &count))
            return error_set(err, STATUS_SHAPE, "an intermediate result is too large");
    }
    ret->data = *ret_data = kernel_scratch(args, count, sizeof(double), err);
    return allocated(*ret_data);
}

static enum status contract_all(const struct kernel_args *args, const struct einsum_plan *plan,
                                enum dtype working, const struct labelled *operands, void *dst,
                                struct error *err)
{
    static const double one_f64 = 1;
    static const uint64_t one_u64 = 1;
    struct labelled one = {.data = &one_u64}, left = operands[0], next, to;
    if (working == DTYPE_F64)
        one.data = &one_f64;
    label_operand(plan, plan->out_label, &plan->out, NULL, &to);
    for (size_t i = 1; i + 1 < plan->operands; i++) {
        void *fresh = NULL;
        uint64_t needed = to.labels; /* labels that the output or further operands have */
        for (size_t k = i + 1; k < plan->operands; k++)
            needed |= operands[k].labels;
        needed &= left.labels | operands[i].labels;
        TRY(intermediate(args, plan, needed, &next, &fresh, err));
        TRY(contract(args, plan, working, &left, &operands[i], &next, fresh, err));
        left = next;
    }
    return contract(args, plan, working, &left,
                    plan->operands > 1 ? &operands[plan->operands - 1] : &one, &to, dst, err);
}

KERNEL(kernel_einsum)
{
    size_t count = args->node->input_count;
    struct labelled operands[EINSUM_MAX_OPERANDS];
    struct einsum_plan plan;
    const void *data;
    void *dst;
    TRY(einsum_plan_init(args->node, &plan, err));
    enum dtype working = dtype_is_float(args->in[0]->dtype) ? DTYPE_F64 : DTYPE_U64;
    TRY(result_open(args, 0, working, &dst, err));
    for (size_t i = 0; i < count; i++) {
        TRY(operand_open(args, i, working, &data, err));
        label_operand(&plan, plan.label[i], &args->in[i]->shape, data, &operands[i]);
    }
    TRY(contract_all(args, &plan, working, operands, dst, err));
    return STATUS_OK;
}

const struct op_info ops_einsum[] = {
    {OP_EINSUM, 12, 0, 1, OP_VARIADIC, 1, 1, "Inputs:number ...Inputs:=!", OP_HEAVY,
     "equation:string", infer_einsum, BATCH(einsum_axis, einsum_beside), work_product,
     kernel_einsum},
    {0},
};
