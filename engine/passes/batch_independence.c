/* Follows the images of a batch through a graph.
 *
 * A value either depends on no image ("free"), or its elements alternate between the images: `span`
 * consecutive elements belong to the first image, `span` to the second and so on, and after the
 * last image the first follows again. A Reshape does not change the span. Other operators need an
 * axis along which the images alternate. This axis may be longer than the batch, because windows,
 * heads or tokens may have been merged into this axis. The operators' records define the effect on
 * the axis (engine/op/batch.h). */
#include "engine/passes/batch_independence.h"

#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/size.h"
#include "engine/op/geometry.h"
#include "engine/op/ops.h"
#include "engine/op/resolve.h"

/* Special spans of values that belong to images and contain positions. Few operators may read such
 * values. SPAN_POSITIONS is for a MaxPool's indices, which count from the first image.
 * SPAN_OWN_TUPLES is for tuples that begin with the number of an image, and for indices of an
 * image's rows in a list of the rows of all images. */
#define SPAN_POSITIONS  SIZE_MAX
#define SPAN_OWN_TUPLES (SIZE_MAX - 1)

static bool span_is_places(size_t span)
{
    return span == SPAN_POSITIONS || span == SPAN_OWN_TUPLES;
}

struct batch_proof {
    const struct graph *base; /* the graph before its input shapes were set; may be NULL */
    size_t batch;
    size_t *spans;  /* by value->index; 0: the value does not depend on the images */
    int *axes;      /* the images' axis in each input of one node */
    uint64_t *hash; /* FNV-1a of the constants that nodes read with images, and of the shapes of one
                       image */
};

/* True if a MaxUnpool's indices come from a MaxPool of images as large as the MaxUnpool's results.
 * An image's indices then point into that image, wherever the image lies in the batch. */
static bool proof_unpools_itself(const struct node *node)
{
    const struct node *pool = node->inputs[1]->producer;
    const struct shape *x = &node->inputs[0]->shape;
    struct shape made;
    return pool && pool->op == OP_MAX_POOL && node_output(pool, 1) == node->inputs[1] &&
           shape_equal(x, &node->inputs[1]->shape) &&
           unpool_shape_init(node, x, &made, NULL) == STATUS_OK &&
           shape_equal(&made, &pool->inputs[0]->shape);
}

static size_t proof_span(const struct batch_proof *proof, const struct node *node, size_t i)
{
    const struct value *value = i < node->input_count ? node->inputs[i] : NULL;
    const size_t span = value && !value->known ? proof->spans[value->index] : 0;
    if (span == SPAN_POSITIONS && node->op == OP_MAX_UNPOOL && i == 1 && proof_unpools_itself(node))
        return resolve_extent(&value->shape, 1, value->shape.rank);
    return span;
}

/* Returns the axis along which the images alternate, BATCH_MIXES if there is none, or BATCH_FREE.
 * Sets *ret_run to how many consecutive positions of that axis belong to one image. */
static int proof_axis_of(const struct batch_proof *proof, const struct shape *shape, size_t span,
                         size_t *ret_run)
{
    for (int axis = 0; span && !span_is_places(span) && axis < shape->rank; axis++) {
        const size_t inner = resolve_extent(shape, axis + 1, shape->rank);
        const size_t length = (size_t)shape->dims[axis];
        *ret_run = inner ? span / inner : 0;
        if (*ret_run && span % inner == 0 && length % (*ret_run * proof->batch) == 0)
            return axis;
    }
    return span ? BATCH_MIXES : BATCH_FREE;
}

static int proof_axis(const struct batch_proof *proof, const struct node *node, size_t i)
{
    size_t ignored;
    const size_t span = proof_span(proof, node, i);
    return span ? proof_axis_of(proof, &node->inputs[i]->shape, span, &ignored) : BATCH_FREE;
}

/* Fills proof->axes. Returns how many consecutive positions of these axes belong to one image.
 * Returns 0 if this count differs between inputs, or an input has no such axis. */
