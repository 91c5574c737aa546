#include "engine/cuda/rows.cu"
