/* Encodes a request's labels as tokens, or as vectors from the cache or the model for texts. */
#include "server/http/api/labels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/base/utf8.h"
#include "server/http/api/predict_body.h"
#include "server/schedule/runtime/text_cache.h"

/* The prompt of transformers' zero-shot pipeline. */
#define DEFAULT_PROMPT "This is a photo of {}."

/* Terminates the label at `at`, and removes its backslashes. Returns the next label, or NULL. */
static char *cut_label(char *at)
{
    char *to = at;
    while (*at && *at != ',') {
        at += at[0] == '\\' && (at[1] == ',' || at[1] == '\\');
        *to++ = *at++;
    }
    const bool is_last = !*at;
    *to = '\0';
    return is_last ? NULL : at + 1;
}

enum status request_labels_read(struct request_labels *labels, const char *text, size_t size,
                                struct error *err)
{
    free(labels->list);
    labels->list = NULL;
    labels->count = 0;
    if (size > REQUEST_LABELS_BYTES)
        return error_set(err, STATUS_INVALID, "labels have %zu bytes; the limit is %d", size,
                         REQUEST_LABELS_BYTES);
    if (!utf8_valid(text, size) || memchr(text, '\0', size))
        return error_set(err, STATUS_INVALID, "labels are not UTF-8, or have a zero byte");
    labels->list = strndup(text, size);
    TRY(check_memory(labels->list, "for the labels of a request", err));
    for (char *at = labels->list, *next; at; at = next) {
        next = cut_label(at);
        if (labels->count == REQUEST_LABELS_MAX)
            return error_set(err, STATUS_INVALID, "the request has more than %d labels",
                             REQUEST_LABELS_MAX);
        labels->names[labels->count] = text_trim(at, " \t\r\n");
        if (!labels->names[labels->count++][0])
            return error_set(err, STATUS_INVALID,
                             "label %zu is empty; write labels with commas between them: "
                             "labels=a dog,a cat",
                             labels->count - 1);
    }
    return STATUS_OK;
}

enum status request_labels_set_prompt(struct request_labels *labels, const char *text,
                                      struct error *err)
{
    if (!strstr(text, "{}") || strlen(text) > ZERO_SHOT_PROMPT_MAX ||
        !utf8_valid(text, strlen(text)))
        return error_set(err, STATUS_INVALID,
                         "prompt is '%.40s'; it must be a text of at most %d bytes with {} where "
                         "the label goes: a photo of {}",
                         text, ZERO_SHOT_PROMPT_MAX);
    snprintf(labels->prompt, sizeof labels->prompt, "%s", text);
    return STATUS_OK;
}

/* The tokens of one text, and for each token the index of its label. */
struct caption {
    const struct text_input *input;
    uint16_t *of_tokens;
    int64_t *ids;
    size_t count;
};

static void put_token(struct caption *caption, int64_t id, uint16_t word)
{
    caption->of_tokens[caption->count] = word;
    caption->ids[caption->count++] = id;
}

/* Adds a text's tokens. `word`: the label's index, or labels->count for text between labels. */
static enum status add_tokens(struct caption *caption, const char *text, uint16_t word,
                              struct error *err)
{
    const struct encode_options options = {.max_length = caption->input->length,
                                           .omit_special = true};
    struct token_list list;
    TRY(tokenizer_encode(caption->input->tokenizer, text, strlen(text), &options, &list, err));
    for (size_t i = 0; i < list.count && caption->count < caption->input->length; i++)
        put_token(caption, list.ids[i], word);
    const bool has_room = caption->count < caption->input->length;
    token_list_done(&list);
    return has_room ? STATUS_OK
                    : error_set(err, STATUS_INVALID,
                                "the labels have more than the %zu tokens that the model takes; "
                                "send fewer",
                                caption->input->length);
}

