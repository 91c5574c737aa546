/* Runs the passes that prepare a graph with known shapes for a backend, in order. */
#include "engine/passes/passes.h"

/* An output that is an input is copied: outputs must not change when the caller's buffer does. */
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

enum status optimize_kernels(struct graph *graph, const struct optimize_options *options,
                             struct error *err)
{
    struct edit edit = {.graph = graph, .options = options, .err = err};
    copy_inputs_to_outputs(&edit);
    if (options->fuse) {
        edit_nodes(&edit, pass_patterns);
        edit_nodes(&edit, pass_epilogues);
    }
    if (options->channels_last && options->takes_channels_last)
        pass_layout(&edit);
    if (options->takes_gate || options->makes_mean)
        edit_nodes(&edit, pass_gates);
    if (options->takes_parts)
        edit_nodes(&edit, pass_joins);
    if (options->takes_parts && options->stored_scales)
        edit_nodes(&edit, pass_stored_scales);
    if (options->fuse && options->takes_quantized_epilogue)
        edit_nodes(&edit, pass_quantized_epilogues);
    if (options->fuse) { /* access maps include the layout's Transposes */
        edit_nodes(&edit, pass_attention);
        if (options->stores_result)
            edit_nodes(&edit, pass_storing);
        pass_moves(&edit);
        edit_nodes(&edit, pass_viewed_residuals);
    }
    if (options->bf16)
        pass_narrow(&edit);
    return edit_end(&edit);
}
