/* JSON and base64 from outside: what is accepted, what is refused and why, and what is written. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "proto/answers.h"
#include "proto/base64.h"
#include "proto/json.h"

/* ---- base64 ---- */

static const struct {
    const char *text;
    const char *bytes; /* NULL: refused */
    const char *says;  /* part of the refusal */
} base64_cases[] = {
    /* RFC 4648, section 10 */
    {"", "", NULL},
    {"Zg==", "f", NULL},
    {"Zm8=", "fo", NULL},
    {"Zm9v", "foo", NULL},
    {"Zm9vYg==", "foob", NULL},
    {"Zm9vYmE=", "fooba", NULL},
    {"Zm9vYmFy", "foobar", NULL},
    /* without padding, wrapped, URL-safe */
    {"Zg", "f", NULL},
    {"Zm8", "fo", NULL},
    {"Zm9v\r\nYm Fy\n", "foobar", NULL},
    {"-_-_", "\xfb\xff\xbf", NULL},
    {"+/+/", "\xfb\xff\xbf", NULL},
    /* refused */
    {"Zm9v!", NULL, "'!' at offset 4"},
    {"Zm9v\x01", NULL, "0x01 at offset 4"},
    {"Z", NULL, "cut off"},
    {"Zm9vZ", NULL, "cut off"},
    {"Zg=", NULL, "padding"},
    {"Zg===", NULL, "padding"},
    {"Zm9v=", NULL, "padding"},
    {"=", NULL, "padding"},
    {"Zg==Zg==", NULL, "after the padding"},
    {"Zh==", NULL, "damaged"},
    {"Zm9=", NULL, "damaged"},
};

Test(base64, table)
{
    for (size_t i = 0; i < COUNT_OF(base64_cases); i++) {
        char text[64];
        struct error err = {0};
        size_t size = 99;
        snprintf(text, sizeof text, "%s", base64_cases[i].text);
        /* In place, as requests are decoded. */
        enum status status =
            base64_decode(text, strlen(base64_cases[i].text), (uint8_t *)text, &size, &err);
        if (!base64_cases[i].bytes) {
            cr_assert_eq(status, STATUS_INVALID, "'%s'", base64_cases[i].text);
            cr_assert(strstr(err.message, base64_cases[i].says), "'%s': %s", base64_cases[i].text,
                      err.message);
            continue;
        }
        cr_assert_eq(status, STATUS_OK, "'%s': %s", base64_cases[i].text, err.message);
        cr_assert_eq(size, strlen(base64_cases[i].bytes), "'%s'", base64_cases[i].text);
        cr_assert_arr_eq(text, base64_cases[i].bytes, size);
    }
}

/* ---- the checker ---- */

static const struct {
    const char *text;
    const char *says; /* NULL: accepted */
} json_cases[] = {
    {"{}", NULL},
    {" [ ] ", NULL},
    {"0", NULL},
    {"-0.5e+10", NULL},
    {"\"\"", NULL},
    {"null", NULL},
    {"{\"a\":[1,2,{\"b\":true}],\"c\":\"\\u00e9\\ud83d\\ude00\\n\"}", NULL},
    {"\"caf\xc3\xa9\"", NULL},
    {"", "ends at byte 0"},
    {"   ", "ends at byte 3"},
    {"{", "ends at byte 1"},
    {"[1,]", "']' at byte 3 where a value"},
    {"{\"a\":1,}", "'}' at byte 7 where a key"},
    {"{a:1}", "'a' at byte 1 where a key"},
    {"{\"a\" 1}", "'1' at byte 5 where ':'"},
    {"{\"a\":1]", "']' at byte 6 where ',' or '}'"},
    {"[1 2]", "'2' at byte 3 where ',' or ']'"},
    {"{} {}", "'{' at byte 3 where the end"},
    {"01", "'1' at byte 1 where the end"},
    {"1.", "ends at byte 2 where a digit"},
    {"1e", "a digit"},
    {"-", "a digit"},
    {"+1", "a value"},
    {".5", "a value"},
    {"NaN", "a value"},
    {"tru", "true, false or null"},
    {"nulL", "true, false or null"},
    {"'a'", "a value"},
    {"\"a", "the end of a string"},
    {"\"a\\", "an escape"},
    {"\"\\x41\"", "an escape"},
    {"\"\\u12g4\"", "hexadecimal"},
    {"\"\\u0000\"", "not accepted"},
    {"\"\\ud800\"", "surrogate"},
    {"\"\\ud800\\u0041\"", "surrogate"},
    {"\"\\udc00\"", "surrogate"},
    {"\"a\nb\"", "a character of a string"},
    {"\"\xff\"", "not UTF-8"},
    {"\"\xc0\xaf\"", "not UTF-8"},
    {"\"\xed\xa0\x80\"", "not UTF-8"},
    {"\"\xe2\x82\"", "not UTF-8"},
    {"\x01", "byte 0x01 at byte 0"},
};

