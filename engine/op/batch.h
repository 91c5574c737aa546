/* A batch rule tells for an operator along which axis the images of a batch pass through a node.
 * engine/passes/batch_independence.h proves by these rules that images are independent.
 *
 * Rules are asked about nodes whose shapes are all known. A rule may answer BATCH_MIXES although
 * images are independent, but it never gives an axis if images mix.
 * All functions only read; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct node;

enum {
    BATCH_FREE = -1,  /* the input is the same for all images */
    BATCH_MIXES = -2, /* images mix, or independence is not proven */
};

/* How a node reads an input that is the same for all images: what batch_rule.beside returns if not
 * an axis. */
enum {
    BATCH_WHOLE = -1,   /* all images read the whole input */
    BATCH_OTHER = 100,  /* all images read the input, which must not depend on the batch size */
    BATCH_EXTENTS = 101 /* only output shapes depend on the input; shapes are compared separately */
};

struct batch_rule {
    /* Returns the outputs' axis along which the images lie. axes[i] is the axis of input i, or
     * BATCH_FREE; at least one input has an axis. It is not called for a batch of one image. A NULL
     * function stands for BATCH_MIXES. */
    int (*axis)(const struct node *node, const int *axes);
    /* For an input i that is the same for all images; the outputs have the images on `axis`.
     * Returns the axis along which each image reads its own part of the input, or BATCH_WHOLE,
     * BATCH_OTHER or BATCH_EXTENTS. Any negative axis means BATCH_WHOLE. For a batch of one
     * image `axis` is 0, wherever the image lies; if the answers for one image and for several
     * differ, images run one by one. NULL stands for BATCH_OTHER. */
    int (*beside)(const struct node *node, size_t i, int axis);
};

/* Rules that several families share. */
extern const struct batch_rule batch_mixes;
/* Inputs broadcast to the output; each output element is computed independently. */
extern const struct batch_rule batch_elementwise;
/* For operators that are elementwise on input 0. All further inputs must be BATCH_FREE, and are
 * read as BATCH_OTHER. */
extern const struct batch_rule batch_unary;
/* For views. Through a view, batch_is_independent() also follows images that lie along no axis. */
extern const struct batch_rule batch_reshape;
/* The images lie along dimension 0 of input 0, or of the first two inputs, and do not mix. */
extern const struct batch_rule batch_by_sample, batch_by_sample_of_two;
/* For operators along the attribute `axis` of input 0, on which no images may lie. The default of
 * `axis` is -1, but 0 for batch_beside_first. With batch_before_last, the images lie on an axis
 * before `axis`. */
extern const struct batch_rule batch_beside_last, batch_beside_first, batch_before_last;
/* LSTM, GRU, RNN: the images lie on axis 0 of all outputs, or on axis 2 of Y and axis 1 of the
 * states. The rule gives the axis of Y, and batch_is_independent() knows that of the states. */
extern const struct batch_rule batch_recurrent;
/* For matrix products: batch_matmul for MatMul, QLinearMatMul and MatMulInteger, batch_gemm for
 * Gemm and QGemm. */
extern const struct batch_rule batch_matmul, batch_gemm;

/* Functions that several operators' batch rules share. */

/* Returns the axis of input 0 along which its images lie if all further inputs are BATCH_FREE,
 * otherwise BATCH_MIXES. */
int batch_of_first(const struct node *node, const int *axes);
/* Returns 0 if only the first `count` inputs have images, on axis 0 like the output. */
int batch_of_samples(const struct node *node, const int *axes, size_t count);
/* Calls batch_of_samples() with a `count` of 1. */
int batch_of_sample(const struct node *node, const int *axes);
/* Returns the images' axis in concatenated inputs, or BATCH_MIXES if images lie on the concatenated
 * axis. */
int batch_of_concat(const struct node *node, const int *axes);
/* Returns `axis`: input i has the images on the same axis as the outputs. */
int batch_same(const struct node *node, size_t i, int axis);
/* Returns BATCH_EXTENTS for input 1, which gives the result's shape, else BATCH_OTHER. */
int batch_beside_shape(const struct node *node, size_t i, int axis);
