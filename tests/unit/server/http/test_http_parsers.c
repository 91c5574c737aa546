/* The parsers of server/http, without a socket: forms, targets, bodies, request heads. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/admit.h"
#include "server/http/transport/multipart.h"
#include "server/http/transport/query.h"
#include "server/http/transport/upload.h"

/* ---- multipart ---- */

#define TYPE "multipart/form-data; boundary=B"

/* parts: "name|filename|bytes" joined by " & "; filename '-' where there is none. */
static const struct {
    const char *type, *body;
    const char *parts; /* NULL: refused */
    const char *says;
} forms[] = {
    {TYPE,
     "--B\r\nContent-Disposition: form-data; name=\"a\"; filename=\"f\"\r\n\r\nxyz\r\n--B--\r\n",
     "a|f|xyz", NULL},
    {TYPE, "preamble\r\n--B\r\ncontent-disposition:form-data;name=a\r\n\r\nx\r\n--B--epilogue",
     "a|-|x", NULL},
    {TYPE,
     "--B\r\nContent-Type: x\r\nContent-Disposition: form-data; filename=f; "
     "name=a\r\n\r\n\r\n--B--",
     "a|f|", NULL},
    {TYPE, "--B\r\nA: b\r\n\r\n1\r\n--B \t\r\nA: b\r\n\r\n2\r\n--B--", "|-|1 & |-|2", NULL},
    /* What only looks like a delimiter. */
    {TYPE, "--B\r\nA: b\r\n\r\n1\r\n--Bx\r\n--B\r\n2--B\r\n\n--B\r\n--B--", NULL, "headers"},
    {TYPE, "--B\r\nA: b\r\n\r\n1\r\n--Bx\r\n2--B\r\n3\r\n-B\r\n--B--",
     "|-|1\r\n--Bx\r\n2--B\r\n3\r\n-B", NULL},
    /* Quotes and escapes. */
    {TYPE,
     "--B\r\nContent-Disposition: form-data; name=\"a;b=\\\"c\\\"\"; "
     "filename=\"C:\\x\"\r\n\r\n\r\n--B--",
     "a;b=\"c\"|C:\\x|", NULL},
    {"Multipart/Form-Data; x=y; Boundary=\"B C\"", "--B C\r\nA: b\r\n\r\n1\r\n--B C--", "|-|1",
     NULL},
    {"multipart/form-data;boundary=B", "--B\r\nA: b\r\n\r\n1\r\n--B--", "|-|1", NULL},
    {"multipart/form-data", "--B--", NULL, "no boundary"},
    {"multipart/form-data; boundary=\"\"", "--B--", NULL, "no boundary"},
    {"multipart/form-data; xboundary=B", "--B--", NULL, "no boundary"},
    {TYPE, "", NULL, "not in the body"},
    {TYPE, "--C\r\n\r\n\r\n--C--", NULL, "not in the body"},
    {TYPE, "--B--", NULL, "no part"},
    {TYPE, "--B\r\nA: b\r\n\r\n1", NULL, "cut off"},
    {TYPE, "--B\r\nA: b\r\n\r\n1\r\n--B", NULL, "cut off"},
    {TYPE, "--B\r\n--B--", NULL, "headers"},
    {TYPE, "--B\r\nA: b\r\n--B--", NULL, "headers"},
};

static void describe(const struct multipart *multipart, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < multipart->count; i++) {
        const struct multipart_part *part = &multipart->parts[i];
        used += (size_t)snprintf(text + used, size - used, "%s%s|%s|%.*s", i ? " & " : "",
                                 part->name, part->has_filename ? part->filename : "-",
                                 (int)part->size, (const char *)part->data);
    }
}

