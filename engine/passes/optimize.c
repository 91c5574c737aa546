/* Runs the passes that prepare a graph with known shapes for a backend. */
#include "engine/passes/passes.h"

/* Copies an output that is an input, because outputs must not change with the caller's buffer. */
static void copy_inputs_to_outputs(struct edit *edit)
{
    struct graph *graph = edit->graph;
    for (size_t i = 0; i < graph->output_count && edit->status == STATUS_OK; i++) {
        struct value *input = graph->outputs[i];
        if (!input->producer && !input->known)
            graph->outputs[i] =
                edit_insert_value(edit, graph->node_count, OP_IDENTITY, graph->opset, "copy",
                                  &input, 1, input->dtype, &input->shape);
    }
}

enum status optimize_for_backend(struct graph *graph, const struct optimize_options *options,
                                 struct error *err)
{
    struct edit edit = {.graph = graph, .options = options, .err = err};
    copy_inputs_to_outputs(&edit);
    if (options->fuse) {
        edit_nodes(&edit, pass_patterns);
        edit_nodes(&edit, pass_epilogues);
    }
    if (options->claim) {
        pass_layout(&edit);
        edit_nodes(&edit, pass_gates);
        edit_nodes(&edit, pass_joins);
    }
    if (options->claim && options->is_int8)
        edit_nodes(&edit, pass_stored_scales);
    if (options->claim && options->fuse)
        edit_nodes(&edit, pass_quantized_epilogues);
    if (options->fuse) { /* after pass_layout(), whose Transposes access maps absorb */
        edit_nodes(&edit, pass_attention);
        edit_nodes(&edit, pass_storing);
        pass_strided_copies(&edit);
        edit_nodes(&edit, pass_viewed_residuals);
    }
    if (options->claim && options->narrow)
        pass_narrow(&edit);
    return edit_end(&edit);
}
