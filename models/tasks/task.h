/* A model's task, the layout of its outputs, and the options of its answers.
 *
 * task_decide() determines these from the model's files when the model is loaded. answer.h makes
 * the answers. Pure functions; any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/runtime/session.h"
#include "models/tasks/mask.h"

enum task_kind {
    TASK_UNKNOWN, /* the meaning of the outputs is unknown: clients get only tensors */
    TASK_CLASSIFICATION,
    TASK_DETECTION,
    TASK_EMBEDDING,
    TASK_SEGMENTATION, /* semantic: a class for each pixel */
    TASK_POSE,         /* boxes with key points */
    TASK_ORIENTED,     /* boxes with an angle */
    TASK_INSTANCES,    /* boxes, each with the mask of its object */
    TASK_ZERO_SHOT,    /* an embedding, compared with embeddings of texts */
    TASK_DEPTH,        /* a distance, or its inverse, for each pixel */
    TASK_TEXT_BOXES,   /* boxes of lines of text, given by corners */
    TASK_TEXT,         /* a line of text */
    TASK_ANOMALY,      /* an anomaly score, with a map and a mask */
    TASK_MASKS,        /* masks of the objects that points and a box mark */
};

#define TASK_KINDS (TASK_MASKS + 1)

/* The outputs of a detector for one image. A: candidates, C: classes, Q: queries. Boxes are in
 * pixels of the model's input, or are shares (0 … 1) of its sides. Candidates of YOLOV8 and
 * YOLO_FINAL may have more numbers at the end: for TASK_POSE x, y (and a score) of each key point;
 * for TASK_ORIENTED the angle, with centre and size instead of corners in YOLO_FINAL; for
 * TASK_INSTANCES factors of the masks' prototypes, [P, height, width], in the last output.
 * TORCHVISION may have masks, [N, 1, height, width], as its last output; DETR_SIGMOID and RFDETR
 * may have logits of masks, [Q, height, width]. */
enum task_layout {
    LAYOUT_NONE,
    LAYOUT_YOLOV8,       /* [4 + C, A]: centre, size, scores; YOLOv8, 9, 11, 12 */
    LAYOUT_YOLOV5,       /* [A, 5 + C]: centre, size, objectness, scores; YOLOv5, 7 */
    LAYOUT_YOLOX,        /* as YOLOV5, but centre and size are relative to YOLOX's grids */
    LAYOUT_YOLOX_PIXELS, /* as YOLOV5: YOLOX exported with --decode_in_inference */
    LAYOUT_YOLO_FINAL,   /* [Q, 6]: corners, score, class; nms=True, YOLOv10, YOLO26 */
    LAYOUT_RTDETR,       /* [Q, 4 + C]: centre and size as shares, scores; Ultralytics' RT-DETR */
    LAYOUT_RTDETR_FINAL, /* [Q, 6]: centre and size as shares, score, class; RT-DETR since 8.4 */
    LAYOUT_DETR,         /* logits [Q, C + 1] for a softmax, boxes [Q, 4] as shares */
    LAYOUT_DETR_SIGMOID, /* logits [Q, C] for a sigmoid, boxes as in DETR; RT-DETR, D-FINE */
    LAYOUT_TORCHVISION,  /* boxes [N, 4] by corners, labels [N], scores [N] */
    LAYOUT_TENSORFLOW,   /* boxes [N, 4] as shares (y1, x1, y2, x2), classes, scores, count [] */
    LAYOUT_RTDETR_LISTS, /* as TORCHVISION, with a batch; RT-DETR's and D-FINE's own exports */
    LAYOUT_RFDETR,       /* as DETR_SIGMOID: RF-DETR */
    LAYOUT_PANOPTIC,     /* logits [Q, C + 1] for a softmax, masks [Q, height, width] for a sigmoid;
                            each pixel belongs to one query; DETR */
    LAYOUT_MASKFORMER,   /* as PANOPTIC, but masks may overlap; MaskFormer, Mask2Former */
    LAYOUT_YUNET,        /* for cells 8, 16 and 32 pixels wide: class scores [A, 1], objectness
                            [A, 1], boxes [A, 4] and points [A, 10]: 12 outputs; YuNet */
    LAYOUT_TEXT,         /* [1, height, width]: probability that a point is text; PP-OCR */
    LAYOUT_SCRFD,        /* for cells 8, 16 and 32 pixels wide, two anchors per cell: scores [A, 1],
                            then distances to a box's sides [A, 4], then points [A, 10]; InsightFace */
    LAYOUT_SCRFD_FLAT,   /* as SCRFD without a batch: one image per run */
    LAYOUT_YOLO_NAS,     /* boxes [A, 4] by corners, scores [A, C]; YOLO-NAS */
    LAYOUT_YOLO_NAS_FLAT, /* [n, 7] of one image: the image's number, corners, score, class */
    LAYOUT_OWL,       /* logits [Q, words] for a sigmoid, boxes [Q, 4] as shares; OWL-ViT, OWLv2 */
    LAYOUT_GROUNDING, /* as OWL, but logits are per token of all words; Grounding DINO */
    LAYOUT_HEATMAPS,  /* a map per key point of one body: [K, height, width]; VitPose */
    LAYOUT_PADDLE,    /* [Q, 6]: class, score, corners; the count of rows; PaddleDetection */
    LAYOUT_PADDLE_FLAT, /* as PADDLE without a batch: one image per run */
    LAYOUT_SAM,         /* logits of masks [.., M, height, width], and the masks' scores [.., M] */
};

