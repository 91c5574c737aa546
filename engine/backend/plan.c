/* Assigns every value of a graph a place in one arena: lifetimes, sharing of bytes, and offsets. */
#include "engine/backend/plan.h"

#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/op/ops.h"

/* A block of the arena: one or more values that share bytes (views, in-place chains). */
struct block {
    size_t bytes, offset;
    size_t first, last; /* node positions of the first producer and the last reader */
    bool is_output;     /* with outputs_last: contains a graph output, lies after all others */
};

struct planner {
    const struct graph *graph;
    kernel_claim_fn claim;
    uint32_t *block_of; /* by value->index; NO_BLOCK for constants and inputs */
    struct block *blocks;
    size_t block_count;
    size_t *last_read; /* by value->index: position of the last reader; for outputs node_count */
    uint32_t *reads;   /* by value->index: number of readers, graph outputs included */
};

#define NO_BLOCK  UINT32_MAX
#define ROW_ALIGN 16

static void find_last_reads(struct planner *p)
{
    const struct graph *graph = p->graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        for (size_t i = 0; i < node->input_count; i++)
            if (node->inputs[i])
                p->last_read[node->inputs[i]->index] = n;
    }
    for (size_t i = 0; i < graph->output_count; i++)
        p->last_read[graph->outputs[i]->index] = graph->node_count;
    graph_count_readers(graph, p->reads);
}

static bool claims(const struct planner *p, const struct node *node, struct kernel_caps *ret)
{
    return p->claim(node, ret) && kernel_fits_layout(ret, node);
}

/* If `concat` joins along the last dimension: places inputs inside its result, if their producers
 * can write rows with a pitch. Offsets must be multiples of ROW_ALIGN, for vector instructions. */
static void find_parts(struct planner *p, struct plan *plan, const struct node *concat)
{
    const struct value *whole = node_output(concat, 0);
    const int last = whole ? whole->shape.rank - 1 : -1;
    const int64_t axis = node_int(concat, "axis", 1);
    size_t offset = 0, size, pitch;
    struct kernel_caps caps;
    if (concat->op != OP_CONCAT || last < 1 || (axis != last && axis != -1))
        return;
    size = dtype_size(whole->dtype);
    pitch = size * (size_t)whole->shape.dims[last];
    for (size_t i = 0; i < concat->input_count && pitch % ROW_ALIGN == 0; i++) {
        const struct value *part = concat->inputs[i];
        const size_t width = size * (size_t)part->shape.dims[last];
        const struct node *maker = part->producer;
        if (!part->known && maker && maker->outputs[0] == part && p->reads[part->index] == 1 &&
            part->dtype == whole->dtype && width && offset % ROW_ALIGN == 0 &&
            pitch / size <= INT32_MAX && claims(p, maker, &caps) && caps.can & KERNEL_PITCH)
            plan->places[part->index] =
                (struct place){PLACE_ARENA, .offset = offset, .pitch = pitch};
        offset += width;
    }
}

static bool is_view(const struct node *node)
{
    const struct op_info *info = op_find(node->op, node->opset);
    return info && info->traits & OP_VIEW;
}

/* Returns the operand whose memory the node's output 0 may overwrite, or NULL. The node must be the
 * last reader of all views of the operand, and the block must be large enough. */
static const struct value *overwritten(const struct planner *p, const struct node *node, size_t n)
{
    struct kernel_caps caps;
    if (!claims(p, node, &caps) || caps.in_place < 0)
        return NULL;
    const struct value *from = node_input(node, (size_t)caps.in_place);
    if (!from || p->block_of[from->index] == NO_BLOCK)
        return NULL;
    const struct block *block = &p->blocks[p->block_of[from->index]];
    const struct value *to = node->outputs[0];
    size_t bytes = shape_count(&to->shape) * dtype_size(to->dtype);
    size_t readers = 0;
    for (size_t k = 0; k < node->input_count; k++)
        if (node->inputs[k] && p->block_of[node->inputs[k]->index] == p->block_of[from->index])
            readers++;
    return block->last == n && bytes <= block->bytes && readers == 1 ? from : NULL;
}