Test(multipart, table)
{
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        struct multipart multipart = {0};
        struct error err = {0};
        /* An exact allocation: a read past the end is seen by the address sanitizer. */
        size_t size = strlen(forms[i].body);
        uint8_t *body = malloc(size ? size : 1);
        memcpy(body, forms[i].body, size);
        cr_assert(multipart_is(forms[i].type), "case %zu", i);
        enum status status = multipart_parse(forms[i].type, body, size, 8, &multipart, &err);
        if (forms[i].parts) {
            char text[256];
            cr_assert_eq(status, STATUS_OK, "case %zu: %s", i, err.message);
            describe(&multipart, text, sizeof text);
            cr_assert_str_eq(text, forms[i].parts, "case %zu: %s", i, text);
        } else {
            cr_assert_eq(status, STATUS_INVALID, "case %zu", i);
            cr_assert(strstr(err.message, forms[i].says), "case %zu: %s", i, err.message);
        }
        multipart_done(&multipart);
        free(body);
    }
}

Test(multipart, every_cut_of_a_body_is_refused)
{
    static const char body[] =
        "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nxyz\r\n--B--";
    for (size_t size = 0; size < sizeof body - 1; size++) {
        struct multipart multipart = {0};
        uint8_t *copy = malloc(size ? size : 1);
        memcpy(copy, body, size);
        cr_assert_neq(multipart_parse(TYPE, copy, size, 8, &multipart, NULL), STATUS_OK,
                      "cut at %zu", size);
        free(copy);
    }
}

Test(multipart, parts_are_bounded)
{
    char body[2048] = "";
    size_t used = 0;
    for (int i = 0; i < 9; i++)
        used += (size_t)snprintf(body + used, sizeof body - used, "--B\r\nA: b\r\n\r\n%d\r\n", i);
    used += (size_t)snprintf(body + used, sizeof body - used, "--B--");
    struct multipart multipart = {0};
    struct error err;
    cr_assert_eq(multipart_parse(TYPE, (const uint8_t *)body, used, 8, &multipart, &err),
                 STATUS_TOO_LARGE);
    cr_assert_eq(multipart_parse(TYPE, (const uint8_t *)body, used, 9, &multipart, &err),
                 STATUS_OK);
    cr_assert_eq(multipart.count, 9);
    multipart_done(&multipart);
}

Test(multipart, other_types)
{
    cr_assert_not(multipart_is(NULL));
    cr_assert_not(multipart_is("multipart/mixed; boundary=B"));
    cr_assert_not(multipart_is("multipart/form-database"));
}

/* The parts of a body as the RFC has them, delimiters looked for at every byte. SIZE_MAX: cut off.
 */
static size_t reference_parts(const char *boundary, const char *body, size_t size, size_t *starts,
                              size_t *ends)
{
    char mark[16];
    size_t mark_size = (size_t)snprintf(mark, sizeof mark, "--%s", boundary), count = 0;
    bool is_open = false;
    for (size_t at = 0; at + mark_size <= size; at++) {
        bool begins_line = at == 0 || (at >= 2 && body[at - 2] == '\r' && body[at - 1] == '\n');
        if (!begins_line || memcmp(body + at, mark, mark_size) != 0)
            continue;
        size_t end = at + mark_size;
        bool is_last = end + 2 <= size && body[end] == '-' && body[end + 1] == '-';
        while (!is_last && end < size && (body[end] == ' ' || body[end] == '\t'))
            end++;
        if (!is_last && (end + 2 > size || body[end] != '\r' || body[end + 1] != '\n'))
            continue;
        if (is_open)
            ends[count++] = at - 2;
        if (is_last)
            return count;
        starts[count] = end + 2;
        is_open = true;
    }
    return SIZE_MAX;
}

/* Where the bytes of a part begin: behind the first empty line. */
static const char *behind_headers(const char *start)
{
    return strncmp(start, "\r\n", 2) != 0 ? strstr(start, "\r\n\r\n") + 4 : start + 2;
}