/* Maximum number of outputs of a layout. */
#define TASK_MAX_OUTPUTS 12

/* Limits. */
#define TASK_MAX_CLASSES    64    /* classes in a request */
#define TASK_MAX_DETECTIONS 1000  /* boxes in an answer */
#define TASK_MAX_DIMENSIONS 65536 /* numbers of a vector */
#define TASK_MAX_POINTS     256   /* key points of a box, or prototypes of masks */
#define TASK_TRACK_MAX      64    /* bytes of the option "track", a camera's name */

#define FACE_POINTS  5 /* key points of a face */
#define TEXT_CORNERS 4 /* corners of a text box, which are struct task_point, too */

/* The form in which a detector takes words with a photo. */
enum word_form {
    WORDS_NONE,
    WORDS_VECTORS, /* one vector per word, made by the text encoder */
    WORDS_TOKENS,  /* tokens of one text: "a dog. a cat." */
};

/* The words that a request looks for; they are classes 0 … count - 1. */
struct task_words {
    size_t count;
    const uint16_t *of_tokens; /* WORDS_TOKENS: each token's word, or `count` if none; borrowed */
    size_t token_count;
};

/* Options of answers. Each member is taken from the first source that gives it, in this order: the
 * request, the command line, the model's folder, the layout's default. */
struct task_options {
    float confidence;   /* keep boxes whose score is above this, 0 … 1; -1: not given */
    float iou;          /* drop boxes that overlap a better box by more than this; -1: not given */
    int max_detections; /* 1 … TASK_MAX_DETECTIONS; 0: not given */
    int agnostic;       /* 1: boxes of different classes also suppress each other; -1: not given */
    size_t class_count; /* number of `classes`, which answers may have; 0: all classes */
    uint32_t classes[TASK_MAX_CLASSES];
    const char *class_names; /* class numbers and labels, comma-separated, which
                                model_find_classes() turns into `classes`; borrowed; NULL: none */
    int normalize;           /* embeddings: 1: scale to length 1; -1: not given */
    int dimensions;       /* embeddings: keep so many numbers, scaled to length 1; 0: not given */
    enum mask_form masks; /* form of masks in answers */
    const char *track;    /* option "track", a camera's name (tracker.h); borrowed; NULL: none */
    const struct task_words *words; /* words of a request; borrowed; NULL: none */
};

#define TASK_OPTIONS_NONE                                                                          \
    ((struct task_options){.confidence = -1, .iou = -1, .agnostic = -1, .normalize = -1})

/* Returns `first`, with members that are not given taken from `second`. If first->track is set, the
 * confidence is TRACKER_LOW, because the requested confidence applies to the tracker's answer. */
struct task_options task_options_merge(const struct task_options *first,
                                       const struct task_options *second);

/* True if the options allow this class in an answer. */
bool task_option_wants(const struct task_options *options, uint32_t index);

/* Parses a whole number from 1 to `most`. STATUS_INVALID. */
enum status task_option_whole(const char *name, const char *text, int most, int *ret,
                              struct error *err) MUST_USE;

/* Parses the text of the option `name`: "0.25", "100", "0,2,5", "person,2", "true". The texts of
 * track and of classes with labels are borrowed. STATUS_INVALID states the expected form. */
enum status task_option_set(struct task_options *options, const char *name, const char *text,
                            struct error *err) MUST_USE;

