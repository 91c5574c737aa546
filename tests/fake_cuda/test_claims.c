/* Which kernel of each backend claims each operator, and what it can do with the node: compared
 * with claims.txt. LENSD_UPDATE_CLAIMS=1 writes that file. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend/backend.h"
#include "engine/backend/cuda_module.h"
#include "engine/base/size.h"
#include "engine/op/ops.h"
#include "engine/passes/passes.h"

#define FILE_NAME LENSD_SOURCE_ROOT "/tests/fake_cuda/claims.txt"

enum { C = 4, EDGE = 8, MOST_TEXT = 64 * 1024 };

/* A node's operands, then '>' and its outputs: a letter of kinds[] each; a space leaves one out. */
static const struct recipe {
    enum op op;
    const char *operands;
} recipes[] = {
    {OP_CONV, "xwv>x"},
    {OP_CONV_TRANSPOSE, "xwv>x"},
    {OP_GEMM, "gmv>r"},
    {OP_MATMUL, "xm>x"},
    {OP_DEFORM_CONV, "xwx>x"},
    {OP_QLINEAR_CONV, "uszWsZsz>u"},
    {OP_QLINEAR_MATMUL, "uszMsZsz>u"},
    {OP_QGEMM, "hszMsZ sz>y"},
    {OP_CONV_INTEGER, "uWzZ>j"},
    {OP_MATMUL_INTEGER, "uMzZ>j"},
    {OP_QLINEAR_ADD, "uszuszsz>u"},
    {OP_QLINEAR_MUL, "uszuszsz>u"},
    {OP_QLINEAR_CONCAT, "szuszusz>u"},
    {OP_QLINEAR_AVERAGE_POOL, "uszsz>u"},
    {OP_QLINEAR_GLOBAL_AVERAGE_POOL, "uszsz>u"},
    {OP_QUANTIZE_LINEAR, "xsz>u"},
    {OP_DEQUANTIZE_LINEAR, "usz>x"},
    {OP_DYNAMIC_QUANTIZE_LINEAR, "x>uxu"},
    {OP_LOOKUP, "ut>u"},
    {OP_LAYER_NORMALIZATION, "xee>x"},
    {OP_RMS_NORMALIZATION, "xe>x"},
    {OP_BATCH_NORMALIZATION, "xvvvv>x"},
    {OP_INSTANCE_NORMALIZATION, "xvv>x"},
    {OP_GROUP_NORMALIZATION, "xvv>x"},
    {OP_SCALE_SHIFT, "xvv>x"},
    {OP_RESIZE, "x k>x"},
    {OP_GATHER, "xi>x"},
    {OP_GATHER_ELEMENTS, "xI>x"},
    {OP_GATHER_ND, "xi>x"},
    {OP_SCATTER_ELEMENTS, "xIx>x"},
    {OP_SCATTER_ND, "xix>x"},
    {OP_CUM_SUM, "xi>x"},
    {OP_TOP_K, "xi>xx"},
    {OP_TILE, "xk>x"},
    {OP_PAD, "xp>x"},
    {OP_EXPAND, "xi>x"},
    {OP_SLICE, "xii>x"},
    {OP_RESHAPE, "xi>x"},
    {OP_UNSQUEEZE, "xi>x"},
    {OP_WHERE, "bxx>x"},
    {OP_NOT, "b>b"},
    {OP_AND, "bb>b"},
    {OP_OR, "bb>b"},
    {OP_XOR, "bb>b"},
    {OP_GRID_SAMPLE, "xx>x"},
    {OP_ATTENTION, "qqq>q"},
    {OP_REDUCE_MEAN, "xl>x"},
    {OP_MAX, "xx>x"},
    {OP_MIN, "xx>x"},
    {OP_CENTER_CROP_PAD, "xo>x"},
    {OP_REDUCE_SUM, "xl>x"},
    {OP_LSTM, "qRR>YYY"},
    {OP_GRU, "qRR>YY"},
    {OP_RNN, "qRR>YY"},
    {OP_RECURRENCE, "a R>Y"},
};

