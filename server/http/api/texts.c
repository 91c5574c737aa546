/* Makes rows of tokens from texts, and submits them as tensors. */
#include "server/http/api/texts.h"

#include <stdlib.h>

#include "engine/base/size.h"
#include "server/http/api/submission.h"

enum status texts_begin(struct request_texts *texts, size_t count, struct error *err)
{
    texts->items = alloc_array(count, sizeof *texts->items);
    texts->count = texts->items ? count : 0;
    return texts->items ? STATUS_OK : error_no_memory(err, "for the texts of a request");
}

void texts_done(struct request_texts *texts)
{
    text_rows_done(&texts->rows);
    free(texts->items);
    *texts = (struct request_texts){0};
}

enum status texts_make_rows(struct exchange *x, struct request_texts *texts,
                            const struct deployment *deployment, struct error *err)
{
    const struct text_input *text = &deployment->model->text;
    size_t bytes = (1 + text->input_count) * text->length * sizeof(int64_t);
    if (!deployment_takes_texts(deployment->model))
        return error_set(err, STATUS_INVALID,
                         "model '%s' takes no texts; put its tokenizer (tokenizer.json, or "
                         "vocab.json and merges.txt) into its folder",
                         deployment->model->name);
    TRY(check_memory(size_mul(texts->count, bytes, &bytes), "for the texts of a request", err));
    TRY(upload_charge(&x->body, bytes, err));
    return text_rows_make(text, texts->items, texts->count, texts->truncate, &texts->rows, err);
}
