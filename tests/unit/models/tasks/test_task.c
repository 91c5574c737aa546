/* What a model is: every source of evidence, and what stays open. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/answer.h"
#include "models/tasks/task.h"

#define OUTPUT(name, ...) ((struct session_tensor){name, DTYPE_F32, SHAPE(__VA_ARGS__)})

static struct task decide(struct task_facts facts, const struct session_tensor *outputs,
                          size_t count)
{
    struct task task;
    struct error err;
    facts.outputs = outputs;
    facts.output_count = count;
    if (!facts.width)
        facts.width = facts.height = 640;
    if (!facts.class_output)
        facts.class_output = SIZE_MAX;
    facts.options = TASK_OPTIONS_NONE;
    cr_assert_eq(task_decide(&facts, &task, &err), STATUS_OK, "%s", err.message);
    cr_expect(task.evidence[0]);
    return task;
}

static void expect_blamed(struct task task, const char *words)
{
    cr_expect_eq(task.kind, TASK_UNKNOWN);
    cr_expect(strstr(task.evidence, words), "%s", task.evidence);
}

static void expect_layout(struct task task, enum task_layout layout)
{
    cr_expect_eq(task.kind, TASK_DETECTION, "%s", task.evidence);
    cr_expect_eq(task.layout, layout, "layout %d, not %d: %s", (int)task.layout, (int)layout,
                 task.evidence);
    for (size_t i = 0; i < task.output_count; i++)
        cr_expect_lt(task.outputs[i], TASK_MAX_OUTPUTS);
}

Test(task, ultralytics_metadata)
{
    struct task_facts detect = {.metadata_task = "detect", .label_count = 80};
    expect_layout(decide(detect, &OUTPUT("output0", 1, 84, 8400), 1), LAYOUT_YOLOV8);
    detect.is_final = true;
    expect_layout(decide(detect, &OUTPUT("output0", 1, 300, 6), 1), LAYOUT_YOLO_FINAL);
    struct task_facts two = {.metadata_task = "detect", .label_count = 2, .is_final = true};
    expect_layout(decide(two, &OUTPUT("output0", 1, 300, 6), 1), LAYOUT_YOLO_FINAL);
    detect.is_final = false;
    detect.description = "Ultralytics rtdetr-l.yaml model";
    expect_layout(decide(detect, &OUTPUT("output0", 1, 300, 84), 1), LAYOUT_RTDETR);
    expect_layout(decide(detect, &OUTPUT("output0", 1, 300, 6), 1), LAYOUT_RTDETR_FINAL);
    struct task_facts segment = {.metadata_task = "segment", .label_count = 80};
    const struct session_tensor masks[] = {OUTPUT("output0", 1, 116, 8400),
                                           OUTPUT("output1", 1, 32, 160, 160)};
    struct task task = decide(segment, masks, 2);
    cr_expect(task.kind == TASK_INSTANCES && task.layout == LAYOUT_YOLOV8, "%s", task.evidence);
    cr_expect(task.prototypes == 32 && task.output_count == 2 && task.outputs[1] == 1);
    const struct task_facts bare = {0};
    task = decide(bare, masks, 2);
    cr_expect(task.kind == TASK_INSTANCES && task.layout == LAYOUT_YOLOV8, "%s", task.evidence);
    task = decide(segment, masks, 1);
    cr_expect_eq(task.kind, TASK_UNKNOWN);
    cr_expect(strstr(task.evidence, "'segment'"), "%s", task.evidence);
    const struct task_facts classify = {.metadata_task = "classify"};
    expect_blamed(decide(classify, masks, 1), "no output has one score per class");
    struct task_facts depth = {.metadata_task = "poetry"};
    task = decide(depth, masks, 2);
    cr_expect_eq(task.kind, TASK_UNKNOWN);
    cr_expect(strstr(task.evidence, "'poetry'"), "%s", task.evidence);
    struct task_facts pose = {.metadata_task = "pose", .label_count = 1, .point_shape = "[17, 3]"};
    task = decide(pose, &OUTPUT("output0", 1, 56, 8400), 1);
    cr_expect(task.kind == TASK_POSE && task.layout == LAYOUT_YOLOV8, "%s", task.evidence);
    cr_expect(task.point_count == 17 && task.point_numbers == 3);
    pose.is_final = true;
    pose.point_shape = "(4, 2)";
    task = decide(pose, &OUTPUT("output0", 1, 300, 14), 1);
    cr_expect(task.kind == TASK_POSE && task.layout == LAYOUT_YOLO_FINAL, "%s", task.evidence);
    cr_expect(task.point_count == 4 && task.point_numbers == 2);
    pose.point_shape = "[999999999999999999999, -1]";
    task = decide(pose, &OUTPUT("output0", 1, 300, 14), 1);
    cr_expect_eq(task.kind, TASK_UNKNOWN);
    cr_expect(strstr(task.evidence, "kpt_shape"), "%s", task.evidence);
    struct task_facts obb = {.metadata_task = "obb", .label_count = 15};
    task = decide(obb, &OUTPUT("output0", 1, 20, 8400), 1);
    cr_expect(task.kind == TASK_ORIENTED && task.layout == LAYOUT_YOLOV8, "%s", task.evidence);
    cr_expect_eq(decide(obb, &OUTPUT("output0", 1, 19, 8400), 1).kind, TASK_UNKNOWN);
    struct task_facts told = {.configured_task = "oriented-boxes",
                              .configured_layout = "yolo-final"};
    task = decide(told, &OUTPUT("o", 1, 300, 7), 1);
    cr_expect_eq(task.kind, TASK_ORIENTED);
    struct task_facts odd = {.metadata_task = "detect", .label_count = 80};
    expect_blamed(decide(odd, &OUTPUT("output0", 1, 90, 8400), 1),
                  "86 classes, but there are 80 labels");
    obb.label_count = 3;
    expect_blamed(decide(obb, &OUTPUT("output0", 1, 20, 8400), 1),
                  "15 classes, but there are 3 labels");
}

Test(task, shapes)
{
    const struct task_facts none = {0}, exp = {.has_exp = true};
    expect_layout(decide(none, &OUTPUT("o", 1, 84, 8400), 1), LAYOUT_YOLOV8);
    expect_layout(decide(none, &OUTPUT("o", 1, 25200, 85), 1), LAYOUT_YOLOV5);
    expect_layout(decide(none, &OUTPUT("o", 1, 8400, 85), 1), LAYOUT_YOLOX);
    expect_layout(decide(exp, &OUTPUT("o", 1, 8400, 85), 1), LAYOUT_YOLOX_PIXELS);
    expect_layout(decide(none, &OUTPUT("o", 1, 300, 6), 1), LAYOUT_YOLO_FINAL);
    cr_expect_eq(decide(none, &OUTPUT("o", 1, 300, 84), 1).kind, TASK_UNKNOWN,
                 "queries, but of what classes?");
    const struct task_facts labelled = {.label_count = 80};
    expect_layout(decide(labelled, &OUTPUT("o", 1, 300, 84), 1), LAYOUT_RTDETR);
    const struct task_facts wrong = {.label_count = 3};
    expect_blamed(decide(wrong, &OUTPUT("o", 1, 84, 8400), 1),
                  "80 classes, but there are 3 labels");
    expect_blamed(decide(wrong, &OUTPUT("o", 1, 8400, 85), 1),
                  "80 classes, but there are 3 labels");
    const struct session_tensor masks[] = {OUTPUT("o", 1, 116, 8400), OUTPUT("p", 1, 32, 160, 160)};
    expect_blamed(decide(wrong, masks, 2), "80 classes, but there are 3 labels");
    expect_blamed(decide(wrong, &OUTPUT("map", 1, 21, 60, 60), 1),
                  "21 maps, but there are 3 labels");
}

Test(task, yolo_nas)
{
    const struct task_facts none = {0}, labelled = {.label_count = 3};
    struct session_tensor pair[] = {OUTPUT("one", 1, 8400, 4), OUTPUT("two", 1, 8400, 80)};
    expect_layout(decide(none, pair, 2), LAYOUT_YOLO_NAS);
    cr_expect_eq(decide(labelled, pair, 2).kind, TASK_UNKNOWN, "80 scores for 3 labels");
    pair[1].shape.dims[1] = 2100;
    cr_expect_eq(decide(none, pair, 2).kind, TASK_UNKNOWN);
    const struct session_tensor flat = OUTPUT("graph2_flat_predictions", DIM_UNKNOWN, 7);
    const struct task task = decide(none, &flat, 1);
    expect_layout(task, LAYOUT_YOLO_NAS_FLAT);
    cr_expect_not(task_layout_has_rows(task.layout));
}

Test(task, paddledetection)
{
    const struct task_facts none = {0}, scales = {.has_scales = true};
    struct session_tensor list[] = {OUTPUT("rows", DIM_UNKNOWN, 6), OUTPUT("count", 1)};
    list[1].dtype = DTYPE_I32;
    struct task task = decide(scales, list, 2);
    expect_layout(task, LAYOUT_PADDLE_FLAT);
    cr_expect_not(task_layout_has_rows(task.layout));
    cr_expect_eq(decide(none, list, 2).kind, TASK_UNKNOWN, "other detectors have such rows");
    list[0].shape = SHAPE(1, 300, 6);
    expect_layout(decide(scales, list, 2), LAYOUT_PADDLE);
    list[1].shape = SHAPE(300);
    cr_expect_eq(decide(scales, list, 2).kind, TASK_UNKNOWN);
}

Test(task, masks_and_others_of_queries)
{
    const struct session_tensor detr[] = {OUTPUT("logits", 1, 100, 10),
                                          OUTPUT("pred_boxes", 1, 100, 4),
                                          OUTPUT("pred_masks", 1, 100, 80, 80)};
    const struct task_facts none = {0};
    struct task task = decide((struct task_facts){.architecture = "DetrForSegmentation"}, detr, 3);
    cr_expect(task.kind == TASK_INSTANCES && task.layout == LAYOUT_PANOPTIC, "%s", task.evidence);
    cr_expect(task.output_count == 2 && task.outputs[1] == 2 && task.mask_side == 0);
    task = decide((struct task_facts){.architecture = "RfDetrForInstanceSegmentation"}, detr, 3);
    cr_expect(task.kind == TASK_INSTANCES && task.layout == LAYOUT_RFDETR, "%s", task.evidence);
    cr_expect(task.output_count == 3 && task.outputs[2] == 2);
    task = decide((struct task_facts){.architecture = "RfDetrForObjectDetection"}, detr, 2);
    expect_layout(task, LAYOUT_RFDETR);
    const struct session_tensor former[] = {OUTPUT("masks_queries_logits", 1, 100, 96, 96),
                                            OUTPUT("class_queries_logits", 1, 100, 10)};
    task = decide(none, former, 2);
    cr_expect(task.kind == TASK_INSTANCES && task.layout == LAYOUT_MASKFORMER, "%s", task.evidence);
    cr_expect(task.outputs[0] == 1 && task.mask_side == 0);
    struct task_facts facts = {.architecture = "Mask2FormerForUniversalSegmentation"};
    cr_expect_eq(decide(facts, former, 2).mask_side, 384);
    facts.configured_layout = "panoptic";
    task = decide(facts, former, 2);
    cr_expect(task.layout == LAYOUT_PANOPTIC && task.outputs[0] == 1 && task.mask_side == 384);
    const struct session_tensor rfdetr[] = {OUTPUT("dets", 1, 300, 4), OUTPUT("labels", 1, 300, 91),
                                            OUTPUT("masks", 1, 300, 78, 78)};
    task = decide(none, rfdetr, 2);
    expect_layout(task, LAYOUT_RFDETR);
    cr_expect(task.outputs[0] == 1 && task.outputs[1] == 0);
    cr_expect_eq(decide(none, rfdetr, 3).kind, TASK_INSTANCES);
    const struct session_tensor lists[] = {OUTPUT("dets", 1, 300, 5), OUTPUT("labels", 1, 300)};
    cr_expect_neq(decide(none, lists, 2).layout, LAYOUT_RFDETR, "MMDetection's");
}

Test(task, faces_and_text)
{
    static const char *const names[] = {"cls", "obj", "bbox", "kps"};
    static const int numbers[] = {1, 1, 4, 10};
    static char texts[12][8];
    struct session_tensor outputs[12];
    const struct task_facts none = {0};
    for (int i = 0; i < 12; i++) {
        snprintf(texts[i], sizeof texts[i], "%s_%d", names[i / 3], 8 << i % 3);
        outputs[i] = OUTPUT(texts[i], 1, 6400 >> 2 * (i % 3), numbers[i / 3]);
    }
    struct task task = decide(none, outputs, 12);
    cr_expect(task.kind == TASK_POSE && task.layout == LAYOUT_YUNET, "%s", task.evidence);
    cr_expect(task.point_count == 5 && task.point_numbers == 2 && task.output_count == 12);
    task = decide((struct task_facts){.configured_task = "pose", .configured_layout = "yunet"},
                  outputs, 12);
    cr_expect(task.kind == TASK_POSE && task.point_count == 5);
    /* SCRFD: names say nothing, and the order is not sure. */
    struct session_tensor lists[9], flat[9];
    for (int i = 0; i < 9; i++) {
        const int64_t anchors = 12800 >> 2 * (i % 3);
        lists[i] = OUTPUT("448", 1, anchors, numbers[1 + i / 3]);
        flat[8 - i] = OUTPUT("451", anchors, numbers[1 + i / 3]);
    }
    task = decide(none, lists, 9);
    cr_expect(task.kind == TASK_POSE && task.layout == LAYOUT_SCRFD, "%s", task.evidence);
    cr_expect_eq(task.outputs[8], 8);
    task = decide(none, flat, 9);
    cr_expect(task.kind == TASK_POSE && task.layout == LAYOUT_SCRFD_FLAT, "%s", task.evidence);
    cr_expect(task.outputs[8] == 0 && !task_layout_has_rows(task.layout));
    lists[3].shape.dims[1]--;
    cr_expect_eq(decide(none, lists, 9).kind, TASK_UNKNOWN);
    const struct session_tensor heat = OUTPUT("heatmaps", 1, 17, 64, 48);
    task =
        decide((struct task_facts){.architecture = "VitPoseForPoseEstimation", .label_count = 17},
               &heat, 1);
    cr_expect(task.kind == TASK_POSE && task.layout == LAYOUT_HEATMAPS && task.point_count == 17,
              "%s", task.evidence);
    task =
        decide((struct task_facts){.architecture = "SapiensForPoseEstimation", .label_count = 17},
               &heat, 1);
    cr_expect(task.kind == TASK_UNKNOWN && strstr(task.evidence, "'heatmaps' is a heatmap"), "%s",
              task.evidence);
    const struct session_tensor line = OUTPUT("text", 1, 40, 98),
                                map = OUTPUT("map", 1, 1, 640, 640);
    const struct task_facts characters = {.label_count = 96, .are_characters = true};
    cr_expect_eq(decide(characters, &line, 1).kind, TASK_TEXT);
    cr_expect_eq(
        decide((struct task_facts){.label_count = 97, .are_characters = true}, &line, 1).kind,
        TASK_TEXT, "without a space");
    task = decide((struct task_facts){.label_count = 90, .are_characters = true}, &line, 1);
    cr_expect_eq(task.kind, TASK_UNKNOWN);
    cr_expect(strstr(task.evidence, "91 or 92"), "%s", task.evidence);
    task =
        decide((struct task_facts){.architecture = "PPOCRV5ServerDetForObjectDetection"}, &map, 1);
    cr_expect(task.kind == TASK_TEXT_BOXES && task.layout == LAYOUT_TEXT, "%s", task.evidence);
    cr_expect_eq(decide((struct task_facts){.configured_task = "text-detection"}, &map, 1).kind,
                 TASK_TEXT_BOXES);
    struct task_facts told = {.configured_task = "text-recognition",
                              .outputs = &line,
                              .output_count = 1,
                              .class_output = SIZE_MAX,
                              .options = TASK_OPTIONS_NONE};
    struct error err;
    cr_expect_eq(task_decide(&told, &task, &err), STATUS_MODEL);
    cr_expect(strstr(err.message, "characters.txt"), "%s", err.message);
}

