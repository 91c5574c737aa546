#include "engine/cuda/conv_int8.cu"
