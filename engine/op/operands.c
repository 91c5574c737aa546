/* Helpers of inference functions: axes, broadcasting, setting outputs, lists of integers and words,
 * and checks of an operand, which errors name as in ONNX's documentation. */
#include "engine/op/operands.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/families.h"

enum status infer_axis(int64_t *axis, int rank, struct error *err)
{
    if (*axis < -(int64_t)rank || *axis >= rank) {
        if (rank == 0)
            return error_set(err, STATUS_SHAPE, "axis %lld of a scalar, which has no axes",
                             (long long)*axis);
        return error_set(err, STATUS_SHAPE, "axis %lld is out of range, expected %d to %d",
                         (long long)*axis, -rank, rank - 1);
    }
    if (*axis < 0)
        *axis += rank;
    return STATUS_OK;
}

enum status infer_attribute_axis(const struct node *node, int64_t otherwise, int64_t *ret,
                                 struct error *err)
{
    *ret = node_int(node, "axis", otherwise);
    return infer_axis(ret, node->inputs[0]->shape.rank, err);
}

enum status infer_broadcast(const struct shape *a, const struct shape *b, struct shape *ret,
                            struct error *err)
{
    struct shape out = {.rank = a->rank > b->rank ? a->rank : b->rank};
    for (int i = 1; i <= out.rank; i++) {
        int64_t x = i <= a->rank ? a->dims[a->rank - i] : 1;
        int64_t y = i <= b->rank ? b->dims[b->rank - i] : 1;
        if (x != y && x != 1 && y != 1) {
            char left[SHAPE_TEXT], right[SHAPE_TEXT];
            return error_set(err, STATUS_SHAPE,
                             "shapes %s and %s cannot be broadcast together (%lld against %lld, "
                             "dimension %d from the end)",
                             shape_text(a, left), shape_text(b, right), (long long)x, (long long)y,
                             i);
        }
        out.dims[out.rank - i] = x == 1 ? y : x;
    }
    *ret = out;
    return STATUS_OK;
}

enum status infer_output(struct node *node, size_t i, enum dtype dtype, const struct shape *shape,
                         struct error *err)
{
    struct value *value = node_output(node, i);
    TRY(shape_check(shape, dtype, NULL, NULL, err));
    if (value) {
        value->dtype = dtype;
        value->shape = *shape;
    }
    return STATUS_OK;
}

enum status infer_unknown(struct node *node, size_t i, enum dtype dtype)
{
    struct value *value = node_output(node, i);
    if (value) {
        value->dtype = dtype;
        value->shape = SHAPE_NONE;
    }
    return STATUS_OK;
}