Test(task, anomalies)
{
    const struct task_facts none = {0};
    struct session_tensor outputs[] = {OUTPUT("anomaly_map", 1, 1, 256, 256),
                                       OUTPUT("pred_score", 1)};
    struct task task = decide(none, outputs, 2);
    cr_expect_eq(task.kind, TASK_ANOMALY, "%s", task.evidence);
    cr_expect(task.output_count == 2 && task.outputs[0] == 1 && task.outputs[1] == 0);
    cr_expect_eq(task.anomaly_parts, 1u << ANOMALY_SCORE | 1u << ANOMALY_MAP);
    struct task_facts told = {.configured_task = "anomaly",
                              .outputs = outputs,
                              .output_count = 1,
                              .class_output = SIZE_MAX,
                              .options = TASK_OPTIONS_NONE};
    struct error err;
    cr_expect_eq(task_decide(&told, &task, &err), STATUS_MODEL);
    cr_expect(strstr(err.message, "pred_score"), "%s", err.message);
}

Test(task, options_of_other_tasks)
{
    const struct task detector = {.kind = TASK_DETECTION, .layout = LAYOUT_YOLOV8};
    const struct task classifier = {.kind = TASK_CLASSIFICATION};
    struct task_options asked = TASK_OPTIONS_NONE;
    struct error err;
    cr_expect_eq(task_options_check(&detector, &asked, false, &err), STATUS_OK);
    cr_expect_eq(task_options_check(&classifier, NULL, true, &err), STATUS_OK);
    cr_expect_eq(task_options_check(&detector, NULL, true, &err), STATUS_INVALID);
    cr_expect(strstr(err.message, "top_k has no effect"), "%s", err.message);
    asked.iou = .5f;
    cr_expect_eq(task_options_check(&detector, &asked, false, &err), STATUS_OK);
    cr_expect_eq(task_options_check(&classifier, &asked, false, &err), STATUS_INVALID);
    cr_expect_str_eq(err.message, "iou has no effect on a model whose task is classification "
                                  "(its parameters: top_k); leave it out");
    cr_expect(task_has_option(&detector, "iou") && !task_has_option(&classifier, "iou"));
}

