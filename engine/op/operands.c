/* Helpers of inference functions: axes, broadcasting, setting outputs, lists of integers and words,
 * and checks of operands. */
#include "engine/op/operands.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
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
        if (x != y && x != 1 && y != 1)
            return error_set(err, STATUS_SHAPE,
                             "shapes %s and %s cannot be broadcast together (%lld against %lld, "
                             "dimension %d from the end)",
                             SHAPE_STRING(a), SHAPE_STRING(b), (long long)x, (long long)y, i);
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

enum status infer_unknown_i64(struct node *node, __attribute__((unused)) struct error *err)
{
    return infer_unknown(node, 0, DTYPE_I64);
}

enum status infer_like(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

enum status infer_broadcasts(struct node *node, enum dtype dtype, struct error *err)
{
    struct shape out = node->inputs[0]->shape;
    for (size_t i = 1; i < node->input_count; i++)
        TRY(infer_broadcast(&out, &node->inputs[i]->shape, &out, err));
    return infer_output(node, 0, dtype, &out, err);
}

enum status infer_binary(struct node *node, struct error *err)
{
    return infer_broadcasts(node, node->inputs[0]->dtype, err);
}

enum status infer_list(const struct node *node, const char *name, size_t count, int64_t low,
                       int64_t high, int64_t otherwise, int64_t *ret, struct error *err)
{
    size_t given;
    const int64_t *list = node_ints(node, name, &given);
    if (given && given != count)
        return error_set(err, STATUS_SHAPE, "%s has %zu numbers, expected %zu", name, given, count);
    for (size_t i = 0; i < count; i++) {
        const int64_t number = given ? list[i] : otherwise;
        if (given && (number < low || number > high))
            return error_set(err, STATUS_SHAPE, "%s holds %lld, expected at %s %lld", name,
                             (long long)number, number < low ? "least" : "most",
                             (long long)(number < low ? low : high));
        if (ret)
            ret[i] = number;
    }
    return STATUS_OK;
}

/* ---- operands ---- */

/* Writes a set of dtypes: "float32, float16". */
static void dtypes_text(unsigned set, char *text, size_t size)
{
    text[0] = '\0';
#define LIST_DTYPE(name, number, bytes, word, oip)                                                 \
    if (set & DTYPE_BIT(name))                                                                     \
        text_append(text, size, ", ", "%s", word);
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

enum status operand_same_dtype(const struct node *node, size_t i, const char *name, size_t other,
                               struct error *err)
{
    const struct value *first = node_input(node, other), *value = node_input(node, i);
    if (!value || !first || value->dtype == first->dtype)
        return STATUS_OK;
    return error_set(err, STATUS_MODEL,
                     "%s (input %zu) is %s, but input %zu is %s; they must agree", name, i,
                     dtype_name(value->dtype), other, dtype_name(first->dtype));
}

enum status operand_rank(const struct node *node, size_t i, const char *name, int min, int max,
                         struct error *err)
{
    const struct value *value = node_input(node, i);
    if (!value || (value->shape.rank >= min && value->shape.rank <= max))
        return STATUS_OK;
    char wanted[32];
    if (min == max)
        snprintf(wanted, sizeof wanted, "%d", min);
    else
        snprintf(wanted, sizeof wanted, "%d to %d", min, max);
    return error_set(err, STATUS_SHAPE, "%s (input %zu) has shape %s, expected rank %s", name, i,
                     SHAPE_STRING(&value->shape), wanted);
}

enum status operand_has_shape(const struct node *node, size_t i, const char *name,
                              const struct shape *wanted, struct error *err)
{
    const struct value *value = node_input(node, i);
    if (!value || shape_equal(&value->shape, wanted))
        return STATUS_OK;
    return error_set(err, STATUS_SHAPE, "%s has shape %s, expected %s", name,
                     SHAPE_STRING(&value->shape), SHAPE_STRING(wanted));
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
    return error_set(err, STATUS_SHAPE, "%s has shape %s, which does not broadcast to %s", name,
                     SHAPE_STRING(&value->shape), SHAPE_STRING(shape));
}

enum status operand_single(const struct node *node, size_t i, const char *name, struct error *err)
{
    const struct value *value = node_input(node, i);
    if (!value || shape_count(&value->shape) == 1)
        return STATUS_OK;
    return error_set(err, STATUS_SHAPE, "%s (input %zu) has shape %s, expected one number", name, i,
                     SHAPE_STRING(&value->shape));
}

/* ---- declarations ---- */

struct declaration {
    char name[32];
    const char *dims; /* `rank` characters; NULL: any shape */
    int rank;
    unsigned dtypes;
    int like; /* the input that has the same dtype; -1: none */
    bool gives_shape, is_required;
};

/* For each letter, 1 + the extent that the letter stands for; 0 if the extent is not known yet. */
typedef int64_t letters['Z' - 'A' + 1];

static unsigned dtypes_by_word(const char *word, size_t length)
{
    static const struct {
        const char *word;
        unsigned set;
    } sets[] = {{"float", DTYPES_FLOAT}, {"number", DTYPES_NUMBER},       {"any", DTYPES_ANY},
                {"index", DTYPES_INDEX}, {"integer", DTYPES_INTEGER},     {"signed", DTYPES_SIGNED},
                {"8bit", DTYPES_8BIT},   {"quantized", DTYPES_QUANTIZED},
#define DTYPE_WORD(name, number, bytes, word, oip) {word, DTYPE_BIT(name)},
                DTYPE_LIST(DTYPE_WORD)
#undef DTYPE_WORD
    };
    for (size_t i = 0; i < COUNT_OF(sets); i++)
        if (!strncmp(sets[i].word, word, length) && !sets[i].word[length])
            return sets[i].set;
    assert(false); /* a word is misspelt in the table */
    return 0;
}

/* Reads a declaration, and returns the text after it. */
static const char *read_declaration(const char *text, struct declaration *ret)
{
    const size_t length = strcspn(text, ":[#! ");
    *ret = (struct declaration){.like = -1};
    memcpy(ret->name, text, length < sizeof ret->name ? length : sizeof ret->name - 1);
    text += length;
    while (*text == ':' || *text == '|') {
        const size_t word = strcspn(++text, "|[#! ");
        if (*text == '=')
            ret->like = word > 1 ? text[1] - '0' : 0;
        else
            ret->dtypes |= dtypes_by_word(text, word);
        text += word;
    }
    if (*text == '[') {
        ret->dims = text + 1;
        ret->rank = (int)strcspn(ret->dims, "]");
        text = ret->dims + ret->rank + 1;
    }
    ret->gives_shape = *text == '#';
    text += ret->gives_shape;
    ret->is_required = *text == '!';
    text += ret->is_required;
    return text + (*text == ' ');
}

/* Compares a shape with the declared dimensions, and stores the extents of new letters. */
static bool dims_fit(const struct declaration *declared, const struct shape *shape, letters known)
{
    const char *dims = declared->dims, *star = memchr(dims, '*', (size_t)declared->rank);
    if (star ? shape->rank < declared->rank - 1 : shape->rank != declared->rank)
        return false;
    for (int i = 0, d = 0; i < declared->rank; i++) {
        if (dims + i == star) {
            d += shape->rank - declared->rank + 1;
            continue;
        }
        int64_t digit = dims[i] - '0' + 1,
                *wanted = dims[i] <= '9' ? &digit : &known[dims[i] - 'A'];
        *wanted = *wanted ? *wanted : shape->dims[d] + 1;
        if (shape->dims[d++] + 1 != *wanted)
            return false;
    }
    return true;
}

/* Writes the declared dimensions, with known extents in place of letters: "[N, 3, ...]". */
static void dims_text(const struct declaration *declared, const letters known, char *text,
                      size_t size)
{
    size_t used = 0;
    for (int i = 0; i < declared->rank && used < size; i++) {
        const char c = declared->dims[i], *comma = i ? ", " : "";
        const int64_t extent = c >= 'A' ? known[c - 'A'] - 1 : -1;
        used += (size_t)(extent >= 0 ? snprintf(text + used, size - used, "%s%lld", comma,
                                                (long long)extent)
                                     : snprintf(text + used, size - used, "%s%.*s", comma,
                                                c == '*' ? 3 : 1, c == '*' ? "..." : &c));
    }
}

static enum status check_declared(const struct node *node, size_t i,
                                  const struct declaration *declared, letters known,
                                  struct error *err)
{
    const struct value *value = node_input(node, i);
    char wanted[SHAPE_TEXT];
    if (!value && declared->is_required)
        return error_set(err, STATUS_MODEL, "%s (input %zu) is left out but required",
                         declared->name, i);
    if (!value)
        return STATUS_OK;
    if (declared->like >= 0 && !(declared->dtypes >> value->dtype & 1))
        TRY(operand_same_dtype(node, i, declared->name, (size_t)declared->like, err));
    else if (declared->dtypes)
        TRY(operand_dtype(node, i, declared->name, declared->dtypes, err));
    const char *dims = declared->dims ? declared->dims : "?";
    if (!declared->dims || (*dims == '?' && !shape_count(&value->shape)))
        return STATUS_OK;
    if (*dims == '1' || *dims == '?')
        return operand_single(node, i, declared->name, err);
    if (dims_fit(declared, &value->shape, known))
        return STATUS_OK;
    dims_text(declared, known, wanted, sizeof wanted);
    return error_set(err, STATUS_SHAPE, "%s (input %zu) has shape %s, expected [%s]",
                     declared->name, i, SHAPE_STRING(&value->shape), wanted);
}

enum status operands_check(const struct node *node, const char *declarations, bool *ret_ready,
                           struct error *err)
{
    *ret_ready = true;
    const char *at = declarations ? declarations : "", *again = "";
    letters known = {0};
    for (size_t i = 0; i < node->input_count || (*at && *at != '.' && !*again); i++) {
        struct declaration declared;
        if (*at == '.')
            at = again = at + strlen("...");
        at = read_declaration(*at ? at : again, &declared);
        TRY(check_declared(node, i, &declared, known, err));
        const struct value *value = node_input(node, i);
        *ret_ready = *ret_ready && (!declared.gives_shape || !value || value->known);
    }
    return STATUS_OK;
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

enum status infer_word(const struct node *node, const char *name, const char *words,
                       struct error *err)
{
    if (node_word(node, name, words) >= 0)
        return STATUS_OK;
    return error_set(err, STATUS_MODEL, "%s is '%.60s', expected one of: %s", name,
                     node_string(node, name, ""), words);
}