/* Writes the labels' tokens, such as "a dog. a cat.", between the tokenizer's special tokens. */
static enum status add_labels(struct caption *caption, const struct request_labels *labels,
                              struct error *err)
{
    const struct encode_options options = {.max_length = caption->input->length};
    const uint16_t none = (uint16_t)labels->count;
    struct token_list special;
    TRY(tokenizer_encode(caption->input->tokenizer, "", 0, &options, &special, err));
    const size_t before = special.count / 2; /* [CLS] precedes the labels, [SEP] follows */
    enum status status = STATUS_OK;
    for (size_t i = 0; i < before; i++)
        put_token(caption, special.ids[i], none);
    for (size_t i = 0; i < labels->count && status == STATUS_OK; i++) {
        status = add_tokens(caption, labels->names[i], (uint16_t)i, err);
        IF_OK(status, add_tokens(caption, ".", none, err));
    }
    for (size_t i = before; i < special.count && status == STATUS_OK; i++) {
        if (caption->count == caption->input->length)
            status = error_set(err, STATUS_INVALID,
                               "the labels fill all %zu tokens that the model takes; send fewer",
                               caption->input->length);
        else
            put_token(caption, special.ids[i], none);
    }
    token_list_done(&special);
    return status;
}

/* Joins the labels into one text, and writes its tokens as rows for the detector's text inputs. */
static enum status write_caption(struct exchange *x, struct request_labels *labels,
                                 const struct deployment *deployment, struct error *err)
{
    const struct text_input *input = &deployment->model->text;
    struct caption caption = {.input = input};
    caption.of_tokens = labels->of_tokens = alloc_array(input->length, sizeof(uint16_t));
    caption.ids = alloc_array(input->length, sizeof *caption.ids);
    enum status status = caption.of_tokens && caption.ids
                             ? upload_charge(&x->body, 4 * input->length * sizeof(int64_t), err)
                             : error_no_memory(err, "for the labels of a request");
    IF_OK(status, add_labels(&caption, labels, err));
    const struct text_item item = {.ids = caption.ids, .id_count = caption.count};
    IF_OK(status, text_rows_make(input, &item, 1, false, &labels->texts.rows, err));
    for (size_t k = 0; k < input->input_count && status == STATUS_OK; k++) {
        labels->words.rows[input->at[k]] = labels->texts.rows.inputs[k];
        labels->words.bytes[input->at[k]] = deployment->inputs[input->at[k]].bytes;
    }
    labels->words.words = (struct task_words){labels->count, labels->of_tokens, caption.count};
    free(caption.ids);
    return status;
}

/* Writes the labels' vectors into the detector's input. The other rows get the first vector. */
static enum status write_vectors(struct exchange *x, struct request_labels *labels,
                                 struct error *err)
{
    const size_t count = labels->input.count, size = labels->input.size;
    size_t cells;
    if (labels->scores.size != size)
        return error_set(err, STATUS_MODEL,
                         "the half for texts makes vectors of %zu numbers; the detector takes %zu",
                         labels->scores.size, size);
    TRY(check_memory(size_mul(count, size, &cells), "for the labels of a request", err));
    TRY(upload_charge(&x->body, cells * sizeof *labels->rows, err));
    labels->rows = alloc_array(cells, sizeof *labels->rows);
    TRY(check_memory(labels->rows, "for the labels of a request", err));
    for (size_t i = 0; i < count; i++)
        memcpy(labels->rows + i * size, labels->scores.vectors + (i < labels->count ? i : 0) * size,
               size * sizeof *labels->rows);
    labels->words.rows[labels->input.input] = labels->rows;
    labels->words.bytes[labels->input.input] = cells * sizeof *labels->rows;
    labels->words.words = (struct task_words){.count = labels->count};
    return STATUS_OK;
}

