/* GET /: the console, from server/console. The page shows the models and how to call them, even
 * without JavaScript. Its script adds the rest, with the list of models in GET /console.json.
 *
 * The template is part of the binary; put_slot() writes what replaces {{name}}. All text from
 * models, clients or the command line is escaped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/text.h"
#include "lensd_version.h"
#include "proto/writer.h"
#include "server/answers/status.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

extern const unsigned char console_index[];

static void page_put_escaped(FILE *out, const char *text)
{
    static const char special[] = "&<>\"'";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (; *text; text++) {
        const char *found = strchr(special, *text);
        if (found)
            fputs(entities[found - special], out);
        else
            fputc(*text, out);
    }
}

static void put_url(FILE *out, const struct exchange *x)
{
    if (x->host) {
        fputs(x->server->options.tls_cert ? "https://" : "http://", out);
        page_put_escaped(out, x->host);
    } else {
        page_put_escaped(out, x->server->listener.url);
    }
}

static void put_model_url(FILE *out, const struct exchange *x, const struct model_status *model,
                          const char *end)
{
    put_url(out, x);
    fputs("/v2/models/", out);
    page_put_escaped(out, model->name);
    fputs(end, out);
}

static void put_note(FILE *out, const struct exchange *x)
{
    if (x->server->options.note && x->server->options.note[0]) {
        fputs(" Note: ", out);
        page_put_escaped(out, x->server->options.note);
        fputc('.', out);
    }
}

static void put_lanes(FILE *out, const struct model_status *model)
{
    for (size_t i = 0; i < model->lane_count; i++) {
        fprintf(out, "%s%s, %s", i ? "; " : "", DEVICE_STRING(model->lanes[i].device),
                precision_name(model->lanes[i].precision));
    }
}

static void put_model(FILE *out, const struct model_status *model)
{
    fputs("<tr><td>", out);
    page_put_escaped(out, model->name);
    fputs(model->is_default ? " (default)</td><td>" : "</td><td>", out);
    page_put_escaped(out, model->version);
    fputs("</td><td>", out);
    if (model->state == MODEL_LOADING)
        fprintf(out, "%s, %.0f %%", model->phase, model->progress * 100);
    else
        fputs(model_state_name(model->state), out);
    if (model->failure[0])
        fputs(": ", out);
    page_put_escaped(out, model->failure);
    fputs("</td><td>", out);
    if (model->state == MODEL_READY)
        fputs(task_name(model->brief.task), out);
    fputs("</td><td>", out);
    if (model->brief.takes_images)
        fprintf(out, "%d × %d × %d", model->brief.width, model->brief.height,
                model->brief.channels);
    fputs("</td><td>", out);
    if (model->brief.class_count)
        fprintf(out, "%zu", model->brief.class_count);
    fputs("</td><td>", out);
    put_lanes(out, model);
    fputs("</td></tr>\n", out);
}

static void put_models(FILE *out, const struct exchange *x)
{
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    for (size_t i = 0; i < count; i++)
        put_model(out, &models[i]);
    free(models);
}

static void put_routes(FILE *out, const struct route_table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct route *route = &table->routes[i];
        char methods[ALLOW_TEXT];
        fprintf(out, "<tr><td><code>%s</code></td><td>%s</td><td>%s</td></tr>\n", route->path,
                route_allow(route->methods, methods, sizeof methods), route->about);
    }
}

static void put_size(FILE *out, size_t bytes)
{
    if (bytes % (1 << 20) == 0)
        fprintf(out, "%zu MiB", bytes >> 20);
    else if (bytes % (1 << 10) == 0)
        fprintf(out, "%zu KiB", bytes >> 10);
    else
        fprintf(out, "%zu bytes", bytes);
}

/* Writes the URL of /predict, with the model's name if needed, and an option. */
static void put_predict(FILE *out, const struct exchange *x, const struct model_status *model,
                        const char *option)
{
    const bool is_named = model && !model->is_default;
    put_url(out, x);
    fputs("/predict", out);
    if (is_named) {
        fputs("?model=", out);
        page_put_escaped(out, model->name);
    }
    if (option[0])
        fprintf(out, "%s%s", is_named ? "&amp;" : "?", option);
}