static void extend(struct planner *p, const struct value *value)
{
    struct block *block = &p->blocks[p->block_of[value->index]];
    size_t last = p->last_read[value->index];
    if (last > block->last)
        block->last = last;
}

static enum status add_block(struct planner *p, const struct value *value, size_t n,
                             struct error *err)
{
    size_t bytes;
    TRY(shape_check(&value->shape, value->dtype, NULL, &bytes, err));
    struct block *block = &p->blocks[p->block_count];
    *block =
        (struct block){.bytes = size_align(bytes ? bytes : 1, TENSOR_ALIGN), .first = n, .last = n};
    p->block_of[value->index] = (uint32_t)p->block_count++;
    extend(p, value);
    return STATUS_OK;
}

/* A base must live as long as its views, so the last read of a view counts as a read of its base.
 * Call this before blocks are made, so that no node overwrites bytes that a view still needs. */
static void propagate_view_reads(struct planner *p)
{
    const struct graph *graph = p->graph;
    for (size_t n = graph->node_count; n-- > 0;) {
        const struct node *node = graph->nodes[n];
        if (!is_view(node) || !node->outputs[0])
            continue;
        size_t *base = &p->last_read[node->inputs[0]->index];
        size_t last = p->last_read[node->outputs[0]->index];
        if (last > *base)
            *base = last;
    }
}

/* Returns the Concat that is the only reader of `value`. */
static const struct node *reader_of(const struct planner *p, const struct value *value)
{
    return p->graph->nodes[p->last_read[value->index]];
}

static enum status make_blocks(struct planner *p, struct plan *plan, struct error *err)
{
    const struct graph *graph = p->graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        for (size_t o = 0; o < node->output_count; o++) {
            struct value *value = node->outputs[o];
            if (!value)
                continue;
            const struct value *base = node_input(node, 0);
            /* A graph output must not lie in the caller's input: copy such a view. */
            bool is_callers = base && plan->places[base->index].kind == PLACE_INPUT &&
                              p->last_read[value->index] == graph->node_count;
            if (o == 0 && is_view(node) && !is_callers) {
                plan->places[value->index] = plan->places[base->index];
                p->block_of[value->index] = p->block_of[base->index];
                if (p->block_of[base->index] != NO_BLOCK)
                    extend(p, value);
                continue;
            }
            if (plan->places[value->index].pitch) {
                const struct value *whole = reader_of(p, value)->outputs[0];
                if (p->block_of[whole->index] == NO_BLOCK)
                    TRY(add_block(p, whole, n, err));
                p->block_of[value->index] = p->block_of[whole->index];
                continue;
            }
            plan->places[value->index].kind = PLACE_ARENA;
            if (p->block_of[value->index] != NO_BLOCK) /* a Concat whose input made the block */
                continue;
            const struct value *from = o == 0 ? overwritten(p, node, n) : NULL;
            if (from) {
                p->block_of[value->index] = p->block_of[from->index];
                extend(p, value);
                continue;
            }
            TRY(add_block(p, value, n, err));
        }
    }
    return STATUS_OK;
}

