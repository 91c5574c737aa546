/* Kernels whose work the contents or shapes of their inputs decide: they can be stopped, or what
 * they do is bounded. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

static bool stop_at_once(void *asked)
{
    ++*(int *)asked;
    return true;
}

/* Infers and calls the kernel; the first question whether to stop ends it. */
static enum status run_stopped(struct one_node *one, int *asked)
{
    const struct tensor *in[ONE_MAX] = {0};
    cr_assert_eq(graph_infer_node(one->node, &one->err), STATUS_OK, "%s: %s",
                 op_name(one->node->op), one->err.message);
    for (size_t i = 0; i < one->node->input_count; i++)
        in[i] = one->node->inputs[i] ? one->node->inputs[i]->known : NULL;
    for (size_t i = 0; i < one->node->output_count; i++) {
        const struct value *value = one->node->outputs[i];
        if (shape_is_known(&value->shape))
            cr_assert_eq(
                tensor_create(&one->budget, value->dtype, &value->shape, &one->out[i], NULL),
                STATUS_OK);
    }
    const struct kernel_args args = {.node = one->node,
                                     .in = in,
                                     .out = one->out,
                                     .budget = &one->budget,
                                     .stop = stop_at_once,
                                     .stop_context = asked};
    return kernel_call(kernel_find(one->node->op), &args, &one->err);
}

static void stops(struct one_node *one)
{
    int asked = 0;
    const enum status status = run_stopped(one, &asked);
    cr_expect_eq(status, STATUS_CANCELLED, "%s: %s", op_name(one->node->op), status_word(status));
    cr_expect_eq(asked, 1, "%s asked %d times", op_name(one->node->op), asked);
    one_end(one);
}

/* Input i: zeros of any type. */
static void zeros(struct one_node *one, size_t i, enum dtype dtype, struct shape shape)
{
    void *data = calloc(shape_count(&shape) + 1, 8);
    cr_assert_not_null(data);
    one_input(one, i, dtype, shape, data);
    free(data);
}

/* A node of float32 inputs of zeros. */
static void start_floats(struct one_node *one, enum op op, int opset, size_t inputs,
                         const struct shape *shapes)
{
    one_start(one, op, opset, inputs, 1);
    for (size_t i = 0; i < inputs; i++)
        zeros(one, i, DTYPE_F32, shapes[i]);
}

Test(stop, products)
{
    static const int64_t square[] = {16, 16};
    struct one_node one;
    start_floats(&one, OP_MATMUL, 13, 2, (struct shape[]){SHAPE(512, 512), SHAPE(512, 512)});
    stops(&one);
    start_floats(&one, OP_MATMUL, 13, 2,
                 (struct shape[]){SHAPE(8192, 64, 64), SHAPE(8192, 64, 64)});
    stops(&one);
    for (int transposed = 0; transposed < 4; transposed++) {
        start_floats(&one, OP_GEMM, 13, 2, (struct shape[]){SHAPE(512, 512), SHAPE(512, 512)});
        one_int(&one, "transA", transposed & 1);
        one_int(&one, "transB", transposed >> 1);
        stops(&one);
    }
    one_start(&one, OP_MATMUL_INTEGER, 10, 2, 1);
    zeros(&one, 0, DTYPE_U8, SHAPE(512, 512));
    zeros(&one, 1, DTYPE_U8, SHAPE(512, 512));
    stops(&one);
    start_floats(&one, OP_EINSUM, 12, 2, (struct shape[]){SHAPE(512, 512), SHAPE(512, 512)});
    one_string(&one, "equation", "ij,jk->ik");
    stops(&one);
    start_floats(
        &one, OP_ONNX_ATTENTION, 23, 3,
        (struct shape[]){SHAPE(1, 1, 512, 64), SHAPE(1, 1, 512, 64), SHAPE(1, 1, 512, 64)});
    stops(&one);
    start_floats(&one, OP_CONV, 13, 2, (struct shape[]){SHAPE(1, 32, 64, 64), SHAPE(32, 32, 3, 3)});
    stops(&one);
    start_floats(&one, OP_CONV_TRANSPOSE, 13, 2,
                 (struct shape[]){SHAPE(1, 32, 64, 64), SHAPE(32, 32, 3, 3)});
    stops(&one);
    start_floats(&one, OP_DEFORM_CONV, 19, 3,
                 (struct shape[]){SHAPE(1, 32, 32, 32), SHAPE(32, 32, 3, 3), SHAPE(1, 18, 30, 30)});
    stops(&one);
    start_floats(&one, OP_MAX_POOL, 12, 1, (struct shape[]){SHAPE(1, 1, 512, 512)});
    one_ints(&one, "kernel_shape", square, 2);
    stops(&one);
    start_floats(&one, OP_AVERAGE_POOL, 12, 1, (struct shape[]){SHAPE(1, 1, 512, 512)});
    one_ints(&one, "kernel_shape", square, 2);
    stops(&one);
}

