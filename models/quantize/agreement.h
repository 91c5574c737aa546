/* Decides whether two runs of a model give the same answers to the same images. Pure.
 *
 * The bounds and their sources (docs/measurements/precision.md has examples):
 *
 *   best class    Equal for AGREEMENT_SHARE of the images for which fp32 has a clear best class.
 *                 MLPerf Inference accepts a classifier or detector that keeps 99 % of the fp32
 *                 model's accuracy; the share of changed answers bounds the lost accuracy.
 *                 With fewer than 100 clear images all of them have to agree.
 *   clear         fp32's best probability exceeds the second by AGREEMENT_LEAD or more. With a
 *                 smaller lead another JPEG encoder or resize filter changes the answer, too:
 *                 these change the probabilities of a trained SqueezeNet by a few hundredths.
 *   probability   The mean change of the probability of fp32's best class is at most
 *                 AGREEMENT_PROBABILITY, because clients' thresholds have two digits.
 *   vector        The mean of 1 - Pearson's correlation of the class scores is at most
 *                 AGREEMENT_VECTOR: an error of 4.5 % of the vector's length. Applies only if fewer
 *                 than AGREEMENT_FEW images are clear: so few images prove little.
 *   few images    With fewer than AGREEMENT_FEW images the bounds of all means are halved,
 *                 because a mean of few numbers is less certain.
 *   tensor        For outputs not known to be class scores: boxes, masks, embeddings, single
 *                 numbers. A channel's error is the root mean square of its differences divided by
 *                 that of fp32's numbers, a tensor's error is the mean over its channels, and an
 *                 image's error is that of its worst tensor. The mean over images is at most
 *                 AGREEMENT_RELATIVE. (Correlation would miss a wrong scale or offset.)
 *                 torch.testing.assert_close allows 0.016 for one operator in bfloat16.
 *   map           In addition, for a tensor with class scores at every position: the best class is
 *                 equal at AGREEMENT_SHARE of the clear positions, where its lead is at least
 *                 AGREEMENT_LEAD of the range of scores. Integers are equal at AGREEMENT_SHARE of
 *                 all positions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define AGREEMENT_SHARE       0.99
#define AGREEMENT_LEAD        0.05
#define AGREEMENT_PROBABILITY 0.01
#define AGREEMENT_VECTOR      0.001
#define AGREEMENT_RELATIVE    0.02
#define AGREEMENT_FEW         16

/* Required speedup of a precision over fp32. A smaller gain is not worth different numbers. A trial
 * measures the speedup with an error below 0.05. So a trial always accepts a speedup of 1.1 or
 * more, and never a precision that is no faster. */
#define PRECISION_GAIN 1.05

#define AGREEMENT_TEXT 160 /* bytes of the text of agreement_holds(), with its terminator */

/* Statistics of the images compared so far. Initially zero, except is_vector. */
struct agreement {
    bool is_vector;   /* compare class scores, not tensors */
    bool has_numbers; /* at least one image had numbers to compare */
    int images;
    int same; /* for vectors: images with the same best class, clear or not */
    size_t clear,
        agreeing; /* images (for a map: positions) with a clear class, and how many of them agree */
    double mean, greatest; /* over images: change of a probability, or relative error. INFINITY: a
                              number was not finite, or tensors could not be compared */
    double correlation;    /* for vectors: the mean over the images */
};

/* Adds an image's class scores: `count` > 0 numbers in fp32 and in the candidate's precision.
 * Applies softmax unless the scores are probabilities; a single number is a logit for a sigmoid. */
void agreement_add_vector(struct agreement *a, const float *reference, const float *candidate,
                          size_t count, bool is_probabilities);

/* An output tensor of one image: number i belongs to channel i / stride % channels. */
struct agreement_tensor {
    size_t count, channels, stride;
    bool is_map;    /* channels are classes, with a score at every position */
    bool is_labels; /* integers, which are equal or not */
};

/* Adds an image with `tensor_count` output tensors, whose numbers are adjacent in memory. */
void agreement_add_tensors(struct agreement *a, const struct agreement_tensor *tensors,
                           size_t tensor_count, const float *reference, const float *candidate);

/* True if at least two images were added and the bounds hold. Writes to `why` (AGREEMENT_TEXT
 * bytes, may be NULL) a sentence without a full stop that names the failed bound, the measured
 * number and the limit; "" if the bounds hold. */
bool agreement_holds(const struct agreement *a, char *why);