/* Reads how the model scores labels, and refuses a model that takes none. */
static enum status read_scores(struct exchange *x, struct predict_work *work, struct error *err)
{
    struct request_labels *labels = &work->labels;
    const struct predict_request *request = &work->request;
    struct model_host *host = x->server->options.model_host;
    struct deployment *deployment;
    enum status status = STATUS_OK;
    TRY(refuse_pipeline(x, request->model, request->version, err));
    TRY(model_host_acquire(host, request->model, request->version, &deployment, err));
    const struct model *model = deployment->model;
    const struct zero_shot *own = &model->texts;
    const enum task_kind kind = model->task.kind;
    labels->input = model->words;
    const bool is_detector = labels->input.form != WORDS_NONE;
    if (!deployment->takes_images ||
        (kind != TASK_EMBEDDING && kind != TASK_ZERO_SHOT && !is_detector))
        status = error_set(err, STATUS_INVALID,
                           "labels need a model for photos and texts, such as CLIP; model '%s' is "
                           "for %s",
                           model->name, task_name(kind));
    else if (labels->input.form == WORDS_VECTORS && labels->count > labels->input.count)
        status = error_set(err, STATUS_INVALID,
                           "the request has %zu labels, but model '%s' takes at most %zu at a time",
                           labels->count, model->name, labels->input.count);
    else if (is_detector)
        status = STATUS_OK;
    else if (own->is_sigmoid && !own->has_scale)
        status = error_set(err, STATUS_INVALID,
                           "model '%s' scores labels with a scale and a bias of its own; write "
                           "both into zero_shot.json",
                           model->name);
    labels->scores.scale = own->scale;
    labels->scores.bias = own->bias;
    labels->scores.is_sigmoid = own->is_sigmoid;
    if (!labels->prompt[0])
        snprintf(labels->prompt, sizeof labels->prompt, "%s",
                 own->prompt   ? own->prompt
                 : is_detector ? "{}"
                               : DEFAULT_PROMPT);
    if (status == STATUS_OK && labels->input.form == WORDS_TOKENS)
        status = write_caption(x, labels, deployment, err);
    else if (status == STATUS_OK)
        status = model_host_find_text(host, model->name, labels->texts.model, err);
    model_host_release(host, deployment);
    return status;
}

/* Submits the photos. Called when all labels have vectors or tokens. */
static void labels_are_ready(struct exchange *x)
{
    struct predict_work *work = x->work;
    struct request_labels *labels = &work->labels;
    struct error err;
    if (labels->input.form == WORDS_VECTORS && write_vectors(x, labels, &err) != STATUS_OK) {
        submit_or_refuse(x, err.status, &err);
        return;
    }
    if (labels->input.form != WORDS_NONE)
        work->request.words = &labels->words;
    else
        work->request.texts = &labels->scores;
    labels->run(x);
}

/* Writes the prompt for each label, one after another. Returns NULL when out of memory. */
static char *write_prompts(const struct request_labels *labels)
{
    const char *hole = strstr(labels->prompt, "{}");
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    for (size_t i = 0; out && i < labels->count; i++)
        fprintf(out, "%.*s%s%s%c", (int)(hole - labels->prompt), labels->prompt, labels->names[i],
                hole + 2, '\0');
    return text_close(out, &text);
}

/* Copies cached vectors. Puts the texts of the other labels into labels->texts. */
static enum status find_vectors(struct exchange *x, struct request_labels *labels,
                                const struct deployment *deployment, struct error *err)
{
    const size_t size = deployment->outputs[deployment->output].count;
    size_t cells;
    TRY(check_memory(size_mul(labels->count, size, &cells), "for the labels of a request", err));
    TRY(upload_charge(&x->body, cells * sizeof *labels->scores.vectors, err));
    labels->prompts = write_prompts(labels);
    labels->scores.vectors = alloc_array(cells, sizeof *labels->scores.vectors);
    TRY(check_memory(labels->prompts && labels->scores.vectors, "for the labels of a request",
                     err));
    labels->scores.count = labels->count;
    labels->scores.size = size;
    TRY(texts_begin(&labels->texts, labels->count, err));
    labels->texts.count = 0;
    const char *text = labels->prompts;
    for (size_t i = 0; i < labels->count; i++, text += strlen(text) + 1) {
        size_t found = 0;
        float *kept = text_cache_copy(deployment->text_cache, text, &found);
        const bool is_kept = kept && found == size;
        if (is_kept)
            memcpy(labels->scores.vectors + i * size, kept, size * sizeof *kept);
        free(kept);
        if (is_kept)
            continue;
        labels->missing[labels->texts.count] = i;
        labels->texts.items[labels->texts.count++] =
            (struct text_item){.text = text, .size = strlen(text)};
    }
    return STATUS_OK;
}

