/* Batch rules: for each operator, along which axis the images of a batch pass through it.
 * engine/passes/batch_independence.h uses them to prove that images are independent.
 *
 * Rules are only asked about batches of several images, on nodes whose shapes are all known. A rule
 * may answer BATCH_MIXES although images are independent, but it never gives an axis if images mix.
 * All functions only read; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct node;

enum {
    BATCH_FREE = -1,  /* the input is the same for all images */
    BATCH_MIXES = -2, /* images mix, or independence is not proven */
};

/* How a node reads an input that is the same for all images; other answers are axes, 0 or more. */
enum {
    BATCH_WHOLE = -1,   /* every image reads the whole input */
    BATCH_OTHER = 100,  /* the same, but it must not depend on the batch size, as constants */
    BATCH_EXTENTS = 101 /* only its effect on shapes matters, and these are compared separately */
};

struct batch_rule {
    /* The outputs' axis along which the images lie. axes[i] is the axis of input i, or BATCH_FREE;
     * at least one input has an axis. NULL: BATCH_MIXES. */
    int (*axis)(const struct node *node, const int *axes);
    /* The axis of free input i that corresponds to the outputs' image axis, so that each image
     * reads its own part, or BATCH_WHOLE …. Any negative axis means BATCH_WHOLE. NULL:
     * BATCH_OTHER. */
    int (*beside)(const struct node *node, size_t i, int axis);
};

/* Rules that several families share. */
extern const struct batch_rule batch_mixes;
/* Inputs broadcast to the output; each output element is computed independently. */
extern const struct batch_rule batch_elementwise;
/* Elementwise on input 0; the other inputs are free, and nothing is known about them. */
extern const struct batch_rule batch_unary;
/* The elements keep their order, so the images need no axis. The proof handles this rule itself. */
extern const struct batch_rule batch_reshape;
/* Each element of dimension 0 is computed independently, in input 0 or in the first two inputs. */
extern const struct batch_rule batch_by_sample, batch_by_sample_of_two;
/* The images' axis of input 0 is not the attribute `axis` (default -1 or 0), or comes before it. */
extern const struct batch_rule batch_beside_last, batch_beside_first, batch_before_last;
/* LSTM, GRU, RNN: the images' axis of the states is one before that of output 0, unless it is axis
 * 0. The proof handles this rule itself. */
extern const struct batch_rule batch_recurrent;
/* numpy's matrix product of inputs 0 and 1. */
extern const struct batch_rule batch_matmul;

/* Building blocks of rules. */

/* The axis of input 0 if the other inputs are free, else BATCH_MIXES. */
int batch_of_first(const struct node *node, const int *axes);
/* Dimension 0 of the first `count` inputs and of the output; the other inputs are free. */
int batch_of_samples(const struct node *node, const int *axes, size_t count);
/* batch_of_samples() with a `count` of 1. */
int batch_of_sample(const struct node *node, const int *axes);
/* The matrix product of inputs 0 and `second`. */
int batch_of_matmul(const struct node *node, const int *axes, size_t second);
int batch_beside_matmul(const struct node *node, size_t i, int axis);
/* Inputs concatenated along the attribute `axis`, with the images on another axis. */
int batch_of_concat(const struct node *node, const int *axes);
/* The axis of input i that is aligned with the output's axis, counted from the last; negative if
 * there is none. */
int batch_aligned(const struct node *node, size_t i, int axis);
/* The images' axis is that of the outputs. */
int batch_same(const struct node *node, size_t i, int axis);
/* For operators whose operand 1 gives the result's shape. */
int batch_beside_shape(const struct node *node, size_t i, int axis);
/* The attribute `axis`, counted from 0, for input 0. */
int64_t batch_attribute_axis(const struct node *node, int64_t otherwise);
