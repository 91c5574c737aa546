/* Private to engine/cpu/: the files above the lowerings. A file uses only files on its left:
 *
 *     program.h ◀ lowering.h ◀ compile.c ◀ node_runner.c ◀ backend.c */
#pragma once

#include "engine/cpu/program/program.h"

/* ---- compile.c ---- */

/* claim() and compile() of backend_ops. cpu_compile() plans memory (plan_create()). Then the first
 * kernel that claims a node and can make a step for the node makes the step. */
bool cpu_claim(const struct node *node, struct kernel_caps *ret);
enum status cpu_compile(struct backend *backend, const struct graph *graph, struct program **ret,
                        struct error *err) MUST_USE;
/* compile_streams() of backend_ops. */
enum status cpu_compile_streams(struct backend *backend, struct error *err) MUST_USE;

/* True if no step runs a reference kernel, and there are steps. */
bool program_is_fast(const struct program *program);

/* ---- node_runner.c: single nodes ---- */

struct kernel_args;

/* The CPU backend's backend_ops.run_node; `context` is the backend. */
enum status cpu_run_node(void *context, const struct kernel_args *call, bool *ret_taken,
                         struct error *err) MUST_USE;
void node_programs_free(struct backend *backend);

/* ---- backend.c ---- */

/* For tests: backends opened from now on use Winograd's kernel also where it is slower. */
void cpu_prefer_winograd(bool prefer);
