/* Private to engine/passes/: rewrites operators as others after shapes are known and before
 * constants are folded: ONNX's Attention and RotaryEmbedding (functions.c), and a ScatterND that
 * fills masked elements (masked_fill.c). */
#pragma once

#include "engine/passes/edit.h"

/* True for a node of these that can be rewritten: its operands have known, non-empty shapes, and
 * the rewrite makes no constants of hundreds of megabytes. */
bool composite_is_expanded(const struct node *node);

/* Inserts the primitive nodes before edit->graph->nodes[at] and kills that node. Infers their
 * shapes but folds nothing. Errors: those of the node's own inference, STATUS_NO_MEMORY. */
enum status composite_expand(struct edit *edit, size_t at) MUST_USE;

/* If edit->graph->nodes[at] is a ScatterND that writes one number wherever a mask is true, turns it
 * into a Where and inserts nodes before it. Returns false if it is another node, or after an error
 * in edit->status. */
bool masked_fill_as_where(struct edit *edit, size_t at);