static size_t proof_find_axes(const struct batch_proof *proof, const struct node *node)
{
    size_t run = 0;
    for (size_t i = 0; i < node->input_count; i++) {
        size_t own = 0;
        const size_t span = proof_span(proof, node, i);
        proof->axes[i] =
            span ? proof_axis_of(proof, &node->inputs[i]->shape, span, &own) : BATCH_FREE;
        if (proof->axes[i] == BATCH_MIXES || (span && run && own != run))
            return 0;
        run = span ? own : run;
    }
    return run;
}

static bool proof_shapes_are_known(struct value *const *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] && !shape_is_known(&values[i]->shape))
            return false;
    return true;
}

static void proof_hash(const struct batch_proof *proof, const void *data, size_t bytes)
{
    *proof->hash = fnv1a(*proof->hash, data, bytes);
}

/* Adds the shape of one image to the hash. `axis` is the images' axis. */
static void proof_hash_shape(const struct batch_proof *proof, const struct shape *shape, int axis)
{
    for (int k = 0; k < shape->rank; k++) {
        const int64_t dim = shape->dims[k] / (k == axis ? (int64_t)proof->batch : 1);
        proof_hash(proof, &dim, sizeof dim);
    }
}

/* Returns the images' axis in output i; `axis` is the images' axis in output 0. */
static int proof_axis_of_output(const struct node *node, size_t i, int axis)
{
    return i && axis && op_record(node->op)->batch == &batch_recurrent ? axis - 1 : axis;
}

static void proof_hash_shapes(const struct batch_proof *proof, const struct node *node, int axis)
{
    for (size_t i = 0; i < node->input_count; i++)
        if (proof_span(proof, node, i))
            proof_hash_shape(
                proof, &node->inputs[i]->shape,
                proof_span(proof, node, i) == SPAN_OWN_TUPLES ? 0 : proof_axis(proof, node, i));
    for (size_t i = 0; i < node->output_count; i++)
        if (node->outputs[i])
            proof_hash_shape(proof, &node->outputs[i]->shape, proof_axis_of_output(node, i, axis));
}

/* Adds input i, which every image reads as a whole, to the hash. Leaves out constants of the file,
 * which are the same for every batch size. */
static void proof_hash_whole(const struct batch_proof *proof, const struct node *node, size_t i)
{
    const struct value *value = node->inputs[i];
    const struct graph *base = proof->base;
    const bool is_of_file = base && value->index < base->value_count &&
                            base->values[value->index]->known == value->known;
    if (value->known && !is_of_file)
        proof_hash(proof, value->known->data, value->known->bytes);
}

/* True if all images read the same numbers of a value that does not depend on them. Either each
 * image reads the whole value, or its own `run` positions along axis `at`, whose numbers must equal
 * those of the other images. Adds the first image's numbers to the hash. */
static bool proof_are_alike(const struct batch_proof *proof, const struct value *value, int at,
                            size_t run)
{
    const struct shape *shape = &value->shape;
    const bool is_whole = at < 0 || shape->dims[at] == 1;
    if (!value->known)
        return is_whole;
    const size_t each =
        is_whole ? value->known->bytes
                 : run * resolve_extent(shape, at + 1, shape->rank) * dtype_size(value->dtype);
    const size_t all = is_whole ? each : proof->batch * each;
    const char *data = value->known->data;
    if (!is_whole && (size_t)shape->dims[at] % (run * proof->batch) != 0)
        return false;
    for (size_t from = 0; from < value->known->bytes; from += all) {
        for (size_t image = 1; image < all / each; image++)
            if (memcmp(data + from, data + from + image * each, each) != 0)
                return false;
        proof_hash(proof, data + from, each);
    }
    return true;
}

/* Calls proof_are_alike() for each free input, unless images read the whole input or only the
 * input's extents matter. */
static bool proof_free_are_alike(const struct batch_proof *proof, const struct node *node,
                                 const struct batch_rule *rule, int axis, size_t run)
{
    for (size_t i = 0; i < node->input_count; i++) {
        const struct value *value = node->inputs[i];
        if (!value || proof_span(proof, node, i))
            continue;
        const int at = rule->beside ? rule->beside(node, i, axis) : BATCH_OTHER;
        if (at == BATCH_EXTENTS)
            continue;
        if (at >= value->shape.rank)
            proof_hash_whole(proof, node, i);
        else if (!proof_are_alike(proof, value, at, run))
            return false;
    }
    return true;
}

