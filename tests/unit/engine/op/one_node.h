/* A graph of one node whose inputs are constants: what unit tests of operators run. */
#pragma once

#include "engine/op/interpret.h"

#define ONE_MAX 8 /* operands, attributes */

struct one_node {
    struct graph *graph;
    struct node *node;
    struct attr attrs[ONE_MAX];
    struct tensor *out[ONE_MAX]; /* after a run that succeeded */
    struct error err;
    struct memory_budget budget; /* limit 0 unless the test sets one before one_run() */
};

/* Fails the test when memory is short. Inputs are all left out, outputs all wanted. */
void one_start(struct one_node *one, enum op op, int opset, size_t inputs, size_t outputs);
void one_end(struct one_node *one);

/* data: contiguous, copied. Input i becomes a constant. */
void one_input(struct one_node *one, size_t i, enum dtype dtype, struct shape shape,
               const void *data);

void one_int(struct one_node *one, const char *name, int64_t value);
void one_float(struct one_node *one, const char *name, float value);
void one_string(struct one_node *one, const char *name, const char *value);
void one_ints(struct one_node *one, const char *name, const int64_t *values, size_t count);
void one_floats(struct one_node *one, const char *name, const float *values, size_t count);

/* Infers and runs; once a one_node. */
enum status one_run(struct one_node *one);

/* The node alone as a call: inputs of int64 lists or scalars are common in tests. */
#define ONE_I64(one, i, ...)                                                                       \
    one_input(one, i, DTYPE_I64,                                                                   \
              SHAPE((int64_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))),                \
              (const int64_t[]){__VA_ARGS__})

/* The run failed with `status` and its sentence contains `words`. */
void one_fails(struct one_node *one, enum status status, const char *words);

/* Output i has this shape and these elements (bit for bit). */
void one_equals(struct one_node *one, size_t i, enum dtype dtype, struct shape shape,
                const void *expected);