static struct value *operand(struct graph *graph, char kind)
{
    static const struct {
        char kind;
        enum dtype dtype;
        bool is_constant;
        struct shape shape;
    } kinds[] = {
        {'x', DTYPE_F32, false, {4, {2, C, EDGE, EDGE}}},
        {'u', DTYPE_U8, false, {4, {2, C, EDGE, EDGE}}},
        {'j', DTYPE_I32, false, {4, {2, C, EDGE, EDGE}}},
        {'b', DTYPE_BOOL, false, {4, {2, C, EDGE, EDGE}}},
        {'q', DTYPE_F32, false, {3, {2, C, EDGE}}},
        {'g', DTYPE_F32, false, {2, {2, EDGE}}},
        {'h', DTYPE_U8, false, {2, {2, EDGE}}},
        {'r', DTYPE_F32, false, {2, {2, C}}},
        {'v', DTYPE_F32, true, {1, {C}}},
        {'e', DTYPE_F32, true, {1, {EDGE}}},
        {'k', DTYPE_F32, true, {1, {4}}},
        {'w', DTYPE_F32, true, {4, {C, C, 3, 3}}},
        {'m', DTYPE_F32, true, {2, {EDGE, C}}},
        {'W', DTYPE_I8, true, {4, {C, C, 3, 3}}},
        {'M', DTYPE_I8, true, {2, {EDGE, C}}},
        {'s', DTYPE_F32, true, {0, {0}}},
        {'z', DTYPE_U8, true, {0, {0}}},
        {'Z', DTYPE_I8, true, {0, {0}}},
        {'y', DTYPE_U8, false, {2, {2, C}}},
        {'l', DTYPE_I64, true, {1, {1}}},
        {'p', DTYPE_I64, true, {1, {8}}},
        {'o', DTYPE_I64, true, {1, {4}}},
        {'i', DTYPE_I64, true, {1, {1}}},
        {'I', DTYPE_I64, true, {4, {1, 1, 1, 1}}},
        {'t', DTYPE_U8, true, {1, {256}}},
        {'R', DTYPE_F32, true, {3, {1, 4 * EDGE, EDGE}}},
        {'a', DTYPE_F32, false, {3, {2, C, 4 * EDGE}}},
        {'Y', DTYPE_F32, false, {3, {1, C, EDGE}}},
    };
    struct error err;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        struct tensor *tensor;
        if (kinds[k].kind != kind)
            continue;
        if (!kinds[k].is_constant)
            return graph_add_value(graph, "x", kinds[k].dtype, &kinds[k].shape);
        cr_assert_eq(tensor_create(NULL, kinds[k].dtype, &kinds[k].shape, &tensor, &err),
                     STATUS_OK);
        memset(tensor->data, 0, tensor->bytes);
        for (size_t i = 0; kinds[k].dtype == DTYPE_F32 && i < shape_count(&kinds[k].shape); i++)
            ((float *)tensor->data)[i] = 1;
        if (kind == 'i' || kind == 'l')
            *(int64_t *)tensor->data = kind == 'l' ? -1 : 1;
        return graph_add_constant(graph, "c", tensor);
    }
    return NULL;
}