struct task {
    enum task_kind kind;
    enum task_layout layout;
    size_t output_count;
    size_t outputs[TASK_MAX_OUTPUTS];  /* indexes in the graph's outputs, in the layout's order */
    size_t point_count, point_numbers; /* TASK_POSE: points in a box, numbers in a point */
    size_t prototypes;                 /* TASK_INSTANCES of YOLO: number of prototypes (P) */
    unsigned anomaly_parts;            /* TASK_ANOMALY: a bit 1u << anomaly_part per output */
    /* TASK_TEXT_BOXES: each side of a box moves outwards by this ratio times area / perimeter, and
     * corners are whole points of the map, as in PaddleOCR and rapidocr. 0: the ratio is 1.5, and
     * corners are exact, as in Transformers. */
    float unclip_ratio;
    bool dilates; /* TASK_TEXT_BOXES: first extend text by a point to the right and below */
    /* Mask2Former: interpolate masks to this side first. SAM: if not 0, interpolate masks to the
     * side of the model's input first. Other models: 0. */
    int mask_side;
    bool exceeds_queries;        /* LAYOUT_DETR_SIGMOID: a photo may have more boxes than queries */
    struct task_options options; /* complete: every member is given */
    bool is_tensors;             /* lensd.json says "task": "tensors"; the kind is TASK_UNKNOWN */
    char evidence[240];          /* why the model has this task; for TASK_UNKNOWN also what to do */
};

/* True if the option with this name applies to answers of this task. */
bool task_has_option(const struct task *task, const char *name);

/* Checks that a request's options (NULL: none) and top_k apply to answers of this task.
 * STATUS_INVALID names the option, the task and its options. */
enum status task_options_check(const struct task *task, const struct task_options *asked,
                               bool asks_top_k, struct error *err) MUST_USE;

/* Facts from a model's files. NULL or 0: missing. All pointers are borrowed. */
struct task_facts {
    const struct session_tensor *outputs; /* shapes may be unknown */
    size_t output_count;
    size_t class_output;  /* the output with one score per class; SIZE_MAX: none */
    char class_note[256]; /* why there is no class_output; or a clause "; …" for the end of
                             `evidence`; or "" */
    int width, height;    /* of the model's input, pixels */
    size_t label_count;
    bool has_exp;    /* the graph has an Exp */
    bool has_scales; /* PaddleDetection's input 'scale_factor' was filled */

    const char *configured_task, *configured_layout; /* "task" and "layout" of lensd.json */
    const char *configured_output;                   /* "output" of lensd.json */
    struct task_options options;                     /* options in lensd.json */

    const char *metadata_task; /* Ultralytics: "detect", "classify" … */
    const char *description;   /* Ultralytics: "Ultralytics YOLO11n model trained on …" */
    const char *point_shape;   /* Ultralytics' kpt_shape: "[17, 3]", "(17, 3)" */
    bool is_final;             /* Ultralytics: exported with nms=True, or end to end */

    const char *architecture; /* config.json: "DetrForObjectDetection" */
    size_t text_size;         /* zero_shot.json: length of a text's vector; 0: no such file */
    bool is_headless;         /* config.json of timm: num_classes is 0 */
    bool are_characters;      /* labels are characters of text */
    bool takes_texts;         /* the model's inputs are tokens of texts */
    enum word_form words;     /* how the model takes words with a photo */
    bool is_encoder;          /* the model encodes photos for a mask decoder in another file */
    bool makes_masks;         /* the model is a mask decoder; mask_side is as in struct task */
    int mask_side;
    bool is_half; /* the graph is one half of a model, such as the encoder of texts */
};

/* Decides the task. STATUS_MODEL if the outputs do not fit the task in lensd.json. */
enum status task_decide(const struct task_facts *facts, struct task *ret,
                        struct error *err) MUST_USE;

/* Returns the name: "classification" …; "unknown". */
const char *task_name(enum task_kind kind);

/* Returns how many numbers of a candidate follow its box, scores and class. */
size_t task_extras(const struct task *task);

/* True if answers are boxes (struct detections), possibly with points, an angle or masks. */
bool task_has_boxes(enum task_kind kind);

/* True if the layout has one mask for each query. Boxes surround these masks. */
static inline bool task_layout_is_masks(enum task_layout layout)
{
    return layout == LAYOUT_PANOPTIC || layout == LAYOUT_MASKFORMER;
}

/* True if the layout's boxes are faces with FACE_POINTS points. */
static inline bool task_layout_is_faces(enum task_layout layout)
{
    return layout == LAYOUT_YUNET || layout == LAYOUT_SCRFD || layout == LAYOUT_SCRFD_FLAT;
}

/* True if the layout's outputs have one row per image. Otherwise a run can have only one image. */
bool task_layout_has_rows(enum task_layout layout);
