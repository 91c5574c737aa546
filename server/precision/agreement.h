/* Do two runs of a model give the same answers? Pure.
 *
 * Bounds, and where they come from:
 *
 *   best class    Equal for AGREEMENT_SHARE of the images for which fp32 has a clear best class.
 *                 MLPerf Inference accepts a classifier or detector that keeps 99 % of the fp32
 *                 model's accuracy; a share of changed answers bounds the accuracy that is lost.
 *                 With fewer than 100 clear images all of them have to agree.
 *   clear         fp32's best probability leads the second by AGREEMENT_LEAD or more. Where it does
 *                 not, another JPEG encoder or resize filter changes the answer as well: for the
 *                 photos of a trained SqueezeNet they move probabilities by a few hundredths.
 *   probability   That of fp32's best class changes by no more than AGREEMENT_PROBABILITY in the
 *                 mean: clients compare it with thresholds that have two digits.
 *   vector        1 - Pearson's correlation of the class scores is at most AGREEMENT_VECTOR in the
 *                 mean: an error of 4.5 % of the vector's length. Only where fewer than
 *                 AGREEMENT_FEW images are clear, whose classes prove little.
 *   tensor        Whatever is not known to be class scores: boxes, masks, embeddings, single
 *                 numbers. The root mean square of the error is at most AGREEMENT_RELATIVE of that
 *                 of the numbers, each channel by its own scale, in the mean of channels and images
 *                 (correlation would not see a scale or an offset). torch.testing.assert_close
 *                 allows 0.016 for one operator in bfloat16.
 *   map           A tensor with class scores at every position has, besides, the same best class at
 *                 AGREEMENT_SHARE of the positions with a clear one (a lead of AGREEMENT_LEAD of
 *                 what the scores there span), and integers are equal at that share of positions.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define AGREEMENT_SHARE       0.99
#define AGREEMENT_LEAD        0.05
#define AGREEMENT_PROBABILITY 0.01
#define AGREEMENT_VECTOR      0.001
#define AGREEMENT_RELATIVE    0.02
#define AGREEMENT_FEW         16

/* What was compared so far. Zeroed but for is_vector: nothing. */
struct agreement {
    bool is_vector;   /* the class scores of an image: agreement_add_vector(), else …_tensors() */
    bool has_numbers; /* some image had numbers to compare */
    int images;
    size_t clear, agreeing; /* images (of a map: positions) with a clear class; the same class */
    double mean, greatest;  /* change over the images: of a probability, else relative. INFINITY:
                               something was not finite, or could not be compared */
    double correlation;     /* of vectors: the mean over the images */
};

/* Adds an image's class scores: `count` numbers in fp32 and in the candidate's precision. Softmax
 * is applied unless they are probabilities; a single number is a logistic score. count > 0. */
void agreement_add_vector(struct agreement *a, const float *reference, const float *candidate,
                          size_t count, bool is_probabilities);

/* An output tensor of one image: number i belongs to channel i / stride % channels. */
struct agreement_tensor {
    size_t count, channels, stride;
    bool is_map;    /* channels are classes, with a score at every position */
    bool is_labels; /* integers, equal or not */
};

/* Adds an image of which the model makes `tensor_count` tensors, which lie one after the other. */
void agreement_add_tensors(struct agreement *a, const struct agreement_tensor *tensors,
                           size_t tensor_count, const float *reference, const float *candidate);

/* The correlation of vectors has to be within its bound. */
bool agreement_needs_correlation(const struct agreement *a);

/* Every image so far agrees within the bounds. */
bool agreement_holds(const struct agreement *a);

/* The bounds cannot hold any more, even if `images_left` more images are equal. */
bool agreement_is_lost(const struct agreement *a, int images_left);