/* Describes how a model answers photos: the option for its task, and the contents of the answer. */
static void put_photo_calls(FILE *out, const struct exchange *x, const struct model_status *model)
{
    const enum task_kind task = model ? model->brief.task : TASK_CLASSIFICATION;
    static const struct {
        const char *option, *answer;
    } words[] = {
        [TASK_UNKNOWN] = {"", "the outputs"},
        [TASK_CLASSIFICATION] = {"top_k=3", "the best classes with their probabilities"},
        [TASK_DETECTION] = {"confidence=0.5", "boxes in pixels of the photo"},
        [TASK_SEGMENTATION] = {"", "the area of each class in the photo"},
        [TASK_EMBEDDING] = {"normalize=true", "a vector"},
        [TASK_POSE] = {"confidence=0.5", "boxes with key points in pixels of the photo"},
        [TASK_ORIENTED] = {"confidence=0.5", "boxes with an angle in pixels of the photo"},
        [TASK_INSTANCES] = {"confidence=0.5", "boxes with masks in pixels of the photo"},
        [TASK_ZERO_SHOT] = {"top_k=3", "the best texts with their probabilities"},
        [TASK_DEPTH] = {"", "a depth for each pixel"},
        [TASK_TEXT_BOXES] = {"confidence=0.5", "boxes of lines of text in pixels of the photo"},
        [TASK_TEXT] = {"", "the text in the photo"},
        [TASK_ANOMALY] = {"", "how unusual the photo is, a map and a mask"},
        [TASK_MASKS] = {"points=120,80,1", "masks of what the points show, best first"},
    };
    fputs("<pre tabindex=\"0\">curl --data-binary @photo.jpg '", out);
    put_predict(out, x, model, "");
    fputs("'</pre>\n<p>JPEG, PNG or another picture, up to ", out);
    put_size(out, x->server->options.max_body);
    fputs(". Several at once, or from a form:</p>\n<pre tabindex=\"0\">curl -F image=@a.jpg -F "
          "image=@b.png \\\n  '",
          out);
    put_predict(out, x, model, words[task].option);
    fprintf(out,
            "'</pre>\n<p>Or inside JSON, as base64:</p>\n"
            "<pre tabindex=\"0\">{\"image\": {\"b64\": \"…\"}}\n"
            "{\"images\": [{\"b64\": \"…\"}, {\"b64\": \"…\"}]}</pre>\n"
            "<p>The answer names the model, the device, %s, and where the time went.</p>",
            words[task].answer);
}

/* Shows how to call the default model or, without one, the first model that can answer. */
static void put_calls(FILE *out, const struct exchange *x)
{
    size_t count;
    struct model_status *models = model_host_snapshot(x->server->options.model_host, &count);
    const struct model_status *model = NULL;
    for (size_t i = 0; i < count; i++)
        if (models[i].is_default || (!model && models[i].can_answer))
            model = &models[i];
    if (!model || model->brief.answers_photos) {
        put_photo_calls(out, x, model);
    } else {
        fputs("<p>The model takes tensors. Its inputs and outputs:</p>\n<pre tabindex=\"0\">curl ",
              out);
        put_model_url(
            out, x, model,
            "</pre>\n<p>A request gives each input's name, shape, data type and numbers:</p>\n"
            "<pre tabindex=\"0\">curl -d '{\"inputs\": [{\"name\": \"…\", \"shape\": […], "
            "\"datatype\": \"FP32\", \"data\": […]}]}' \\\n  ");
        put_model_url(out, x, model, "/infer</pre>");
    }
    free(models);
}

static void put_slot(FILE *out, const struct exchange *x, const char *name, size_t length)
{
    char slot[32];
    snprintf(slot, sizeof slot, "%.*s", (int)length, name);
    if (!strcmp(slot, "version"))
        fputs(LENSD_VERSION, out);
    else if (!strcmp(slot, "state"))
        fputs(status_state(x->server->options.model_host, atomic_load(&x->server->draining)), out);
    else if (!strcmp(slot, "note"))
        put_note(out, x);
    else if (!strcmp(slot, "models"))
        put_models(out, x);
    else if (!strcmp(slot, "url"))
        put_url(out, x);
    else if (!strcmp(slot, "max_body"))
        put_size(out, x->server->options.max_body);
    else if (!strcmp(slot, "calls"))
        put_calls(out, x);
    else if (!strcmp(slot, "routes"))
        put_routes(out, x->server->options.routes);
}

void page_handle(struct exchange *x)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    const char *from = (const char *)console_index, *open, *close;
    while (out && (open = strstr(from, "{{")) && (close = strstr(open, "}}"))) {
        fwrite(from, 1, (size_t)(open - from), out);
        put_slot(out, x, open + 2, (size_t)(close - open - 2));
        from = close + 2;
    }
    if (out)
        fputs(from, out);
    text_close(out, &text);
    respond_page(x, TYPE_HTML, text, size);
}

static void write_model(struct writer *w, json_node *list, const struct model_status *model)
{
    json_node *entry = write_object(w, list, NULL);
    write_members(w, entry, "name=%s version=%s default=%hhd photos=%hhd task=%s pipeline=%hhd",
                  model->name, model->version, model->is_default, model->brief.takes_images,
                  task_name(model->brief.task), model->stage_count > 0);
    if (model->brief.confidence >= 0)
        write_float(w, entry, "confidence", model->brief.confidence);
    if (model->brief.iou >= 0)
        write_float(w, entry, "iou", model->brief.iou);
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