/* True for a Gather along the images' axis that copies the same positions of each image to this
 * image's result. Exporters write as_strided this way. Sets *ret to the span of the result. */
static bool proof_gather_own(const struct batch_proof *proof, const struct node *node, size_t *ret)
{
    const struct tensor *indices = node->inputs[1]->known;
    const struct shape *in = &node->inputs[0]->shape;
    const int axis = indices ? proof_axis(proof, node, 0) : BATCH_MIXES;
    if (axis < 0 || axis != node_axis(node, 0, node->inputs[0]->shape.rank) ||
        indices->shape.rank < 1 || (size_t)indices->shape.dims[0] % proof->batch != 0)
        return false;
    const size_t each = shape_count(&indices->shape) / proof->batch;
    const int64_t run = in->dims[axis] / (int64_t)proof->batch;
    const size_t inner = resolve_extent(in, axis + 1, in->rank);
    for (size_t i = 0; i < each * proof->batch; i++) {
        const int64_t first = tensor_int(indices, i % each);
        if (first < 0 || first >= run ||
            tensor_int(indices, i) != first + (int64_t)(i / each) * run)
            return false;
    }
    *ret = each * inner;
    if (proof_span(proof, node, 0) != (size_t)run * inner || *ret == 0)
        return false;
    proof_hash(proof, indices->data, indices->bytes / proof->batch); /* the first image's indices */
    proof_hash_shapes(proof, node, axis);
    return true;
}

/* Returns the span of operand i of a ScatterND. If the operand is a constant that repeats one block
 * for each image, returns the size of a block and adds its numbers to the hash. Otherwise 0. */
static size_t proof_block(const struct batch_proof *proof, const struct node *node, size_t i)
{
    const struct value *value = node->inputs[i];
    const size_t count = shape_count(&value->shape), block = count / proof->batch;
    const size_t span = proof_span(proof, node, i);
    if (span || !value->known)
        return span_is_places(span) ? 0 : proof->batch == 1 && span ? count : span;
    struct value flat = *value;
    flat.shape = SHAPE((int64_t)count);
    return block && proof_are_alike(proof, &flat, 0, block) ? block : 0;
}

/* Returns the position of element `at` among the elements of its image. */
static size_t proof_place(const struct batch_proof *proof, size_t at, size_t span)
{
    return at / (span * proof->batch) * span + at % span;
}

/* Returns the first element that tuple t addresses, or SIZE_MAX if the tuple is out of range. */
static size_t proof_addressed(const struct tensor *tuples, size_t depth, size_t t,
                              const struct shape *data)
{
    size_t at = 0;
    for (size_t k = 0; k < depth; k++) {
        const int64_t extent = data->dims[k], index = tensor_int(tuples, t * depth + k);
        if (index < -extent || index >= extent)
            return SIZE_MAX;
        at = at * (size_t)extent + (size_t)(index < 0 ? index + extent : index);
    }
    return at * resolve_extent(data, (int)depth, data->rank);
}

/* True for a ScatterND at constant positions, such as t[..., :2] += r, if each image changes only
 * itself, at the same positions in the same order. Sets *ret to the span of the result. */
static bool proof_scatter_own(const struct batch_proof *proof, const struct node *node, size_t *ret)
{
    const struct shape *data = &node->inputs[0]->shape;
    const struct tensor *tuples = node->inputs[1]->known;
    const size_t depth = tuples ? (size_t)tuples->shape.dims[tuples->shape.rank - 1] : 0;
    const size_t slice = depth ? resolve_extent(data, (int)depth, data->rank) : 0;
    const size_t count = slice ? shape_count(&tuples->shape) / depth : 0;
    const size_t span = count ? proof_block(proof, node, 0) : 0;
    const size_t from = span ? proof_block(proof, node, 2) : 0;
    const size_t round = span * proof->batch;
    /* Either each slice contains elements of all images in turn, or of only one image. */
    const bool has_all = from && from == span && slice % round == 0;
    if (!from || shape_count(data) % round != 0 || count * slice % (from * proof->batch) != 0 ||
        (!has_all && (span % slice != 0 || from % slice != 0)))
        return false;
    for (size_t t = 0; t < count; t++) {
        const size_t update = t * slice, image = has_all ? 0 : update / from % proof->batch;
        const size_t first =
            (update - image * from) / slice; /* the first image's tuple for the same place */
        const size_t at = proof_addressed(tuples, depth, t, data);
        if (at == SIZE_MAX || (!has_all && at / span % proof->batch != image))
            return false;
        const size_t place = proof_place(proof, at, span);
        if (image && place != proof_place(proof, proof_addressed(tuples, depth, first, data), span))
            return false;
        if (!image)
            proof_hash(proof, &place, sizeof place);
    }
    size_t ignored;
    *ret = proof->batch == 1 ? 1 : span;
    proof_hash_shapes(proof, node, proof_axis_of(proof, data, span, &ignored));
    return true;
}

