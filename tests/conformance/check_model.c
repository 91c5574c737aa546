/* lensd_check FILE: does lensd take this model? Exit 0 and a line about it, or 1 and the reason.
 *
 * What `lensd inspect` does with a file before it describes it, without the daemon around it: the
 * malformed corpus is run through this under sanitizers and limits. */
#include <stdio.h>

#include "models/onnx/onnx.h"

int main(int argc, char **argv)
{
    struct onnx_model model;
    struct error err;
    if (argc != 2) {
        fprintf(stderr, "usage: lensd_check FILE\n");
        return 2;
    }
    if (onnx_load_file(argv[1], 0, &model, &err) != STATUS_OK) {
        printf("refused (%s): %s\n", status_word(err.status), err.message);
        return 1;
    }
    printf("accepted: %zu nodes, %zu inputs, %zu outputs, opset %d\n", model.graph->node_count,
           model.graph->input_count, model.graph->output_count, model.graph->opset);
    onnx_model_done(&model);
    return 0;
}
