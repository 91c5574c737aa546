/* Control flow: If, Loop, Scan.
 *
 * Shapes in a body may change from run to run and from iteration to iteration, so inference leaves
 * the shapes of all outputs unknown. */
#include <string.h>

#include "engine/op/family.h"
#include "engine/op/nn.h"

static enum status read_body(const struct node *node, const char *name, struct graph **ret,
                             struct error *err)
{
    const struct attr *attr = node_attr(node, name);
    if (!attr || attr->kind != ATTR_GRAPH || !attr->g)
        return error_set(err, STATUS_MODEL, "the attribute %s is missing", name);
    *ret = attr->g;
    return STATUS_OK;
}

static enum status infer_if(struct node *node, struct error *err)
{
    struct graph *then_branch = NULL, *else_branch = NULL;
    TRY(read_body(node, "then_branch", &then_branch, err));
    TRY(read_body(node, "else_branch", &else_branch, err));
    if (then_branch->input_count || else_branch->input_count)
        return error_set(err, STATUS_MODEL, "a branch has inputs, expected none");
    if (then_branch->output_count < node->output_count ||
        else_branch->output_count < node->output_count)
        return error_set(err, STATUS_MODEL,
                         "%zu outputs are requested, but the branches have %zu and %zu",
                         node->output_count, then_branch->output_count, else_branch->output_count);
    for (size_t i = 0; i < node->output_count; i++) {
        enum dtype a = then_branch->outputs[i]->dtype, b = else_branch->outputs[i]->dtype;
        if (a != b && a != DTYPE_NONE && b != DTYPE_NONE)
            return error_set(err, STATUS_MODEL,
                             "output %zu is %s in one branch and %s in the other", i, dtype_name(a),
                             dtype_name(b));
        infer_unknown(node, i, a != DTYPE_NONE ? a : b);
    }
    return STATUS_OK;
}

/* A body takes `extra` inputs (a Loop's counter and condition), the states, then `items` slices. It
 * returns `extra_outputs` (a Loop's condition), the states, then scan outputs. */
static enum status check_body(const struct node *node, const struct graph *body, size_t extra,
                              size_t states, size_t items, size_t extra_outputs, struct error *err)
{
    if (body->input_count != extra + states + items)
        return error_set(err, STATUS_MODEL, "the body has %zu inputs, expected %zu",
                         body->input_count, extra + states + items);
    if (body->output_count < extra_outputs + states)
        return error_set(err, STATUS_MODEL, "the body has %zu outputs, expected at least %zu",
                         body->output_count, extra_outputs + states);
    size_t available = body->output_count - extra_outputs;
    if (node->output_count > available)
        return error_set(err, STATUS_MODEL, "%zu outputs are requested, but the body gives %zu",
                         node->output_count, available);
    return STATUS_OK;
}

/* States keep their initial dtype; scan outputs have the dtypes of the body's outputs. */
static void set_dtypes(struct node *node, const struct graph *body, size_t first_state,
                       size_t states, size_t extra_outputs)
{
    for (size_t i = 0; i < node->output_count; i++)
        infer_unknown(node, i,
                      i < states ? node->inputs[first_state + i]->dtype
                                 : body->outputs[extra_outputs + i]->dtype);
}

static enum status infer_loop(struct node *node, struct error *err)
{
    struct graph *body = NULL;
    size_t states = node->input_count > 2 ? node->input_count - 2 : 0;
    TRY(read_body(node, "body", &body, err));
    TRY(check_body(node, body, 2, states, 0, 1, err));
    set_dtypes(node, body, 2, states, 1);
    return STATUS_OK;
}

