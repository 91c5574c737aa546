/* pipeline.json: what it may say, and the sentences for what it may not. */
#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"
#include "models/folder/pipeline_config.h"
#include "tests/unit/models/mutations.h"

static enum status parse_text(const char *text, struct pipeline_config *ret, struct error *err)
{
    cJSON *json;
    TRY(json_parse(text, strlen(text), &json, err));
    const enum status status = pipeline_config_parse(json, ret, err);
    cJSON_Delete(json);
    return status;
}

static void check_changed(void *context, const char *text)
{
    struct pipeline_config config;
    struct error err = {0};
    const enum status status = parse_text(text, &config, &err);
    (void)context;
    if (status == STATUS_OK)
        cr_expect(config.stage_count >= 2 && config.stages[1].model[0], "%s", text);
    else
        cr_expect(status == STATUS_MODEL && err.message[0], "%s: %s", text, err.message);
}

static void parse(const char *text, struct pipeline_config *ret)
{
    struct error err;
    cr_assert_eq(parse_text(text, ret, &err), STATUS_OK, "%s", err.message);
    mutate_document(text, check_changed, NULL);
}

Test(pipeline_config, all_keys)
{
    static const char text[] =
        "{\"stages\": [{\"model\": \"cars\", \"sizes\": [\"640x640\"]},"
        " {\"model\": \"plates\", \"labels\": [\"car\", 7], \"min_score\": 0.5},"
        " {\"model\": \"reader\", \"margin\": 0.05, \"max\": 20, \"sizes\": [\"160x48\", "
        "\"320x48\"]}]}";
    struct pipeline_config config;
    parse(text, &config);
    const struct pipeline_stage *first = &config.stages[0], *second = &config.stages[1],
                                *third = &config.stages[2];
    cr_expect_eq(config.stage_count, 3);
    cr_expect_str_eq(first->model, "cars");
    cr_expect(first->size_count == 1 && first->sizes[0].width == 640);
    cr_expect_str_eq(second->model, "plates");
    cr_expect_eq(second->label_count, 2);
    cr_expect_str_eq(second->labels[0], "car");
    cr_expect_str_eq(second->labels[1], "7");
    cr_expect_float_eq(second->min_score, 0.5, 0);
    cr_expect_eq(second->max, STAGE_CROPS_DEFAULT);
    cr_expect_float_eq(third->margin, 0.05, 0);
    cr_expect_eq(third->max, 20);
    cr_expect_eq(third->size_count, 2);
    cr_expect(third->sizes[1].width == 320 && third->sizes[1].height == 48);
}

Test(pipeline_config, align)
{
    static const char text[] =
        "{\"stages\": [{\"model\": \"faces\"}, {\"model\": \"arc\", \"align\": \"arcface\"},"
        " {\"model\": \"plates\", \"align\": {\"size\": \"96x24\", \"points\":"
        " [[0, 0], [96, 0], [96, 24], [0, 24.5]]}}]}";
    struct pipeline_config config;
    parse(text, &config);
    const struct align_template *face = &config.stages[1].align, *plate = &config.stages[2].align;
    cr_expect_eq(config.stages[0].align.count, 0);
    cr_expect(face->width == 112 && face->height == 112 && face->count == 5);
    cr_expect_float_eq(face->points[4][1], 92.2041f, 1e-6f);
    cr_expect(plate->width == 96 && plate->height == 24 && plate->count == 4);
    cr_expect_float_eq(plate->points[3][1], 24.5f, 0);
}

Test(pipeline_config, turn)
{
    static const char text[] =
        "{\"stages\": [{\"model\": \"lines\"}, {\"model\": \"angle\", \"turn\": 0.9, "
        "\"max\": 300}, {\"model\": \"reader\", \"sizes\": [\"320x48\"]}]}";
    struct pipeline_config config;
    parse(text, &config);
    cr_expect_float_eq(config.stages[1].turn, 0.9, 0);
    cr_expect_eq(config.stages[2].max, 300, "as many as are turned");
}

