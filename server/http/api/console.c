/* Lists the models for the console. */
#include <stdlib.h>

#include "proto/writer.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

static void write_model(struct writer *w, json_node *list, const struct model_status *model)
{
    json_node *entry = write_object(w, list, NULL);
    write_members(w, entry, "name=%s version=%s default=%hhd photos=%hhd task=%s pipeline=%hhd",
                  model->name, model->version, model->is_default, model->takes_images,
                  task_name(model->task), model->stage_count > 0);
    if (model->confidence >= 0)
        write_float(w, entry, "confidence", model->confidence);
    if (model->iou >= 0)
        write_float(w, entry, "iou", model->iou);
}

/* Answers {"models":[{"name","version","default","photos","task","pipeline","confidence","iou"}],
 * "zmq"}; "confidence", "iou" and "zmq" may be absent. */
void console_json_handle(struct exchange *x)
{
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct writer w = {.root = write_root(), .failed = !models};
    json_node *list = write_array(&w, w.root, "models");
    for (size_t i = 0; i < count; i++)
        if (models[i].can_answer)
            write_model(&w, list, &models[i]);
    free(models);
    write_members(&w, w.root, "zmq=%s", x->server->options.zmq_port);
    respond_json(x, 200, write_finish(&w));
}