Test(task, queries)
{
    const struct session_tensor detr[] = {OUTPUT("pred_boxes", 1, 100, 4),
                                          OUTPUT("logits", 1, 100, 4)};
    struct task_facts facts = {.architecture = "DetrForObjectDetection"};
    struct task task = decide(facts, detr, 2);
    expect_layout(task, LAYOUT_DETR);
    cr_expect_eq(task.outputs[0], 1, "by name, though the shapes are alike");
    cr_expect_eq(task.outputs[1], 0);
    facts.architecture = "DeformableDetrForObjectDetection";
    task = decide(facts, detr, 2);
    expect_layout(task, LAYOUT_DETR_SIGMOID);
    cr_expect_eq(task.options.max_detections, 100);
    cr_expect(task.exceeds_queries);
    facts = (struct task_facts){.label_count = 3};
    expect_layout(decide(facts, detr, 2), LAYOUT_DETR);
    facts.label_count = 4;
    expect_layout(decide(facts, detr, 2), LAYOUT_DETR_SIGMOID);
    facts.label_count = 0;
    cr_expect_eq(decide(facts, detr, 2).kind, TASK_UNKNOWN);
}

Test(task, lists)
{
    struct session_tensor outputs[] = {OUTPUT("12", DIM_UNKNOWN),
                                       OUTPUT("10", DIM_UNKNOWN, 4),
                                       {"11", DTYPE_I64, SHAPE(DIM_UNKNOWN)}};
    const struct task_facts none = {0};
    struct task task = decide(none, outputs, 3);
    expect_layout(task, LAYOUT_TORCHVISION);
    cr_expect(task.outputs[0] == 1 && task.outputs[1] == 2 && task.outputs[2] == 0);
    cr_expect_not(task_layout_has_rows(task.layout));
    const struct session_tensor masked[] = {OUTPUT("9", DIM_UNKNOWN, 1, 640, 640),
                                            OUTPUT("12", DIM_UNKNOWN),
                                            OUTPUT("10", DIM_UNKNOWN, 4),
                                            {"11", DTYPE_I64, SHAPE(DIM_UNKNOWN)}};
    task = decide(none, masked, 4);
    cr_expect(task.kind == TASK_INSTANCES && task.layout == LAYOUT_TORCHVISION, "%s",
              task.evidence);
    cr_expect(task.outputs[0] == 2 && task.outputs[3] == 0);
    const struct session_tensor tensorflow[] = {
        OUTPUT("num_detections:0", 1), OUTPUT("detection_scores:0", 1, 100),
        OUTPUT("detection_classes:0", 1, 100), OUTPUT("detection_boxes:0", 1, 100, 4)};
    task = decide(none, tensorflow, 4);
    expect_layout(task, LAYOUT_TENSORFLOW);
    cr_expect(task.outputs[0] == 3 && task.outputs[3] == 0);
    const struct session_tensor own[] = {
        {"labels", DTYPE_I64, SHAPE(1, 300)}, OUTPUT("boxes", 1, 300, 4), OUTPUT("scores", 1, 300)};
    task = decide(none, own, 3);
    expect_layout(task, LAYOUT_RTDETR_LISTS);
    cr_expect(task.outputs[0] == 1 && task.outputs[1] == 0 && task.outputs[2] == 2);
}