/* True for a Concat that puts the image's number before each tuple of its indices, as
 * f[arange(n)[:, None], i] does. Each image has an equal part of axis 0. */
static bool proof_joins_own(const struct batch_proof *proof, const struct node *node)
{
    const struct value *numbers = node->inputs[0];
    const int last = node->outputs[0]->shape.rank - 1;
    const int64_t axis = node_int(node, "axis", last);
    const size_t rows = (size_t)node->outputs[0]->shape.dims[0], run = rows / proof->batch;
    if (last < 1 || (axis != last && axis != -1) || run == 0 || rows % proof->batch != 0 ||
        !numbers->known || numbers->dtype != DTYPE_I64 || numbers->shape.dims[last] != 1)
        return false;
    const size_t count = shape_count(&numbers->shape), each = count / proof->batch;
    for (size_t i = 0; i < count; i++)
        if (tensor_int(numbers->known, i) != (int64_t)(i / each))
            return false;
    proof_hash(proof, numbers->known->data, numbers->known->bytes / proof->batch);
    for (size_t i = 1; i < node->input_count; i++) {
        const size_t span = proof_span(proof, node, i);
        const struct value *value = node->inputs[i];
        if (span ? span != shape_count(&value->shape) / proof->batch
                 : !value->known || !proof_are_alike(proof, value, 0, run))
            return false;
    }
    proof_hash_shapes(proof, node, 0);
    return true;
}

/* True for a GatherND with the Concat of proof_joins_own(): each image reads only its own rows. */
static bool proof_gathers_own(const struct batch_proof *proof, const struct node *node)
{
    const struct shape *data = &node->inputs[0]->shape;
    const struct node *concat = node->inputs[1]->producer;
    return proof_span(proof, node, 1) == SPAN_OWN_TUPLES && concat && concat->op == OP_CONCAT &&
           node_int(node, "batch_dims", 0) == 0 && (size_t)data->dims[0] == proof->batch &&
           proof_span(proof, node, 0) == resolve_extent(data, 1, data->rank);
}

/* Returns a number larger than every element if ArgMax, ArgMin or TopK computed the value;
 * otherwise INT64_MAX. */
static int64_t proof_bound(const struct value *value)
{
    for (const struct node *node = value->producer; node; node = value->producer) {
        const struct shape *in = &node->inputs[0]->shape;
        if (node->op == OP_ARG_MAX || node->op == OP_ARG_MIN)
            return in->dims[node_axis(node, 0, in->rank)];
        if (node->op == OP_TOP_K && value == node_output(node, 1))
            return in->dims[node_axis(node, -1, in->rank)];
        const bool is_cast =
            node->op == OP_CAST && (value->dtype == DTYPE_I64 || value->dtype == DTYPE_I32) &&
            (node->inputs[0]->dtype == DTYPE_I64 || node->inputs[0]->dtype == DTYPE_I32);
        if (!is_cast && op_record(node->op)->batch != &batch_reshape)
            break;
        value = node->inputs[0];
    }
    return INT64_MAX;
}

/* True if the node adds the index of each image's first row to row indices that an ArgMax or a TopK
 * found within that image. Exporters write f[arange(n), i] this way, with the rows of all images in
 * one list f. Sets *ret to the number of rows per image. */