Test(stop, samples)
{
    struct one_node one;
    start_floats(&one, OP_GRID_SAMPLE, 16, 2,
                 (struct shape[]){SHAPE(1, 16, 2, 2), SHAPE(1, 512, 512, 2)});
    stops(&one);
    one_start(&one, OP_ROI_ALIGN, 16, 3, 1);
    zeros(&one, 0, DTYPE_F32, SHAPE(1, 64, 32, 32));
    one_input(&one, 1, DTYPE_F32, SHAPE(1, 4), (const float[]){0, 0, 32, 32});
    zeros(&one, 2, DTYPE_I64, SHAPE(1));
    one_int(&one, "sampling_ratio", 1000);
    stops(&one);
    one_start(&one, OP_RESIZE, 13, 3, 1);
    zeros(&one, 0, DTYPE_F32, SHAPE(1, 1, 1024, 1024));
    one_input(&one, 2, DTYPE_F32, SHAPE(4), (const float[]){1, 1, 2, 2});
    one_string(&one, "mode", "linear");
    stops(&one);
}

Test(stop, selections)
{
    enum { BOXES = 8192 };
    static float boxes[BOXES][4], scores[BOXES];
    for (int i = 0; i < BOXES; i++) { /* none overlaps another */
        boxes[i][0] = boxes[i][1] = (float)i;
        boxes[i][2] = boxes[i][3] = (float)i + 1;
        scores[i] = 1;
    }
    struct one_node one;
    one_start(&one, OP_NON_MAX_SUPPRESSION, 11, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(1, BOXES, 4), boxes);
    one_input(&one, 1, DTYPE_F32, SHAPE(1, 1, BOXES), scores);
    ONE_I64(&one, 2, BOXES);
    stops(&one);
    one_start(&one, OP_TOP_K, 11, 2, 2);
    zeros(&one, 0, DTYPE_F32, SHAPE(1024, 8192));
    ONE_I64(&one, 1, 1);
    stops(&one);
}

/* A tensor of no bytes has as many rows as a client says. */
Test(stop, rows_of_nothing_are_no_work)
{
    const struct shape many = SHAPE((int64_t)1 << 50, 0);
    struct one_node one;
    one_start(&one, OP_TOP_K, 11, 2, 2);
    zeros(&one, 0, DTYPE_F32, SHAPE((int64_t)1 << 50, 4, 0));
    ONE_I64(&one, 1, 1);
    one_int(&one, "axis", 1);
    cr_expect_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_end(&one);
    one_start(&one, OP_SOFTMAX, 13, 1, 1);
    zeros(&one, 0, DTYPE_F32, many);
    cr_expect_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_end(&one);
    one_start(&one, OP_UNIQUE, 11, 1, 1);
    zeros(&one, 0, DTYPE_F32, SHAPE((int64_t)1 << 50, 3, 0));
    one_int(&one, "axis", 1);
    cr_expect_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_end(&one);
}

/* Where i + 1 == i for a double, and beyond int64. */
Test(stop, vast_regions_are_bounded_work)
{
    static const float extents[] = {0x1p54f, 0x1p70f, 1e38f};
    for (size_t i = 0; i < COUNT_OF(extents); i++) {
        const float e = extents[i],
                    roi[] = {-e, -e, e == 1e38f ? e : 5 * e, e == 1e38f ? e : 5 * e};
        for (int max = 0; max < 2; max++) {
            struct one_node one;
            one_start(&one, OP_ROI_ALIGN, 16, 3, 1);
            zeros(&one, 0, DTYPE_F32, SHAPE(1, 1, 4, 4));
            one_input(&one, 1, DTYPE_F32, SHAPE(1, 4), roi);
            zeros(&one, 2, DTYPE_I64, SHAPE(1));
            one_string(&one, "mode", max ? "max" : "avg");
            cr_expect_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
            cr_expect_eq(tensor_number(one.out[0], 0), 0);
            one_end(&one);
        }
    }
}
