/* Checks of one operand: dtype, rank, length, presence; errors name the operand as the ONNX page
 * does. */
#include "engine/op/operands.h"

#include <stdio.h>

#include "engine/op/families.h"

/* "float32, float16" for a set of dtypes. */
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