Test(json, grammar)
{
    for (size_t i = 0; i < COUNT_OF(json_cases); i++) {
        struct error err = {0};
        /* An exact allocation: a read past the end is seen by the address sanitizer. */
        size_t size = strlen(json_cases[i].text);
        char *text = malloc(size ? size : 1);
        memcpy(text, json_cases[i].text, size);
        enum status status = json_check(text, size, &JSON_LIMITS_DEFAULT, &err);
        free(text);
        if (!json_cases[i].says) {
            cr_assert_eq(status, STATUS_OK, "'%s': %s", json_cases[i].text, err.message);
        } else {
            cr_assert_eq(status, STATUS_INVALID, "'%s'", json_cases[i].text);
            cr_assert(strstr(err.message, json_cases[i].says), "'%s': %s", json_cases[i].text,
                      err.message);
        }
    }
}

Test(json, a_nul_byte_does_not_end_the_text)
{
    struct error err;
    static const char text[] = "{}\0{}";
    cr_assert_eq(json_check(text, sizeof text - 1, &JSON_LIMITS_DEFAULT, &err), STATUS_INVALID);
}

static enum status check_nested(const char *open, size_t levels, struct error *err)
{
    char *text = malloc(levels * strlen(open) + 1);
    text[0] = '\0';
    for (size_t i = 0; i < levels; i++)
        memcpy(text + i * strlen(open), open, strlen(open) + 1);
    enum status status = json_check(text, strlen(text), &JSON_LIMITS_DEFAULT, err);
    free(text);
    return status;
}

Test(json, depth_is_bounded)
{
    struct error err;
    cr_assert_eq(check_nested("[", 64, &err), STATUS_INVALID);
    cr_assert(strstr(err.message, "ends at byte 64"), "%s", err.message);
    cr_assert_eq(check_nested("[", 65, &err), STATUS_INVALID);
    cr_assert(strstr(err.message, "deeper than 64 levels"), "%s", err.message);
    cr_assert_eq(check_nested("{\"a\":", 65, &err), STATUS_INVALID);
    cr_assert(strstr(err.message, "--max-json-depth"), "%s", err.message);
    cr_assert_eq(check_nested("[", 1000000, &err), STATUS_INVALID);
    cr_assert(strstr(err.message, "deeper than 64 levels"), "%s", err.message);
}

Test(json, values_are_bounded)
{
    struct error err;
    struct json_limits limits = {4, 5};
    cr_assert_eq(json_check("[1,2,3,4]", 9, &limits, &err), STATUS_OK);
    cr_assert_eq(json_check("[1,2,3,4,5]", 11, &limits, &err), STATUS_INVALID);
    cr_assert(strstr(err.message, "more than 5 values"), "%s", err.message);
    cr_assert_eq(json_check("{\"a\":1,\"b\":[]}", 14, &limits, &err), STATUS_OK);
    cr_assert_eq(json_check("{\"a\":1,\"b\":[1]}", 15, &limits, &err), STATUS_INVALID);
}

Test(utf8, repair_keeps_what_is_right)
{
    char text[] = "a\xff\xc3\xa9\xe2\x82z\xf0\x9f\x98\x80\xc3";
    utf8_repair(text);
    cr_assert_str_eq(text, "a?\xc3\xa9??z\xf0\x9f\x98\x80?");
}

