/* The kernels for convolutions and matrix products. The first that claims a node and creates a step
 * runs it. Winograd creates one only where it is faster than the next kernel. */
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/lowering/lowering.h"

static const struct cpu_kernel *const kernels[] = {
    &cpu_winograd,       &cpu_depthwise,       &cpu_gemm, &cpu_conv, &cpu_matmul,
    &cpu_quantized_conv, &cpu_quantized_matmul};

/* When memory is short, packed weights may exceed the originals by an eighth plus this. */
#define SLACK_BYTES ((size_t)1 << 20)

#define FLOAT_PRODUCTS   OP_CONV, OP_GEMM, OP_MATMUL
#define INTEGER_PRODUCTS OP_QLINEAR_CONV, OP_QLINEAR_MATMUL, OP_QGEMM

static bool is_of_integers(const struct node *node)
{
    static const enum op integer[] = {INTEGER_PRODUCTS};
    bool is = false;
    for (size_t i = 0; i < COUNT_OF(integer); i++)
        is = is || integer[i] == node->op;
    return is;
}

/* True if packed weights are clearly larger than the originals, as Winograd's are. */
static bool is_spacious(const struct node *node, size_t packed)
{
    const struct tensor *weights = node->inputs[is_of_integers(node) ? 3 : 1]->known;
    return weights && packed > weights->bytes + weights->bytes / 8 + SLACK_BYTES;
}

/* STATUS_NO_MEMORY also for packed weights that are too large while memory is short. */
static enum status create(const struct cpu_kernel *kernel, const struct lowering *lowering,
                          struct step **ret, struct error *err)
{
    struct backend *backend = lowering->backend;
    struct weight *before = backend->weights;
    const size_t bytes_before = backend->weight_bytes;
    const struct memory_budget *memory = backend->options.memory;
    enum status status = kernel->create(lowering, ret, err);
    if (status == STATUS_OK && memory && memory->is_tight &&
        is_spacious(lowering->node, backend->weight_bytes - bytes_before))
        status = error_no_memory(err, "for the packed weights of the only kernel that fits");
    if (status == STATUS_NO_MEMORY) {
        step_free(*ret);
        *ret = NULL;
        weights_free_since(backend, backend->weights, before);
    }
    return status;
}

/* If a kernel's packed weights do not fit into memory, the next one is asked. */
STEP_CREATE(lower_product)
{
    struct kernel_caps caps;
    enum status status = STATUS_OK;
    for (size_t k = 0; k < COUNT_OF(kernels) && !*ret; k++)
        if (kernel_claims(&kernels[k]->kernel, lowering->node, &caps)) {
            status = create(kernels[k], lowering, ret, err);
            if (status != STATUS_OK && status != STATUS_NO_MEMORY)
                return status;
        }
    return status;
}

/* Claims the abilities of all kernels together. */
KERNEL_CLAIM(product_claim)
{
    const struct value *bias = node_bias(node);
    struct kernel_caps caps;
    if (node->op == OP_CONV) {
        if (!claim_reads_image(node) || node->inputs[0]->shape.rank > 5 ||
            !is_f32_constant(node_input(node, 1)) || (bias && !is_f32_constant(bias)))
            return false;
        ret->can = KERNEL_CHANNELS_LAST;
    }
    bool is_claimed = false;
    for (size_t k = 0; k < COUNT_OF(kernels); k++)
        if (kernel_claims(&kernels[k]->kernel, node, &caps)) {
            is_claimed = true;
            ret->can |= caps.can;
        }
    if (!is_of_integers(node))
        ret->narrow = NARROW_PRODUCT;
    ret->in_place = claim_residual(node);
    return is_claimed;
}

const struct cpu_kernel cpu_product = {
    {"product", {FLOAT_PRODUCTS, INTEGER_PRODUCTS}, product_claim}, lower_product};