/* Random bodies of words that are delimiters, or almost. */
Test(multipart, random_bodies)
{
    static const char *const boundaries[] = {"B", "-", "--", "BB", "B-"};
    static const struct {
        const char *before;
        bool has_boundary;
        const char *after;
    } words[] = {{"\r\n--", true, "\r\nA: b\r\n\r\n"},
                 {"\r\n--", true, "\r\n"},
                 {"\r\n--", true, "--"},
                 {"\r\n--", true, ""},
                 {"--", true, " \t\r\n"},
                 {"\r\n--", false, ""},
                 {"--", false, ""},
                 {"-", false, ""},
                 {"B", false, ""},
                 {"\r\n", false, ""},
                 {"\r", false, ""},
                 {"\n", false, ""},
                 {" ", false, ""},
                 {"\t", false, ""},
                 {"x", false, ""},
                 {"\r\n\r\n", false, ""}};
    enum { WORDS = 30, ROUNDS = 100000 };
    size_t split = 0;
    srand(14);
    for (int round = 0; round < ROUNDS; round++) {
        const char *boundary = boundaries[(size_t)rand() % COUNT_OF(boundaries)];
        char text[WORDS * 20 + 1] = "", type[80];
        size_t size = 0, count = (size_t)rand() % WORDS, starts[WORDS], ends[WORDS];
        for (size_t i = 0; i < count; i++) {
            size_t word = (size_t)rand() % COUNT_OF(words);
            size += (size_t)snprintf(text + size, sizeof text - size, "%s%s%s", words[word].before,
                                     words[word].has_boundary ? boundary : "", words[word].after);
        }
        bool skip = !strncmp(text, "\r\n", 2) && rand() % 2; /* a delimiter at the very beginning */
        const char *body = text + (skip ? 2 : 0);
        size -= skip ? 2 : 0;
        snprintf(type, sizeof type, "multipart/form-data; boundary=%s", boundary);
        size_t expected = reference_parts(boundary, body, size, starts, ends);
        struct multipart multipart = {0};
        struct error err = {0};
        enum status status =
            multipart_parse(type, (const uint8_t *)body, size, WORDS, &multipart, &err);
        if (status != STATUS_OK) {
            bool is_empty = strstr(err.message, "headers") || strstr(err.message, "no part");
            cr_assert(expected == SIZE_MAX || is_empty, "round %d: %s", round, err.message);
            continue;
        }
        cr_assert_eq(multipart.count, expected, "round %d", round);
        for (size_t i = 0; i < expected; i++) {
            const char *data = behind_headers(body + starts[i]), *end = body + ends[i];
            cr_assert_eq((const char *)multipart.parts[i].data, data, "round %d", round);
            cr_assert_eq(multipart.parts[i].size, data < end ? (size_t)(end - data) : 0, "round %d",
                         round);
        }
        split++;
        multipart_done(&multipart);
    }
    cr_assert_gt(split, ROUNDS / 20); /* not refusals alone are compared */
}

/* ---- addresses ---- */

