/* Private to engine/cpu/: the lowerings, one file per family. A lowering turns a node into a step.
 * compile.c has the table of lowerings. */
#pragma once

#include "engine/backend/kernel_table.h"
#include "engine/cpu/program/program.h"

/* A row of the backend's table. create() builds a step for lowering->node, which the kernel has
 * claimed. If that is impossible, *ret stays NULL and another kernel may try; an error ends the
 * compilation. */
struct cpu_kernel {
    struct kernel kernel;
    enum status (*create)(const struct lowering *lowering, struct step **ret, struct error *err);
};

/* STEP_CREATE defines a kernel's create() (struct cpu_kernel), STEP_RUN the run() of the step that
 * create() makes. */
#define STEP_CREATE(name)                                                                          \
    static enum status name(const struct lowering *lowering, struct step **ret, struct error *err)
#define STEP_RUN(name)                                                                             \
    static enum status name(struct step *base, __attribute__((unused)) struct program *program,    \
                            __attribute__((unused)) struct error *err)

extern const struct cpu_kernel cpu_conv, cpu_matmul;
extern const struct cpu_kernel cpu_quantized_conv, cpu_quantized_matmul, cpu_quantized_rows,
    cpu_quantized_concat, cpu_dynamic_round, cpu_recurrent;
extern const struct cpu_kernel cpu_transpose, cpu_concat, cpu_view, cpu_cast;
extern const struct cpu_kernel cpu_deconv, cpu_scaled_parts, cpu_pool, cpu_groups, cpu_resize;
extern const struct cpu_kernel cpu_attention, cpu_elementwise, cpu_norm, cpu_reference;

/* True if lower_depthwise() runs this Conv; *ret is then the window of the Conv. */
struct window;
bool depthwise_fits(const struct node *node, struct window *ret);

/* Create a step for a Conv that cpu_conv has claimed. *ret stays NULL if the kernel does not fit
 * the node, or if Winograd's kernel is not faster than a product. */
enum status lower_winograd(const struct lowering *lowering, struct step **ret, struct error *err);
enum status lower_depthwise(const struct lowering *lowering, struct step **ret, struct error *err);