/* ---- requests ---- */

static const struct json_limits request_limits = {64, 1000};

#define MAX_IMAGES 3

static const struct {
    const char *text;
    enum status status;
    const char *says;
} request_cases[] = {
    {"[]", STATUS_INVALID, "must be an object"},
    {"{}", STATUS_INVALID, "no image"},
    {"{\"image\":7}", STATUS_INVALID, "\"image\" must be"},
    {"{\"image\":{}}", STATUS_INVALID, "lacks the string \"b64\""},
    {"{\"image\":{\"b64\":5}}", STATUS_INVALID, "lacks the string \"b64\""},
    {"{\"image\":{\"b64\":\"\",\"path\":\"/etc/passwd\"}}", STATUS_INVALID, "\"path\""},
    {"{\"images\":[]}", STATUS_INVALID, "list of one or more"},
    {"{\"images\":{}}", STATUS_INVALID, "list of one or more"},
    {"{\"images\":[7]}", STATUS_INVALID, "an entry of \"images\" must be"},
    {"{\"images\":[{\"b64\":\"\"},{\"b64\":\"\"},{\"b64\":\"\"},{\"b64\":\"\"}]}", STATUS_TOO_LARGE,
     "more than 3 images in one request; that is the limit (--max-images)"},
    {"{\"image\":{\"b64\":\"\"},\"images\":[{\"b64\":\"\"}]}", STATUS_INVALID, "several"},
    {"{\"image\":{\"b64\":\"\"},\"top_k\":1e999}", STATUS_INVALID, "\"top_k\" must be"},
    {"{\"image\":{\"b64\":\"\"},\"top_k\":\"5\"}", STATUS_INVALID, "\"top_k\" must be a number"},
    {"{\"image\":{\"b64\":\"\"},\"model\":5}", STATUS_INVALID, "\"model\" must be a string"},
    {"{\"image\":{\"b64\":\"\"},\"iou\":{}}", STATUS_INVALID, "\"iou\" must be a string, a number"},
    {"{\"image\":{\"b64\":\"\"},\"classes\":[1,[2]]}", STATUS_INVALID, "\"classes\" must be"},
    {"{\"image\":{\"b64\":\"\"},\"iou\":null}", STATUS_INVALID, "\"iou\" must be a string"},
    {"{\"image\":{\"b64\":\"\"},\"iou\":1e999}", STATUS_INVALID, "\"iou\" must be a string"},
};

Test(predict_json, refusals)
{
    for (size_t i = 0; i < COUNT_OF(request_cases); i++) {
        struct error err = {0};
        struct predict_json *request = NULL;
        enum status status =
            predict_json_parse(NULL, request_cases[i].text, strlen(request_cases[i].text),
                               &request_limits, MAX_IMAGES, &request, &err);
        cr_assert_eq(status, request_cases[i].status, "%s", request_cases[i].text);
        predict_json_free(request);
        cr_assert(strstr(err.message, request_cases[i].says), "%s: %s", request_cases[i].text,
                  err.message);
    }
}

Test(predict_json, reads_a_list)
{
    struct predict_json *request = NULL;
    static const char text[] =
        "{\"top_k\":3,\"images\":[{\"b64\":\"Zm9v\",\"name\":\"a.jpg\"},{\"b64\":\"!\"}],"
        "\"model\":\"digits\"}";
    cr_assert_eq(predict_json_parse(NULL, text, sizeof text - 1, &request_limits, MAX_IMAGES,
                                    &request, NULL),
                 STATUS_OK);
    cr_assert(request->as_list);
    cr_assert_eq(request->image_count, 2);
    cr_assert_eq(request->parameter_count, 1);
    cr_assert_str_eq(request->parameters[0].name, "top_k");
    cr_assert_str_eq(request->parameters[0].text, "3");
    cr_assert_str_eq(request->model, "digits");
    cr_assert_eq(request->images[0].size, 3);
    cr_assert_arr_eq(request->images[0].data, "foo", 3);
    cr_assert_str_eq(request->images[0].name, "a.jpg");
    /* A bad image fails alone. */
    cr_assert_eq(request->images[1].error.status, STATUS_INVALID);
    cr_assert_null(request->images[1].data);
    predict_json_free(request);
}

