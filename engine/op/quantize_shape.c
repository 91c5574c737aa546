/* Maps elements to their scale and zero point. */

#include "engine/op/geometry.h"
#include "engine/op/resolve.h"

static enum status misfit(const struct shape *x, const struct shape *scale, int64_t axis,
                          int64_t block, struct error *err)
{
    return error_set(err, STATUS_SHAPE,
                     "the scale has shape %s, which does not fit an input of shape %s at axis %lld "
                     "(block_size %lld)",
                     SHAPE_STRING(scale), SHAPE_STRING(x), (long long)axis, (long long)block);
}

enum status quant_layout_init(const struct node *node, const struct shape *x,
                              const struct shape *scale, struct quant_layout *ret,
                              struct error *err)
{
    int64_t axis = node_int(node, "axis", 1), block = node_int(node, "block_size", 0);
    bool blocked = block != 0 && scale->rank == x->rank && x->rank > 0;
    if (!blocked && shape_count(scale) == 1) {
        *ret = (struct quant_layout){.outer = 1, .extent = 1, .inner = shape_count(x), .block = 1};
        return STATUS_OK;
    }
    if (node->opset < 13)
        return error_set(err, STATUS_UNSUPPORTED, "a scale per channel needs opset 13 or later");
    /* The default axis of 1 does not exist in a vector: use its only axis. */
    if (x->rank == 1 && axis == 1)
        axis = 0;
    TRY(infer_axis(&axis, x->rank, err));
    int a = (int)axis;
    struct quant_layout layout = {.outer = resolve_extent(x, 0, a),
                                  .extent = (size_t)x->dims[a],
                                  .inner = resolve_extent(x, a + 1, x->rank),
                                  .block = 1};
    if (!blocked) {
        if (scale->rank != 1 || scale->dims[0] != x->dims[a])
            return misfit(x, scale, axis, block, err);
        layout.block_step = 1;
        *ret = layout;
        return STATUS_OK;
    }
    if (block < 0)
        return error_set(err, STATUS_MODEL, "block_size is %lld, expected at least 1",
                         (long long)block);
    for (int i = 0; i < x->rank; i++) {
        int64_t blocks = x->dims[i] / block + (x->dims[i] % block != 0);
        if (scale->dims[i] != (i == a ? blocks : x->dims[i]))
            return misfit(x, scale, axis, block, err);
    }
    layout.block = (size_t)block;
    layout.inner_step = 1;
    layout.block_step = layout.inner;
    layout.outer_step = layout.inner * (size_t)scale->dims[a];
    *ret = layout;
    return STATUS_OK;
}
