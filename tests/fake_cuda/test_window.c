/* Convolutions and pools as the CUDA kernels have them (engine/cuda/lowering/window.c): places,
 * pads and windows are int there, and what does not fit is refused. Nothing of the size is ever
 * allocated.
 */
#include <criterion/criterion.h>
#include <limits.h>
#include <string.h>

#include "engine/cuda/lowering/lowering.h"
#include "engine/op/families.h"

#define MOST ((int64_t)1 << 30)

/* A node x [1, h, w, c] -> y [1, oh, ow, m]. */
struct one {
    struct graph *graph;
    struct node *node;
    struct error err;
};

static struct one make(enum op op, struct shape x, struct shape y)
{
    struct one one = {.graph = graph_create(NULL)};
    one.node = graph_add_node(one.graph, op, "tested", 1, 1);
    one.node->opset = 19;
    one.node->inputs[0] = graph_add_value(one.graph, "x", DTYPE_F32, &x);
    node_set_output(one.node, 0, graph_add_value(one.graph, "y", DTYPE_F32, &y));
    return one;
}

/* 1 x 1 over 4 x 4, nothing at its edges. */
static const struct window plain = {.spatial = 2,
                                    .kernel = {1, 1},
                                    .stride = {1, 1},
                                    .dilation = {1, 1},
                                    .in = {4, 4},
                                    .out = {4, 4}};

static enum status convolution(const struct window *window, int64_t channels, struct cuda_conv *ret,
                               struct error *err)
{
    struct one one = make(OP_CONV, SHAPE(1, 4, 4, channels), SHAPE(1, 4, 4, 8));
    const enum status status = window_of_conv(one.node, window, 1, ret, err);
    graph_free(one.graph);
    return status;
}

static void refused(const char *what, const struct window *window, int64_t channels,
                    const char *words)
{
    struct cuda_conv conv;
    struct error err = {0};
    cr_expect_eq(convolution(window, channels, &conv, &err), STATUS_UNSUPPORTED, "%s", what);
    cr_expect(strstr(err.message, words) && strstr(err.message, "tested"), "%s: %s", what,
              err.message);
}

static void taken(const char *what, const struct window *window, int64_t channels,
                  struct cuda_conv *ret)
{
    struct error err = {0};
    cr_expect_eq(convolution(window, channels, ret, &err), STATUS_OK, "%s: %s", what, err.message);
}

/* Each number of a window at its bound and beyond, in either direction. */
Test(window, numbers_of_a_side)
{
    for (int d = 0; d < 2; d++) {
        struct cuda_conv conv;
        struct window w = plain;
        w.pad_begin[d] = MOST - 4;
        taken("pads in front", &w, 3, &conv);
        cr_expect_eq(d ? conv.pad_w : conv.pad_h, MOST - 4);
        w.pad_begin[d] = MOST - 3; /* with the image */
        refused("pads in front", &w, 3, "a side may have 2^30");
        w = plain;
        w.pad_end[d] = MOST - 4;
        taken("pads behind", &w, 3, &conv);
        w.pad_end[d] = MOST - 3;
        refused("pads behind", &w, 3, "a side may have 2^30");
        w.pad_end[d] = INT64_MAX; /* no sum of it may be made */
        refused("pads behind without end", &w, 3, "a side may have 2^30");
        w.pad_end[d] = MOST / 2;
        w.pad_begin[d] = MOST / 2;
        refused("both pads", &w, 3, "a side may have 2^30");
        w = plain;
        w.stride[d] = MOST;
        taken("stride", &w, 3, &conv);
        cr_expect_eq(d ? conv.stride_w : conv.stride_h, MOST);
        w.stride[d] = MOST + 1;
        refused("stride", &w, 3, "a side may have 2^30");
        w = plain;
        w.dilation[d] = MOST + 1; /* of one place alone */
        refused("dilation", &w, 3, "a side may have 2^30");
        w.kernel[d] = 3;
        w.dilation[d] = MOST / 2;
        refused("a window of 2^30 + 1", &w, 3, "a side may have 2^30");
        w.dilation[d] = MOST / 2 - 1;
        taken("a window of 2^30 - 1", &w, 3, &conv);
    }
}

/* A window's places and the numbers it reads are counted in int. */
Test(window, numbers_of_a_window)
{
    struct cuda_conv conv;
    struct window w = plain;
    w.kernel[0] = 1 << 16;
    w.kernel[1] = 1 << 15; /* 2^31 places */
    refused("2^31 places", &w, 1, "a side may have 2^30");
    w.kernel[1] = (1 << 15) - 1;
    taken("2^31 - 2^16 places", &w, 1, &conv);
    cr_expect_eq(conv.row, (1 << 16) * ((1 << 15) - 1));
    refused("of two channels", &w, 2, "a window has more than 2^31 numbers");
    w.kernel[0] = w.kernel[1] = 4;
    taken("16 x (2^27 - 1)", &w, (1 << 27) - 1, &conv);
    refused("16 x 2^27", &w, 1 << 27, "a window has more than 2^31 numbers");
    taken("2^31 - 17 channels", &plain, INT_MAX - 16, &conv);
    refused("2^31 - 16 channels, filled up", &plain, INT_MAX - 15, "2^31 channels");
    refused("2^32 + 1 channels", &plain, (INT64_C(1) << 32) + 1, "2^31 channels");
}

/* Pools read their numbers from the node. */
Test(window, pools)
{
    static const struct {
        int64_t pads[4], stride;
        int64_t pad_end; /* of what is taken; -1: refused */
    } table[] = {
        {{0, 0, 1, 1}, 1, 1},         {{0, 0, MOST - 4, 0}, 1, MOST - 4},
        {{0, 0, MOST - 3, 0}, 1, -1}, {{0, MOST - 3, 0, 0}, 1, -1},
        {{0, 0, 0, 0}, MOST + 1, -1},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct one one = make(OP_AVERAGE_POOL, SHAPE(1, 4, 4, 3), SHAPE(1, 4, 4, 3));
        struct cuda_pool pool;
        const int64_t kernel[2] = {2, 2}, strides[2] = {table[i].stride, 1};
        cr_assert(node_set_ints(one.graph, one.node, "kernel_shape", kernel, 2) &&
                  node_set_ints(one.graph, one.node, "strides", strides, 2) &&
                  node_set_ints(one.graph, one.node, "pads", table[i].pads, 4));
        const enum status status = window_of_pool(one.node, &pool, &one.err);
        if (table[i].pad_end < 0) {
            cr_expect_eq(status, STATUS_UNSUPPORTED, "case %zu: %s", i, one.err.message);
            cr_expect(strstr(one.err.message, "a side may have 2^30"), "%s", one.err.message);
        } else {
            cr_expect_eq(status, STATUS_OK, "case %zu: %s", i, one.err.message);
            cr_expect_eq(pool.pad_h_end, table[i].pad_end);
        }
        graph_free(one.graph);
    }
}
