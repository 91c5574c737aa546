/* GET /: the console, from server/console. The page shows the models and how to call them, even
 * without JavaScript. Its script adds the rest, with the list of models in GET /console.json. Other
 * paths here have answers that never change.
 *
 * The template is part of the binary; put_slot() writes what replaces {{name}}. All text from
 * models, clients or the command line is escaped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "lensd_version.h"
#include "proto/writer.h"
#include "server/answers/status.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

extern const unsigned char console_index[];

/* Escapes text for HTML; cuts what does not fit. ESCAPED()'s memory lasts until its block ends. */
#define ESCAPED_MAX   4096
#define ESCAPED(text) page_escape((text), (char[ESCAPED_MAX]){0})
static const char *page_escape(const char *text, char room[static ESCAPED_MAX])
{
    static const char special[] = "&<>\"'";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (size_t used = 0; *text && used < ESCAPED_MAX - sizeof "&quot;"; text++) {
        const char *found = strchr(special, *text), letter[] = {*text, '\0'};
        used += (size_t)snprintf(room + used, ESCAPED_MAX - used, "%s",
                                 found ? entities[found - special] : letter);
    }
    return room;
}

/* Writes the server's URL for this client, escaped and never cut; returns `room`. */
static const char *page_url(const struct exchange *x, char room[static ESCAPED_MAX])
{
    const bool is_host = x->host && strlen(x->host) < 300; /* names have at most 253 characters */
    snprintf(room, ESCAPED_MAX, "%s%s",
             !is_host                      ? ""
             : x->server->options.tls_cert ? "https://"
                                           : "http://",
             ESCAPED(is_host ? x->host : x->server->listener.url));
    return room;
}

static void put_model(FILE *out, const struct model_status *model)
{
    fprintf(out, "<tr><td>%s%s</td><td>%s</td><td>", ESCAPED(model->name),
            model->is_default ? " (default)" : "", ESCAPED(model->version));
    if (model->state == MODEL_LOADING)
        fprintf(out, "%s, %.0f %%", model->phase, model->progress * 100);
    else
        fputs(model_state_name(model->state), out);
    fprintf(out, "%s%s</td><td>%s</td><td>", model->failure[0] ? ": " : "", ESCAPED(model->failure),
            model->state == MODEL_READY ? task_name(model->brief.task) : "");
    if (model->brief.takes_images)
        fprintf(out, "%d × %d × %d", model->brief.width, model->brief.height,
                model->brief.channels);
    fputs("</td><td>", out);
    if (model->brief.class_count)
        fprintf(out, "%zu", model->brief.class_count);
    fputs("</td><td>", out);
    for (size_t i = 0; i < model->lane_count; i++)
        fprintf(out, "%s%s, %s", i ? "; " : "", DEVICE_STRING(model->lanes[i].device),
                precision_name(model->lanes[i].precision));
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
    const bool is_named = model && !model->is_default;
    const char *option = words[task].option;
    char url[ESCAPED_MAX], predict[2 * ESCAPED_MAX + 32];
    snprintf(predict, sizeof predict, "%s/predict%s%s", page_url(x, url), is_named ? "?model=" : "",
             is_named ? ESCAPED(model->name) : "");
    fprintf(out,
            "<pre tabindex=\"0\">curl --data-binary @photo.jpg '%s'</pre>\n"
            "<p>JPEG, PNG or another picture, up to ",
            predict);
    put_size(out, x->server->options.max_body);
    fprintf(out,
            ". Several at once, or from a form:</p>\n"
            "<pre tabindex=\"0\">curl -F image=@a.jpg -F image=@b.png \\\n  '%s%s%s'</pre>\n"
            "<p>Or inside JSON, as base64:</p>\n"
            "<pre tabindex=\"0\">{\"image\": {\"b64\": \"…\"}}\n"
            "{\"images\": [{\"b64\": \"…\"}, {\"b64\": \"…\"}]}</pre>\n"
            "<p>The answer names the model, the device, %s, and where the time went.</p>",
            predict,
            !option[0] ? ""
            : is_named ? "&amp;"
                       : "?",
            option, words[task].answer);
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
        char url[ESCAPED_MAX];
        const char *name = ESCAPED(model->name);
        page_url(x, url);
        fprintf(out,
                "<p>The model takes tensors. Its inputs and outputs:</p>\n"
                "<pre tabindex=\"0\">curl %s/v2/models/%s</pre>\n"
                "<p>A request gives each input's name, shape, data type and numbers:</p>\n"
                "<pre tabindex=\"0\">curl -d '{\"inputs\": [{\"name\": \"…\", \"shape\": […], "
                "\"datatype\": \"FP32\", \"data\": […]}]}' \\\n  %s/v2/models/%s/infer</pre>",
                url, name, url, name);
    }
    free(models);
}