/* `first` is the position of the first state. In Scan-8, sequence_lens comes before the states. */
static enum status infer_scan_from(struct node *node, size_t first, struct error *err)
{
    struct graph *body = NULL;
    int64_t wanted = node_int(node, "num_scan_inputs", 0);
    TRY(read_body(node, "body", &body, err));
    size_t operands = node->input_count > first ? node->input_count - first : 0;
    if (wanted < 1 || (uint64_t)wanted > operands)
        return error_set(err, STATUS_MODEL, "num_scan_inputs is %lld, expected 1 to %zu",
                         (long long)wanted, operands);
    size_t items = (size_t)wanted, states = operands - items;
    TRY(check_body(node, body, 0, states, items, 0, err));
    size_t collected = body->output_count - states;
    const int64_t rank = TENSOR_MAX_RANK;
    TRY(infer_list(node, first ? "directions" : "scan_input_directions", items, 0, 1, 0, NULL,
                   err));
    TRY(infer_list(node, "scan_output_directions", collected, 0, 1, 0, NULL, err));
    TRY(infer_list(node, "scan_output_axes", collected, -rank, rank - 1, 0, NULL, err));
    TRY(infer_list(node, "scan_input_axes", items, -rank, rank - 1, 0, NULL, err));
    size_t listed;
    const int64_t *axes = node_ints(node, "scan_input_axes", &listed);
    int64_t length = -1;
    for (size_t i = 0; i < items; i++) {
        const struct shape *shape = &node->inputs[first + states + i]->shape;
        int64_t axis = first ? 1 : listed ? axes[i] : 0;
        TRY(infer_axis(&axis, shape->rank, err));
        if (length >= 0 && shape->dims[axis] != length)
            return error_set(err, STATUS_SHAPE,
                             "scan inputs have the lengths %lld and %lld, which must be equal",
                             (long long)length, (long long)shape->dims[axis]);
        length = shape->dims[axis];
    }
    set_dtypes(node, body, first, states, 0);
    return STATUS_OK;
}

static enum status infer_scan(struct node *node, struct error *err)
{
    return infer_scan_from(node, 0, err);
}

/* In Scan-8, every operand has a leading batch dimension, and sequence_lens is input 0. */
static enum status infer_scan_batched(struct node *node, struct error *err)
{
    TRY(infer_scan_from(node, 1, err));
    int64_t batch = node->inputs[node->input_count - 1]->shape.dims[0];
    TRY(operand_has_shape(node, 0, "sequence_lens", &SHAPE(batch), err));
    for (size_t i = 1; i < node->input_count; i++) {
        const struct shape *shape = &node->inputs[i]->shape;
        if (shape->rank < 1 || shape->dims[0] != batch)
            return error_set(err, STATUS_SHAPE,
                             "operand %zu has shape %s, expected a batch of %lld", i,
                             SHAPE_STRING(shape), (long long)batch);
    }
    return STATUS_OK;
}

/* Makes `tensor`, a result of the body, output i of the node. The output takes the caller's
 * reference. */
static void hand_over(const struct kernel_args *args, size_t i, struct tensor *tensor)
{
    if (node_output(args->node, i))
        args->out[i] = tensor;
    else
        tensor_unref(tensor);
}

static void drop_all(struct tensor **tensors, size_t count)
{
    for (size_t i = 0; tensors && i < count; i++) {
        tensor_unref(tensors[i]);
        tensors[i] = NULL;
    }
}

/* Allocates `count` zeroed pointers or structs; NULL with *err set on failure. */
static void *zeroed_scratch(const struct kernel_args *args, size_t count, size_t size,
                            struct error *err)
{
    void *memory = kernel_scratch(args, count, size, err);
    if (memory)
        zero_bytes(memory, count * size);
    return memory;
}

static struct graph *body_of(const struct node *node, const char *name)
{
    return node_attr(node, name)->g; /* inference has checked the attribute */
}

/* ---- If ---- */

/* Returns a new reference to an input. The interpreter sets value->known while a node runs. */
static struct tensor *input_ref(const struct kernel_args *args, size_t i)
{
    return tensor_ref(args->node->inputs[i]->known);
}

KERNEL(kernel_if)
{
    struct graph *branch =
        body_of(args->node, tensor_int(args->in[0], 0) ? "then_branch" : "else_branch");
    struct tensor **outputs = zeroed_scratch(args, branch->output_count, sizeof *outputs, err);
    TRY(allocated(outputs));
    enum status status = args->run_body(args->interpreter, branch, NULL, outputs, err);
    for (size_t i = 0; i < branch->output_count && status == STATUS_OK; i++)
        hand_over(args, i, outputs[i]);
    return status;
}

/* ---- collected outputs ---- */

/* One scan output: the concatenated elements of all iterations so far. */
struct collection {
    enum dtype dtype;
    struct shape item;                  /* valid if there are items */
    size_t item_bytes, count, capacity; /* bytes of an item, number of items, and number of items
                                           that fit in the buffer */
    char *data;
};

