/* How the images of a batch pass through an operator: the part of its record that proves images
 * independent (engine/passes/batch_independence.h).
 *
 * A rule is asked about batches of several images only, on nodes whose shapes are all known. It may
 * say BATCH_MIXES of independent images, but it never gives an axis where images mix. All functions
 * only read; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct node;

enum {
    BATCH_FREE = -1,  /* the input is the same for all images */
    BATCH_MIXES = -2, /* images mix, or nothing proves that they do not */
};

/* How a free input is read; axes are 0 and more. */
enum {
    BATCH_WHOLE = -1,   /* by every image as a whole */
    BATCH_OTHER = 100,  /* also as a whole; a constant of the file is the same for each size */
    BATCH_EXTENTS = 101 /* only its effect on the shapes matters, which are compared anyway */
};

struct batch_rule {
    /* The axis of the outputs along which the images alternate. axes[i]: that of input i, or
     * BATCH_FREE; at least one is not. NULL: BATCH_MIXES. */
    int (*axis)(const struct node *node, const int *axes);
    /* The axis of free input i that lies beside the images' axis of the outputs, so that each image
     * reads its own part; or BATCH_WHOLE …. Negative: BATCH_WHOLE. NULL: BATCH_OTHER. */
    int (*beside)(const struct node *node, size_t i, int axis);
};

/* The rules that several families share. */
extern const struct batch_rule batch_mixes;
/* Inputs broadcast to the output, each element is computed for itself. */
extern const struct batch_rule batch_elementwise;
/* As elementwise, of input 0 alone; the others are free and nothing is known of them. */
extern const struct batch_rule batch_unary;
/* The elements stay in their order: the images need no axis (the proof knows this rule). */
extern const struct batch_rule batch_reshape;
/* Each element of dimension 0 for itself, of input 0; of the first two inputs. */
extern const struct batch_rule batch_by_sample, batch_by_sample_of_two;
/* The images lie beside the attribute `axis`, default -1 or 0, of input 0; or before it. */
extern const struct batch_rule batch_beside_last, batch_beside_first, batch_before_last;
/* LSTM, GRU, RNN: the images of the states are one axis before those of output 0, unless on axis 0
 * (the proof knows this rule). */
extern const struct batch_rule batch_recurrent;
/* numpy's matrix product of inputs 0 and 1. */
extern const struct batch_rule batch_matmul;

/* What rules are made of. */

/* The axis of input 0 where the others are free, else BATCH_MIXES. */
int batch_of_first(const struct node *node, const int *axes);
/* Dimension 0 of the first `count` inputs and of the output; the others are free. */
int batch_of_samples(const struct node *node, const int *axes, size_t count);
/* The same with a `count` of 1. */
int batch_of_sample(const struct node *node, const int *axes);
/* The matrix product of inputs 0 and `second`. */
int batch_of_matmul(const struct node *node, const int *axes, size_t second);
int batch_beside_matmul(const struct node *node, size_t i, int axis);
/* Inputs joined along the attribute `axis`, the images on another. */
int batch_of_concat(const struct node *node, const int *axes);
/* The axis of input i that is aligned with the output's at their ends; negative: it has none. */
int batch_aligned(const struct node *node, size_t i, int axis);
/* Operand 1 gives the shape of the result. */
int batch_beside_shape(const struct node *node, size_t i, int axis);
/* The attribute `axis`, counted from 0 in input 0. */
int64_t batch_attribute_axis(const struct node *node, int64_t otherwise);
