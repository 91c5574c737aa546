/* models/folder/labels.c: every way people write class names down. */
#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/labels.h"
#include "models/folder/model_internal.h"

typedef enum status (*reader)(const char *text, size_t size, struct labels *ret, struct error *err);

static enum status from_json_text(const char *text, size_t size, struct labels *ret,
                                  struct error *err)
{
    cJSON *json;
    TRY(json_parse(text, size, &json, err));
    const enum status status = labels_from_json(json, ret, err);
    cJSON_Delete(json);
    return status;
}

static enum status from_python(const char *text, size_t size, struct labels *ret, struct error *err)
{
    (void)size;
    return labels_from_python(text, ret, err);
}

/* names: what labels_name() answers for 0, 1, 2 …, "-" for none; NULL ends. */
struct good_case {
    const char *name, *text;
    const char *names[5];
};

static void check_good(const struct good_case *cases, size_t count, reader read)
{
    for (size_t i = 0; i < count; i++) {
        struct labels labels = {0};
        struct error err = {0};
        cr_assert_eq(read(cases[i].text, strlen(cases[i].text), &labels, &err), STATUS_OK, "%s: %s",
                     cases[i].name, err.message);
        size_t n = 0;
        for (; n < COUNT_OF(cases[i].names) && cases[i].names[n]; n++) {
            const char *got = labels_name(&labels, n), *want = cases[i].names[n];
            cr_expect_str_eq(got ? got : "-", want, "%s: class %zu", cases[i].name, n);
        }
        cr_expect_eq(labels.count, n, "%s: %zu labels", cases[i].name, labels.count);
        labels_done(&labels);
    }
}

struct bad_case {
    const char *name, *text;
    size_t size; /* 0: strlen(text) */
    enum status status;
    const char *words;
};

static void check_bad(const struct bad_case *cases, size_t count, reader read)
{
    for (size_t i = 0; i < count; i++) {
        struct labels labels = {0};
        struct error err = {0};
        size_t size = cases[i].size ? cases[i].size : strlen(cases[i].text);
        cr_expect_eq(read(cases[i].text, size, &labels, &err), cases[i].status, "%s",
                     cases[i].name);
        cr_expect(strstr(err.message, cases[i].words), "%s: %s", cases[i].name, err.message);
        labels_done(&labels);
    }
}

Test(labels, reads_lines)
{
    static const struct good_case cases[] = {
        {"plain", "tench\ngoldfish\n", {"tench", "goldfish"}},
        {"without a last line end", "tench\ngoldfish", {"tench", "goldfish"}},
        {"Windows", "\xEF\xBB\xBFtench\r\ngoldfish \t\r\n\r\n", {"tench", "goldfish"}},
        {"commas and spaces stay", "tench, Tinca tinca\n", {"tench, Tinca tinca"}},
        {"a hole", "a\n\nc\n", {"a", "-", "c"}},
        {"UTF-8",
         "Stra\xC3\x9F"
         "e\n\xE7\x8C\xAB\n",
         {"Stra\xC3\x9F"
          "e",
          "\xE7\x8C\xAB"}},
        {"nothing", "", {NULL}},
        {"only empty lines", "\n\n\n", {NULL}},
    };
    check_good(cases, COUNT_OF(cases), labels_from_text);
}

Test(labels, refuses_lines)
{
    static const struct bad_case cases[] = {
        {"Latin-1",
         "ok\nStra\xDF"
         "e\n",
         0, STATUS_MODEL, "line 2"},
        {"overlong", "\xC0\xAF\n", 0, STATUS_MODEL, "UTF-8"},
        {"surrogate", "\xED\xA0\x80\n", 0, STATUS_MODEL, "UTF-8"},
        {"NUL", "a\0b\n", 4, STATUS_MODEL, "NUL"},
        {"UTF-16",
         "\xFF\xFE"
         "a\0\n\0",
         6, STATUS_MODEL, "the file is UTF-16; save it as UTF-8"},
    };
    check_bad(cases, COUNT_OF(cases), labels_from_text);
}