static bool proof_adds_own(const struct batch_proof *proof, const struct node *node, int64_t *ret)
{
    const struct shape *out = &node->outputs[0]->shape;
    const size_t count = shape_count(out), each = count / proof->batch;
    const size_t k = node->inputs[0]->known != NULL; /* the input with the indices */
    const struct value *chosen = node->inputs[k], *first = node->inputs[1 - k];
    if (!first->known || first->dtype != DTYPE_I64 || each == 0 || count % proof->batch != 0 ||
        proof_span(proof, node, k) != each || shape_count(&chosen->shape) != count)
        return false;
    /* `first` has one number per element of the output, or per row: arange(n)[:, None]. */
    const size_t firsts = shape_count(&first->shape), shares = firsts ? count / firsts : 1;
    const bool is_of_rows = first->shape.rank == out->rank &&
                            first->shape.dims[0] == out->dims[0] && firsts == (size_t)out->dims[0];
    if ((firsts != count && !is_of_rows) || each % shares != 0)
        return false;
    *ret = tensor_int(first->known, each / shares);
    for (size_t i = 0; i < firsts; i++)
        if (tensor_int(first->known, i) != (int64_t)(i / (each / shares)) * *ret)
            return false;
    return proof_bound(chosen) <= *ret;
}

/* True for a Gather from a list with the rows of all images whose indices come from an Add that
 * proof_adds_own() accepts. Each image then gets only its own rows. */
static bool proof_gathers_rows(const struct batch_proof *proof, const struct node *node)
{
    const struct shape *data = &node->inputs[0]->shape;
    const struct node *add = node->inputs[1]->producer;
    int64_t rows;
    return proof_span(proof, node, 1) == SPAN_OWN_TUPLES && add && add->op == OP_ADD &&
           proof_adds_own(proof, add, &rows) && node_axis(node, 0, data->rank) == 0 &&
           data->dims[0] == rows * (int64_t)proof->batch &&
           proof_span(proof, node, 0) == (size_t)rows * resolve_extent(data, 1, data->rank);
}

/* Proves nodes whose operators have no rule, because the proof depends on indices or constants.
 * Sets *ret to the span of the result. */
static bool proof_visit_places(const struct batch_proof *proof, const struct node *node,
                               size_t *ret)
{
    const struct shape *out = &node->outputs[0]->shape;
    if (node->op == OP_SCATTER_ND)
        return proof_scatter_own(proof, node, ret);
    if (proof->batch == 1)
        return false;
    int64_t rows;
    if (node->op == OP_ADD && proof_adds_own(proof, node, &rows)) {
        const struct tensor *first = node->inputs[!node->inputs[0]->known]->known;
        proof_hash(proof, first->data, first->bytes / proof->batch);
        proof_hash_shapes(proof, node, 0);
        *ret = SPAN_OWN_TUPLES;
        return true;
    }
    if (node->op == OP_CONCAT && proof_joins_own(proof, node)) {
        *ret = SPAN_OWN_TUPLES;
        return true;
    }
    if ((node->op == OP_GATHER_ND && proof_gathers_own(proof, node)) ||
        (node->op == OP_GATHER && proof_gathers_rows(proof, node))) {
        *ret = shape_count(out) / proof->batch;
        proof_hash_shapes(proof, node, 0);
        return *ret > 0;
    }
    return node->op == OP_GATHER && proof_gather_own(proof, node, ret);
}

/* Returns an output's span if its images alternate along `axis`; 0 if its shape does not fit. */
static size_t proof_output_span(const struct batch_proof *proof, const struct shape *shape,
                                int axis, size_t run)
{
    if (proof->batch == 1)
        return 1;
    if (axis >= shape->rank || (size_t)shape->dims[axis] % (run * proof->batch) != 0)
        return 0;
    return run * resolve_extent(shape, axis + 1, shape->rank);
}

