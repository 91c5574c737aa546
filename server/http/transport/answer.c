/* Prepares an answer for sending: calls `finish`, compresses, charges the budget. */
#include "server/http/transport/answer.h"

#include <stdlib.h>
#include <string.h>

#include "server/http/transport/coding.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/http_budget.h"
#include "server/http/transport/respond.h"

#define COMPRESS_MIN 2048 /* bytes; for shorter answers, compression saves at most two packets */

static bool answer_is_text(const char *type)
{
    return !strncmp(type, "text/", 5) || !strncmp(type, TYPE_JSON, sizeof TYPE_JSON - 1) ||
           strstr(type, "yaml");
}

/* Compresses long texts for clients that accept it. */
static void compress_answer(struct exchange *x)
{
    struct answer *answer = &x->answer;
    if (answer->is_packed)
        return;
    answer->is_packed = true;
    if (answer->size < COMPRESS_MIN || !answer->type || !answer_is_text(answer->type))
        return;
    respond_header(x, "Vary", "Accept-Encoding");
    enum coding coding = coding_choose(exchange_header(x, "Accept-Encoding"));
    size_t size;
    char *text = coding_compress(coding, answer->text, answer->size, &size);
    if (!text)
        return;
    free(answer->text);
    answer->text = text;
    answer->size = size;
    respond_header(x, "Content-Encoding", "%s", coding_name(coding));
}

void answer_pack(struct exchange *x)
{
    compress_answer(x);
    http_budget_settle(x->body.budget, &x->answer.charged, x->answer.size);
}

void answer_write(struct exchange *x)
{
    connections_watch(x, NULL);
    if (!x->answer.status)
        x->finish(x);
    if (x->free_work)
        x->free_work(x);
    free(x->work);
    x->work = NULL;
    x->free_work = NULL;
    upload_done(&x->body);
    answer_pack(x);
}

void exchange_answer(struct exchange *x)
{
    answer_write(x);
    exchange_resume(x);
}