static void put_slot(FILE *out, const struct exchange *x, const char *name, size_t length)
{
    char slot[32], url[ESCAPED_MAX];
    const char *note = x->server->options.note;
    snprintf(slot, sizeof slot, "%.*s", (int)length, name);
    if (!strcmp(slot, "version"))
        fputs(LENSD_VERSION, out);
    else if (!strcmp(slot, "state"))
        fputs(status_state(x->server->options.model_host, atomic_load(&x->server->draining)), out);
    else if (!strcmp(slot, "note") && note && note[0])
        fprintf(out, " Note: %s.", ESCAPED(note));
    else if (!strcmp(slot, "models"))
        put_models(out, x);
    else if (!strcmp(slot, "url"))
        fputs(page_url(x, url), out);
    else if (!strcmp(slot, "max_body"))
        put_size(out, x->server->options.max_body);
    else if (!strcmp(slot, "calls"))
        put_calls(out, x);
    else if (!strcmp(slot, "routes"))
        put_routes(out, x->server->options.routes);
}

static void respond_console(struct exchange *x)
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

/* ---- fixed texts, and files that are part of the binary ---- */

#define TYPE_YAML "application/yaml"

/* Texts; the build adds a 0 byte. proto/openapi.py makes those of openapi.yaml. */
extern const unsigned char openapi_yaml[], openapi_json[], openapi_page[];
extern const unsigned char console_css[], console_icon[], console_js[];

static const struct asset {
    const char *path, *type;
    const unsigned char *text;
} assets[] = {
    {"/docs", TYPE_HTML, openapi_page},
    {"/openapi.yaml", TYPE_YAML, openapi_yaml},
    {"/openapi.json", TYPE_JSON, openapi_json},
    {"/console.css", TYPE_CSS, console_css},
    {"/console.js", TYPE_JS, console_js},
    {"/favicon.ico", TYPE_SVG, console_icon}, /* browsers request this path */
};

static void respond_file(struct exchange *x, const char *path)
{
    for (size_t i = 0; i < COUNT_OF(assets); i++) {
        const char *text = (const char *)assets[i].text;
        if (!strcmp(path, assets[i].path))
            respond_page(x, assets[i].type, strdup(text), strlen(text));
    }
}

void fixed_handle(struct exchange *x)
{
    respond_json(x, 200, strdup(x->route->fixed));
}

void absent_handle(struct exchange *x)
{
    respond_refusal(x, 501, "not_implemented", "%s", x->route->fixed);
}

void asset_handle(struct exchange *x)
{
    respond_file(x, x->route->path);
}

/* GET returns the console. OPTIONS, which TorchServe's clients send, returns the description of the
 * API. With --immich, clients that do not accept HTML get the answer of Immich's service. */
void root_handle(struct exchange *x)
{
    const char *accept = exchange_header(x, "Accept");
    static const char immich[] = "{\"message\":\"Immich ML\"}";
    if (!strcmp(x->method, "OPTIONS"))
        respond_file(x, "/openapi.json");
    else if (x->server->options.is_immich && !(accept && strstr(accept, "text/html")))
        respond_json(x, 200, strdup(immich));
    else
        respond_console(x);
}
