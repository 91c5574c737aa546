#include "engine/cuda/int8_rows.cu"