static int larger_first(const void *a, const void *b)
{
    const struct block *x = *(const struct block *const *)a, *y = *(const struct block *const *)b;
    if (x->is_output != y->is_output)
        return x->is_output ? 1 : -1;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Greedy by size: places the largest block first, each at the lowest offset without overlap with
 * blocks that live at the same time. Outputs come last. */
static enum status place_blocks(struct planner *p, bool outputs_last, struct plan *plan,
                                struct error *err)
{
    struct block **order = alloc_array(p->block_count, sizeof(struct block *));
    struct block **placed = alloc_array(p->block_count, sizeof(struct block *));
    if (!order || !placed) {
        FREE_ALL(order, placed);
        return error_no_memory(err, "while planning memory");
    }
    for (size_t b = 0; b < p->block_count; b++) {
        order[b] = &p->blocks[b];
        order[b]->is_output = outputs_last && order[b]->last == p->graph->node_count;
    }
    qsort(order, p->block_count, sizeof(struct block *), larger_first);
    size_t placed_count = 0;
    enum status status = STATUS_OK;
    for (size_t b = 0; b < p->block_count; b++) {
        struct block *block = order[b];
        size_t offset = block->is_output ? plan->outputs_at : 0, end;
        /* `placed` is sorted by offset: try the gaps in ascending order. */
        for (size_t i = 0; i < placed_count; i++) {
            const struct block *other = placed[i];
            if (other->last < block->first || block->last < other->first)
                continue;
            if (other->offset >= offset && other->offset - offset >= block->bytes)
                break;
            if (other->offset + other->bytes > offset)
                offset = other->offset + other->bytes;
        }
        block->offset = offset;
        if (!size_add(offset, block->bytes, &end)) {
            status = error_set(err, STATUS_NO_MEMORY, "the activations do not fit in memory");
            break;
        }
        if (end > plan->arena_bytes)
            plan->arena_bytes = end;
        if (!block->is_output)
            plan->outputs_at = plan->arena_bytes;
        size_t at = placed_count++;
        for (; at > 0 && placed[at - 1]->offset > block->offset; at--)
            placed[at] = placed[at - 1];
        placed[at] = block;
    }
    FREE_ALL(order, placed);
    return status;
}

enum status plan_create(const struct graph *graph, kernel_claim_fn claim, bool outputs_last,
                        struct plan *ret, struct error *err)
{
    struct plan plan = {.value_count = graph->value_count};
    struct planner p = {.graph = graph, .claim = claim};
    plan.places = alloc_array(graph->value_count, sizeof *plan.places);
    p.block_of = alloc_array(graph->value_count, sizeof *p.block_of);
    p.blocks = alloc_array(graph->value_count, sizeof *p.blocks);
    p.last_read = alloc_array(graph->value_count, sizeof *p.last_read);
    p.reads = alloc_array(graph->value_count, sizeof *p.reads);
    enum status status = STATUS_OK;
    if (!plan.places || !p.block_of || !p.blocks || !p.last_read || !p.reads) {
        status = error_no_memory(err, "while planning memory");
        goto out;
    }
    for (size_t v = 0; v < graph->value_count; v++) {
        p.block_of[v] = NO_BLOCK;
        if (graph->values[v]->known)
            plan.places[v].kind = PLACE_CONSTANT;
    }
    for (size_t i = 0; i < graph->input_count; i++)
        plan.places[graph->inputs[i]->index] = (struct place){.kind = PLACE_INPUT, .input = i};
    find_last_reads(&p);
    for (size_t n = 0; n < graph->node_count; n++)
        find_parts(&p, &plan, graph->nodes[n]);
    propagate_view_reads(&p);
    status = make_blocks(&p, &plan, err);
    IF_OK(status, place_blocks(&p, outputs_last, &plan, err));
    for (size_t v = 0; status == STATUS_OK && v < graph->value_count; v++)
        if (plan.places[v].kind == PLACE_ARENA)
            plan.places[v].offset += p.blocks[p.block_of[v]].offset;
out:
    FREE_ALL(p.block_of, p.blocks, p.last_read, p.reads);
    if (status != STATUS_OK) {
        plan_done(&plan);
        return status;
    }
    *ret = plan;
    return STATUS_OK;
}

bool plan_shares_bytes(const struct plan *plan, const struct node *node)
{
    if (!is_view(node))
        return false;
    if (!node->outputs[0])
        return true; /* no node reads it */
    const struct place *from = &plan->places[node->inputs[0]->index];
    const struct place *to = &plan->places[node->outputs[0]->index];
    return from->kind == to->kind && from->input == to->input && from->offset == to->offset;
}

void plan_done(struct plan *plan)
{
    free(plan->places);
    *plan = (struct plan){0};
}