static enum status collection_add(const struct kernel_args *args, struct collection *c,
                                  const struct tensor *item, struct error *err)
{
    if (!c->count) {
        c->dtype = item->dtype;
        c->item = item->shape;
        c->item_bytes = item->bytes;
    } else if (c->dtype != item->dtype || !shape_equal(&c->item, &item->shape)) {
        return error_set(err, STATUS_SHAPE,
                         "a scan output changed from %s %s to %s %s between iterations",
                         dtype_name(c->dtype), SHAPE_STRING(&c->item), dtype_name(item->dtype),
                         SHAPE_STRING(&item->shape));
    }
    if (c->count == c->capacity) {
        size_t wanted = c->capacity ? c->capacity * 2 : 8;
        char *bigger = kernel_scratch_grow(args, c->data, wanted, c->item_bytes, err);
        TRY(allocated(bigger));
        c->data = bigger;
        c->capacity = wanted;
    }
    copy_bytes(c->data + c->count++ * c->item_bytes, item->data, item->bytes);
    return STATUS_OK;
}

/* If no iteration has run, takes dtype and shape from the body; unknown dimensions become 0. */
static enum status declared_item(const struct value *value, struct collection *c, struct error *err)
{
    if (c->count)
        return STATUS_OK;
    if (value->dtype == DTYPE_NONE)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the body ran no iteration and does not declare the type of its output "
                         "'%s'",
                         value->name);
    c->dtype = value->dtype;
    c->item = value->shape.rank == SHAPE_UNKNOWN ? SHAPE_SCALAR : value->shape;
    for (int i = 0; i < c->item.rank; i++)
        if (c->item.dims[i] < 0)
            c->item.dims[i] = 0;
    return STATUS_OK;
}

/* Makes a tensor whose slices along `axis` are the items, in reverse order if `prepends`. */
static enum status collection_tensor(const struct kernel_args *args, const struct collection *c,
                                     int64_t axis, bool prepends, struct tensor **ret,
                                     struct error *err)
{
    struct shape shape = {.rank = c->item.rank + 1};
    struct tensor *tensor;
    if (c->item.rank == TENSOR_MAX_RANK)
        return error_set(err, STATUS_UNSUPPORTED, "a scan output of rank %d", shape.rank);
    TRY(infer_axis(&axis, shape.rank, err));
    for (int i = 0; i < shape.rank; i++)
        shape.dims[i] = i == axis  ? (int64_t)c->count
                        : i < axis ? c->item.dims[i]
                                   : c->item.dims[i - 1];
    TRY(tensor_create(args->budget, c->dtype, &shape, &tensor, err));
    size_t outer = 1, inner = dtype_size(c->dtype);
    for (int i = 0; i < c->item.rank; i++)
        *(i < axis ? &outer : &inner) *= (size_t)c->item.dims[i];
    for (size_t n = 0; n < c->count && tensor->bytes; n++) {
        size_t place = prepends ? c->count - 1 - n : n;
        for (size_t o = 0; o < outer; o++)
            copy_bytes((char *)tensor->data + (o * c->count + place) * inner,
                       c->data + n * c->item_bytes + o * inner, inner);
    }
    *ret = tensor;
    return STATUS_OK;
}

/* ---- shared by Loop and Scan: inputs, outputs, states and scan outputs of a body ---- */

struct iteration {
    const struct kernel_args *args;
    struct graph *body;
    size_t first_input;  /* position of the first state among the body's inputs */
    size_t first_output; /* position of the first state among the body's outputs */
    size_t states, collected;
    struct tensor **in, **out; /* [body inputs], [body outputs]; owned references */
    struct collection *collections;
};

static enum status iteration_start(struct iteration *it, struct error *err)
{
    it->collected = it->body->output_count - it->first_output - it->states;
    it->in = zeroed_scratch(it->args, it->body->input_count, sizeof *it->in, err);
    it->out = zeroed_scratch(it->args, it->body->output_count, sizeof *it->out, err);
    it->collections = zeroed_scratch(it->args, it->collected, sizeof *it->collections, err);
    return it->in && it->out && it->collections ? STATUS_OK : STATUS_NO_MEMORY;
}

static void iteration_end(struct iteration *it)
{
    drop_all(it->in, it->body->input_count);
    drop_all(it->out, it->body->output_count);
}

