/* Einsum equations: "bij,bjk->bik", "...ii->...i", "ij,jk", with spaces anywhere.
 *
 * Ellipsis dimensions are numbered from the end, so that operands whose ellipses have different
 * lengths broadcast as numpy has it. */
#include <string.h>

#include "engine/ops/geometry.h"

#define LETTERS     52
#define ELLIPSIS    (-2)
#define TERM_LABELS (TENSOR_MAX_RANK + 1)

/* Upper case first: the order of the labels of an implicit output (ASCII). */
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

/* One term, up to a comma, an arrow or the end; *text is moved behind it. */
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
                return error_set(err, STATUS_MODEL,
                                 "the equation has a stray '.', expected one '...' a term");
            p += 2;
            label = ELLIPSIS;
            term.ellipsis = true;
        } else if (label < 0) {
            return error_set(err, STATUS_MODEL,
                             "the equation holds '%c', expected letters, '...', "
                             "',' and '->'",
                             *p);
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

/* Gives the dimensions of one operand their labels. */
static enum status bind_operand(struct einsum_plan *plan, size_t operand, const struct term *term,
                                const struct shape *shape, struct error *err)
{
    int letters = term->count - term->ellipsis, rest = shape->rank - letters, dim = 0;
    char text[SHAPE_TEXT];
    if (rest < 0 || (rest > 0 && !term->ellipsis))
        return error_set(err, STATUS_SHAPE,
                         "operand %zu has shape %s, expected %d dimensions, as its term of the "
                         "equation has",
                         operand, shape_text(shape, text), letters);
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

/* Without an arrow: the ellipsis, then the letters that occur exactly once, in ASCII order. */
static enum status imply_output(struct einsum_plan *plan, const int *occurrences, struct error *err)
{
    TRY(add_ellipsis(plan, err));
    for (int label = 0; label < LETTERS; label++)
        if (occurrences[label] == 1)
            TRY(add_output(plan, label, err));
    return STATUS_OK;
}

enum status einsum_plan_init(const struct node *node, const struct shape *const *shapes,
                             size_t operands, struct einsum_plan *ret, struct error *err)
{
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
                             "the equation does not have %zu terms, one for "
                             "each operand",
                             operands);
        text += *text == ',';
        TRY(bind_operand(&plan, operand, &term, shapes[operand], err));
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
            return error_set(err, STATUS_MODEL, "the equation has text behind its output");
        TRY(bind_output(&plan, &term, err));
    }
    *ret = plan;
    return STATUS_OK;
}
