/* models/folder/preprocess_config.c: what people write into configuration files, and what it means.
 */
#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"
#include "models/folder/preprocess_config.h"
#include "tests/unit/models/mutations.h"

static enum status read_with_remarks(preprocess_reader *read, const char *text,
                                     struct preprocess *ret,
                                     char remarks[static PREPROCESS_REMARKS], struct error *err)
{
    cJSON *json;
    remarks[0] = '\0';
    TRY(json_parse(text, strlen(text), &json, err));
    const enum status status = read(json, ret, remarks, err);
    cr_expect_lt(strlen(remarks), PREPROCESS_REMARKS);
    cJSON_Delete(json);
    return status;
}

static enum status read_text(preprocess_reader *read, const char *text, struct preprocess *ret,
                             struct error *err)
{
    return read_with_remarks(read, text, ret, (char[PREPROCESS_REMARKS]){0}, err);
}

/* What is not refused has numbers that can be used, or says what cannot. */
static void check_changed(void *context, const char *text)
{
    preprocess_reader *const *read = context;
    struct preprocess p = {0};
    struct error err = {0};
    char line[400];
    enum status status = read_text(*read, text, &p, &err);
    if (status == STATUS_OK && (status = preprocess_check(&p, &err)) == STATUS_OK)
        preprocess_describe(&p, line, sizeof line);
    cr_expect(status == STATUS_OK || err.message[0], "%s", text);
}

/* The parts of a preprocessing that a case is about. */
struct want {
    enum resize_rule resize;
    int resize_a, resize_b; /* short side and 0, or width and height */
    int width, height;
    enum resample resample;
};

static void check_geometry(const char *name, const struct preprocess *p, const struct want *want)
{
    cr_expect_eq(p->resize, want->resize, "%s: resize mode %d", name, (int)p->resize);
    if (p->resize == RESIZE_SHORT_SIDE)
        cr_expect_eq(p->resize_short, want->resize_a, "%s: short side %d", name, p->resize_short);
    else if (p->resize != RESIZE_NONE)
        cr_expect(p->resize_width == want->resize_a && p->resize_height == want->resize_b,
                  "%s: resize to %d x %d", name, p->resize_width, p->resize_height);
    cr_expect(p->width == want->width && p->height == want->height, "%s: %d x %d", name, p->width,
              p->height);
    cr_expect_eq(p->resample, want->resample, "%s: filter %d", name, (int)p->resample);
    cr_expect_eq(preprocess_check(p, NULL), STATUS_OK, "%s", name);
}