enum status infer_like(struct node *node, unsigned dtypes, struct error *err)
{
    const struct value *x = node->inputs[0];
    TRY(operand_dtype(node, 0, "input", dtypes, err));
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

/* ---- operands ---- */

/* Writes a set of dtypes: "float32, float16". */
static void dtypes_text(unsigned set, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
#define LIST_DTYPE(name, number, bytes, word, oip)                                                 \
    if (set & DTYPE_BIT(name) && used < size) {                                                    \
        int n = snprintf(text + used, size - used, "%s%s", used ? ", " : "", word);                \
        used += (size_t)n;                                                                         \
    }
    DTYPE_LIST(LIST_DTYPE)
#undef LIST_DTYPE
}

enum status operand_dtype(const struct node *node, size_t i, const char *name, unsigned allowed,
                          struct error *err)
{
    const struct value *value = node_input(node, i);
    if (!value || (value->dtype != DTYPE_NONE && allowed >> value->dtype & 1))
        return STATUS_OK;
    char text[160];
    dtypes_text(allowed, text, sizeof text);
    return error_set(err, STATUS_MODEL, "%s (input %zu) is a %s tensor, expected one of: %s", name,
                     i, dtype_name(value->dtype), text);
}

enum status operand_same_dtype(const struct node *node, size_t i, const char *name,
                               struct error *err)
{
    const struct value *first = node_input(node, 0), *value = node_input(node, i);
    if (!value || !first || value->dtype == first->dtype)
        return STATUS_OK;
    return error_set(err, STATUS_MODEL, "%s (input %zu) is %s, but input 0 is %s; they must agree",
                     name, i, dtype_name(value->dtype), dtype_name(first->dtype));
}

enum status operand_rank(const struct node *node, size_t i, const char *name, int min, int max,
                         struct error *err)
{
    const struct value *value = node_input(node, i);
    if (!value || (value->shape.rank >= min && value->shape.rank <= max))
        return STATUS_OK;
    char text[SHAPE_TEXT], wanted[32];
    if (min == max)
        snprintf(wanted, sizeof wanted, "%d", min);
    else
        snprintf(wanted, sizeof wanted, "%d to %d", min, max);
    return error_set(err, STATUS_SHAPE, "%s (input %zu) has shape %s, expected rank %s", name, i,
                     shape_text(&value->shape, text), wanted);
}

enum status operand_vector(const struct node *node, size_t i, const char *name, int64_t length,
                           struct error *err)
{
    const struct value *value = node_input(node, i);
    if (!value || (value->shape.rank == 1 && value->shape.dims[0] == length))
        return STATUS_OK;
    char text[SHAPE_TEXT];
    return error_set(err, STATUS_SHAPE, "%s (input %zu) has shape %s, expected [%lld]", name, i,
                     shape_text(&value->shape, text), (long long)length);
}

enum status operand_has_shape(const struct node *node, size_t i, const char *name,
                              const struct shape *wanted, struct error *err)
{
    const struct value *value = node_input(node, i);
    char text[SHAPE_TEXT], expected[SHAPE_TEXT];
    if (!value || shape_equal(&value->shape, wanted))
        return STATUS_OK;
    return error_set(err, STATUS_SHAPE, "%s has shape %s, expected %s", name,
                     shape_text(&value->shape, text), shape_text(wanted, expected));
}

enum status operand_broadcasts(const struct node *node, size_t i, const char *name,
                               const struct shape *shape, struct error *err)
{
    const struct value *value = node_input(node, i);
    struct shape both;
    if (!value)
        return STATUS_OK;
    TRY(infer_broadcast(&value->shape, shape, &both, err));
    if (shape_equal(&both, shape))
        return STATUS_OK;
    char text[SHAPE_TEXT], wanted[SHAPE_TEXT];
    return error_set(err, STATUS_SHAPE, "%s has shape %s, which does not broadcast to %s", name,
                     shape_text(&value->shape, text), shape_text(shape, wanted));
}

enum status operand_single(const struct node *node, size_t i, const char *name, struct error *err)
{
    const struct value *value = node_input(node, i);
    if (!value || shape_count(&value->shape) == 1)
        return STATUS_OK;
    char text[SHAPE_TEXT];
    return error_set(err, STATUS_SHAPE, "%s (input %zu) has shape %s, expected one number", name, i,
                     shape_text(&value->shape, text));
}

enum status operand_present(const struct node *node, size_t i, const char *name, struct error *err)
{
    if (node_input(node, i))
        return STATUS_OK;
    return error_set(err, STATUS_MODEL, "%s (input %zu) is left out but required", name, i);
}

int node_word(const struct node *node, const char *name, const char *words)
{
    const char *text = node_string(node, name, NULL);
    const size_t length = text ? strlen(text) : 0;
    int at = 0;
    for (const char *word = words; text && *word; at++) {
        const size_t size = strcspn(word, " ");
        if (size == length && !memcmp(word, text, size))
            return at;
        word += size + (word[size] == ' ');
    }
    return text ? -1 : 0;
}

enum status infer_word(const struct node *node, const char *name, const char *words, int *ret,
                       struct error *err)
{
    *ret = node_word(node, name, words);
    if (*ret >= 0)
        return STATUS_OK;
    return error_set(err, STATUS_MODEL, "%s is '%.60s', expected one of: %s", name,
                     node_string(node, name, ""), words);
}
