/* The names of tasks; the layouts of detectors' outputs: names, and the thresholds of the
 * frameworks they come from. */
#include "models/tasks/decoders.h"

#include "engine/base/size.h"

/* Sources: Ultralytics' predictor (confidence 0.25, IoU 0.7, 300 boxes), YOLOv5's detect.py (0.25,
 * 0.45, 1000), YOLOX's demo.py (0.3, 0.3), Hugging Face's object-detection pipeline (0.5),
 * TorchServe's object_detector and TensorFlow's visualisation (0.5), rfdetr's predict() (0.5),
 * post_process_instance_segmentation() of Hugging Face (0.5), OpenCV's FaceDetectorYN (0.9, 0.3),
 * PaddleOCR's box_thresh (0.6), InsightFace's SCRFD (0.5, 0.4), YOLO-NAS's predict() in
 * SuperGradients (0.25, 0.7), PaddleDetection's deploy/python/infer.py (0.5),
 * post_process_object_detection() of OWL (0.1) and post_process_grounded_object_detection() of
 * Grounding DINO (0.25). Layouts without suppression have an IoU of 1. */
const struct layout_entry task_layouts[] = {
    [LAYOUT_NONE] = {"", 0, 0, 1, 0, true},
    [LAYOUT_YOLOV8] = {"yolov8", 1, 0.25f, 0.7f, 300, true},
    [LAYOUT_YOLOV5] = {"yolov5", 1, 0.25f, 0.45f, 1000, true},
    [LAYOUT_YOLOX] = {"yolox", 1, 0.3f, 0.3f, 300, true},
    [LAYOUT_YOLOX_PIXELS] = {"yolox-pixels", 1, 0.3f, 0.3f, 300, true},
    [LAYOUT_YOLO_FINAL] = {"yolo-final", 1, 0.25f, 1, 300, true},
    [LAYOUT_RTDETR] = {"rt-detr", 1, 0.25f, 1, 300, true},
    [LAYOUT_RTDETR_FINAL] = {"rt-detr-final", 1, 0.25f, 1, 300, true},
    [LAYOUT_DETR] = {"detr", 2, 0.5f, 1, 300, true},
    [LAYOUT_DETR_SIGMOID] = {"detr-sigmoid", 2, 0.5f, 1, 300, true},
    [LAYOUT_TORCHVISION] = {"torchvision", 3, 0.5f, 1, 300, false},
    [LAYOUT_TENSORFLOW] = {"tensorflow", 3, 0.5f, 1, 300, true},
    [LAYOUT_RTDETR_LISTS] = {"rt-detr-lists", 3, 0.5f, 1, 300, true},
    [LAYOUT_RFDETR] = {"rf-detr", 2, 0.5f, 1, 300, true},
    [LAYOUT_PANOPTIC] = {"panoptic", 2, 0.5f, 1, 300, true},
    [LAYOUT_MASKFORMER] = {"maskformer", 2, 0.5f, 1, 300, true},
    [LAYOUT_YUNET] = {"yunet", 12, 0.9f, 0.3f, 300, true},
    [LAYOUT_TEXT] = {"text", 1, 0.6f, 1, 1000, true},
    [LAYOUT_SCRFD] = {"scrfd", 9, 0.5f, 0.4f, 300, true},
    [LAYOUT_SCRFD_FLAT] = {"scrfd-flat", 9, 0.5f, 0.4f, 300, false},
    [LAYOUT_YOLO_NAS] = {"yolo-nas", 2, 0.25f, 0.7f, 300, true},
    [LAYOUT_YOLO_NAS_FLAT] = {"yolo-nas-flat", 1, 0.25f, 1, 300, false},
    [LAYOUT_OWL] = {"owl", 2, 0.1f, 1, 300, true},
    [LAYOUT_GROUNDING] = {"grounding-dino", 2, 0.25f, 1, 300, true},
    [LAYOUT_HEATMAPS] = {"heatmaps", 1, 0, 1, 1, true},
    [LAYOUT_PADDLE] = {"paddle", 2, 0.5f, 1, 300, true},
    [LAYOUT_PADDLE_FLAT] = {"paddle-flat", 2, 0.5f, 1, 300, false},
    [LAYOUT_SAM] = {"sam", 2, 0, 1, 300, false},
};
const size_t task_layout_count = COUNT_OF(task_layouts);

static const char *const task_names[] = {
    [TASK_UNKNOWN] = "unknown",
    [TASK_CLASSIFICATION] = "classification",
    [TASK_DETECTION] = "detection",
    [TASK_EMBEDDING] = "embedding",
    [TASK_SEGMENTATION] = "segmentation",
    [TASK_POSE] = "pose",
    [TASK_ORIENTED] = "oriented-boxes",
    [TASK_INSTANCES] = "instance-segmentation",
    [TASK_DEPTH] = "depth",
    [TASK_ZERO_SHOT] = "zero-shot",
    [TASK_TEXT_BOXES] = "text-detection",
    [TASK_TEXT] = "text-recognition",
    [TASK_ANOMALY] = "anomaly",
    [TASK_MASKS] = "mask-generation",
};

const char *task_name(enum task_kind kind)
{
    return task_names[kind];
}

bool task_has_boxes(enum task_kind kind)
{
    return kind == TASK_DETECTION || kind == TASK_POSE || kind == TASK_ORIENTED ||
           kind == TASK_INSTANCES || kind == TASK_TEXT_BOXES || kind == TASK_MASKS;
}

bool task_layout_has_rows(enum task_layout layout)
{
    return task_layouts[layout].has_rows;
}

size_t task_extras(const struct task *task)
{
    return task->kind == TASK_POSE        ? task->point_count * task->point_numbers
           : task->kind == TASK_ORIENTED  ? 1
           : task->kind == TASK_INSTANCES ? task->prototypes
                                          : 0;
}

struct extra_numbers detect_extras(const struct task *task, const struct task_rows *rows,
                                   uint32_t place)
{
    const size_t columns = (size_t)rows->shape.dims[1];
    if (task->layout == LAYOUT_YOLO_FINAL)
        return (struct extra_numbers){rows->data + place * columns + 6, 1};
    const size_t before = (size_t)rows->shape.dims[0] - task_extras(task);
    return (struct extra_numbers){rows->data + before * columns + place, columns};
}