Test(query, table)
{
    static const struct {
        const char *text;
        const char *pairs; /* NULL: refused */
    } cases[] = {
        {"", ""},
        {"a=1", "a=1;"},
        {"a=1&b=2", "a=1;b=2;"},
        {"&&a&b=&", "a=;b=;"},
        {"a=b=c", "a=b=c;"},
        {"a+b=c%2Bd%20e", "a b=c+d e;"},
        {"m=caf%C3%A9", "m=caf\xc3\xa9;"},
        {"a=1&a=2", NULL},
        {"a=%", NULL},
        {"a=%4", NULL},
        {"a=%4g", NULL},
        {"a=%00", NULL},
        {"a=%0d%0a", NULL},
        {"a=%ff", NULL},
        {"a&b&c&d&e&f&g&h&i&j&k&l&m&n&o&p&q", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[128], pairs[128] = "";
        struct query query;
        struct error err;
        snprintf(text, sizeof text, "%s", cases[i].text);
        enum status status = query_parse(text, &query, &err);
        cr_assert_eq(status == STATUS_OK, cases[i].pairs != NULL, "'%s'", cases[i].text);
        if (status != STATUS_OK)
            continue;
        size_t used = 0;
        for (size_t k = 0; k < query.count; k++)
            used += (size_t)snprintf(pairs + used, sizeof pairs - used, "%s=%s;",
                                     query.parameters[k].name, query.parameters[k].value);
        cr_assert_str_eq(pairs, cases[i].pairs);
    }
    struct query none;
    cr_assert_eq(query_parse(NULL, &none, NULL), STATUS_OK);
    cr_assert_null(query_value(&none, "a"));
}

Test(query, finds_and_decodes_a_field_of_a_form)
{
    static const struct {
        const char *form, *value; /* of `data`; NULL: there is none */
    } cases[] = {
        {"data=a", "a"},         {"x=1&data=a+dog%21%0A&y=2", "a dog!\n"},
        {"data=", ""},           {"data=%", "%"},
        {"data=%4", "%4"},       {"data=%zz%C3%A9", "%zz\xC3\xA9"},
        {"data=a&data=b", "a"},  {"", NULL},
        {"data", NULL},          {"datax=1&xdata=2", NULL},
        {"&&=&data=1=2", "1=2"}, {"x=data=3", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const size_t length = strlen(cases[i].form);
        unsigned char *form = malloc(length ? length : 1); /* exact, for ASan */
        size_t size = 0;
        memcpy(form, cases[i].form, length);
        const unsigned char *value = query_form_field(form, length, "data", &size);
        cr_assert_eq(value != NULL, cases[i].value != NULL, "'%s'", cases[i].form);
        cr_assert(!value ||
                      (size == strlen(cases[i].value) && !memcmp(value, cases[i].value, size)),
                  "'%s'", cases[i].form);
        free(form);
    }
}

/* ---- bodies ---- */

Test(upload, is_charged_as_it_grows_and_gives_back)
{
    struct http_budget budget = {.limit = 100000};
    struct upload a, b;
    struct error err;
    char bytes[1000] = "abc";
    upload_init(&a, &budget, 90000, 0);
    upload_init(&b, &budget, 90000, 60000);
    cr_assert_eq(budget.used, 0, "nothing has arrived");
    for (int i = 0; i < 60; i++)
        cr_assert_eq(upload_append(&a, bytes, sizeof bytes, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(a.size, 60000);
    cr_assert_geq(budget.used, 60000);
    cr_assert_leq(budget.used, 90000, "no more than the body may have");
    cr_assert_eq(upload_append(&b, bytes, sizeof bytes, &err), STATUS_OVERLOADED);
    cr_assert(strstr(err.message, "--max-upload-memory"));
    upload_done(&a);
    cr_assert_eq(budget.used, 0);
    cr_assert_eq(upload_append(&b, bytes, sizeof bytes, &err), STATUS_OK);
    cr_assert_leq(budget.used, 60000, "no more than was announced");
    upload_drop_bytes(&b);
    cr_assert_null(b.data);
    cr_assert_geq(budget.used, 1000, "something else holds what it was");
    upload_done(&b);
    upload_done(&b);
    cr_assert_eq(budget.used, 0);
}

Test(upload, limit)
{
    struct http_budget budget = {.limit = SIZE_MAX};
    struct upload upload;
    struct error err;
    upload_init(&upload, &budget, 10, 0);
    cr_assert_eq(upload_append(&upload, "0123456789", 10, &err), STATUS_OK);
    cr_assert_eq(upload_append(&upload, "x", 1, &err), STATUS_TOO_LARGE);
    cr_assert(strstr(err.message, "10 bytes"), "%s", err.message);
    cr_assert_eq(upload_append(&upload, "x", SIZE_MAX, &err), STATUS_TOO_LARGE);
    cr_assert_eq(upload.size, 10);
    upload_done(&upload);
}

Test(upload, what_stands_beside_or_instead)
{
    struct http_budget budget = {.limit = 1000};
    struct upload upload;
    struct error err;
    upload_init(&upload, &budget, 1000, 300);
    cr_assert_eq(upload_append(&upload, "0123456789", 10, &err), STATUS_OK);
    cr_assert_eq(budget.used, 300);
    cr_assert_eq(upload_charge(&upload, 701, &err), STATUS_TOO_LARGE);
    cr_assert(strstr(err.message, "--max-upload-memory"), "%s", err.message);
    cr_assert_eq(upload_charge(&upload, SIZE_MAX, &err), STATUS_TOO_LARGE);
    cr_assert_eq(upload_charge(&upload, 400, &err), STATUS_OK);
    cr_assert_eq(upload_charge(&upload, 300, &err), STATUS_OK);
    cr_assert_eq(budget.used, 1000);
    upload_release_bytes(&upload);
    cr_assert_null(upload.data);
    cr_assert_eq(budget.used, 700);
    upload_done(&upload);
    upload_done(&upload);
    cr_assert_eq(budget.used, 0);
}

Test(http_budget, what_is_held_already_counts_past_the_limit)
{
    struct http_budget budget = {.limit = 1000};
    size_t charged = 0;
    cr_assert_not(http_budget_charge(&budget, 0, 1001));
    cr_assert(http_budget_charge(&budget, 0, 600));
    http_budget_settle(&budget, &charged, 700);
    cr_assert_eq(budget.used, 1300);
    cr_assert_not(http_budget_charge(&budget, 0, 1));
    cr_assert_not(http_budget_charge(&budget, 0, SIZE_MAX));
    http_budget_settle(&budget, &charged, 300);
    cr_assert_eq(charged, 300);
    cr_assert_eq(budget.used, 900);
    cr_assert(http_budget_charge(&budget, 0, 100));
    http_budget_settle(&budget, &charged, 0);
    http_budget_settle(&budget, &(size_t){700}, 0);
    cr_assert_eq(budget.used, 0);
}

Test(http_budget, a_share_leaves_room_for_others)
{
    struct http_budget whole = {.limit = 1000};
    struct http_budget one = {.limit = 750, .whole = &whole}, another = one;
    cr_assert_eq(http_budget_most(&one), 1000);
    cr_assert(http_budget_charge(&one, 0, 700));
    cr_assert_not(http_budget_charge(&one, 0, 100), "another request of the same client");
    cr_assert(http_budget_charge(&another, 0, 100), "another client");
    cr_assert(http_budget_charge(&one, 700, 200), "a request alone");
    cr_assert_not(http_budget_charge(&one, 900, 1), "the whole");
    cr_assert_eq(one.used, 900);
    cr_assert_eq(whole.used, 1000);
    http_budget_settle(&one, &(size_t){900}, 0);
    cr_assert_eq(whole.used, 100);
    cr_assert_not(http_budget_charge(&one, 0, SIZE_MAX));
}

/* ---- time limits ---- */

static void limit(struct predict_request *request, int64_t timeout_us)
{
    cr_assert_eq(request_limits_of_body(request, timeout_us, 0, NULL), STATUS_OK);
}

Test(urgency, the_shorter_limit_holds)
{
    const int64_t second = 1000000000;
    struct predict_request request = {.started = 5 * second};
    limit(&request, 0);
    cr_assert_eq(request.deadline, 0);
    limit(&request, INT64_MAX);
    limit(&request, INT64_C(1) << 62);
    cr_assert_eq(request.deadline, 0, "no clock goes so far");
    limit(&request, INT64_C(7200) * 1000000);
    cr_assert_eq(request.deadline, 7205 * second, "two hours are two hours");
    limit(&request, INT64_C(1) << 53);
    cr_assert_eq(request.deadline, 7205 * second);
    limit(&request, 1500000);
    cr_assert_eq(request.deadline, 6500000000);
}

/* ---- heads of requests ---- */

static const struct {
    const char *what, *target;
    struct request_head head;
    enum head_verdict admission;
    int status; /* 0: no answer yet */
    bool has_no_host;
    const char *expect;
} heads[] = {
    {"plain GET", "/livez?x=1", {"GET", "HTTP/1.1"}, ADMIT_READ, 0},
    {"HTTP/1.0 has no Host", "/livez", {"GET", "HTTP/1.0"}, ADMIT_READ, 0, true},
    {"no Host", "/livez", {"GET", "HTTP/1.1"}, ADMIT_READ, 400, true},
    {"a proxy's address", "http://h:80/livez?x=1", {"GET", "HTTP/1.1"}, ADMIT_READ, 0},
    {"a host alone", "HTTPS://h", {"GET", "HTTP/1.1"}, ADMIT_READ, 0},
    {"a host and a query", "http://h?x=1", {"GET", "HTTP/1.1"}, ADMIT_READ, 0},
    {"no host", "http:///livez", {"GET", "HTTP/1.1"}, ADMIT_READ, 400},
    {"nothing", "http://", {"GET", "HTTP/1.1"}, ADMIT_READ, 400},
    {"no such path of a host", "http://h/x", {"GET", "HTTP/1.1"}, ADMIT_READ, 404},
    {"no such path", "/x", {"GET", "HTTP/1.1"}, ADMIT_READ, 404},
    {"wrong method", "/livez", {"POST", "HTTP/1.1"}, ADMIT_READ, 405},
    {"long headers", "/livez", {"GET", "HTTP/1.1", 5000}, ADMIT_READ, 431},
    {"wrong method, short body",
     "/livez",
     {"POST", "HTTP/1.1", .lengths = 1, .length = "5"},
     ADMIT_READ,
     405},
    {"no such path, long body",
     "/x",
     {"POST", "HTTP/1.1", .lengths = 1, .length = "5000000"},
     ADMIT_REFUSE,
     404},
    {"no such path, a body of any length",
     "/x",
     {"POST", "HTTP/1.1", .encodings = 1, .encoding = "Chunked"},
     ADMIT_REFUSE,
     404},
    {"no such path, the client asks first",
     "/x",
     {"POST", "HTTP/1.1", .lengths = 1, .length = "5"},
     ADMIT_ANSWER_NOW,
     404,
     .expect = "100-continue"},
    {"two lengths", "/livez", {"GET", "HTTP/1.1", .lengths = 2, .length = "5"}, ADMIT_REFUSE, 400},
    {"length and chunks",
     "/livez",
     {"GET", "HTTP/1.1", .lengths = 1, .length = "5", .encodings = 1, .encoding = "chunked"},
     ADMIT_REFUSE,
     400},
    {"unknown encoding",
     "/livez",
     {"GET", "HTTP/1.1", .encodings = 1, .encoding = "gzip"},
     ADMIT_REFUSE,
     501},
    {"unknown expectation", "/livez", {"GET", "HTTP/1.1"}, ADMIT_READ, 417, .expect = "miracles"},
};

/* Of heads[*x->handle]. */
static const char *head_header(const struct exchange *x, const char *name)
{
    const size_t i = *(const size_t *)x->handle;
    return !strcmp(name, "Expect")                          ? heads[i].expect
           : !strcmp(name, "Host") && !heads[i].has_no_host ? "h"
                                                            : NULL;
}

Test(admit, table)
{
    for (size_t i = 0; i < COUNT_OF(heads); i++) {
        struct http_server server = {.options = {.max_body = 1000,
                                                 .max_header = 4096,
                                                 .allowed_hosts = "*",
                                                 .routes = &http_route_table}};
        struct exchange x = {.server = &server,
                             .carrier = &(struct exchange_carrier){.header = head_header},
                             .handle = &i,
                             .routes = &http_route_table,
                             .target = strdup(heads[i].target),
                             .target_size = strlen(heads[i].target)};
        cr_assert_eq(exchange_admit(&x, &heads[i].head), heads[i].admission, "%s", heads[i].what);
        cr_assert_eq(x.answer.status, heads[i].status, "%s: %d", heads[i].what, x.answer.status);
        cr_assert_eq(strlen(x.request_id), 16);
        free(x.answer.text);
        free(x.target);
    }
}