/* Runs the body once on it->in. Updates the states and collects the scan outputs. */
static enum status iteration_run(struct iteration *it, struct error *err)
{
    TRY(it->args->run_body(it->args->interpreter, it->body, it->in, it->out, err));
    for (size_t i = 0; i < it->states; i++) {
        tensor_unref(it->in[it->first_input + i]);
        it->in[it->first_input + i] = it->out[it->first_output + i];
        it->out[it->first_output + i] = NULL;
    }
    for (size_t i = 0; i < it->collected; i++) {
        struct tensor **item = &it->out[it->first_output + it->states + i];
        TRY(collection_add(it->args, &it->collections[i], *item, err));
        drop_all(item, 1);
    }
    return STATUS_OK;
}

/* Makes the states the node's first outputs. */
static void finish_states(struct iteration *it)
{
    for (size_t i = 0; i < it->states; i++) {
        hand_over(it->args, i, it->in[it->first_input + i]);
        it->in[it->first_input + i] = NULL;
    }
}

static enum status finish_collection(struct iteration *it, size_t i, int64_t axis, bool prepends,
                                     struct error *err)
{
    struct tensor *tensor;
    if (!node_output(it->args->node, it->states + i))
        return STATUS_OK;
    TRY(declared_item(it->body->outputs[it->first_output + it->states + i], &it->collections[i],
                      err));
    TRY(collection_tensor(it->args, &it->collections[i], axis, prepends, &tensor, err));
    hand_over(it->args, it->states + i, tensor);
    return STATUS_OK;
}

/* ---- Loop ---- */

static enum status make_scalar(const struct kernel_args *args, enum dtype dtype, int64_t value,
                               struct tensor **ret, struct error *err)
{
    TRY(tensor_create(args->budget, dtype, &SHAPE_SCALAR, ret, err));
    store_integers(&value, dtype, (*ret)->data, 1);
    return STATUS_OK;
}

/* Reads the condition that the body has returned. */
static enum status read_condition(struct iteration *it, bool *ret, struct error *err)
{
    const struct tensor *condition = it->out[0];
    if (condition->dtype != DTYPE_BOOL || shape_count(&condition->shape) != 1)
        return error_set(err, STATUS_MODEL, "the body's condition is not a single bool");
    *ret = tensor_int(condition, 0) != 0;
    drop_all(it->out, 1);
    return STATUS_OK;
}

static enum status run_loop(struct iteration *it, struct error *err)
{
    const struct kernel_args *args = it->args;
    const struct tensor *trips = kernel_input(args, 0);
    const struct tensor *condition = kernel_input(args, 1);
    int64_t limit = trips ? tensor_int(trips, 0) : INT64_MAX;
    bool goes_on = !condition || tensor_int(condition, 0) != 0;
    enum dtype counter = it->body->inputs[0]->dtype == DTYPE_I32 ? DTYPE_I32 : DTYPE_I64;
    for (size_t i = 0; i < it->states; i++)
        it->in[2 + i] = input_ref(args, 2 + i);
    for (int64_t i = 0; i < limit && goes_on; i++) {
        bool next = false;
        drop_all(it->in, 2);
        TRY(make_scalar(args, counter, i, &it->in[0], err));
        TRY(make_scalar(args, DTYPE_BOOL, 1, &it->in[1], err));
        TRY(iteration_run(it, err));
        TRY(read_condition(it, &next, err));
        /* Without the input cond, the body's condition is ignored. */
        goes_on = !condition || next;
    }
    finish_states(it);
    for (size_t i = 0; i < it->collected; i++)
        TRY(finish_collection(it, i, 0, false, err));
    return STATUS_OK;
}

KERNEL(kernel_loop)
{
    size_t inputs = args->node->input_count;
    struct iteration it = {.args = args,
                           .body = body_of(args->node, "body"),
                           .first_input = 2,
                           .first_output = 1,
                           .states = inputs > 2 ? inputs - 2 : 0};
    enum status status = iteration_start(&it, err);
    IF_OK(status, run_loop(&it, err));
    iteration_end(&it);
    return status;
}

/* ---- Scan ---- */

/* Copies slice `at` along `axis` of a tensor, without that dimension. */
static enum status take_slice(const struct kernel_args *args, const struct tensor *tensor,
                              int64_t axis, size_t at, struct tensor **ret, struct error *err)
{
    const struct axis_layout layout = axis_layout_of(&tensor->shape, axis);
    const size_t bytes = layout.inner * dtype_size(tensor->dtype);
    struct shape shape = tensor->shape;
    shape.rank--;
    memmove(shape.dims + axis, shape.dims + axis + 1,
            (size_t)(shape.rank - axis) * sizeof *shape.dims);
    TRY(tensor_create(args->budget, tensor->dtype, &shape, ret, err));
    for (size_t o = 0; o < layout.outer && bytes; o++)
        memcpy((char *)(*ret)->data + o * bytes,
               (const char *)tensor->data + (o * layout.extent + at) * bytes, bytes);
    return STATUS_OK;
}

