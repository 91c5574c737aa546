/* Answers requests of DeepStack's and Roboflow Inference's clients for lists of models and the
 * status. api_predict.c answers photos. */
#include <stdlib.h>

#include "engine/base/size.h"
#include "lensd_version.h"
#include "proto/dialects.h"
#include "proto/writer.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

/* Roboflow's word for a task; NULL: it has none. */
static const char *roboflow_task(enum task_kind kind)
{
    switch (kind) {
    case TASK_CLASSIFICATION:
    case TASK_ZERO_SHOT:
        return "classification";
    case TASK_DETECTION:
    case TASK_ORIENTED:
        return "object-detection";
    case TASK_POSE:
        return "keypoint-detection";
    case TASK_INSTANCES:
        return "instance-segmentation";
    case TASK_UNKNOWN:
    case TASK_EMBEDDING:
    case TASK_SEGMENTATION:
    case TASK_DEPTH:
    case TASK_TEXT_BOXES:
    case TASK_TEXT:
    case TASK_ANOMALY:
        break;
    }
    return NULL;
}

static void respond_models(struct exchange *x, bool needs_boxes,
                           char *(*write)(const struct dialect_model *models, size_t count,
                                          size_t *ret_size))
{
    size_t size = 0, count, found = 0;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    struct dialect_model *rows = alloc_array(count, sizeof *rows);
    for (size_t i = 0; rows && i < count; i++) {
        const struct model_status *model = &models[i];
        const char *task = roboflow_task(model->task);
        if (model->can_answer && task && (!needs_boxes || task_has_boxes(model->task)))
            rows[found++] = (struct dialect_model){model->name, model->version, task};
    }
    char *text = models && rows ? write(rows, found, &size) : NULL;
    respond_text(x, 200, TYPE_JSON, text, size);
    free(rows);
    free(models);
}

static char *write_names(const struct dialect_model *models, size_t count, size_t *ret_size)
{
    const struct deepstack_call call = {.command = "list", .when = time(NULL)};
    const char **names = alloc_array(count, sizeof *names);
    for (size_t i = 0; names && i < count; i++)
        names[i] = models[i].name;
    char *text = names ? deepstack_names_json(&call, "models", names, count, ret_size) : NULL;
    free(names);
    return text;
}

void deepstack_update_handle(struct exchange *x)
{
    size_t size;
    char *text = deepstack_update_json(&size);
    respond_text(x, 200, TYPE_JSON, text, size);
}

void deepstack_ping_handle(struct exchange *x)
{
    const struct deepstack_call call = {.command = "ping", .when = time(NULL)};
    size_t size;
    char *text = deepstack_done_json(&call, NULL, -1, &size);
    respond_text(x, 200, TYPE_JSON, text, size);
}

void deepstack_list_handle(struct exchange *x)
{
    respond_models(x, true, write_names);
}

void roboflow_registry_handle(struct exchange *x)
{
    respond_models(x, false, roboflow_models_json);
}

void roboflow_remove_handle(struct exchange *x)
{
    respond_refusal(x, 501, "not_implemented",
                    "clients cannot unload models here; an admin can: POST "
                    "/v2/repository/models/NAME/unload");
}

void roboflow_info_handle(struct exchange *x)
{
    size_t size = 0;
    char *text = write_document(&size, "name=%s version=%s uuid=%s", "lensd", LENSD_VERSION, "");
    respond_text(x, 200, TYPE_JSON, text, size);
}
