/* The console's own files, and the models as the page needs them. */
#include <stdlib.h>
#include <string.h>

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

static const char *resize_word(enum resize_rule mode)
{
    switch (mode) {
    case RESIZE_NONE:
        return "none";
    case RESIZE_SHORT_SIDE:
        return "short";
    case RESIZE_EXACT:
        return "exact";
    case RESIZE_LETTERBOX:
        return "letterbox";
    }
    return "none";
}

static struct console_model console_describe(const struct served *served, bool is_default)
{
    const struct model *model = served->model;
    const struct preprocess *p = &model->preprocess;
    return (struct console_model){
        .name = model->name,
        .version = model->version,
        .is_default = is_default,
        .takes_images = served->takes_images,
        .task = task_name(model->task.kind),
        .resize = resize_word(p->resize),
        .resize_short = p->resize_short,
        .resize_width = p->resize_width,
        .resize_height = p->resize_height,
        .width = p->width,
        .height = p->height,
        .labels = (const char *const *)model->labels.names,
        .label_count = model->labels.count,
    };
}

/* Collects the ready models. `held` keeps what is described alive. */
static size_t console_gather(struct pipeline *pipeline, const struct model_status *models,
                             size_t count, struct served **held, struct console_model *ret)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        struct error err;
        if (models[i].state == MODEL_READY &&
            pipeline_acquire(pipeline, models[i].name, models[i].version, &held[found], NULL,
                             &err) == STATUS_OK) {
            ret[found] = console_describe(held[found], models[i].is_default);
            found++;
        }
    }
    return found;
}

void console_json_handle(struct exchange *x)
{
    struct pipeline *pipeline = x->server->options.pipeline;
    struct model_status *models = alloc_array(PIPELINE_MAX_MODELS, sizeof *models);
    struct served *held[PIPELINE_MAX_MODELS];
    struct console_model shown[PIPELINE_MAX_MODELS];
    size_t count = models ? pipeline_models(pipeline, models, PIPELINE_MAX_MODELS) : 0;
    count = console_gather(pipeline, models, count, held, shown);
    size_t size = 0;
    char *text = models ? console_answer_json(shown, count, &size) : NULL;
    for (size_t i = 0; i < count; i++)
        pipeline_release(pipeline, held[i]);
    free(models);
    respond_text(x, 200, TYPE_JSON, text, size);
}