static int64_t list_entry(const struct node *node, const char *name, size_t i)
{
    size_t count;
    const int64_t *list = node_ints(node, name, &count);
    return i < count ? list[i] : 0;
}

struct scan_state {
    struct iteration it;
    struct tensor *const *in; /* states, then scan inputs */
    size_t items, length;     /* numbers of scan inputs and of iterations */
};

/* Passes slice `step` of every scan input to the body. */
static enum status feed_items(struct scan_state *scan, size_t step, struct error *err)
{
    struct iteration *it = &scan->it;
    const struct node *node = it->args->node;
    const char *directions = node->opset < 9 ? "directions" : "scan_input_directions";
    for (size_t i = 0; i < scan->items; i++) {
        const struct tensor *tensor = scan->in[it->states + i];
        int64_t axis = list_entry(node, "scan_input_axes", i);
        const bool backwards = list_entry(node, directions, i) != 0;
        TRY(infer_axis(&axis, tensor->shape.rank, err));
        drop_all(&it->in[it->states + i], 1);
        TRY(take_slice(it->args, tensor, axis, backwards ? scan->length - 1 - step : step,
                       &it->in[it->states + i], err));
    }
    return STATUS_OK;
}

static enum status run_steps(struct scan_state *scan, struct error *err)
{
    struct iteration *it = &scan->it;
    const struct node *node = it->args->node;
    for (size_t i = 0; i < it->states; i++)
        it->in[i] = tensor_ref(scan->in[i]);
    for (size_t step = 0; step < scan->length; step++) {
        TRY(feed_items(scan, step, err));
        TRY(iteration_run(it, err));
    }
    finish_states(it);
    for (size_t i = 0; i < it->collected; i++)
        TRY(finish_collection(it, i, list_entry(node, "scan_output_axes", i),
                              list_entry(node, "scan_output_directions", i) != 0, err));
    return STATUS_OK;
}

/* Runs the body over the scan inputs in[states …]. */
static enum status run_scan(const struct kernel_args *args, struct tensor *const *in, size_t states,
                            size_t items, size_t length, struct error *err)
{
    struct scan_state scan = {
        .it = {.args = args, .body = body_of(args->node, "body"), .states = states},
        .in = in,
        .items = items,
        .length = length};
    enum status status = iteration_start(&scan.it, err);
    IF_OK(status, run_steps(&scan, err));
    iteration_end(&scan.it);
    return status;
}

/* ---- Scan-8, with a batch ---- */

/* Reads the number of iterations of one image, which is `longest` without sequence_lens. */
static enum status batch_length(const struct tensor *lengths, size_t image, size_t longest,
                                size_t *ret, struct error *err)
{
    int64_t length = lengths ? tensor_int(lengths, image) : (int64_t)longest;
    if (length < 0 || (uint64_t)length > longest)
        return error_set(err, STATUS_INVALID, "sequence_lens holds %lld, expected 0 to %zu",
                         (long long)length, longest);
    *ret = (size_t)length;
    return STATUS_OK;
}

/* Adds a scan output of one image, and fills it up with zeros to `rows` items. */
static enum status add_filled(const struct kernel_args *args, struct collection *results,
                              const struct tensor *tensor, size_t rows, struct error *err)
{
    struct tensor *filled;
    struct shape shape = tensor->shape.dims[0] || !results->count ? tensor->shape : results->item;
    shape.dims[0] = (int64_t)rows;
    TRY(tensor_create(args->budget, tensor->dtype, &shape, &filled, err));
    copy_bytes(filled->data, tensor->data, tensor->bytes);
    zero_bytes((char *)filled->data + tensor->bytes, filled->bytes - tensor->bytes);
    const enum status status = collection_add(args, results, filled, err);
    tensor_unref(filled);
    return status;
}