Test(preprocess_config, huggingface_geometry)
{
    static const struct {
        const char *name, *json;
        struct want want;
    } cases[] = {
        {"ViT, new",
         "{\"image_processor_type\": \"ViTImageProcessor\", \"do_resize\": true, "
         "\"size\": {\"height\": 224, \"width\": 256}, \"resample\": 2}",
         {RESIZE_EXACT, 256, 224, 256, 224, RESAMPLE_BILINEAR}},
        {"ViT, old",
         "{\"feature_extractor_type\": \"ViTFeatureExtractor\", \"size\": 384}",
         {RESIZE_EXACT, 384, 384, 384, 384, RESAMPLE_BILINEAR}},
        {"ConvNeXT, by its class alone",
         "{\"image_processor_type\": \"ConvNextImageProcessorFast\", \"size\": null}",
         {RESIZE_EXACT, 384, 384, 384, 384, RESAMPLE_BICUBIC}},
        {"SAM",
         "{\"image_processor_type\": \"SamImageProcessor\", \"size\": {\"longest_edge\": 512}, "
         "\"pad_size\": {\"height\": 512, \"width\": 512}}",
         {RESIZE_LETTERBOX, 512, 512, 512, 512, RESAMPLE_BILINEAR}},
        {"OWLv2: a black square around the photo",
         "{\"image_processor_type\": \"Owlv2ImageProcessor\", \"size\": {\"height\": 96, "
         "\"width\": 96}}",
         {RESIZE_EXACT, 96, 96, 96, 96, RESAMPLE_BLURRED}},
        {"OWLv2 without padding",
         "{\"image_processor_type\": \"Owlv2ImageProcessor\", \"do_pad\": false, \"size\": 96}",
         {RESIZE_EXACT, 96, 96, 96, 96, RESAMPLE_BLURRED}},
        {"YOLOX",
         "{\"size\": {\"max_height\": 416, \"max_width\": 640}, \"do_pad\": true, \"pad_size\": "
         "{\"height\": 416, \"width\": 640}, \"pad_value\": 114, \"antialias\": false}",
         {RESIZE_LETTERBOX, 640, 416, 640, 416, RESAMPLE_LINEAR}},
        {"Pixtral pads to its batch, which is one",
         "{\"image_processor_type\": \"PixtralImageProcessor\", \"do_pad\": true, \"size\": "
         "{\"longest_edge\": 512}}",
         {RESIZE_EXACT, 512, 512, 512, 512, RESAMPLE_BICUBIC}},
        {"Perceiver",
         "{\"image_processor_type\": \"PerceiverImageProcessor\"}",
         {RESIZE_EXACT, 224, 224, 224, 224, RESAMPLE_BICUBIC}},
        {"no class, size a number",
         "{\"size\": 224, \"resample\": 3}",
         {RESIZE_EXACT, 224, 224, 224, 224, RESAMPLE_BICUBIC}},
        {"a pair", "{\"size\": [200, 300]}", {RESIZE_EXACT, 300, 200, 300, 200, RESAMPLE_BILINEAR}},
        {"CLIP, old",
         "{\"feature_extractor_type\": \"CLIPFeatureExtractor\", \"size\": 224, "
         "\"crop_size\": 224}",
         {RESIZE_SHORT_SIDE, 224, 0, 224, 224, RESAMPLE_BICUBIC}},
        {"CLIP, new",
         "{\"image_processor_type\": \"CLIPImageProcessor\", \"do_center_crop\": true, "
         "\"size\": {\"shortest_edge\": 336}, \"crop_size\": {\"height\": 336, "
         "\"width\": 336}}",
         {RESIZE_SHORT_SIDE, 336, 0, 336, 336, RESAMPLE_BICUBIC}},
        {"MobileNet",
         "{\"image_processor_type\": \"MobileNetV2ImageProcessor\", \"size\": "
         "{\"shortest_edge\": 256}, \"crop_size\": {\"height\": 224, \"width\": 224}}",
         {RESIZE_SHORT_SIDE, 256, 0, 224, 224, RESAMPLE_BILINEAR}},
        {"ResNet as ConvNeXT",
         "{\"feature_extractor_type\": \"ConvNextFeatureExtractor\", "
         "\"crop_pct\": 0.875, \"size\": 224, \"resample\": 3}",
         {RESIZE_SHORT_SIDE, 256, 0, 224, 224, RESAMPLE_BICUBIC}},
        {"ConvNeXT, new",
         "{\"image_processor_type\": \"ConvNextImageProcessor\", \"crop_pct\": "
         "0.95, \"size\": {\"shortest_edge\": 224}}",
         {RESIZE_SHORT_SIDE, 235, 0, 224, 224, RESAMPLE_BICUBIC}},
        {"ConvNeXT, large",
         "{\"image_processor_type\": \"ConvNextImageProcessor\", \"size\": "
         "{\"shortest_edge\": 384}}",
         {RESIZE_EXACT, 384, 384, 384, 384, RESAMPLE_BICUBIC}},
        {"LeViT",
         "{\"image_processor_type\": \"LevitImageProcessor\", \"size\": "
         "{\"shortest_edge\": 224}, \"crop_size\": {\"height\": 224, \"width\": 224}}",
         {RESIZE_SHORT_SIDE, 256, 0, 224, 224, RESAMPLE_BICUBIC}},
        {"PoolFormer",
         "{\"image_processor_type\": \"PoolFormerImageProcessor\", \"crop_pct\": 0.9, "
         "\"size\": {\"shortest_edge\": 224}, \"crop_size\": 224}",
         {RESIZE_SHORT_SIDE, 248, 0, 224, 224, RESAMPLE_BICUBIC}},
        {"BEiT",
         "{\"feature_extractor_type\": \"BeitFeatureExtractor\", \"size\": 256, "
         "\"crop_size\": 224, \"do_center_crop\": true, \"resample\": 2}",
         {RESIZE_EXACT, 256, 256, 224, 224, RESAMPLE_BILINEAR}},
        {"EfficientNet",
         "{\"image_processor_type\": \"EfficientNetImageProcessor\", \"size\": "
         "{\"height\": 346, \"width\": 346}, \"crop_size\": {\"height\": 289, "
         "\"width\": 289}, \"do_center_crop\": true, \"resample\": 0}",
         {RESIZE_EXACT, 346, 346, 289, 289, RESAMPLE_NEAREST}},
        {"RF-DETR",
         "{\"image_processor_type\": \"RfDetrImageProcessor\", \"size\": {\"height\": 560, "
         "\"width\": 560}}",
         {RESIZE_EXACT, 560, 560, 560, 560, RESAMPLE_LINEAR}},
        {"RF-DETR, PP-OCR",
         "{\"size\": {\"height\": 560, \"width\": 560}, \"antialias\": false}",
         {RESIZE_EXACT, 560, 560, 560, 560, RESAMPLE_LINEAR}},
        {"DETR",
         "{\"image_processor_type\": \"DetrImageProcessor\", \"size\": "
         "{\"shortest_edge\": 800, \"longest_edge\": 1333}}",
         {RESIZE_EXACT, 800, 800, 800, 800, RESAMPLE_BILINEAR}},
        {"crop only",
         "{\"do_resize\": false, \"do_center_crop\": true, \"crop_size\": 224, "
         "\"size\": 256}",
         {RESIZE_NONE, 0, 0, 224, 224, RESAMPLE_BILINEAR}},
        {"timm through transformers",
         "{\"image_processor_type\": \"TimmWrapperImageProcessor\", "
         "\"pretrained_cfg\": {\"input_size\": [3, 224, 224], "
         "\"crop_pct\": 0.9, \"interpolation\": \"bicubic\"}}",
         {RESIZE_SHORT_SIDE, 248, 0, 224, 224, RESAMPLE_BICUBIC}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct preprocess p;
        struct error err = {0};
        cr_assert_eq(read_text(preprocess_from_huggingface, cases[i].json, &p, &err), STATUS_OK,
                     "%s: %s", cases[i].name, err.message);
        check_geometry(cases[i].name, &p, &cases[i].want);
        mutate_document(cases[i].json, check_changed,
                        &(preprocess_reader *){preprocess_from_huggingface});
    }
}

static struct preprocess read_huggingface(const char *json)
{
    struct preprocess p = {0};
    struct error err = {0};
    cr_assert_eq(read_text(preprocess_from_huggingface, json, &p, &err), STATUS_OK, "%s",
                 err.message);
    mutate_document(json, check_changed, &(preprocess_reader *){preprocess_from_huggingface});
    return p;
}

static void expect_float(const char *what, float got, double want)
{
    cr_expect(fabs(got - want) < 1e-6, "%s: %g instead of %g", what, (double)got, want);
}

Test(preprocess_config, huggingface_values)
{
    struct preprocess p = read_huggingface(
        "{\"size\": 224, \"image_mean\": [0.1, 0.2, 0.3], \"image_std\": [0.4, 0.5, 0.6]}");
    expect_float("scale", p.scale, 1.0 / 255.0);
    expect_float("mean", p.mean[1], 0.2);
    expect_float("std", p.std[2], 0.6);
    cr_expect_eq(p.channels, CHANNELS_RGB);

    /* caffe: 0 … 255, BGR, mean in that order */
    p = read_huggingface("{\"size\": {\"shortest_edge\": 256}, \"crop_size\": 224, "
                         "\"do_center_crop\": true, \"do_rescale\": false, \"image_mean\": [104, "
                         "117, 123], \"image_std\": [1, 1, 1], \"do_flip_channel_order\": true}");
    expect_float("scale", p.scale, 1);
    expect_float("mean", p.mean[0], 104);
    cr_expect_eq(p.channels, CHANNELS_BGR);

    p = read_huggingface("{\"size\": 224, \"do_normalize\": false, \"image_mean\": [9, 9, 9]}");
    expect_float("mean", p.mean[0], 0);
    expect_float("std", p.std[0], 1);

    p = read_huggingface("{\"size\": 224, \"rescale_factor\": 0.00784313725490196, "
                         "\"rescale_offset\": true, \"do_normalize\": false}");
    expect_float("scale", p.scale, 2.0 / 255.0);
    expect_float("mean", p.mean[0], 1);

    p = read_huggingface(
        "{\"image_processor_type\": \"EfficientNetImageProcessor\", \"size\": 224, "
        "\"image_mean\": [0.4, 0.4, 0.4], \"image_std\": [0.2, 0.2, 0.2]}");
    expect_float("std twice", p.std[0], 0.04);

    p = read_huggingface("{\"image_processor_type\": \"ViTImageProcessor\", \"size\": 224}");
    expect_float("ViT's own mean", p.mean[0], 0.5);

    /* Their files have no do_normalize, and their classes do not normalise. */
    static const char *const plain[] = {"MobileViT", "GLPN", "SuperPoint", "Swin2SR"};
    for (size_t i = 0; i < COUNT_OF(plain); i++) {
        char json[100];
        snprintf(json, sizeof json, "{\"image_processor_type\": \"%sImageProcessor\"}", plain[i]);
        p = read_huggingface(json);
        expect_float(plain[i], p.mean[0], 0);
        expect_float(plain[i], p.std[0], 1);
        cr_expect_eq(p.channels, i == 0 ? CHANNELS_BGR : CHANNELS_RGB, "%s", plain[i]);
    }
    p = read_huggingface("{\"image_processor_type\": \"LayoutLMv2ImageProcessor\"}");
    expect_float("LayoutLMv2's bytes", p.scale, 1);

    /* SAM pads with zeros of its own numbers, YOLOX with a byte; Perceiver crops first. */
    p = read_huggingface("{\"image_processor_type\": \"SamImageProcessor\"}");
    cr_expect(p.pads_corner && p.pads_normalised && !p.sides_floor);
    p = read_huggingface("{\"size\": {\"max_height\": 640, \"max_width\": 640}, \"do_pad\": true, "
                         "\"pad_size\": 640, \"pad_value\": 114}");
    cr_expect(p.pads_corner && !p.pads_normalised && p.sides_floor && p.pad_value == 114);
    p = read_huggingface("{\"image_processor_type\": \"PerceiverImageProcessor\"}");
    expect_float("Perceiver's first crop", (float)p.first_height, 224.0 / 256.0);

    p = read_huggingface("{\"size\": 32, \"do_convert_grayscale\": true, \"image_mean\": 0.5, "
                         "\"image_std\": [0.25], \"do_invert\": true}");
    cr_expect_eq(p.channels, CHANNELS_GRAY);
    cr_expect(p.invert);
    expect_float("mean of one", p.mean[0], 0.5);
    expect_float("std of one", p.std[0], 0.25);
}

Test(preprocess_config, timm)
{
    static const struct {
        const char *name, *json;
        struct want want;
    } cases[] = {
        {"centre",
         "{\"architecture\": \"resnet50\", \"pretrained_cfg\": {\"input_size\": [3, 224, "
         "224], \"crop_pct\": 0.95, \"interpolation\": \"bicubic\"}}",
         {RESIZE_SHORT_SIDE, 235, 0, 224, 224, RESAMPLE_BICUBIC}},
        {"288 / 0.95",
         "{\"pretrained_cfg\": {\"input_size\": [3, 288, 288], \"crop_pct\": 0.95}}",
         {RESIZE_SHORT_SIDE, 303, 0, 288, 288, RESAMPLE_BILINEAR}},
        {"default crop",
         "{\"pretrained_cfg\": {\"input_size\": [3, 224, 224]}}",
         {RESIZE_SHORT_SIDE, 256, 0, 224, 224, RESAMPLE_BILINEAR}},
        {"squash",
         "{\"pretrained_cfg\": {\"input_size\": [3, 224, 224], \"crop_pct\": 1.0, "
         "\"crop_mode\": \"squash\", \"interpolation\": \"lanczos\"}}",
         {RESIZE_EXACT, 224, 224, 224, 224, RESAMPLE_LANCZOS}},
        {"border",
         "{\"pretrained_cfg\": {\"input_size\": [3, 224, 224], \"crop_pct\": 1.0, "
         "\"crop_mode\": \"border\"}}",
         {RESIZE_LETTERBOX, 224, 224, 224, 224, RESAMPLE_BILINEAR}},
        {"flat",
         "{\"input_size\": [3, 160, 160], \"crop_pct\": 0.875}",
         {RESIZE_SHORT_SIDE, 182, 0, 160, 160, RESAMPLE_BILINEAR}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct preprocess p;
        struct error err = {0};
        cr_assert_eq(read_text(preprocess_from_timm, cases[i].json, &p, &err), STATUS_OK, "%s: %s",
                     cases[i].name, err.message);
        check_geometry(cases[i].name, &p, &cases[i].want);
        mutate_document(cases[i].json, check_changed, &(preprocess_reader *){preprocess_from_timm});
    }
    static const char none[] = "{\"id2label\": {}}";
    struct preprocess p;
    cr_expect_eq(read_text(preprocess_from_timm, none, &p, NULL), STATUS_NOT_FOUND);
}

Test(preprocess_config, ultralytics)
{
    struct preprocess p;
    struct error err;
    cr_assert_eq(preprocess_from_metadata("[480, 640]", "detect", &p, &err), STATUS_OK);
    check_geometry("detect", &p,
                   &(struct want){RESIZE_LETTERBOX, 640, 480, 640, 480, RESAMPLE_LINEAR});
    cr_expect_eq(p.pad_value, 114);
    expect_float("mean", p.mean[0], 0);
    expect_float("std", p.std[0], 1);
    cr_assert_eq(preprocess_from_metadata("[224, 224]", "classify", &p, &err), STATUS_OK);
    check_geometry("classify", &p,
                   &(struct want){RESIZE_SHORT_SIDE, 224, 0, 224, 224, RESAMPLE_BILINEAR});
    cr_expect_eq(preprocess_from_metadata(NULL, "detect", &p, &err), STATUS_NOT_FOUND);
    cr_expect_eq(preprocess_from_metadata("[large]", NULL, &p, &err), STATUS_MODEL);
    cr_expect(strstr(err.message, "[large]"), "%s", err.message);
}

Test(preprocess_config, refuses_with_the_key)
{
    static const struct {
        const char *json, *words;
    } cases[] = {
        {"", "the file is empty"},
        {" \n", "the file is empty"},
        {"{", "JSON"},
        {"[]", "object"},
        {"{\"size\": \"224\"}", "\"size\""},
        {"{\"size\": -1}", "\"size\""},
        {"{\"size\": 1e300}", "\"size\""},
        {"{\"size\": {\"height\": 224}}", "\"size\""},
        {"{\"size\": {}}", "\"size\""},
        {"{\"size\": []}", "\"size\""},
        {"{\"size\": 224, \"crop_size\": {\"shortest_edge\": 0}}", "\"crop_size\""},
        {"{\"size\": 224, \"do_resize\": 1}", "\"do_resize\""},
        {"{\"size\": {\"shortest_edge\": 224}, \"crop_pct\": 1e-300}", "\"crop_pct\""},
        {"{\"size\": 224, \"resample\": 6}", "\"resample\""},
        {"{\"size\": 224, \"resample\": 2.5}", "\"resample\""},
        {"{\"size\": 224, \"resample\": \"bilinear\"}", "\"resample\""},
        {"{\"size\": 224, \"image_mean\": [1, 2]}", "\"image_mean\""},
        {"{\"size\": 224, \"image_mean\": [1, 2, \"3\"]}", "\"image_mean\""},
        {"{\"size\": 224, \"image_mean\": [1e400, 0, 0]}",
         "\"image_mean\" is not a list of 3 finite"},
        {"{\"size\": 224, \"image_mean\": 1e39}", "\"image_mean\" is not a list of 3 finite"},
        {"{\"size\": 224, \"image_std\": [1, 0, 1]}", "\"image_std\" is not different from 0"},
        {"{\"size\": 224, \"image_std\": [1, 1e999, 1]}", "\"image_std\""},
        {"{\"size\": 224, \"rescale_factor\": 0}", "\"rescale_factor\""},
        {"{\"size\": 224, \"crop_pct\": 0}", "\"crop_pct\""},
        {"{\"size\": 224, \"resample\": 3, \"antialias\": false}", "\"antialias\""},
        {"{\"size\": 224, \"resample\": 0, \"antialias\": \"gaussian\"}", "\"antialias\""},
        {"{\"size\": 224, \"antialias\": \"gauss\"}", "\"antialias\""},
        {"{\"size\": {\"longest_edge\": 9}, \"do_pad\": true, \"pad_size\": 9, \"pad_value\": 256}",
         "\"pad_value\""},
        {"{\"size\": 224, \"crop_rounding\": \"up\"}", "\"crop_rounding\""},
        {"{\"pretrained_cfg\": {\"input_size\": [3, 224]}, \"size\": \"x\"}", "\"size\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct preprocess p;
        struct error err = {0};
        cr_expect_eq(read_text(preprocess_from_huggingface, cases[i].json, &p, &err), STATUS_MODEL,
                     "%s", cases[i].json);
        cr_expect(strstr(err.message, cases[i].words), "%s: %s", cases[i].json, err.message);
    }
}

Test(preprocess_config, fits_sizes_to_the_model)
{
    struct preprocess p;
    preprocess_default(&p);
    cr_expect_not(preprocess_fit(&p, 224, 224));
    cr_expect(preprocess_fit(&p, 299, 299));
    check_geometry("ImageNet at 299", &p,
                   &(struct want){RESIZE_SHORT_SIDE, 342, 0, 299, 299, RESAMPLE_BILINEAR});
    preprocess_default(&p);
    cr_expect(preprocess_fit(&p, 320, 224));
    check_geometry("another aspect", &p,
                   &(struct want){RESIZE_EXACT, 320, 224, 320, 224, RESAMPLE_BILINEAR});
    p = read_huggingface("{\"do_center_crop\": true, \"size\": 256, \"crop_size\": 224}");
    cr_expect(preprocess_fit(&p, 448, 112));
    check_geometry("exact", &p,
                   &(struct want){RESIZE_EXACT, 512, 128, 448, 112, RESAMPLE_BILINEAR});
}

Test(preprocess_config, takes_the_models_size_where_it_has_none)
{
    static const struct {
        const char *json;
        int width, height;
        enum resize_rule resize;
    } cases[] = {
        {"{\"image_mean\": [0, 0, 0], \"image_std\": [1, 1, 1]}", 64, 64, RESIZE_EXACT},
        {"{\"do_resize\": false}", 64, 48, RESIZE_NONE},
        {"{\"image_processor_type\": \"GLPNImageProcessor\"}", 640, 480, RESIZE_EXACT},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct preprocess p = read_huggingface(cases[i].json);
        cr_expect(p.width == 0 && p.height == 0, "%s", cases[i].json);
        cr_expect(preprocess_fit(&p, cases[i].width, cases[i].height));
        const bool is_short = cases[i].resize == RESIZE_SHORT_SIDE;
        check_geometry(cases[i].json, &p,
                       &(struct want){cases[i].resize, cases[i].width,
                                      is_short ? 0 : cases[i].height, cases[i].width,
                                      cases[i].height, p.resample});
    }
}

Test(preprocess_config, names_keys_that_are_one_slip_away)
{
    static const struct {
        const char *json, *text;
    } cases[] = {
        {"{\"do_reszie\": false}", "unknown key \"do_reszie\": did you mean \"do_resize\"?"},
        {"{\"image_meen\": 0, \"image_st\": 1}",
         "unknown key \"image_meen\": did you mean \"image_mean\"?; unknown key \"image_st\": did "
         "you mean \"image_std\"?"},
        {"{\"do_normalise\": 1}", "unknown key \"do_normalise\": did you mean \"do_normalize\"?"},
        {"{\"ssize\": 1}", "unknown key \"ssize\": did you mean \"size\"?"},
        {"{\"size\": 1, \"sizes\": 2}", ""},
        {"{\"size\": 1, \"do_pad\": true, \"do_thumbnail\": 1, \"processor_class\": \"X\"}", ""},
        {"{\"crop\": 1, \"resize\": 2, \"\": 3}", ""},
        {"[\"siz\"]", ""},
        {"{\"image_processor_type\": \"CLIPImageProcessorFast\"}", ""},
        {"{\"feature_extractor_type\": \"ViTFeatureExtractor\"}", ""},
        {"{\"image_processor_type\": \"MyImageProcessor\"}",
         "lensd does not know the image processor MyImageProcessor: it uses the settings in the "
         "file, without defaults of that class"},
        {"{\"image_processor_type\": \"Swin2SRImageProcessor\"}",
         "Swin2SRImageProcessor mirrors the edges at the right and below, where lensd pads with "
         "zeros"},
        {"{\"do_reszie\"", ""},
        {"{\"do_pad\": true, \"size\": {\"shortest_edge\": 800, \"longest_edge\": 1333}}",
         "\"do_pad\" with \"shortest_edge\" and \"longest_edge\" pads photos to the largest of a "
         "batch; lensd resizes each to the model's size"},
        {"{\"do_pad\": true, \"size\": {\"shortest_edge\": 640, \"longest_edge\": 640}}", ""},
        {"{\"keep_aspect_ratio\": true, \"do_pad\": true, \"size_divisor\": 32}",
         "\"keep_aspect_ratio\" makes photos of any size; lensd resizes each to the model's size; "
         "lensd does not pad to multiples of \"size_divisor\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[PREPROCESS_REMARKS];
        struct preprocess p;
        (void)!read_with_remarks(preprocess_from_huggingface, cases[i].json, &p, text, NULL);
        cr_expect_str_eq(text, cases[i].text);
    }
}

Test(preprocess_config, compares_few_of_very_many_keys, .timeout = 60)
{
    enum { KEYS = 300000 };
    static const char key[] = "\"do_resiz\": 1, ", last[] = "\"do_resize\": true}";
    char remarks[PREPROCESS_REMARKS], *json = alloc_array(KEYS + 2, sizeof key), *at = json;
    *at++ = '{';
    for (int i = 0; i < KEYS; i++)
        at = stpcpy(at, key);
    stpcpy(at, last);
    struct preprocess p;
    (void)!read_with_remarks(preprocess_from_huggingface, json, &p, remarks, NULL);
    cr_expect_str_empty(remarks);
    free(json);
}

Test(preprocess_config, who_floors_the_crop)
{
    static const struct {
        const char *json;
        bool floors;
    } cases[] = {
        {"{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": {\"shortest_edge\": 225}, "
         "\"crop_size\": {\"height\": 224, \"width\": 224}}",
         true},
        /* Files of the recipes and of people who write down a torchvision transform. */
        {"{\"size\": {\"shortest_edge\": 235}, \"do_center_crop\": true, \"crop_size\": 224}",
         false},
        {"{\"crop_rounding\": \"even\", \"image_processor_type\": \"CLIPImageProcessor\", "
         "\"size\": 224}",
         false},
        {"{\"crop_rounding\": \"down\", \"size\": 224}", true},
        /* timm's wrapper in transformers crops with torchvision, as timm does. */
        {"{\"pretrained_cfg\": {\"input_size\": [3, 224, 224], \"crop_pct\": 0.95}}", false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct preprocess p;
        cr_assert_eq(read_text(preprocess_from_huggingface, cases[i].json, &p, NULL), STATUS_OK);
        cr_expect_eq(p.crop_floors, cases[i].floors, "%s", cases[i].json);
    }
    struct preprocess p;
    preprocess_default(&p);
    cr_expect_not(p.crop_floors);
}