Test(task, depth)
{
    struct task_facts facts = {.architecture = "DepthAnythingForDepthEstimation"};
    const struct session_tensor maps[] = {OUTPUT("hidden", 1, 64), OUTPUT("map", 1, 518, 518)};
    struct task task = decide(facts, maps, 2);
    cr_expect(task.kind == TASK_DEPTH && task.outputs[0] == 1, "%s", task.evidence);
    facts.architecture = NULL;
    cr_expect_eq(decide(facts, maps, 2).kind, TASK_UNKNOWN);
    cr_expect_eq(decide(facts, &OUTPUT("predicted_depth", 1, 1, 9, 9), 1).kind, TASK_DEPTH);
    facts.configured_task = "depth";
    cr_expect_eq(decide(facts, maps, 2).kind, TASK_DEPTH);
}

Test(task, embeddings_and_classes)
{
    const struct session_tensor scores = OUTPUT("output", 1, 384);
    struct task_facts facts = {.class_output = SIZE_MAX};
    const struct session_tensor tower[] = {OUTPUT("last_hidden_state", 1, 257, 384),
                                           OUTPUT("pooler_output", 1, 384)};
    struct task task = decide(facts, tower, 2);
    cr_expect_eq(task.kind, TASK_EMBEDDING);
    cr_expect_eq(task.outputs[0], 1);
    facts.architecture = "Dinov2Model";
    cr_expect_eq(decide(facts, tower, 1).kind, TASK_EMBEDDING);
    facts.architecture = "Dinov2ForImageClassification";
    cr_expect_eq(decide(facts, tower, 1).kind, TASK_UNKNOWN);

    /* Output 0 is one score a class, or a vector. */
    struct task_facts vector = {.outputs = &scores,
                                .output_count = 1,
                                .class_output = 0,
                                .width = 224,
                                .height = 224,
                                .options = TASK_OPTIONS_NONE};
    struct error err;
    cr_assert_eq(task_decide(&vector, &task, &err), STATUS_OK);
    cr_expect_eq(task.kind, TASK_CLASSIFICATION);
    cr_expect(strstr(task.evidence, "lensd.json"), "%s", task.evidence);
    vector.is_headless = true;
    cr_assert_eq(task_decide(&vector, &task, &err), STATUS_OK);
    cr_expect_eq(task.kind, TASK_EMBEDDING);
    vector.is_headless = false;
    vector.text_size = 4;
    cr_expect_eq(task_decide(&vector, &task, &err), STATUS_MODEL);
    cr_expect(strstr(err.message, "have 4 numbers"), "%s", err.message);
    vector.text_size = 384;
    cr_assert_eq(task_decide(&vector, &task, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(task.kind, TASK_ZERO_SHOT);
    vector.configured_task = "classification";
    cr_expect_eq(task_decide(&vector, &task, &err), STATUS_MODEL);
    cr_expect(strstr(err.message, "zero_shot.json"), "%s", err.message);
    vector.text_size = 0;
    vector.configured_task = "embedding";
    cr_assert_eq(task_decide(&vector, &task, &err), STATUS_OK);
    cr_expect_eq(task.kind, TASK_EMBEDDING);
    vector.configured_task = "tensors";
    cr_assert_eq(task_decide(&vector, &task, &err), STATUS_OK);
    cr_expect_eq(task.kind, TASK_UNKNOWN);
    vector.configured_task = "detection";
    cr_expect_eq(task_decide(&vector, &task, &err), STATUS_MODEL);
    vector.configured_task = "poetry";
    cr_expect_eq(task_decide(&vector, &task, &err), STATUS_MODEL);
    vector.configured_task = NULL;
    vector.configured_layout = "yolov9000";
    cr_expect_eq(task_decide(&vector, &task, &err), STATUS_MODEL);
    cr_expect(strstr(err.message, "yolov8"), "%s", err.message);
    vector.configured_layout = "sam"; /* only mask decoders have it, which lensd recognises */
    cr_expect_eq(task_decide(&vector, &task, &err), STATUS_MODEL);
    cr_expect(strstr(err.message, "does not know"), "%s", err.message);
    vector.configured_layout = "detr";
    cr_expect_eq(task_decide(&vector, &task, &err), STATUS_MODEL, "it has one output");
    vector.configured_layout = "yolo-final";
    cr_assert_eq(task_decide(&vector, &task, &err), STATUS_OK);
    expect_layout(task, LAYOUT_YOLO_FINAL);
}

/* What was a classifier before lensd knew other tasks stays one. */
static void expect_classifier(struct task_facts facts, const struct session_tensor *outputs,
                              size_t count)
{
    struct task task;
    struct error err;
    facts.outputs = outputs;
    facts.output_count = count;
    facts.width = facts.height = 640;
    facts.options = TASK_OPTIONS_NONE;
    cr_assert_eq(task_decide(&facts, &task, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(task.kind, TASK_CLASSIFICATION, "%s", task.evidence);
}

Test(task, classifiers)
{
    const struct session_tensor logits = OUTPUT("output", 1, 1000),
                                image = OUTPUT("o", 1, 84, 1, 1);
    const struct task_facts none = {0}, six = {.label_count = 6}, thousand = {.label_count = 1000};
    expect_classifier(none, &logits, 1);
    expect_classifier(none, &image, 1);
    expect_classifier(none, &OUTPUT("o", 1, 84), 1);
    /* One row of scores with a dimension of 1 before them. */
    expect_classifier(none, &OUTPUT("o", 1, 1, 6), 1);
    expect_classifier(six, &OUTPUT("o", 1, 1, 6), 1);
    /* Scores of 4 classes with the best class and its score. */
    const struct session_tensor best[] = {
        OUTPUT("logits", 1, 4), {"label", DTYPE_I64, SHAPE(1)}, OUTPUT("score", 1)};
    expect_classifier(none, best, 3);
    /* Scores with the vector, or the maps, that they were made of. */
    const struct session_tensor vector[] = {OUTPUT("logits", 1, 1000), OUTPUT("features", 1, 512)};
    expect_classifier(none, vector, 2);
    const struct session_tensor tokens[] = {OUTPUT("logits", 1, 1000),
                                            OUTPUT("last_hidden_state", 1, 257, 384)};
    expect_classifier(none, tokens, 2);
    const struct session_tensor maps[] = {OUTPUT("logits", 1, 1000), OUTPUT("maps", 1, 1000, 7, 7)};
    expect_classifier(thousand, maps, 2);
    /* A class of one's own may be called a model. */
    const struct task_facts own = {.architecture = "LeafModel", .label_count = 1000};
    expect_classifier(own, &logits, 1);
}

Test(task, segmentation)
{
    struct task_facts facts = {.label_count = 21};
    const struct session_tensor map = OUTPUT("out", 1, 21, 64, 64);
    cr_expect_eq(decide(facts, &map, 1).kind, TASK_SEGMENTATION);
    facts.label_count = 20;
    cr_expect_eq(decide(facts, &map, 1).kind, TASK_UNKNOWN, "it may be any picture");
    facts.architecture = "SegformerForSemanticSegmentation";
    cr_expect_eq(decide(facts, &map, 1).kind, TASK_SEGMENTATION);
    facts = (struct task_facts){.configured_task = "segmentation"};
    cr_expect_eq(decide(facts, &map, 1).kind, TASK_SEGMENTATION);
}

Test(task, options)
{
    struct task_facts facts = {.metadata_task = "detect", .label_count = 80};
    const struct session_tensor output = OUTPUT("output0", 1, 84, 8400);
    struct task task = decide(facts, &output, 1);
    cr_expect_float_eq(task.options.confidence, .25f, 1e-7f);
    cr_expect_float_eq(task.options.iou, .7f, 1e-7f);
    cr_expect_eq(task.options.max_detections, 300);
    struct task_options asked = TASK_OPTIONS_NONE;
    asked.confidence = 0;
    asked.class_count = 1;
    asked.classes[0] = 7;
    asked = task_options_merge(&asked, &task.options);
    cr_expect_eq(asked.confidence, 0);
    cr_expect_float_eq(asked.iou, .7f, 1e-7f);
    cr_expect_eq(asked.classes[0], 7);
    cr_expect_eq(asked.agnostic, 0);
}

/* Their answers would differ from the framework's, so lensd.json must name the layout or the task.
 */
Test(task, inexact_architectures)
{
    const struct session_tensor masks[] = {OUTPUT("masks_queries_logits", 1, 20, 16, 16),
                                           OUTPUT("class_queries_logits", 1, 20, 5)};
    const struct session_tensor map = OUTPUT("predicted_depth", 1, 384, 512);
    struct task_facts eomt = {.architecture = "EomtForUniversalSegmentation"};
    struct task_facts zoe = {.architecture = "ZoeDepthForDepthEstimation"};
    struct task task = decide(eomt, masks, 2);
    cr_expect(task.kind == TASK_UNKNOWN && strstr(task.evidence, "\"maskformer\""), "%s",
              task.evidence);
    eomt.configured_layout = "maskformer";
    task = decide(eomt, masks, 2);
    cr_expect(task.kind == TASK_INSTANCES && task.outputs[0] == 1, "%s", task.evidence);
    task = decide(zoe, &map, 1);
    cr_expect(task.kind == TASK_UNKNOWN && strstr(task.evidence, "\"depth\""), "%s", task.evidence);
    zoe.configured_task = "depth";
    cr_expect_eq(decide(zoe, &map, 1).kind, TASK_DEPTH);
}