/* ---- answers ---- */

Test(predict_json, writes_one_image)
{
    struct answer_prediction predictions[] = {{"7", 7, 0.998F}, {NULL, 1, 1.0F / 3}};
    struct answer_image image = {.device = "cpu",
                                 .width = 8,
                                 .height = 9,
                                 .predictions = predictions,
                                 .prediction_count = 2,
                                 .batch = 4,
                                 .decode_ms = 1.23456,
                                 .forward_ms = 0.5};
    struct predict_answer answer = {
        .model = "digits", .images = &image, .image_count = 1, .total_ms = 2.5};
    char *text = predict_answer_json(&answer);
    cr_assert_str_eq(
        text, "{\"model\":\"digits\",\"device\":\"cpu\",\"predictions\":[{\"label\":\"7\","
              "\"index\":7,\"probability\":0.998},{\"index\":1,\"probability\":0.33333334}],"
              "\"image\":{\"width\":8,\"height\":9},\"batch\":4,\"timing_ms\":{\"decode\":1.235,"
              "\"preprocess\":0.000,\"queue\":0.000,\"forward\":0.500,\"total\":2.500}}\n");
    cr_assert_eq(json_check(text, strlen(text), &JSON_LIMITS_DEFAULT, NULL), STATUS_OK);
    free(text);
}

Test(predict_json, writes_a_list_with_an_error_and_odd_names)
{
    struct answer_prediction nan = {"x", 0, 0.0F / 0.0F};
    struct answer_image images[] = {
        {.name = "a\xff\"\n.jpg",
         .device = "cpu",
         .precision = "bf16",
         .predictions = &nan,
         .prediction_count = 1,
         .batch = 1},
        {.name = "b", .error = "not an image", .code = "bad_image"},
    };
    struct predict_answer answer = {
        .model = "m", .images = images, .image_count = 2, .as_list = true, .total_ms = 1};
    char *text = predict_answer_json(&answer);
    cr_assert_eq(json_check(text, strlen(text), &JSON_LIMITS_DEFAULT, NULL), STATUS_OK, "%s", text);
    cr_assert(strstr(text, "\"name\":\"a?\\\"\\n.jpg\""), "%s", text);
    cr_assert(strstr(text, "\"probability\":null"), "%s", text);
    cr_assert(strstr(text, "\"device\":\"cpu\",\"precision\":\"bf16\""), "%s", text);
    cr_assert(strstr(text, "{\"name\":\"b\",\"error\":\"not an image\",\"code\":\"bad_image\"}"),
              "%s", text);
    free(text);
}

/* ---- settings ---- */

static enum status collect(void *context, const char *key, const char *text, struct error *err)
{
    (void)err;
    char *all = context;
    size_t used = strlen(all);
    snprintf(all + used, 200 - used, "%s=%s;", key, text);
    return STATUS_OK;
}

Test(settings, values_read_as_flags_would)
{
    char all[200] = "";
    static const char text[] = "{\"port\":8080,\"log\":\"json\",\"watch\":true,\"grace\":0.5,"
                               "\"device\":[\"cuda:0\",\"cuda:1\"]}";
    cr_assert_eq(json_settings(text, sizeof text - 1, collect, all, NULL), STATUS_OK);
    cr_assert_str_eq(all, "port=8080;log=json;watch=true;grace=0.5;device=cuda:0,cuda:1;");
}

Test(settings, refusals)
{
    static const char *const wrong[] = {
        "", "[]", "{\"a\":1,\"a\":2}", "{\"a\":null}", "{\"a\":{}}", "{\"a\":[1]}", "{\"a\":1"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        char all[200] = "";
        struct error err = {0};
        cr_assert_eq(json_settings(wrong[i], strlen(wrong[i]), collect, all, &err), STATUS_CONFIG,
                     "%s", wrong[i]);
        cr_assert(err.message[0]);
    }
}