/* An image for each operand that the operator must have, where no recipe says otherwise. */
static struct node *make_node(struct graph *graph, enum op op)
{
    const struct op_info *info = op_record(op);
    char plain[16] = "";
    const char *operands = plain;
    const int least = info->min_inputs < 8 ? info->min_inputs : 8;
    (void)snprintf(plain, sizeof plain, "%.*s>x", least, "xxxxxxxx");
    for (size_t r = 0; r < COUNT_OF(recipes); r++)
        if (recipes[r].op == op)
            operands = recipes[r].operands;
    const size_t inputs = (size_t)(strchr(operands, '>') - operands);
    const char *outputs = operands + inputs + 1;
    struct node *node = graph_add_node(graph, op, "tested", inputs, strlen(outputs));
    for (size_t i = 0; i < inputs; i++)
        node->inputs[i] = operand(graph, operands[i]);
    for (size_t o = 0; o < node->output_count; o++)
        node_set_output(node, o, operand(graph, outputs[o]));
    node->opset = info->until ? info->until : OPSET_MAX;
    const bool has_window = info->attrs && strstr(info->attrs, "kernel_shape:ints");
    if (has_window)
        cr_assert(node_set_ints(graph, node, "kernel_shape", (const int64_t[]){3, 3}, 2));
    if (has_window)
        cr_assert(node_set_ints(graph, node, "pads", (const int64_t[]){1, 1, 1, 1}, 4));
    return node;
}

static int describe(char *text, size_t size, const struct backend_ops *ops, const struct node *node)
{
    static const char *const abilities[] = {"channels-last",   "gate",          "mean",
                                            "concat",          "stored-scale",  "float-epilogue",
                                            "stored-epilogue", "stored-result", "pitch"};
    static const char *const narrow[] = {"", " 16-bit", " 16-bit-product"};
    struct kernel_caps caps;
    if (!ops->claim(node, &caps))
        return snprintf(text, size, "%s: none", ops->name);
    int at = snprintf(text, size, "%s: %s%s", ops->name, caps.kernel, narrow[caps.narrow]);
    for (size_t a = 0; a < COUNT_OF(abilities); a++)
        if (caps.can & 1u << a)
            at += snprintf(text + at, size - (size_t)at, " %s", abilities[a]);
    if (caps.in_place >= 0)
        at += snprintf(text + at, size - (size_t)at, " in-place");
    return at;
}

Test(claims, every_operator_has_the_kernel_of_the_table)
{
    const char *reason;
    const struct cuda_module *module = cuda_module(&reason);
    char *made = calloc(1, MOST_TEXT), *read = calloc(1, MOST_TEXT);
    size_t at = 0;
    cr_assert(module && made && read, "%s", module ? "out of memory" : reason);
    for (enum op op = OP_NONE + 1; op < OP_COUNT; op++) {
        struct graph *graph = graph_create(NULL);
        const struct node *node = make_node(graph, op);
        char cpu[200], cuda[200];
        describe(cpu, sizeof cpu, &backend_cpu, node);
        describe(cuda, sizeof cuda, module->backend, node);
        at += (size_t)snprintf(made + at, MOST_TEXT - at, "%s%s%s | %s | %s\n", op_domain(op),
                               *op_domain(op) ? "." : "", op_name(op), cpu, cuda);
        cr_assert_lt(at, MOST_TEXT);
        graph_free(graph);
    }
    if (getenv("LENSD_UPDATE_CLAIMS")) {
        FILE *file = fopen(FILE_NAME, "w");
        cr_assert(file && fwrite(made, 1, at, file) == at && fclose(file) == 0);
    }
    FILE *file = fopen(FILE_NAME, "r");
    cr_assert(file, FILE_NAME);
    cr_assert_gt(fread(read, 1, MOST_TEXT - 1, file), 0);
    fclose(file);
    for (char *own = made, *wanted = read; *own || *wanted;) {
        const int own_length = (int)strcspn(own, "\n"), wanted_length = (int)strcspn(wanted, "\n");
        cr_assert(
            own_length == wanted_length && memcmp(own, wanted, (size_t)own_length) == 0,
            "claimed:   %.*s\nclaims.txt: %.*s\nIs it meant? LENSD_UPDATE_CLAIMS=1 writes it.",
            own_length, own, wanted_length, wanted);
        own += own_length + (own[own_length] != 0);
        wanted += wanted_length + (wanted[wanted_length] != 0);
    }
    free(made);
    free(read);
}