Test(labels, reads_json)
{
    static const struct good_case cases[] = {
        {"TorchServe", "{\"0\": \"tench\", \"1\": \"goldfish\"}", {"tench", "goldfish"}},
        {"TorchServe with synsets",
         "{\"1\": [\"n2\", \"goldfish\"], \"0\": [\"n1\", \"tench\"]}",
         {"tench", "goldfish"}},
        {"a list", "[\"a\", \"b\"]", {"a", "b"}},
        {"a list of pairs", "[[\"n1\", \"a\"], [\"n2\", \"b\"]]", {"a", "b"}},
        {"Hugging Face",
         "{\"id2label\": {\"0\": \"cat\", \"2\": \"dog\"}, \"x\": 1}",
         {"cat", "-", "dog"}},
        {"Hugging Face, inverse only",
         "{\"label2id\": {\"dog\": 1, \"cat\": \"0\"}}",
         {"cat", "dog"}},
        {"timm", "{\"architecture\": \"x\", \"label_names\": [\"a\", \"b\"]}", {"a", "b"}},
        {"timm with descriptions",
         "{\"label_names\": [\"n1\", \"n2\"], \"label_descriptions\": {\"n1\": \"tench\"}}",
         {"tench", "n2"}},
        {"timm inside", "{\"pretrained_cfg\": {\"label_names\": [\"a\"]}}", {"a"}},
        {"escapes", "[\"caf\\u00e9\"]", {"caf\xC3\xA9"}},
    };
    check_good(cases, COUNT_OF(cases), from_json_text);
}

Test(labels, refuses_json)
{
    static const struct bad_case cases[] = {
        {"no JSON", "{tench}", 0, STATUS_MODEL, "JSON"},
        {"empty", "", 0, STATUS_MODEL, "the file is empty"},
        {"no labels", "{\"size\": 224}", 0, STATUS_NOT_FOUND, "id2label"},
        {"labels null", "{\"id2label\": null}", 0, STATUS_NOT_FOUND, "no labels"},
        {"a number", "{\"id2label\": {\"0\": 7}}", 0, STATUS_MODEL, "class 0"},
        {"no class number", "{\"0\": \"a\", \"x\": \"b\"}", 0, STATUS_MODEL, "'x'"},
        {"negative class", "{\"id2label\": {\"-1\": \"a\"}}", 0, STATUS_MODEL, "'-1'"},
        {"class 10^12", "{\"0\": \"a\", \"1000000000000\": \"a\"}", 0, STATUS_MODEL,
         "1000000000000"},
        {"class 10^6", "{\"0\": \"a\", \"1000000\": \"a\"}", 0, STATUS_MODEL, "1000000"},
        {"twice", "{\"0\": \"a\", \"00\": \"b\"}", 0, STATUS_MODEL, "twice"},
        {"bad inverse", "{\"label2id\": {\"dog\": -1}}", 0, STATUS_MODEL, "'dog'"},
        {"not UTF-8", "[\"\xff\"]", 0, STATUS_MODEL, "UTF-8"},
    };
    check_bad(cases, COUNT_OF(cases), from_json_text);
}

Test(labels, reads_python)
{
    static const struct good_case cases[] = {
        {"dict", "{0: 'person', 1: 'bicycle'}", {"person", "bicycle"}},
        {"both quotes", "{0: \"cat's cradle\", 1: 'a \"b\"'}", {"cat's cradle", "a \"b\""}},
        {"escapes",
         "{0: 'it\\'s', 1: '\\u732b', 2: '\\xe9'}",
         {"it's", "\xE7\x8C\xAB", "\xC3\xA9"}},
        {"list", "['a', 'b',]", {"a", "b"}},
        {"unsorted", "{1: 'b', 0: 'a'}", {"a", "b"}},
        {"empty", "{}", {NULL}},
    };
    check_good(cases, COUNT_OF(cases), from_python);
}

Test(labels, refuses_python)
{
    static const struct bad_case cases[] = {
        {"no dict", "person", 0, STATUS_MODEL, "dict or list"},
        {"cut", "{0: 'per", 0, STATUS_MODEL, "quoted name"},
        {"no key", "{'a': 'b'}", 0, STATUS_MODEL, "class number"},
        {"no comma", "{0: 'a' 1: 'b'}", 0, STATUS_MODEL, "','"},
        {"half an escape", "{0: '\\u73'}", 0, STATUS_MODEL, "quoted name"},
        {"escaped NUL", "{0: '\\x00'}", 0, STATUS_MODEL, "quoted name"},
        {"escaped surrogate", "{0: '\\ud800'}", 0, STATUS_MODEL, "UTF-8"},
        {"huge key", "{99999999999999999999: 'a'}", 0, STATUS_MODEL, "class number"},
    };
    check_bad(cases, COUNT_OF(cases), from_python);
}