/* Copies the new vectors to the labels and into the cache. Runs on an offload thread. */
static void take_vectors(struct exchange *x)
{
    struct predict_work *work = x->work;
    struct request_labels *labels = &work->labels;
    const struct predict_request *request = &labels->request;
    const size_t size = labels->scores.size;
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_image *image = &request->images[i];
        const struct embedding *found = &image->answer.embedding;
        struct error err = image->error;
        if (image->status == STATUS_OK && found->count != size)
            error_set(&err, STATUS_MODEL,
                      "the half for texts makes vectors of %zu numbers, not %zu", found->count,
                      size);
        else if (image->status == STATUS_OK)
            err.status = STATUS_OK;
        if (err.status != STATUS_OK) {
            submit_or_refuse(x, err.status, &err);
            return;
        }
        memcpy(labels->scores.vectors + labels->missing[i] * size, found->values,
               size * sizeof *found->values);
        text_cache_keep(request->deployment->text_cache, labels->texts.items[i].text, found->values,
                        size);
    }
    labels_are_ready(x);
}

static void labels_encoded(struct predict_request *request)
{
    exchange_offload(request->context, request->image_count, take_vectors);
}

/* Copies cached vectors and submits the labels without one. All vectors are of `deployment`,
 * because vectors of two deployments are not comparable. */
static enum status find_or_encode(struct exchange *x, struct deployment **deployment,
                                  struct error *err)
{
    struct predict_work *work = x->work;
    struct request_labels *labels = &work->labels;
    struct predict_request *request = &labels->request;
    TRY(find_vectors(x, labels, *deployment, err));
    if (labels->texts.count == 0) {
        labels_are_ready(x);
        return STATUS_OK;
    }
    TRY(submission_images(request, labels->texts.count, err));
    TRY(texts_make_rows(x, &labels->texts, *deployment, err));
    request->on_done = labels_encoded;
    request->tensors = (const void *const *)labels->texts.rows.inputs;
    request->target = *deployment;
    submission_submit(x, request);
    return STATUS_OK;
}

/* Encodes the labels. Called when the model's text encoder is loaded. */
static void encode_labels(struct exchange *x)
{
    const struct predict_work *work = x->work;
    submission_with(x, work->labels.texts.model, NULL, find_or_encode);
}

void request_labels_begin(struct exchange *x, exchange_fn *run)
{
    struct predict_work *work = x->work;
    struct request_labels *labels = &work->labels;
    struct predict_request *request = &work->request;
    struct error err;
    labels->run = run;
    labels->texts.truncate = work->texts.truncate;
    labels->options = TASK_OPTIONS_NONE;
    labels->options.normalize = 1;
    labels->request = (struct predict_request){.model = labels->texts.model,
                                               .top_k = 1,
                                               .options = &labels->options,
                                               .started = request->started,
                                               .deadline = request->deadline,
                                               .priority = request->priority,
                                               .client = request->client,
                                               .context = x};
    request->text_names = labels->names;
    for (size_t i = 0; i < labels->count; i++) {
        const size_t bytes = labels_json_bytes(labels->names[i]);
        if (bytes > request->longest_name)
            request->longest_name = bytes;
    }
    if (read_scores(x, work, &err) != STATUS_OK)
        submit_or_refuse(x, err.status, &err);
    else if (labels->input.form == WORDS_TOKENS)
        labels_are_ready(x);
    else
        submission_await(x, &labels->request, encode_labels);
}

void request_labels_done(struct request_labels *labels)
{
    predict_request_free_results(&labels->request);
    free(labels->request.images);
    texts_done(&labels->texts);
    zero_shot_done(&labels->scores);
    FREE_ALL(labels->prompts, labels->rows, labels->of_tokens, labels->list);
}