/* Runs Scan on each image, and joins the results. */
static enum status run_images(const struct kernel_args *args, struct tensor **in,
                              struct tensor **out, struct collection *results, struct error *err)
{
    const struct node *node = args->node;
    const size_t operands = node->input_count - 1, outputs = node->output_count;
    const size_t items = (size_t)node_int(node, "num_scan_inputs", 1), states = operands - items;
    const int64_t *extents = args->in[operands]->shape.dims;
    const size_t images = (size_t)extents[0], longest = (size_t)extents[1];
    for (size_t image = 0; image < images; image++) {
        size_t length = 0;
        TRY(batch_length(args->in[0], image, longest, &length, err));
        for (size_t i = 0; i < operands; i++)
            TRY(take_slice(args, args->in[1 + i], 0, image, &in[i], err));
        TRY(run_scan(args, in, states, items, length, err));
        for (size_t i = 0; i < outputs; i++)
            if (out[i])
                TRY(i < states ? collection_add(args, &results[i], out[i], err)
                               : add_filled(args, &results[i], out[i], longest, err));
        drop_all(in, operands);
        drop_all(out, outputs);
    }
    for (size_t i = 0; i < outputs; i++) {
        struct shape *item = &results[i].item;
        if (!node->outputs[i])
            continue;
        TRY(declared_item(body_of(node, "body")->outputs[i], &results[i], err));
        if (!images && i >= states && item->rank < TENSOR_MAX_RANK) {
            memmove(item->dims + 1, item->dims, (size_t)item->rank++ * sizeof *item->dims);
            item->dims[0] = extents[1];
        }
        TRY(collection_tensor(args, &results[i], 0, false, &out[i], err));
    }
    return STATUS_OK;
}

static enum status scan_batched(const struct kernel_args *args, struct error *err)
{
    const size_t operands = args->node->input_count - 1, outputs = args->node->output_count;
    struct tensor **in = zeroed_scratch(args, operands + outputs, sizeof *in, err);
    struct collection *results = zeroed_scratch(args, outputs, sizeof *results, err);
    struct kernel_args of_image = *args;
    if (!in || !results)
        return STATUS_NO_MEMORY;
    struct tensor **out = of_image.out = in + operands;
    const enum status status = run_images(&of_image, in, out, results, err);
    for (size_t i = 0; i < outputs && status == STATUS_OK; i++) {
        hand_over(args, i, out[i]);
        out[i] = NULL;
    }
    drop_all(in, operands + outputs);
    return status;
}

KERNEL(kernel_scan)
{
    if (args->node->opset < 9)
        return scan_batched(args, err);
    const size_t items = (size_t)node_int(args->node, "num_scan_inputs", 1);
    const size_t states = args->node->input_count - items;
    const struct shape *shape = &args->in[states]->shape;
    int64_t axis = list_entry(args->node, "scan_input_axes", 0);
    TRY(infer_axis(&axis, shape->rank, err));
    return run_scan(args, (struct tensor *const *)(uintptr_t)args->in, states, items,
                    (size_t)shape->dims[axis], err);
}

/* OP_NO_FOLD because a file controls how long a Loop or Scan runs, and loading must be fast. */
const struct op_info ops_control[] = {
    {OP_IF, 1, 0, 1, 1, 1, OP_VARIADIC, "cond:bool[1]", OP_DATA_SHAPE,
     "then_branch:graph else_branch:graph", infer_if, &batch_mixes, work_elements, kernel_if},
    {OP_LOOP, 1, 0, 0, OP_VARIADIC, 1, OP_VARIADIC, "M:index[1] cond:bool[1] ...v_initial!",
     OP_DATA_SHAPE | OP_NO_FOLD, "body:graph", infer_loop, &batch_mixes, work_elements,
     kernel_loop},
    {OP_SCAN, 8, 8, 0, OP_VARIADIC, 1, OP_VARIADIC,
     "sequence_lens:index ...initial_state_and_scan_inputs!", OP_DATA_SHAPE | OP_NO_FOLD,
     "body:graph num_scan_inputs:int directions:ints", infer_scan_batched, &batch_mixes,
     work_elements, kernel_scan},
    {OP_SCAN, 9, 0, 1, OP_VARIADIC, 1, OP_VARIADIC, "...initial_state_and_scan_inputs!",
     OP_DATA_SHAPE | OP_NO_FOLD,
     "body:graph num_scan_inputs:int scan_input_axes:ints scan_input_directions:ints "
     "scan_output_axes:ints scan_output_directions:ints",
     infer_scan, &batch_mixes, work_elements, kernel_scan},
    {0},
};
