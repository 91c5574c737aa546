/* Gives every value of a graph its place in one arena: how long each lives, which values share
 * bytes, and where each block of bytes goes. */
#include "engine/plan.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

struct planner {
    const struct graph *graph;
    in_place_fn in_place;
    struct plan *plan;
    size_t *last_read; /* by value->index: position of the last reader; node_count for outputs */
};

static struct plan_block *block_of(const struct planner *p, const struct value *value)
{
    const uint32_t block = p->plan->values[value->index].block;
    return block == PLAN_NO_BLOCK ? NULL : &p->plan->blocks[block];
}

static void share_block(struct planner *p, const struct value *value, const struct value *with)
{
    p->plan->values[value->index].block = p->plan->values[with->index].block;
}

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
}

static bool is_view(const struct node *node)
{
    const struct op_info *info = op_find(node->op, node->opset);
    /* Dropout with its mask makes a second output that has to be filled. */
    return info && info->flags & OP_VIEW && !node_output(node, 1);
}

/* The block of an operand may be taken over when this node is its very last reader, also through
 * every view of it, and it is large enough. */
static bool takes_over(const struct planner *p, const struct node *node, size_t n)
{
    int i = p->in_place ? p->in_place(node) : -1;
    const struct value *from = i < 0 ? NULL : node_input(node, (size_t)i);
    const struct plan_block *block = from ? block_of(p, from) : NULL;
    if (!block)
        return false;
    const struct value *to = node->outputs[0];
    size_t bytes = shape_count(&to->shape) * dtype_size(to->dtype);
    size_t readers = 0;
    for (size_t k = 0; k < node->input_count; k++)
        if (node->inputs[k] && block_of(p, node->inputs[k]) == block)
            readers++;
    return block->last == n && bytes <= block->bytes && readers == 1;
}

static void extend(struct planner *p, const struct value *value)
{
    struct plan_block *block = block_of(p, value);
    size_t last = p->last_read[value->index];
    if (last > block->last)
        block->last = last;
}

static enum status add_block(struct planner *p, const struct value *value, size_t n,
                             struct error *err)
{
    size_t bytes;
    TRY(shape_check(&value->shape, value->dtype, NULL, &bytes, err));
    p->plan->blocks[p->plan->block_count] = (struct plan_block){
        .bytes = size_align(bytes ? bytes : 1, TENSOR_ALIGN), .first = n, .last = n};
    p->plan->values[value->index].block = (uint32_t)p->plan->block_count++;
    extend(p, value);
    return STATUS_OK;
}

/* Views live as long as their base must: last reads of a view extend the base's block before any
 * later node may take it over, so they are walked first. */
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