Test(pipeline_config, what_is_wrong)
{
#define SECOND(members) "{\"stages\": [{\"model\": \"a\"}, {\"model\": \"b\", " members "}]}"
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "the file is empty"},
        {"[]", "an object with the one key \"stages\""},
        {"{\"stages\": []}", "a pipeline has 2 or 3 stages"},
        {"{\"stages\": [{\"model\": \"a\"}]}", "a pipeline has 2 or 3 stages"},
        {"{\"stages\": [{\"model\": \"a\"}, {\"model\": \"a\"}, {\"model\": \"a\"}, {}]}",
         "more than 3"},
        {"{\"stages\": [{\"model\": \"a\"}, {\"model\": \"a\"}], \"x\": 1}", "the one key"},
        {"{\"stages\": [{\"model\": \"a\"}, {}]}", "stage 2: \"model\" is missing"},
        {"{\"stages\": [{\"model\": \"a\"}, 1]}", "stage 2: expected an object"},
        {"{\"stages\": [{\"model\": \"../a\"}, {}]}",
         "stage 1: \"model\" is not the name of a model"},
        {"{\"stages\": [{\"model\": \"a\", \"max\": 3}, {}]}", "stage 1: \"max\" chooses crops"},
        {SECOND("\"mragin\": 0"), "stage 2: unknown key \"mragin\"; a stage takes model, sizes"},
        {SECOND("\"model\": \"c\""), "stage 2: \"model\" is given twice"},
        {SECOND("\"align\": \"face\""), "\"align\" is not \"arcface\", or an object"},
        {SECOND("\"align\": {\"size\": \"9x9\", \"points\": [[1, 2]]}"), "with 2 to 16 points"},
        {SECOND("\"align\": {\"size\": \"9x9\", \"points\": [[1, 2], [3]]}"), "2 to 16 points"},
        {SECOND("\"align\": {\"size\": \"9x9\", \"points\": [[1, 2], [3, 1e9]]}"),
         "2 to 16 points"},
        {SECOND("\"align\": {\"size\": \"9x0\", \"points\": [[1, 2], [3, 4]]}"), "2 to 16 points"},
        {SECOND("\"align\": \"arcface\", \"margin\": 0.1"),
         "cannot be combined; remove one of them"},
        {SECOND("\"margin\": 1.5"), "\"margin\" is not a number from 0 to 1"},
        {SECOND("\"margin\": \"1\""), "\"margin\" is not a number from 0 to 1"},
        {SECOND("\"min_score\": -0.1"), "\"min_score\" is not a number from 0 to 1"},
        {"{\"stages\": [{\"model\": \"a\", \"turn\": 0.9}, {}]}",
         "stage 1: \"turn\" chooses crops"},
        {SECOND("\"turn\": 0.9"), "\"turn\" is in the last stage"},
        {SECOND("\"turn\": 1.1"), "\"turn\" is not a number from 0 to 1"},
        {SECOND("\"turn\": 0.9}, {\"model\": \"c\", \"margin\": 0.1"),
         "stage 3: \"margin\" chooses crops, and this stage gets every crop of the stage before "
         "it"},
        {SECOND("\"max\": 0"), "\"max\" is not a whole number from 1 to 1000"},
        {SECOND("\"max\": 1001"), "\"max\" is not a whole number from 1 to 1000"},
        {SECOND("\"max\": 2.5"), "\"max\" is not a whole number from 1 to 1000"},
        {SECOND("\"labels\": []"), "\"labels\" is not a list of 1 to 32"},
        {SECOND("\"labels\": [\"\"]"), "\"labels\" is not a list of 1 to 32"},
        {SECOND("\"labels\": [-1]"), "\"labels\" is not a list of 1 to 32"},
        {SECOND("\"sizes\": [\"0x48\"]"), "\"sizes\" is not a list of 1 to 5 sizes"},
        {SECOND("\"sizes\": \"320x48\""), "\"sizes\" is not a list of 1 to 5 sizes"},
        {SECOND("\"sizes\": [\"1x1\", \"1x2\", \"1x3\", \"1x4\", \"1x5\", \"1x6\"]"),
         "1 to 5 sizes"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct pipeline_config config;
        struct error err;
        cr_expect_eq(parse_text(cases[i].text, &config, &err), STATUS_MODEL, "%s", cases[i].text);
        cr_expect(strstr(err.message, cases[i].words), "%s: %s", cases[i].text, err.message);
    }
}

/* With the aspect kept: the one that shrinks a picture least, of several the smallest. */
Test(pipeline_config, sizes)
{
    const struct pipeline_stage line = {.sizes = {{640, 48}, {320, 48}, {1280, 48}},
                                        .size_count = 3};
    cr_expect_eq(pipeline_stage_size(&line, true, 100, 24)->width, 320);
    cr_expect_eq(pipeline_stage_size(&line, true, 320, 48)->width, 320);
    cr_expect_eq(pipeline_stage_size(&line, true, 321, 48)->width, 640);
    cr_expect_eq(pipeline_stage_size(&line, true, 9000, 48)->width, 1280);
    const struct pipeline_stage photo = {.sizes = {{736, 736}, {992, 736}, {736, 992}},
                                         .size_count = 3};
    cr_expect_eq(pipeline_stage_size(&photo, true, 800, 800)->width, 736);
    cr_expect_eq(pipeline_stage_size(&photo, true, 800, 600)->width, 992);
    cr_expect_eq(pipeline_stage_size(&photo, true, 600, 800)->height, 992);
    /* Squeezed: what is most alike. */
    cr_expect_eq(pipeline_stage_size(&photo, false, 1000, 900)->width, 736);
    cr_expect_eq(pipeline_stage_size(&photo, false, 990, 720)->width, 992);
    cr_expect_eq(pipeline_stage_size(&photo, false, 9, 900)->height, 992);
    const struct pipeline_stage none = {.size_count = 0};
    cr_expect_null(pipeline_stage_size(&none, true, 800, 600));
}
