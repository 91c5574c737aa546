/* The abilities of a backend's kernels, for which passes and the memory planner ask. */
#pragma once

#include "engine/graph/graph.h"

/* How a kernel runs a node on 16-bit activations: bfloat16, or float16 on some devices. */
enum narrow_support {
    NARROW_NO,      /* float32 only */
    NARROW_SAME,    /* all activations and results are 16 bits wide */
    NARROW_PRODUCT, /* 16-bit activations, float32 sums; a 16-bit or float32 result */
};

/* Bits of kernel_caps.can. */
enum kernel_ability {
    KERNEL_CHANNELS_LAST = 1u << 0,  /* reads and writes images as [N, spatial…, C] */
    KERNEL_GATE = 1u << 1,           /* Conv on float32: multiplies its image by node->gate first */
    KERNEL_MEAN = 1u << 2,           /* Conv: also writes the mean of each channel of its result */
    KERNEL_CONCAT = 1u << 3,         /* ScaleShift: reads the inputs of a Concat of channels */
    KERNEL_STORED_SCALE = 1u << 4,   /* ScaleShift: reads and writes 8-bit numbers */
    KERNEL_FLOAT_EPILOGUE = 1u << 5, /* a product of 8-bit integers with a float32 result: supports
                                        bias, residual and activation (struct epilogue) */
    KERNEL_STORED_EPILOGUE = 1u << 6, /* a product of 8-bit integers: adds another value, and maps
                                         the result through a table (enum quantized_operand) */
    KERNEL_STORED_RESULT = 1u << 7,   /* quantizes its float32 result to 8 bits (epilogue.step) */
    KERNEL_PITCH = 1u << 8,           /* writes into a Concat's result, with gaps between rows */
};

struct kernel_caps {
    const char *kernel; /* name in the table of the kernel that claims the node; static text */
    unsigned can;       /* set of enum kernel_ability */
    enum narrow_support narrow;
    int in_place; /* the input that output 0 may overwrite; -1: none */
};

/* True if a kernel of the backend runs this node; sets all of *ret. Passes ask about nodes with
 * known shapes. Before the layout pass, shapes are in ONNX's layout. A claim with
 * KERNEL_CHANNELS_LAST then describes the node after that pass. Any thread. */
typedef bool (*kernel_claim_fn)(const struct node *node, struct kernel_caps *ret);

/* False if the claim does not hold, because the kernel needs channels-last images, and the layout
 * pass has left the node in ONNX's layout. */
static inline bool kernel_fits_layout(const struct kernel_caps *caps, const struct node *node)
{
    return !(caps->can & KERNEL_CHANNELS_LAST) || node->channels_last;
}