static enum status make_blocks(struct planner *p, struct error *err)
{
    const struct graph *graph = p->graph;
    struct plan *plan = p->plan;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        uint64_t from = 0;
        for (size_t i = 0; i < node->input_count; i++)
            from |= node->inputs[i] ? plan->values[node->inputs[i]->index].from : 0;
        for (size_t o = 0; o < node->output_count; o++) {
            struct value *value = node->outputs[o];
            if (!value)
                continue;
            plan->values[value->index].made = n;
            plan->values[value->index].from = from;
            const struct value *base = node_input(node, 0);
            /* An output of the graph must not lie in the caller's input: its view is copied. */
            bool caller_s = base && plan->places[base->index].kind == PLACE_INPUT &&
                            p->last_read[value->index] == graph->node_count;
            if (o == 0 && is_view(node) && !caller_s) {
                plan->places[value->index] = plan->places[base->index];
                share_block(p, value, base);
                if (block_of(p, base))
                    extend(p, value);
                continue;
            }
            plan->places[value->index].kind = PLACE_ARENA;
            if (o == 0 && takes_over(p, node, n)) {
                share_block(p, value, node->inputs[p->in_place(node)]);
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
    const struct plan_block *x = *(const struct plan_block *const *)a;
    const struct plan_block *y = *(const struct plan_block *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Do both live at the same time, at node `from` or behind it? */
static bool overlap(const struct plan_block *a, const struct plan_block *b, size_t from)
{
    const size_t first = a->first > b->first ? a->first : b->first;
    const size_t last = a->last < b->last ? a->last : b->last;
    return (first > from ? first : from) <= last;
}

/* Greedy by size: the largest block first, each at the lowest offset where it overlaps no block
 * that lives at the same time. order and placed: room for all blocks. */
static enum status place_blocks(struct plan *plan, size_t from, struct plan_block **order,
                                struct plan_block **placed, struct error *err)
{
    size_t count = 0, placed_count = 0;
    plan->arena_bytes = 0;
    for (size_t b = 0; b < plan->block_count; b++) {
        plan->blocks[b].offset = 0;
        if (plan->blocks[b].last >= from)
            order[count++] = &plan->blocks[b];
    }
    qsort(order, count, sizeof(struct plan_block *), larger_first);
    for (size_t b = 0; b < count; b++) {
        struct plan_block *block = order[b];
        size_t offset = 0, end;
        /* `placed` is sorted by offset: walk up through the gaps. */
        for (size_t i = 0; i < placed_count; i++) {
            const struct plan_block *other = placed[i];
            if (!overlap(other, block, from))
                continue;
            if (other->offset >= offset && other->offset - offset >= block->bytes)
                break;
            if (other->offset + other->bytes > offset)
                offset = other->offset + other->bytes;
        }
        block->offset = offset;
        if (!size_add(offset, block->bytes, &end))
            return error_set(err, STATUS_NO_MEMORY, "the activations do not fit in memory");
        if (end > plan->arena_bytes)
            plan->arena_bytes = end;
        size_t at = placed_count++;
        for (; at > 0 && placed[at - 1]->offset > block->offset; at--)
            placed[at] = placed[at - 1];
        placed[at] = block;
    }
    return STATUS_OK;
}

static enum status no_memory(struct error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory while planning memory");
}

enum status plan_place_from(struct plan *plan, size_t from, struct error *err)
{
    struct plan_block **order = alloc_array(plan->block_count, sizeof(struct plan_block *));
    struct plan_block **placed = alloc_array(plan->block_count, sizeof(struct plan_block *));
    enum status status =
        order && placed ? place_blocks(plan, from, order, placed, err) : no_memory(err);
    free(order);
    free(placed);
    for (size_t v = 0; status == STATUS_OK && v < plan->value_count; v++)
        if (plan->places[v].kind == PLACE_ARENA)
            plan->places[v].offset = plan->blocks[plan->values[v].block].offset;
    return status;
}

static void describe_values(const struct graph *graph, struct plan *plan)
{
    struct error ignored; /* of values that nobody makes; for others add_block says it */
    for (size_t v = 0; v < graph->value_count; v++) {
        const struct shape *shape = &graph->values[v]->shape;
        plan->values[v] = (struct plan_value){.block = PLAN_NO_BLOCK};
        if (shape_check(shape, graph->values[v]->dtype, NULL, &plan->values[v].bytes, &ignored) ==
            STATUS_OK)
            plan->values[v].rows = shape->rank > 0 ? shape->dims[0] : 0;
        if (graph->values[v]->known)
            plan->places[v].kind = PLACE_CONSTANT;
    }
    for (size_t i = 0; i < graph->input_count; i++) {
        plan->places[graph->inputs[i]->index] = (struct place){.kind = PLACE_INPUT, .input = i};
        plan->values[graph->inputs[i]->index].from = plan_input_bit(i);
    }
}

enum status plan_create(const struct graph *graph, in_place_fn in_place, struct plan *ret,
                        struct error *err)
{
    struct plan plan = {.value_count = graph->value_count};
    struct planner p = {.graph = graph, .in_place = in_place, .plan = &plan};
    plan.places = alloc_array(graph->value_count, sizeof *plan.places);
    plan.values = alloc_array(graph->value_count, sizeof *plan.values);
    plan.blocks = alloc_array(graph->value_count, sizeof *plan.blocks);
    p.last_read = alloc_array(graph->value_count, sizeof *p.last_read);
    enum status status = STATUS_OK;
    if (!plan.places || !plan.values || !plan.blocks || !p.last_read)
        status = no_memory(err);
    if (status == STATUS_OK) {
        describe_values(graph, &plan);
        find_last_reads(&p);
        propagate_view_reads(&p);
        status = make_blocks(&p, err);
    }
    if (status == STATUS_OK)
        status = plan_place_from(&plan, 0, err);
    free(p.last_read);
    if (status != STATUS_OK) {
        plan_done(&plan);
        return status;
    }
    *ret = plan;
    return STATUS_OK;
}

bool plan_shares_bytes(const struct plan *plan, const struct node *node)
{
    if (!is_view(node) || !node->outputs[0])
        return is_view(node);
    const struct place *from = &plan->places[node->inputs[0]->index];
    const struct place *to = &plan->places[node->outputs[0]->index];
    return from->kind == to->kind && from->input == to->input && from->offset == to->offset;
}

void plan_done(struct plan *plan)
{
    free(plan->places);
    free(plan->values);
    free(plan->blocks);
    *plan = (struct plan){0};
}

bool plan_is_carried(const struct plan_block *block, size_t at)
{
    return block->first < at && block->last >= at;
}

/* Of the inputs, those that differ from piece to piece. */
static uint64_t inputs_with_rows(const struct plan *whole, const struct plan *piece)
{
    uint64_t mask = 0;
    for (size_t v = 0; v < whole->value_count; v++)
        if (whole->places[v].kind == PLACE_INPUT &&
            whole->values[v].bytes != piece->values[v].bytes)
            mask |= whole->values[v].from;
    return mask;
}

/* The values of a carried block that are there at node `at`: they have the bytes of one image after
 * the other where one of them has a row for each, as views and operators that work in place leave
 * these where they are. */
static bool block_takes_pieces(const struct plan *whole, const struct plan *piece, uint32_t block,
                               size_t at, int images, int pieces)
{
    const uint64_t differs = inputs_with_rows(whole, piece);
    size_t bytes = 0;
    bool has_rows = false, is_shared = true, seen = false;
    for (size_t v = 0; v < whole->value_count; v++) {
        const struct plan_value *w = &whole->values[v], *p = &piece->values[v];
        if (w->block != block || w->made >= at)
            continue;
        if ((seen && p->bytes != bytes) ||
            (w->bytes != p->bytes && w->bytes != p->bytes * (size_t)pieces))
            return false;
        is_shared = is_shared && w->bytes == p->bytes && w->rows == p->rows && !(w->from & differs);
        has_rows = has_rows || (w->bytes != p->bytes && p->rows == images &&
                                w->rows == (int64_t)images * pieces);
        bytes = p->bytes;
        seen = true;
    }
    return is_shared || (has_rows && bytes % TENSOR_ALIGN == 0);
}

bool plan_takes_pieces(const struct plan *whole, const struct plan *piece, size_t at, int images,
                       int pieces)
{
    if (whole->value_count != piece->value_count || whole->block_count != piece->block_count)
        return false;
    for (size_t v = 0; v < whole->value_count; v++) {
        const struct plan_value *w = &whole->values[v], *p = &piece->values[v];
        if (w->block != p->block || w->made != p->made ||
            whole->places[v].kind != piece->places[v].kind ||
            (whole->places[v].kind == PLACE_INPUT && w->bytes != p->bytes &&
             w->bytes != p->bytes * (size_t)pieces))
            return false;
    }
    for (size_t b = 0; b < whole->block_count; b++)
        if (whole->blocks[b].first != piece->blocks[b].first ||
            whole->blocks[b].last != piece->blocks[b].last ||
            (plan_is_carried(&whole->blocks[b], at) &&
             !block_takes_pieces(whole, piece, (uint32_t)b, at, images, pieces)))
            return false;
    return true;
}
