/* Private to random_graph.c and random_steps.c: a graph that grows by one operator or small pattern
 * at a time. Every step takes an image value [1, C, H, W] and returns another one, or NULL when the
 * choice fits no operand there is. */
#pragma once

#include "engine/base/size.h"
#include "tests/unit/random_graph.h"

#define MOST_LIVE 64

struct builder {
    struct graph *graph;
    uint32_t state;
    /* image values whose shapes are known for batch 1: [1, C, H, W] */
    struct value *live[MOST_LIVE];
    size_t live_count;
    bool failed;
};

struct value *constant(struct builder *b, struct shape shape, float scale, float offset);
struct value *ints(struct builder *b, const int64_t *data, size_t count);

/* Appends a node with `outputs` new values; NULL (and b->failed) when out of memory. */
struct value *add(struct builder *b, enum op op, size_t count, struct value *const *inputs,
                  size_t outputs, struct node **ret);
/* Infers its outputs, for batch 1. NULL when the operator does not take these operands: the node is
 * forgotten. */
struct value *finish(struct builder *b, struct node *node);
struct value *unary(struct builder *b, enum op op, struct value *x);
struct value *binary(struct builder *b, enum op op, struct value *x, struct value *y);
struct value *pick(struct builder *b);
void keep(struct builder *b, struct value *value);

/* What exporters write in several nodes, and operators that networks use now and then. */
struct value *rare_step(struct builder *b, struct value *x);