/* Proves one node, and records the spans of its outputs. Returns false if the proof fails. */
static bool proof_visit(const struct batch_proof *proof, const struct node *node)
{
    const struct batch_rule *rule = op_record(node->op)->batch;
    bool is_free = node->capture_count == 0;
    for (size_t i = 0; i < node->input_count; i++)
        is_free = is_free && proof_span(proof, node, i) == 0;
    for (size_t i = 0; is_free && i < node->input_count; i++)
        if (node->inputs[i]) /* the hash must cover results that images may read */
            proof_hash_whole(proof, node, i);
    if (is_free || op_has(node->op, OP_SHAPE_ONLY))
        return true;
    if (node->capture_count || (!node_output(node, 0) && rule != &batch_recurrent) ||
        !proof_shapes_are_known(node->inputs, node->input_count) ||
        !proof_shapes_are_known(node->outputs, node->output_count))
        return false;
    /* MaxUnpool's indices count from the first image. An image's indices stay within that image
     * only if a MaxPool of images as large as the results made the indices. */
    if (proof->batch > 1 && node->op == OP_MAX_UNPOOL && !proof_unpools_itself(node))
        return false;
    if (rule == &batch_reshape && proof_span(proof, node, 0) != SPAN_OWN_TUPLES) {
        proof->spans[node->outputs[0]->index] = proof_span(proof, node, 0);
        return proof_span(proof, node, 0) > 0;
    }
    size_t span = 0;
    const uint64_t before = *proof->hash;
    if (node_output(node, 0) && proof_visit_places(proof, node, &span)) {
        proof->spans[node->outputs[0]->index] = span;
        return true;
    }
    *proof->hash = before;
    /* For a batch of 1, only the hash is computed: there is no other image. */
    const size_t run = proof->batch > 1 ? proof_find_axes(proof, node) : 1;
    const int axis = proof->batch == 1     ? 0
                     : !run || !rule->axis ? BATCH_MIXES
                                           : rule->axis(node, proof->axes);
    if (axis < 0 || !proof_free_are_alike(proof, node, rule, axis, run))
        return false;
    proof_hash_shapes(proof, node, axis);
    for (size_t i = 0; i < node->output_count; i++) {
        const struct value *output = node->outputs[i];
        span = output ? proof_output_span(proof, &output->shape,
                                          proof_axis_of_output(node, i, axis), run)
                      : 0;
        if (output && !span)
            return false;
        if (output)
            proof->spans[output->index] = node->op == OP_MAX_POOL && i == 1 ? SPAN_POSITIONS : span;
    }
    return true;
}

/* True if the output has one part per image, in order. */
static bool proof_is_output(const struct batch_proof *proof, const struct value *output)
{
    const size_t span = output->known ? 0 : proof->spans[output->index];
    if (span == 0)
        return output->shape.rank > 0 && proof_are_alike(proof, output, 0, 1);
    return proof->batch == 1 || (shape_is_known(&output->shape) && !span_is_places(span) &&
                                 span * proof->batch == shape_count(&output->shape));
}

static bool proof_visit_all(const struct batch_proof *proof, const struct graph *graph,
                            const bool *follows, const struct node **ret_node)
{
    for (size_t i = 0; i < graph->input_count; i++) {
        const struct shape *shape = &graph->inputs[i]->shape;
        if (!shape_is_known(shape))
            return false;
        if (follows[i])
            proof->spans[graph->inputs[i]->index] = resolve_extent(shape, 1, shape->rank);
    }
    for (size_t n = 0; n < graph->node_count; n++)
        if (!proof_visit(proof, graph->nodes[n])) {
            *ret_node = graph->nodes[n];
            return false;
        }
    for (size_t i = 0; i < graph->output_count; i++)
        if (!proof_is_output(proof, graph->outputs[i])) {
            *ret_node = graph->outputs[i]->producer;
            return false;
        }
    return true;
}

bool batch_is_independent(const struct graph *graph, const struct graph *base, int64_t batch,
                          const bool *follows, uint64_t *ret_hash, const struct node **ret_node)
{
    size_t widest = 1;
    for (size_t n = 0; n < graph->node_count; n++)
        if (graph->nodes[n]->input_count > widest)
            widest = graph->nodes[n]->input_count;
    struct batch_proof proof = {.base = base,
                                .batch = (size_t)batch,
                                .spans = alloc_array(graph->value_count, sizeof *proof.spans),
                                .axes = alloc_array(widest, sizeof *proof.axes),
                                .hash = ret_hash};
    *ret_hash = FNV1A_START;
    *ret_node = NULL;
    const bool is_proven =
        batch > 0 && proof.spans && proof.axes && proof_visit_all(&proof, graph, follows, ret_node);
    FREE_ALL(proof.spans, proof.axes);
    return is_proven;
}
