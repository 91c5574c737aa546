/* The console's own files, and the models as the page needs them. */
#include <stdlib.h>

#include "engine/base/size.h"
#include "proto/answers.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

extern const unsigned char console_css[], console_icon[], console_js[];
extern const size_t console_css_size, console_icon_size, console_js_size;

void console_css_handle(struct exchange *x)
{
    respond_asset(x, TYPE_CSS, console_css, console_css_size);
}

/* Browsers ask for this name by themselves; the type says that it is an SVG. */
void favicon_handle(struct exchange *x)
{
    respond_asset(x, TYPE_SVG, console_icon, console_icon_size);
}

void console_js_handle(struct exchange *x)
{
    respond_asset(x, TYPE_JS, console_js, console_js_size);
}

void console_json_handle(struct exchange *x)
{
    struct model_status *models = alloc_array(PIPELINE_MAX_MODELS, sizeof *models);
    struct console_model shown[PIPELINE_MAX_MODELS];
    size_t size = 0, count = 0;
    const size_t all =
        models ? pipeline_models(x->server->options.pipeline, models, PIPELINE_MAX_MODELS) : 0;
    for (size_t i = 0; i < all; i++)
        if (models[i].state == MODEL_READY)
            shown[count++] = (struct console_model){.name = models[i].name,
                                                    .version = models[i].version,
                                                    .is_default = models[i].is_default,
                                                    .takes_images = models[i].takes_images,
                                                    .task = task_name(models[i].task),
                                                    .confidence = models[i].confidence,
                                                    .iou = models[i].iou};
    char *text = models ? console_answer_json(shown, count, &size) : NULL;
    free(models);
    respond_text(x, 200, TYPE_JSON, text, size);
}
