/* Conformance cases: folders with model.onnx and test_data_set_*, as the ONNX repository has them,
 * and `randfill` folders (weights made by a formula; the case's model lies one folder up). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/tensor/tensor.h"

struct conformance_case {
    char *name;   /* the last two parts of the folder's path: "public/test_add" */
    char *folder; /* where the data sets lie */
    char *model;  /* path of model.onnx */
    bool randfill;
    double gain; /* randfill: params.json */
    double rtol, atol;
};

struct case_list {
    struct conformance_case *cases; /* sorted by name */
    size_t count, capacity;
};

/* Adds every case below `folder`. Links are not followed, folders deeper than 8 levels are not
 * entered. */
enum status cases_find(struct case_list *list, const char *folder, struct error *err) MUST_USE;
void cases_done(struct case_list *list);

/* A whole file, malloc'ed, with a terminator behind it. */
enum status read_whole(const char *path, char **ret, size_t *ret_size, struct error *err) MUST_USE;

/* Number of data sets of a case (1 for randfill), and of files "input_<i>.pb" in one. */
size_t case_sets(const struct conformance_case *c);

/* Input / output i of a data set; STATUS_NOT_FOUND when there is no such file. */
enum status case_tensor(const struct conformance_case *c, size_t set, const char *kind, size_t i,
                        struct tensor **ret, struct error *err) MUST_USE;
